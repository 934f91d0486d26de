#include "shared/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/fd.h"

static status read_all(int fd, const char *path, struct buf *out) {
    for (;;) {
        TRY(buf_reserve(out, 1 << 16));
        ssize_t got = fd_read(fd, out->data + out->size, out->capacity - out->size - 1);
        if (got < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        out->size += (size_t)got;
    }
    out->data[out->size] = 0;
    return OK;
}

status file_read(const char *path, struct buf *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
    status result = read_all(fd, path, out);
    close(fd);
    return result;
}

status file_lock_shared(const char *path, int *held) {
    *held = open(path, O_RDONLY | O_CLOEXEC);
    if (*held < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
    // Where a file system has no locks, file_lock_exclusive gets none either, and writes over nothing.
    if (!flock(*held, LOCK_SH | LOCK_NB) || errno != EWOULDBLOCK) return OK;
    close(*held);
    *held = -1;
    return fail(DATAERR, "%s: is being written", path);
}

status file_lock_exclusive(const char *path, int *fd) {
    *fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (*fd >= 0 && !flock(*fd, LOCK_EX | LOCK_NB)) return OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    // Those who read the old file go on with it.
    if (!unlink(path) || errno == ENOENT) *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd >= 0 ? OK : fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
}

status file_map_open(struct file_map *map, const char *path) {
    *map = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
    struct stat facts;
    status result = OK;
    if (fstat(fd, &facts) || !S_ISREG(facts.st_mode)) {
        result = fail(DATAERR, "%s: not a file", path);
    } else if (facts.st_size > 0) {
        void *data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            result = fail(DATAERR, "%s: cannot map: %s", path, strerror(errno));
        } else {
            *map = (struct file_map){data, (size_t)facts.st_size};
        }
    }
    close(fd);
    return result;
}

void file_map_release(struct file_map *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (struct file_map){0};
}

static status sync_parent(const char *path) {
    struct arena memory = {0};
    const char *slash = strrchr(path, '/');
    char *folder = slash ? arena_strndup(&memory, path, slash == path ? 1 : (size_t)(slash - path))
                         : arena_strndup(&memory, ".", 1);
    status result = folder ? dir_sync(folder) : fail_oom();
    arena_release(&memory);
    return result;
}

status file_write_atomic(const char *path, const void *data, size_t size) {
    struct arena memory = {0};
    char *temporary = arena_printf(&memory, "%s.tmp", path);
    if (!temporary) return fail_oom();
    status result = OK;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        result = fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
        goto done;
    }
    bool written = fd_write_all(fd, data, size) && !fsync(fd);
    if (!written) result = fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    close(fd);
    if (result == OK && rename(temporary, path))
        result = fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    if (result == OK) {
        result = sync_parent(path);
    } else {
        unlink(temporary);
    }
done:
    arena_release(&memory);
    return result;
}

status dir_make(const char *path) {
    struct arena memory = {0};
    char *copy = arena_strndup(&memory, path, strlen(path));
    if (!copy) return fail_oom();
    status result = OK;
    for (char *at = copy + 1; *path && result == OK; at++) {
        if (*at && *at != '/') continue;
        char kept = *at;
        *at = 0;
        struct stat facts;
        if (mkdir(copy, 0777) && (errno != EEXIST || stat(copy, &facts) || !S_ISDIR(facts.st_mode)))
            result = fail(UNAVAILABLE, "%s: cannot make the folder: %s", copy, strerror(errno));
        *at = kept;
        if (!kept) break;
    }
    arena_release(&memory);
    return result;
}

status dir_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    int refused = fsync(fd) && errno != EINVAL; // some file systems cannot sync a folder
    close(fd);
    return refused ? fail(UNAVAILABLE, "%s: cannot sync: %s", path, strerror(errno)) : OK;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    (void)facts, (void)kind, (void)where;
    return remove(path);
}

status dir_remove(const char *path) {
    if (!path_exists(path)) return OK;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        return fail(UNAVAILABLE, "%s: cannot remove: %s", path, strerror(errno));
    return OK;
}

bool path_exists(const char *path) {
    struct stat facts;
    return lstat(path, &facts) == 0;
}

char *path_join(struct arena *arena, const char *folder, const char *name) {
    if (!folder || !*folder || name[0] == '/') return arena_strndup(arena, name, strlen(name));
    size_t length = strlen(folder);
    return arena_printf(arena, "%s%s%s", folder, folder[length - 1] == '/' ? "" : "/", name);
}
