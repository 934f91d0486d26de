// What a plug-in with a backend (libcaravan-cuda.so, libcaravan-emulated.so) exports: one `struct plugin` under the
// name caravan_plugin. It uses the functions of the program that are listed in make/cuda.mk (PLUGIN_IMPORTS), such as
// fail and log_info. kernels/open.c loads it.
#ifndef KERNELS_PLUGIN_H
#define KERNELS_PLUGIN_H

#include "kernels/ops.h"

struct plugin {
    const char *version;     // CARAVAN_VERSION
    size_t operations_bytes; // sizeof(struct operations): a program takes only a plug-in with the same operations
    // As backend_open. `number` is that of the device, -1 if none was named.
    status (*open)(struct backend **out, const struct backend_options *options, int number);
};

#endif
