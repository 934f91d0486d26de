// What the emulator's plug-in tells a test: about its devices' memory under the name emulated_memory, about its kernels
// under emulated_kernels.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct emulated_memory {
    size_t used, peak; // bytes of all devices in this process; the test may set the peak
    bool sizes_only;   // set by the test: kernels compute nothing
};

// An element of a list; emulated_kernels is the address of the first one. A template has one for each instance.
struct emulated_kernel {
    const char *name; // with the arguments of its template
    bool launched;    // in this process
    bool loaded;      // by a launch, or before; a kernel that is not may not be launched while a stream is recorded
    struct emulated_kernel *next;
};
