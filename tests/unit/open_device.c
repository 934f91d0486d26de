// Opening a backend without the name of a device: a GPU that is there and does not open is said, and never replaced by
// the CPU. The test says whether the driver's device file is there.
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "shared/base/file.h"

static bool gpu_is_there;

int __real_access(const char *path, int mode); // the linker's name for the C library's
int __wrap_access(const char *path, int mode); // takes its place

int __wrap_access(const char *path, int mode) {
    if (strcmp(path, "/dev/nvidiactl") == 0) return gpu_is_there ? 0 : -1;
    return __real_access(path, mode);
}

// The name of the backend that opens without a device; NULL when none does.
static const char *best(void) {
    struct backend *backend;
    if (backend_open(&backend, &(struct backend_options){.threads = 1}) != OK) {
        assert_null(backend);
        return NULL;
    }
    const char *name = backend->ops->name;
    backend_close(&backend);
    return name;
}

TEST(a_gpu_that_does_not_open_is_not_replaced_by_the_cpu) {
    const char *dir = unit_new_directory();
    char plugin[96];
    snprintf(plugin, sizeof plugin, "%s/libcaravan-cuda.so", dir);
    setenv("CARAVAN_LIB", dir, 1);
    gpu_is_there = true; // without the plug-in
    assert_string_equal(best(), "cpu");
    assert_int_equal(file_write_atomic(plugin, "no plug-in", 10), OK);
    gpu_is_there = false;
    assert_string_equal(best(), "cpu");
    gpu_is_there = true;
    assert_null(best());
    assert_non_null(strstr(fail_text(), "cannot load the plug-in"));
    assert_non_null(strstr(fail_text(), "--device cpu computes on the CPU"));
    SCOPED(struct backend *, backend_close) backend = NULL;
    assert_int_equal(backend_open(&backend, &(struct backend_options){.device = "cpu", .threads = 1}), OK);
}
