// What the plug-in of the emulator tells a test about its devices' memory, under the name emulated_memory.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct emulated_memory {
    size_t used, peak; // bytes of all devices in this process; the test may set the peak
    bool sizes_only;   // set by the test: kernels compute nothing
};
