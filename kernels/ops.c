// What ops.h declares besides the operations: opening a backend by the name of its device, and views of tensors; and
// the questions about tensors of backend.h.
//
// The CPU's backend is part of every program; others are plug-ins, shared objects that are loaded when they are asked
// for, so that a program needs neither a GPU nor its libraries.
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "shared/base/log.h"

// ---- open ----

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

status backend_open(struct backend **out, const struct backend_options *options) {
    static const char cuda[] = "libcaravan-cuda.so";
    const char *device = options->device;
    int number;
    *out = NULL;
    if (device && strcmp(device, "cpu") == 0) return cpu_backend_open(out, options);
    if (device && open_matches(device, "cuda", &number)) return open_plugin(out, options, device, cuda, number);
    if (device && open_matches(device, "emulated", &number))
        return open_plugin(out, options, device, "libcaravan-emulated.so", number);
    if (device) return fail(USAGE, "unknown device %s: expected cpu, cuda, cuda:N or emulated", device);

    // The best device: a GPU if there is one, otherwise the CPU. A GPU that does not open is not replaced by the CPU:
    // its bits are others, and a large model would take weeks there.
    char path[PATH_MAX];
    const bool gpu = access("/dev/nvidiactl", F_OK) == 0, plugin = open_find_plugin("cuda", cuda, path) == OK;
    const status result = plugin ? open_plugin(out, options, "cuda", cuda, -1) : UNAVAILABLE;
    if (result == OK) return OK;
    if (gpu && plugin) return fail(result, "%s; --device cpu computes on the CPU", fail_text());
    if (gpu)
        log_info("using the CPU: %s", fail_text());
    else
        log_debug("using the CPU: %s", fail_text());
    return cpu_backend_open(out, options);
}

void backend_close(struct backend **backend) {
    if (!*backend) return;
    (*backend)->ops->close(*backend);
    *backend = NULL;
}

// ---- tensors ----

static_assert(sizeof(float) == 4 && sizeof(int32_t) == 4 && sizeof(uint16_t) == 2, "sizes of elements");

size_t element_size(enum element type) {
    static const size_t sizes[] = {[ELEMENT_F32] = 4, [ELEMENT_BF16] = 2, [ELEMENT_F16] = 2,
                                   [ELEMENT_I32] = 4, [ELEMENT_U8] = 1,   [ELEMENT_U16] = 2};
    static_assert(sizeof sizes / sizeof *sizes == ELEMENT_U16 + 1, "a size for every type");
    return sizes[type];
}

struct tensor tensor_rows(struct tensor whole, int64_t first, int64_t rows) {
    whole.offset += (size_t)(first * whole.stride) * element_size(whole.type);
    whole.rows = rows;
    return whole;
}

struct tensor tensor_columns(struct tensor whole, int64_t first, int64_t columns) {
    whole.offset += (size_t)first * element_size(whole.type);
    whole.columns = columns;
    return whole;
}

struct tensor tensor_reshape(struct tensor whole, int64_t rows, int64_t columns) {
    whole.rows = rows;
    whole.columns = columns;
    whole.stride = columns;
    return whole;
}

bool tensor_within(struct tensor t, size_t bytes) {
    if (t.rows < 0 || t.columns < 0 || (t.rows > 1 && t.stride < t.columns)) return false;
    if (t.rows == 0 || t.columns == 0) return true;
    size_t elements = (size_t)((t.rows - 1) * t.stride + t.columns);
    return t.offset + elements * element_size(t.type) <= bytes;
}

bool tensor_shaped(struct tensor t, int type, int64_t rows, int64_t columns) {
    bool same_type = type < 0 ? t.type == ELEMENT_F32 || t.type == ELEMENT_BF16 : t.type == (enum element)type;
    return same_type && t.rows == rows && t.columns == columns;
}

bool patch_shape_counts(const struct patch_shape *s, int64_t *patches, int64_t *columns) {
    int64_t unit = (int64_t)s->patch_size * s->merge_size;
    if (s->frames <= 0 || s->height % unit != 0 || s->width % unit != 0) return false;
    int64_t times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size;
    *patches = times * (s->height / s->patch_size) * (s->width / s->patch_size);
    *columns = (int64_t)3 * s->temporal_patch_size * s->patch_size * s->patch_size;
    return true;
}
