#include "shared/model/shared_weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"

static const char page_magic[8] = "caravlnt";
enum { PAGE_FORMAT = 1, GENERATION_NONE = 1 };

struct shared_weights_page {
    char magic[sizeof page_magic];
    uint32_t format;
    uint32_t copied;
    uint64_t layout, bytes;
    unsigned char handle[IPC_HANDLE_BYTES]; // of the memory, with the device's UUID
    _Atomic uint64_t generation;            // odd: the weights are changing
    _Atomic uint64_t hash;                  // of the weights, while the generation is even
};
static_assert(sizeof(struct shared_weights_page) == 176, "the file has no padding");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "processes share these numbers");

// Maps the file and keeps its path.
static status shared_weights_map(struct shared_weights *shared, const char *path, bool writable) {
    struct stat info;
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) {
        status result = fail(DATAERR, "%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return result;
    }
    void *page = MAP_FAILED;
    bool whole = info.st_size == sizeof *shared->page;
    if (whole) page = mmap(NULL, sizeof *shared->page, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    close(fd);
    if (!whole) return fail(DATAERR, "%s: not a file of lent weights", path);
    if (page == MAP_FAILED) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    shared->page = page;
    shared->path = mem_strdup(path);
    return OK;
}

void shared_weights_release(struct shared_weights *shared, struct backend *backend) {
    backend->ops->buffer_free(backend, &shared->imported);
    if (shared->page) munmap(shared->page, sizeof *shared->page);
    free(shared->path);
    *shared = (struct shared_weights){0};
}

// ---- the lender ----

status shared_weights_lend(struct shared_weights *shared, struct backend *backend, struct buffer *values, size_t bytes,
                           uint64_t layout, bool copied, const char *path) {
    assert(!shared->page);
    struct shared_weights_page page = {
        .format = PAGE_FORMAT, .copied = copied, .layout = layout, .bytes = bytes, .generation = 1};
    memcpy(page.magic, page_magic, sizeof page.magic);
    TRY(backend->ops->buffer_export(backend, values, page.handle));
    TRY(file_write_atomic(path, &page, sizeof page));
    status result = shared_weights_map(shared, path, true);
    if (result != OK) shared_weights_release(shared, backend);
    return result;
}

void shared_weights_begin_change(struct shared_weights *shared) {
    if (shared->page && atomic_load(&shared->page->generation) % 2 == 0) atomic_fetch_add(&shared->page->generation, 1);
}

void shared_weights_end_change(struct shared_weights *shared, uint64_t hash) {
    atomic_store(&shared->page->hash, hash);
    if (atomic_load(&shared->page->generation) % 2) atomic_fetch_add(&shared->page->generation, 1);
}

// ---- the borrower ----

status shared_weights_is_page(const char *path, bool *is_page) {
    char magic[sizeof page_magic] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
    *is_page = fd_pread(fd, magic, sizeof magic, 0) == sizeof magic && memcmp(magic, page_magic, sizeof magic) == 0;
    close(fd);
    return OK;
}

status shared_weights_borrow(struct shared_weights *shared, struct backend *backend, uint64_t layout, size_t bytes,
                             const char *path) {
    assert(!shared->page);
    TRY(shared_weights_map(shared, path, false));
    const struct shared_weights_page *page = shared->page;
    shared->copied = page->copied;
    status result;
    if (memcmp(page->magic, page_magic, sizeof page_magic) != 0 || page->format != PAGE_FORMAT)
        result = fail(DATAERR, "%s: lent weights of another version of caravan", path);
    else if (page->layout != layout || page->bytes != bytes)
        result = fail(DATAERR, "%s: the lent weights are of another model, or in another precision", path);
    else if (!backend->ops->buffer_import)
        result = fail(DATAERR, "%s: this device cannot borrow weights", path);
    else
        result = backend->ops->buffer_import(backend, page->handle, bytes, &shared->imported);
    if (result == UNAVAILABLE) result = fail_prefix(DATAERR, "%s", path);
    if (result != OK) shared_weights_release(shared, backend);
    return result;
}

status shared_weights_take(struct shared_weights *shared, uint64_t hash) {
    shared->generation = atomic_load(&shared->page->generation);
    bool wanted = atomic_load(&shared->page->hash) == hash; // of this generation if it is intact after the read
    if (wanted && shared_weights_intact(shared)) return OK;
    shared->generation = GENERATION_NONE;
    return fail(BAD_SAMPLE, "%s: the lent weights are changing", shared->path);
}

bool shared_weights_intact(const struct shared_weights *shared) {
    return shared->generation % 2 == 0 && atomic_load(&shared->page->generation) == shared->generation;
}
