#include "shared/store/lmdb_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_check.h"
#include "shared/store/lmdb_file_system.h"

enum { lmdb_max_readers = 510, lmdb_lock_file_size = 64 << 10, lmdb_grow_seconds = 20, lmdb_open_tries = 50 };
enum { lmdb_full_disk_bytes = 64 << 10 }; // with fewer free bytes an I/O error means a full disk
enum { lmdb_remap_txns = 256 };           // after so many transactions the file is mapped again
static const size_t lmdb_default_mapsize = (size_t)1 << 40, lmdb_min_mapsize = (size_t)1 << 30;

static pthread_mutex_t lmdb_registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lmdb_file *lmdb_registry;

status lmdb_fail_damaged(const char *path, const char *format, ...) {
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return fail(DATAERR, "%s: the file is damaged (%s): remove it, and what it had is computed again%s", path, what,
                strcmp(path_base_name(path), "groups.lmdb") ? "" : "; of a run without optim remove ledger.lmdb, too");
}

status lmdb_fail(const char *path, int code, const char *what) {
    struct statvfs disk;
    bool full = code == ENOSPC || code == EDQUOT;
    if (code == EIO && statvfs(path, &disk) == 0)
        full = (unsigned long long)disk.f_bavail * disk.f_frsize < lmdb_full_disk_bytes;
    if (full) return fail(UNAVAILABLE, "%s: %s: no space left on the disk", path, what);
    if (code == MDB_INVALID || code == MDB_VERSION_MISMATCH)
        return lmdb_fail_damaged(path, "it is no LMDB file of version %d", MDB_VERSION_MAJOR);
    if (code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND) return lmdb_fail_damaged(path, "%s", what);
    if (code == MDB_BAD_VALSIZE) return fail(BUG, "%s: %s: LMDB cannot store a key or value of this size", path, what);
    struct rlimit limit;
    if (code == ENOMEM && !getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        return fail(UNAVAILABLE,
                    "%s: %s: the address space is limited to %llu MB (ulimit -v), but a process maps up to 2 TB of "
                    "files: type ulimit -v unlimited",
                    path, what, (unsigned long long)limit.rlim_cur >> 20);
    return fail(UNAVAILABLE, "%s: %s: %s", path, what, mdb_strerror(code));
}

// ---- opening ----

// Makes the file at least `size` bytes long with all its blocks on the disk, and closes it. LMDB writes to mapped
// files: a missing block on a full disk would be a fatal signal. File systems without fallocate are accepted as they
// are.
static status lmdb_allocate(int fd, off_t size, const char *path) {
    int code = fallocate(fd, 0, 0, size) ? errno : 0; // never makes a file shorter
    close(fd);
    if (code == ENOSPC || code == EDQUOT) return fail(UNAVAILABLE, "%s: no space left on the disk", path);
    return OK;
}

// LMDB aborts the program when the structure of a file is broken. This ends it with a message that names the file.
static void lmdb_exit_damaged(MDB_env *mdb, const char *message) {
    (void)lmdb_fail_damaged(mdb_env_get_userctx(mdb), "%s", message);
    log_info("%s", fail_text());
    _exit(DATAERR);
}

// LMDB keeps `path` itself, not a copy. `unlocked`: without the lock file. Returns LMDB's code.
static int lmdb_open(MDB_env **out, char *path, const struct lmdb_options *options, size_t mapsize, bool unlocked) {
    unsigned flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD;
    if (options->read_only) flags |= MDB_RDONLY;
    if (unlocked) flags |= MDB_NOLOCK;
    if (options->lazy) flags |= MDB_NOMETASYNC;
    int code = mdb_env_create(out);
    if (code) return code;
    mdb_env_set_assert(*out, lmdb_exit_damaged);
    code = mdb_env_set_userctx(*out, path);
    if (!code) code = mdb_env_set_maxdbs(*out, lmdb_max_dbis);
    if (!code) code = mdb_env_set_maxreaders(*out, lmdb_max_readers);
    if (!code) code = mdb_env_set_mapsize(*out, mapsize);
    if (!code) code = mdb_env_open(*out, path, flags, 0666);
    if (code) {
        mdb_env_close(*out);
        *out = NULL;
    }
    return code;
}

// The lock file takes write access also of readers. A user without it can read the file as long as no process has it
// open, which the first byte of the lock file shows: each of them has a lock on it. UNAVAILABLE if one has.
static status lmdb_check_unused(const char *path, const char *lock_path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    char owner[64];
    const int fd = open(lock_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? OK : fail(UNAVAILABLE, "%s: %s", lock_path, strerror(errno));
    const bool unused = !fcntl(fd, F_GETLK, &lock) && lock.l_type == F_UNLCK;
    close(fd);
    if (unused) return OK;
    path_owner(path, owner, sizeof owner);
    return fail(UNAVAILABLE, "%s belongs to user %s, and a process uses it: others can read it when no process does",
                path, owner);
}

static void lmdb_file_free(struct lmdb_file *file) {
    if (file->mdb) mdb_env_close(file->mdb);
    pthread_cond_destroy(&file->txn_ended);
    pthread_mutex_destroy(&file->lock);
    free(file->path);
    free(file);
}

// Whether another process has the file open: LMDB locks the first byte of the lock file meanwhile. Not to be called
// while this process has it open, because closing any descriptor of a file gives up the process's locks.
static bool lmdb_is_in_use(const char *lock_path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    const int fd = open(lock_path, O_RDONLY | O_CLOEXEC);
    const bool in_use = fd >= 0 && !fcntl(fd, F_GETLK, &lock) && lock.l_type != F_UNLCK;
    if (fd >= 0) close(fd);
    return in_use;
}

// Opens the file, which this process has not opened yet, with one reference. Under lmdb_registry_lock.
static status lmdb_file_open(struct lmdb_file **out, const char *path, const struct lmdb_options *options) {
    struct lmdb_file *file;
    status result = OK;
    *out = NULL;
    NEW(&file, 1);
    pthread_mutex_init(&file->lock, NULL);
    cond_init_monotonic(&file->txn_ended);
    char lock_path[4200];
    if (snprintf(lock_path, sizeof lock_path, "%s-lock", path) >= (int)sizeof lock_path)
        TRY_TO(result, failure, fail(DATAERR, "%s: the path is too long", path));
    if (!options->read_only) {
        TRY_TO(result, failure, lmdb_check_file_system(path));
        int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) TRY_TO(result, failure, fail(UNAVAILABLE, "%s: %s", lock_path, strerror(errno)));
        TRY_TO(result, failure, lmdb_allocate(fd, lmdb_lock_file_size, path));
    }
    const bool in_use = lmdb_is_in_use(lock_path); // then another process has checked it
    if (!in_use) TRY_TO(result, failure, lmdb_check_head(path));
    file->path = mem_strdup(path);
    size_t mapsize = options->mapsize ? options->mapsize : lmdb_default_mapsize;
    int code = lmdb_open(&file->mdb, file->path, options, mapsize, false);
    // A process that was killed while it made the lock file leaves it empty, and LMDB makes it only when no other
    // process has it open: perhaps others try this now, too.
    for (int tries = 0; code == MDB_INVALID && tries < lmdb_open_tries; tries++)
        code = lmdb_open(&file->mdb, file->path, options, mapsize, false);
    const bool unlocked = code == EACCES && options->read_only && !access(path, R_OK);
    if (unlocked) TRY_TO(result, failure, lmdb_check_unused(path, lock_path));
    if (unlocked) code = lmdb_open(&file->mdb, file->path, options, mapsize, true);
    while (code == ENOMEM && mapsize > lmdb_min_mapsize)
        code = lmdb_open(&file->mdb, file->path, options, mapsize /= 2, unlocked);
    if (code) TRY_TO(result, failure, lmdb_fail(path, code, "cannot open"));
    if (!in_use) TRY_TO(result, failure, lmdb_check_trees(file->mdb, path));
    struct stat info;
    if (stat(path, &info)) TRY_TO(result, failure, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    file->device = info.st_dev;
    file->inode = info.st_ino;
    file->read_only = options->read_only;
    // Reading a page that was cut off would be a fatal signal; as zeros LMDB finds it out. LMDB's own files may be
    // shorter than their last page, too, where the last pages were never used.
    MDB_envinfo map;
    MDB_stat pages;
    mdb_env_info(file->mdb, &map);
    mdb_env_stat(file->mdb, &pages);
    off_t size = (off_t)((map.me_last_pgno + 1) * pages.ms_psize);
    int fd = info.st_size < size ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0) TRY_TO(result, failure, lmdb_allocate(fd, size, path));
    mdb_reader_check(file->mdb, &(int){0});
    file->refs = 1;
    file->next = lmdb_registry;
    *out = lmdb_registry = file;
    return OK;
failure:
    lmdb_file_free(file);
    return result;
}

status lmdb_file_acquire(struct lmdb_file **out, const char *path, const struct lmdb_options *options) {
    struct stat info;
    status result = OK;
    *out = NULL;
    pthread_mutex_lock(&lmdb_registry_lock);
    bool exists = stat(path, &info) == 0;
    struct lmdb_file *file = exists ? lmdb_registry : NULL;
    while (file && (file->device != info.st_dev || file->inode != info.st_ino)) file = file->next;
    if (!exists && options->read_only) {
        result = fail(DATAERR, "%s: %s", path, strerror(errno));
    } else if (!file) {
        result = lmdb_file_open(&file, path, options);
    } else if (file->read_only && !options->read_only) {
        result = fail(BUG, "%s: already open for reading only", path);
    } else {
        file->refs++;
    }
    pthread_mutex_unlock(&lmdb_registry_lock);
    if (result == OK) *out = file;
    return result;
}

void lmdb_file_release(struct lmdb_file **out) {
    struct lmdb_file *file = *out;
    *out = NULL;
    if (!file) return;
    pthread_mutex_lock(&lmdb_registry_lock);
    assert(file->refs > 0);
    if (--file->refs == 0) {
        assert(file->txn_count == 0);
        struct lmdb_file **link = &lmdb_registry;
        while (*link != file) link = &(*link)->next;
        *link = file->next;
        lmdb_file_free(file);
    }
    pthread_mutex_unlock(&lmdb_registry_lock);
}

// ---- the map ----

status lmdb_file_set_mapsize(struct lmdb_file *file, size_t size) {
    double deadline = clock_monotonic() + lmdb_grow_seconds;
    status result = OK;
    bool waiting = true;
    pthread_mutex_lock(&file->lock);
    while (file->txn_count && waiting) waiting = cond_wait_until(&file->txn_ended, &file->lock, deadline);
    if (file->txn_count) {
        result = fail(UNAVAILABLE, "%s: the map must grow, but this program has %d open read transactions", file->path,
                      file->txn_count);
    } else {
        int code = mdb_env_set_mapsize(file->mdb, size);
        if (code) result = lmdb_fail(file->path, code, "cannot grow");
    }
    pthread_mutex_unlock(&file->lock);
    return result;
}

size_t lmdb_file_mapsize(struct lmdb_file *file) {
    MDB_envinfo info;
    pthread_mutex_lock(&file->lock); // mdb_env_info reads the map, which another thread may be mapping again
    mdb_env_info(file->mdb, &info);
    pthread_mutex_unlock(&file->lock);
    return info.me_mapsize;
}

void lmdb_file_count_txn(struct lmdb_file *file, int change) {
    pthread_mutex_lock(&file->lock);
    file->txn_count += change;
    assert(file->txn_count >= 0);
    if (change < 0) file->ended++;
    if (file->txn_count == 0 && file->ended >= lmdb_remap_txns) {
        MDB_envinfo info;
        mdb_env_info(file->mdb, &info);
        file->map_error = mdb_env_set_mapsize(file->mdb, info.me_mapsize);
        file->ended = 0;
    }
    if (file->txn_count == 0) pthread_cond_broadcast(&file->txn_ended);
    pthread_mutex_unlock(&file->lock);
}
