// Device memory that processes share, as CUDA's IPC functions do.
//
// An allocation becomes shared where it is: its pages are copied to a file without a name (memfd), which is then mapped
// over them. Another process opens that file through /proc.
#include "emulate_internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#endif

enum { page = 4096 };

static size_t whole_pages(size_t bytes) {
    return (bytes + page - 1) / page * page;
}

// What follows the bytes on their last page may not be used, which the address sanitizer reports, until the pages are
// given back: something else may lie there afterwards.
static void protect_rest(void *pages, size_t bytes, bool protects) {
#ifdef __SANITIZE_ADDRESS__
    auto *poison = protects ? __asan_poison_memory_region : __asan_unpoison_memory_region;
    poison(static_cast<char *>(pages) + bytes, whole_pages(bytes) - bytes);
#else
    (void)pages, (void)bytes, (void)protects;
#endif
}

void *emulate::pages_new(size_t bytes) {
    void *pages;
    if (posix_memalign(&pages, page, whole_pages(bytes)) != 0) return nullptr;
    protect_rest(pages, bytes, true);
    return pages;
}

void emulate::pages_free(void *pages, size_t bytes) {
    protect_rest(pages, bytes, false);
    free(pages);
}

// Maps pages of a file over those at `at`.
static bool map_over(void *at, size_t bytes, int file) {
    bool mapped = mmap(at, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at;
    if (mapped) protect_rest(at, bytes, true);
    return mapped;
}

bool emulate::pages_share(void *pages, size_t bytes, struct shared_name *out) {
    int file = memfd_create("caravan-emulated", MFD_CLOEXEC);
    struct stat info;
    bool written = file >= 0 && write(file, pages, bytes) == static_cast<ssize_t>(bytes) &&
                   ftruncate(file, static_cast<off_t>(whole_pages(bytes))) == 0 && fstat(file, &info) == 0;
    if (written && map_over(pages, bytes, file)) {
#ifdef __SANITIZE_ADDRESS__
        __lsan_ignore_object(pages); // it stays to the end of the process
#endif
        *out = {getpid(), file, info.st_dev, info.st_ino, bytes};
        return true;
    }
    if (file >= 0) close(file);
    return false;
}

void *emulate::shared_map(const struct shared_name *name) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->process, name->descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    // Another file may have the number by now.
    bool found = file >= 0 && fstat(file, &info) == 0 && info.st_dev == name->device && info.st_ino == name->inode;
    // A page on each side may not be used.
    size_t size = whole_pages(name->bytes) + 2 * page;
    char *inner = nullptr;
    if (found) {
        void *pages = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages != MAP_FAILED) inner = static_cast<char *>(pages) + page;
    }
    if (inner && !map_over(inner, name->bytes, file)) {
        munmap(inner - page, size);
        inner = nullptr;
    }
    if (file >= 0) close(file);
    return inner;
}

void emulate::shared_unmap(void *pages, const struct shared_name *name) {
    protect_rest(pages, name->bytes, false);
    munmap(static_cast<char *>(pages) - page, whole_pages(name->bytes) + 2 * page);
}
