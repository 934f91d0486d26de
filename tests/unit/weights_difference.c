// The difference between two versions of a file of weights: what is made again is equal to the bit; what is no
// difference, or damaged, is refused and never writes more than the file.
#include "tests/unit/unit.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "shared/base/file.h"
#include "shared/base/rng.h"
#include "shared/stage/run_weights.h"

enum { BLOCK = 1 << 20 };

static const atomic_bool never;

static int new_file(const void *data, size_t size) {
    const int fd = memfd_create("caravan-unit", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(fd_pwrite_all(fd, data, size, 0));
    return fd;
}

static int64_t size_of(int fd) {
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    return info.st_size;
}

// Two files of random bytes that differ in one number of 200.
struct versions {
    size_t size;
    uint8_t *before, *after;
    int base, file, difference;
};

static void open_versions(struct versions *versions, size_t size) {
    *versions = (struct versions){.size = size, .before = malloc(size), .after = malloc(size)};
    for (size_t i = 0; i < size; i++) versions->before[i] = (uint8_t)(rng_bits(size, i / 8, 0) >> 8 * (i % 8));
    memcpy(versions->after, versions->before, size);
    for (size_t i = 0; i < size; i += 200) versions->after[i] ^= 1;
    versions->base = new_file(versions->before, size);
    versions->file = new_file(versions->after, size);
    versions->difference = new_file("", 0);
}

static void close_versions(struct versions *versions) {
    close(versions->base), close(versions->file), close(versions->difference);
    free(versions->before), free(versions->after);
}

// Applies bytes as a difference; the copy must be right if that is OK. Returns the status.
static status apply(const struct versions *versions, const void *difference, size_t count) {
    const int given = new_file(difference, count), out = new_file("", 0);
    const status result = weights_difference_apply(given, versions->base, (int64_t)versions->size, out);
    assert_true(size_of(out) <= (int64_t)versions->size);
    if (result == OK) {
        uint8_t *copy = malloc(versions->size);
        assert_int_equal(size_of(out), versions->size);
        assert_true(fd_pread_all(out, copy, versions->size, 0));
        assert_memory_equal(copy, versions->after, versions->size);
        free(copy);
    }
    close(given), close(out);
    return result;
}

// Makes the difference and returns its bytes.
static struct buf make(const struct versions *versions) {
    struct buf bytes = {0};
    assert_int_equal(weights_difference_make(versions->base, versions->file, INT64_MAX, &never, versions->difference),
                     OK);
    bytes.size = (size_t)size_of(versions->difference);
    bytes.data = malloc(bytes.size);
    assert_true(fd_pread_all(versions->difference, bytes.data, bytes.size, 0));
    return bytes;
}

TEST(a_file_is_made_again) {
    static const size_t sizes[] = {1, 3, 4, 1001, BLOCK - 1, BLOCK, 2 * BLOCK + 4098};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct versions versions;
        open_versions(&versions, sizes[i]);
        struct buf bytes = make(&versions);
        if (sizes[i] > BLOCK) assert_true(bytes.size < sizes[i] / 50);
        assert_int_equal(apply(&versions, bytes.data, bytes.size), OK);
        free(bytes.data);
        close_versions(&versions);
    }
}

TEST(what_is_too_large_is_not_made) {
    struct versions versions;
    open_versions(&versions, 3000);
    struct buf bytes = make(&versions);
    const int64_t size = (int64_t)bytes.size;
    assert_int_equal(ftruncate(versions.difference, 0), 0);
    assert_int_equal(weights_difference_make(versions.base, versions.file, size, &never, versions.difference), OK);
    assert_int_equal(weights_difference_make(versions.base, versions.file, size - 1, &never, versions.difference),
                     BAD_SAMPLE);
    const int other = new_file("longer than the base", 20), empty = new_file("", 0);
    assert_int_equal(weights_difference_make(versions.base, other, 9999, &never, versions.difference), BAD_SAMPLE);
    assert_int_equal(weights_difference_make(empty, empty, 9999, &never, versions.difference), BAD_SAMPLE);
    const atomic_bool stop = true;
    assert_int_equal(weights_difference_make(versions.base, versions.file, 9999, &stop, versions.difference), END);
    close(other), close(empty);
    free(bytes.data);
    close_versions(&versions);
}

TEST(what_is_damaged_is_refused) {
    struct versions versions;
    open_versions(&versions, 2000);
    struct buf bytes = make(&versions);
    for (size_t i = 0; i < bytes.size; i++) {
        assert_int_equal(apply(&versions, bytes.data, i), DATAERR);
        bytes.data[i] ^= 0x10; // in the frame's descriptor, its fifth byte, that is the unused bit
        assert_int_equal(apply(&versions, bytes.data, bytes.size), i == 4 ? OK : DATAERR);
        bytes.data[i] ^= 0x10;
    }
    char longer[4096];
    memcpy(longer, bytes.data, bytes.size);
    longer[bytes.size] = 0;
    assert_int_equal(apply(&versions, longer, bytes.size + 1), DATAERR);
    free(bytes.data);
    close_versions(&versions);
}

// Compresses `size` zeros as no difference would be.
static size_t compress_zeros(void *out, size_t room, size_t size, int window_log) {
    void *zeros = calloc(size, 1);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    const size_t count = ZSTD_compress2(context, out, room, zeros, size);
    assert_false(ZSTD_isError(count));
    ZSTD_freeCCtx(context);
    free(zeros);
    return count;
}

TEST(a_difference_of_other_files_is_refused) {
    struct versions versions;
    char bytes[8192];
    open_versions(&versions, 2000);
    memcpy(versions.after, versions.before, versions.size); // what zeros make of it
    assert_int_equal(apply(&versions, bytes, compress_zeros(bytes, sizeof bytes, 2000, 20)), OK);
    assert_int_equal(apply(&versions, bytes, compress_zeros(bytes, sizeof bytes, 1999, 20)), DATAERR);
    assert_int_equal(apply(&versions, bytes, compress_zeros(bytes, sizeof bytes, 2001, 20)), DATAERR);
    assert_int_equal(apply(&versions, bytes, compress_zeros(bytes, sizeof bytes, 40 << 20, 20)), DATAERR);
    assert_int_equal(apply(&versions, bytes, compress_zeros(bytes, sizeof bytes, 40 << 20, 25)), DATAERR); // its window
    const int out = new_file("", 0), difference = new_file(bytes, 100);
    assert_int_equal(weights_difference_apply(difference, versions.base, 2001, out), DATAERR); // the base has 2000
    close(out), close(difference);
    close_versions(&versions);
}
