// What the plug-in of the emulator tells a test about its kernels, under the name emulated_kernels.
#pragma once

#include <stdbool.h>

// An element of a list; emulated_kernels is the address of the first one. A template has one for each instance.
struct emulated_kernel {
    const char *name; // with the arguments of its template
    bool launched;    // in this process
    bool loaded;      // by a launch, or before; a kernel that is not may not be launched while a stream is recorded
    struct emulated_kernel *next;
};
