// Reads any bytes as a difference of weights: nothing behind the file's size is written, and memory stays bounded. The
// first two bytes choose the file's size.
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/stage/run_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct stat info;
    if (size < 2) return 0;
    const int64_t total = 1 + 37 * (data[0] | data[1] << 8); // above the size of a block too
    const int difference = memfd_create("fuzz", 0), base = memfd_create("fuzz", 0), out = memfd_create("fuzz", 0);
    fuzz_must(fd_pwrite_all(difference, data + 2, size - 2, 0));
    fuzz_must(!ftruncate(base, total));
    const status result = weights_difference_apply(difference, base, total, out);
    fuzz_must(!fstat(out, &info) && info.st_size <= total && (result != OK || info.st_size == total));
    fuzz_must(result == OK || result == DATAERR);
    close(difference), close(base), close(out);
    return 0;
}
