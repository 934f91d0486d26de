#include "shared/base/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { FILE_READ_SIZE = 1 << 16, MAX_OPEN_DIRS = 16 };

static_assert(sizeof(off_t) >= 8, "files and frame stores are larger than 2 GiB");

static status file_fail(status code, const char *path, const char *what) {
    return fail(code, "%s: %s%s", path, what, strerror(errno));
}

// ---- descriptors ----

bool fd_pwrite_all(int fd, const void *data, size_t size, off_t offset) {
    for (const char *at = data; size;) {
        const ssize_t written = offset < 0 ? write(fd, at, size) : pwrite(fd, at, size, offset);
        if (written < 0 && errno == EAGAIN) poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (written < 0) continue;
        assert((size_t)written <= size);
        at += written;
        size -= (size_t)written;
        if (offset >= 0) offset += written;
    }
    return true;
}

bool fd_write_all(int fd, const void *data, size_t size) {
    return fd_pwrite_all(fd, data, size, -1);
}

bool fd_pread_all(int fd, void *data, size_t size, off_t offset) {
    for (char *at = data; size;) {
        ssize_t got = fd_pread(fd, at, size, offset);
        if (got == 0) errno = ENODATA;
        if (got <= 0) return false;
        at += got;
        offset += got;
        size -= (size_t)got;
    }
    return true;
}

ssize_t fd_pread(int fd, void *data, size_t size, off_t offset) {
    ssize_t got;
    do got = offset < 0 ? read(fd, data, size) : pread(fd, data, size, offset);
    while (got < 0 && errno == EINTR);
    return got;
}

ssize_t fd_read(int fd, void *data, size_t size) {
    return fd_pread(fd, data, size, -1);
}

status fd_reserve_standard(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        // Opened in the wrong direction, so that using the stream fails.
        int got = open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
        if (got < 0) return file_fail(UNAVAILABLE, "/dev/null", "");
        assert(got == fd); // open returns the lowest free number
    }
    return OK;
}

uint64_t fd_raise_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return 0;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) ? before : limit.rlim_max;
}

void terminal_size(int fd, int *columns, int *rows) {
    struct winsize size = {0};
    const bool known = !ioctl(fd, TIOCGWINSZ, &size);
    *columns = known && size.ws_col ? size.ws_col : 80;
    if (rows) *rows = known && size.ws_row ? size.ws_row : 24;
}

// ---- whole files ----

status file_read_status(int error) {
    static const int passing[] = {EIO,       ESTALE, ENOTCONN, ETIMEDOUT, ECONNRESET, EHOSTDOWN,
                                  EREMOTEIO, ENOMEM, EMFILE,   ENFILE,    EAGAIN};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (passing[i] == error) return UNAVAILABLE;
    return DATAERR;
}

// file_fail for a file that cannot be read.
static status file_read_fail(const char *path, const char *what) {
    return file_fail(file_read_status(errno), path, what);
}

status file_read(const char *path, struct buf *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_read_fail(path, "");
    status result = OK;
    for (ssize_t got = 1; result == OK && got > 0;) {
        result = buf_reserve_large(out, FILE_READ_SIZE);
        if (result != OK) break;
        got = fd_read(fd, out->data + out->size, out->capacity - out->size - 1);
        if (got < 0) result = file_read_fail(path, "");
        if (got > 0) out->size += (size_t)got;
        out->data[out->size] = 0;
    }
    close(fd);
    return result;
}

bool file_is_lfs_pointer(const void *data, size_t size) {
    static const char pointer[] = "version https://git-lfs.";
    return size >= sizeof pointer && !memcmp(data, pointer, sizeof pointer - 1);
}

void file_read_tail(const char *path, char *tail, size_t size) {
    assert(size > 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, most = (off_t)size - 1;
    ssize_t got = fd >= 0 ? fd_pread(fd, tail, size - 1, end > most ? end - most : 0) : 0;
    tail[got > 0 ? got : 0] = 0;
    if (fd >= 0) close(fd);
}

status file_map_open(struct file_map *map, const char *path) {
    *map = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_read_fail(path, "");
    struct stat stat;
    status result = OK;
    if (fstat(fd, &stat) || !S_ISREG(stat.st_mode)) {
        result = fail(DATAERR, "%s: not a file", path);
    } else if (stat.st_size > 0) {
        void *address = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (address == MAP_FAILED)
            result = file_read_fail(path, "cannot map: ");
        else
            *map = (struct file_map){address, (size_t)stat.st_size, address};
    }
    close(fd);
    return result;
}

void file_map_release(struct file_map *map) {
    if (map->address) munmap(map->address, map->size);
    *map = (struct file_map){0};
}

// Writes into what is no file: a device or a pipe. It keeps its name, since /dev/null is everybody's.
static status file_write_special(const char *path, const void *data, size_t size) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && fd_write_all(fd, data, size);
    if (fd >= 0 && close(fd)) written = false;
    return written ? OK : file_fail(UNAVAILABLE, path, "cannot write: ");
}

