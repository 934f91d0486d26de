// Opening a backend by the name of its device. The CPU's backend is part of every program; others are plug-ins, shared
// objects that are loaded when they are asked for, so that a program needs neither a GPU nor its libraries.
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/plugin.h"
#include "shared/base/log.h"

// The first of the places where a plug-in may be that has the file: beside the program (its directory, or `lib` next
// to that), $CARAVAN_LIB, the directory of `make install`. UNAVAILABLE if none has it.
static status open_find_plugin(const char *device, const char *file, char path[PATH_MAX]) {
    char program[PATH_MAX] = "";
    ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    const char *directory = size > 0 ? dirname(program) : ".", *set = getenv("CARAVAN_LIB");
    for (int place = 0; place < 4; place++) {
        if (place == 2 && !set) continue;
        int written = place == 0   ? snprintf(path, PATH_MAX, "%s/%s", directory, file)
                      : place == 1 ? snprintf(path, PATH_MAX, "%s/../lib/%s", directory, file)
                                   : snprintf(path, PATH_MAX, "%s/%s", place == 2 ? set : CARAVAN_LIBDIR, file);
        if (written < PATH_MAX && access(path, F_OK) == 0) return OK;
    }
    return fail(UNAVAILABLE, "device %s: there is no %s beside the program, in %s or in %s", device, file,
                set ? set : "$CARAVAN_LIB", CARAVAN_LIBDIR);
}

// A plug-in stays loaded until the program ends.
static status open_plugin(struct backend **out, const struct backend_options *options, const char *device,
                          const char *file, int number) {
    char path[PATH_MAX];
    TRY(open_find_plugin(device, file, path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(UNAVAILABLE, "device %s: cannot load the plug-in: %s", device, dlerror());
    const struct plugin *plugin = dlsym(library, "caravan_plugin");
    if (!plugin) return fail(UNAVAILABLE, "device %s: %s is not a plug-in of caravan", device, path);
    if (strcmp(plugin->version, CARAVAN_VERSION) != 0 || plugin->operations_bytes != sizeof(struct operations))
        return fail(UNAVAILABLE, "device %s: %s belongs to another version of caravan", device, path);
    return plugin->open(out, options, number);
}

// *number = N of NAME:N, -1 without one. False if `device` is not of this name.
static bool open_matches(const char *device, const char *name, int *number) {
    size_t size = strlen(name);
    *number = -1;
    if (strncmp(device, name, size) != 0) return false;
    if (device[size] == 0) return true;
    char *end;
    errno = 0;
    long value = strtol(device + size + 1, &end, 10);
    *number = (int)value;
    return device[size] == ':' && device[size + 1] >= '0' && device[size + 1] <= '9' && *end == 0 && errno == 0 &&
           value <= INT_MAX;
}

// The best device: a GPU if there is one, otherwise the CPU. A GPU that does not open is not replaced by the CPU: its
// bits are others, and a large model would take weeks there.
static status open_best(struct backend **out, const struct backend_options *options) {
    static const char file[] = "libcaravan-cuda.so";
    char path[PATH_MAX];
    const bool gpu = access("/dev/nvidiactl", F_OK) == 0, plugin = open_find_plugin("cuda", file, path) == OK;
    const status result = plugin ? open_plugin(out, options, "cuda", file, -1) : UNAVAILABLE;
    if (result == OK) return OK;
    if (gpu && plugin) return fail(result, "%s; --device cpu computes on the CPU", fail_text());
    if (gpu)
        log_info("using the CPU: %s", fail_text());
    else
        log_debug("using the CPU: %s", fail_text());
    return cpu_backend_open(out, options);
}

status backend_open(struct backend **out, const struct backend_options *options) {
    const char *device = options->device;
    int number;
    *out = NULL;
    if (!device) return open_best(out, options);
    if (strcmp(device, "cpu") == 0) return cpu_backend_open(out, options);
    if (open_matches(device, "cuda", &number)) return open_plugin(out, options, device, "libcaravan-cuda.so", number);
    if (open_matches(device, "emulated", &number))
        return open_plugin(out, options, device, "libcaravan-emulated.so", number);
    return fail(USAGE, "unknown device %s: expected cpu, cuda, cuda:N or emulated", device);
}

void backend_close(struct backend **backend) {
    if (!*backend) return;
    (*backend)->ops->close(*backend);
    *backend = NULL;
}

status backend_get_info(struct backend *backend, struct backend_info *out) {
    return backend->ops->info(backend, out);
}

status backend_supports(struct backend *backend, enum element type) {
    return backend->ops->supports(backend, type);
}
