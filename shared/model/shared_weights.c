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
#include "shared/base/memory.h"

static const char page_magic[8] = "caravlnt";
enum { PAGE_FORMAT = 3, GENERATION_NONE = 1 };

struct shared_weights_page {
    char magic[sizeof page_magic];
    uint32_t format;
    uint16_t copied, lenders;
    uint64_t layout, bytes, base_bytes, base_hash;
    unsigned char handle[IPC_HANDLE_BYTES]; // of the memory, with the device's UUID
    unsigned char base_handle[IPC_HANDLE_BYTES];
    _Atomic uint64_t generation; // odd: the weights are changing
    _Atomic uint64_t hash;       // of the weights, while the generation is even
};
static_assert(sizeof(struct shared_weights_page) == 320, "the file has no padding");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "processes share these numbers");

// On the heap.
static char *shared_weights_file(const char *path, int lender) {
    struct buf name = {0};
    buf_printf(&name, lender ? "%s.%d" : "%s", path, lender);
    return name.data;
}

// Maps the file of a lender and keeps the path, which is that of the first one.
static status shared_weights_map(struct shared_weights *shared, const char *path, int lender, bool writable) {
    struct stat info;
    char *file = shared_weights_file(path, lender);
    const int fd = open(file, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    free(file);
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
    backend->ops->buffer_free(backend, &shared->imported_base);
    if (shared->page) munmap(shared->page, sizeof *shared->page);
    free(shared->path);
    *shared = (struct shared_weights){0};
}

// ---- the lender ----

status shared_weights_lend(struct shared_weights *shared, struct backend *backend, const struct shared_offer *offer,
                           const char *path) {
    const struct shared_arrays *arrays = &offer->arrays;
    assert(!shared->page);
    struct shared_weights_page page = {.format = PAGE_FORMAT,
                                       .copied = offer->copied,
                                       .lenders = (uint16_t)offer->lenders,
                                       .layout = arrays->layout,
                                       .bytes = arrays->bytes,
                                       .base_bytes = arrays->base_bytes,
                                       .base_hash = offer->base_hash,
                                       .generation = 1};
    memcpy(page.magic, page_magic, sizeof page.magic);
    TRY(backend->ops->buffer_export(backend, arrays->values, page.handle));
    if (arrays->base) TRY(backend->ops->buffer_export(backend, arrays->base, page.base_handle));
    char *file = shared_weights_file(path, offer->lender);
    status result = file_write_atomic(file, &page, sizeof page);
    free(file);
    if (result == OK) result = shared_weights_map(shared, path, offer->lender, true);
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

// Maps the file of a lender and imports its memory. UNAVAILABLE when that cannot be used.
static status shared_weights_borrow_from(struct shared_weights *shared, struct backend *backend,
                                         const struct shared_arrays *expected, const char *path, int lender) {
    const size_t bytes = expected->bytes, base_bytes = expected->base_bytes;
    assert(!shared->page);
    TRY(shared_weights_map(shared, path, lender, false));
    const struct shared_weights_page *page = shared->page;
    shared->copied = page->copied;
    shared->base_hash = page->base_hash;
    if (memcmp(page->magic, page_magic, sizeof page_magic) != 0 || page->format != PAGE_FORMAT)
        return fail(DATAERR, "%s: lent weights of another version of caravan", path);
    if (page->layout != expected->layout || page->bytes != bytes || page->base_bytes != base_bytes)
        return fail(DATAERR, "%s: the lent weights are of another model, or in another precision", path);
    if (!backend->ops->buffer_import) return fail(DATAERR, "%s: this device cannot borrow weights", path);
    TRY(backend->ops->buffer_import(backend, page->handle, bytes, &shared->imported));
    if (!base_bytes) return OK;
    return backend->ops->buffer_import(backend, page->base_handle, base_bytes, &shared->imported_base);
}

status shared_weights_borrow(struct shared_weights *shared, struct backend *backend,
                             const struct shared_arrays *expected, const char *path) {
    status result = shared_weights_borrow_from(shared, backend, expected, path, 0);
    if (result == UNAVAILABLE) { // another lender may be on this device
        const int lenders = shared->page ? shared->page->lenders : 1;
        struct buf reason = {0};
        buf_puts(&reason, fail_text());
        for (int lender = 1; lender < lenders && result != OK; lender++) {
            shared_weights_release(shared, backend);
            result = shared_weights_borrow_from(shared, backend, expected, path, lender);
        }
        if (result != OK) result = fail(DATAERR, "%s: %s", path, reason.data);
        buf_release(&reason);
    }
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