status file_write_atomic(const char *path, const void *data, size_t size) {
    struct arena arena = {0};
    struct utsname host = {0};
    struct stat info;
    char real[PATH_MAX];
    status result = OK;
    if (!stat(path, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return file_write_special(path, data, size);
    uname(&host);
    // A symbolic link stays, and the file that it names is replaced.
    const bool link = !lstat(path, &info) && S_ISLNK(info.st_mode) && realpath(path, real);
    const char *target = link ? real : path;
    const char *temporary = arena_printf(&arena, "%s.%s.%d.tmp", target, host.nodename, (int)getpid());
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool written = fd >= 0 && fd_write_all(fd, data, size) && !fsync(fd);
    if (fd >= 0 && close(fd)) written = false; // a close that works leaves errno as it is
    if (!written || rename(temporary, target)) {
        result = file_fail(UNAVAILABLE, path, "cannot write: ");
        if (fd >= 0) unlink(temporary);
    } else {
        result = dir_sync(path_parent(&arena, target));
    }
    arena_release(&arena);
    return result;
}

status file_append(const char *path, const void *data, size_t size) {
    status result = OK;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return file_fail(UNAVAILABLE, path, "cannot write: ");
    const off_t end = lseek(fd, 0, SEEK_END);
    const ssize_t written = write(fd, data, size);
    if (written != (ssize_t)size) {
        if (written >= 0) errno = ENOSPC;
        result = file_fail(UNAVAILABLE, path, "cannot write: ");
        if (written > 0) (void)!ftruncate(fd, end);
    }
    close(fd);
    return result;
}

status append_queue_add(struct append_queue *queue, const void *data, size_t size) {
    buf_append(&queue->waiting, data, size);
    const status result = file_append(queue->path, queue->waiting.data, queue->waiting.size);
    if (result == OK) buf_clear(&queue->waiting);
    queue->failing = result != OK;
    return result;
}

status append_queue_release(struct append_queue *queue) {
    const status result = queue->waiting.size ? file_append(queue->path, queue->waiting.data, queue->waiting.size) : OK;
    buf_release(&queue->waiting);
    free(queue->path);
    *queue = (struct append_queue){0};
    return result;
}

status file_lock_shared(const char *path, int *fd) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return file_read_fail(path, "");
    // On a file system without locks file_lock_exclusive fails too, and then makes a new file.
    if (!flock(*fd, LOCK_SH | LOCK_NB) || errno != EWOULDBLOCK) return OK;
    close(*fd);
    *fd = -1;
    return fail(DATAERR, "%s: another process is writing it", path);
}

status file_lock_exclusive(const char *path, int *fd) {
    *fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (*fd >= 0 && !flock(*fd, LOCK_EX | LOCK_NB)) return OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    // Readers of the old file keep it: only its name goes.
    if (!unlink(path) || errno == ENOENT) *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd < 0) return file_fail(UNAVAILABLE, path, "cannot write: ");
    (void)flock(*fd, LOCK_EX | LOCK_NB); // fails only on a file system without locks
    return OK;
}

// ---- directories and paths ----

status dir_make(const char *path) {
    struct arena arena = {0};
    char *prefix = arena_strndup(&arena, path, strlen(path));
    status result = OK;
    for (char *at = prefix + 1; *path && result == OK; at++) {
        if (*at && *at != '/') continue;
        char kept = *at;
        *at = 0;
        struct stat found;
        if (mkdir(prefix, 0777) && (errno != EEXIST || stat(prefix, &found) || !S_ISDIR(found.st_mode)))
            result = file_fail(UNAVAILABLE, prefix, "cannot make the directory: ");
        *at = kept;
        if (!kept) break;
    }
    arena_release(&arena);
    return result;
}

status dir_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_fail(UNAVAILABLE, path, "");
    status result = OK;
    if (fsync(fd) && errno != EINVAL) // some file systems cannot sync a directory
        result = file_fail(UNAVAILABLE, path, "cannot sync: ");
    close(fd);
    return result;
}

static int file_remove_entry(const char *path, const struct stat *stat, int kind, struct FTW *position) {
    (void)stat, (void)kind, (void)position;
    return remove(path);
}

status dir_remove(const char *path) {
    if (!path_exists(path)) return OK;
    if (nftw(path, file_remove_entry, MAX_OPEN_DIRS, FTW_DEPTH | FTW_PHYS))
        return file_fail(UNAVAILABLE, path, "cannot remove: ");
    return OK;
}

void dir_remove_old(const char *path, const char *prefix, const char *keep, int64_t seconds) {
    DIR *dir = opendir(path);
    struct stat info;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (strncmp(name, prefix, strlen(prefix)) != 0 || !strncmp(name, keep, strlen(keep))) continue;
        if (seconds && (fstatat(dirfd(dir), name, &info, 0) || time(NULL) - info.st_mtime <= seconds)) continue;
        (void)unlinkat(dirfd(dir), name, 0);
    }
    if (dir) closedir(dir);
}

bool path_exists(const char *path) {
    struct stat stat;
    return lstat(path, &stat) == 0;
}

int path_compare(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

void path_owner(const char *path, char *name, size_t size) {
    struct stat info;
    const bool known = !stat(path, &info);
    const struct passwd *owner = known ? getpwuid(info.st_uid) : NULL;
    snprintf(name, size, "?");
    if (known) snprintf(name, size, "%u", (unsigned)info.st_uid);
    if (owner) snprintf(name, size, "%s", owner->pw_name);
}

char *path_join(struct arena *arena, const char *dir, const char *name) {
    if (!dir || !*dir || name[0] == '/') return arena_strndup(arena, name, strlen(name));
    return arena_printf(arena, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name);
}

const char *path_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

status path_program_dir(struct arena *arena, const char **dir) {
    char path[PATH_MAX];
    const ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
    if (size <= 0) return fail(UNAVAILABLE, "/proc/self/exe: %s", strerror(errno));
    path[size] = 0;
    *dir = path_parent(arena, path);
    return OK;
}

char *path_parent(struct arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return arena_strndup(arena, ".", 1);
    return arena_strndup(arena, path, slash == path ? 1 : (size_t)(slash - path));
}
