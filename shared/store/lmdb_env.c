// Files, transactions, keys and values, iteration.
//
// LMDB forbids opening a file twice in a process, so all handles to a file share one struct lmdb_file.
#include "shared/store/lmdb_env.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_check.h"

enum { MAX_DBIS = 16, MAX_READERS = 510, LOCK_FILE_SIZE = 64 << 10, GROW_SECONDS = 20 };
enum { OPEN_TRIES = 50, OPEN_PAUSE_US = 5000 };
enum { REMAP_TXNS = 256 }; // after so many transactions the file is mapped again
static const size_t lmdb_default_mapsize = (size_t)1 << 40, lmdb_min_mapsize = (size_t)1 << 30;

static pthread_mutex_t lmdb_registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lmdb_file *lmdb_registry;

// An LMDB file as this process has it open, and its map, which grows.
struct lmdb_file {
    struct lmdb_file *next;
    MDB_env *mdb;
    char *path;
    dev_t device;
    ino_t inode;
    int refs; // handles; under the lock of the registry
    bool read_only;
    pthread_mutex_t lock; // of what follows, and of the map's size
    pthread_cond_t txn_ended;
    int txn_count; // open transactions of this process; the map may only be resized when it is 0
    int ended;     // transactions since the file was mapped
    int map_error; // of mapping the file again: the environment is then unusable
};

struct lmdb_env {
    struct lmdb_file *file;
    MDB_dbi dbis[MAX_DBIS];
    int dbi_count;
};

struct lmdb_txn {
    struct lmdb_env *env;
    MDB_txn *mdb;
    bool map_full; // an operation returned MDB_MAP_FULL
};

static pthread_mutex_t lmdb_dbi_lock = PTHREAD_MUTEX_INITIALIZER; // LMDB opens databases in one thread at a time

// ---- file systems ----

// File systems whose files several machines may open, by the numbers of statfs(2). FUSE is among them because most of
// its file systems are.
static const struct {
    uint32_t type;
    const char *name;
} lmdb_network_types[] = {
    {0x00006969, "NFS"},   {0x0BD00BD0, "Lustre"}, {0x19830326, "BeeGFS"}, {0x47504653, "GPFS"},
    {0xFF534D42, "CIFS"},  {0xFE534D42, "SMB2"},   {0x0000517B, "SMB"},    {0x01021997, "9p"},
    {0x65735546, "FUSE"},  {0x00C36400, "Ceph"},   {0x5346414F, "AFS"},    {0x6B414653, "AFS"},
    {0x7461636F, "OCFS2"}, {0x01161970, "GFS2"},   {0xAAD7AAEA, "PanFS"},  {0x73757245, "Coda"},
};
static const uint32_t lmdb_overlay_type = 0x794C7630;

static const char *lmdb_network_type(uint32_t type) {
    for (size_t i = 0; i < sizeof lmdb_network_types / sizeof *lmdb_network_types; i++)
        if (lmdb_network_types[i].type == type) return lmdb_network_types[i].name;
    return NULL;
}

bool lmdb_overlay_upper(const char *line, unsigned device_major, unsigned device_minor, char *upper, size_t size) {
    unsigned line_major, line_minor;
    const char *option = strstr(line, "upperdir=");
    if (sscanf(line, "%*d %*d %u:%u", &line_major, &line_minor) != 2 || !option) return false;
    if (line_major != device_major || line_minor != device_minor) return false;
    option += strlen("upperdir=");
    const size_t length = strcspn(option, ", \n");
    if (!length || length >= size) return false;
    memcpy(upper, option, length);
    upper[length] = 0;
    return true;
}

const char *lmdb_network_file_system(const char *directory) {
    struct statfs system;
    struct stat info;
    char line[8192], upper[4096];
    if (statfs(directory, &system)) return NULL;
    if ((uint32_t)system.f_type != lmdb_overlay_type) return lmdb_network_type((uint32_t)system.f_type);
    // What is written goes to the upper directory, which a container may not see.
    FILE *mounts = stat(directory, &info) ? NULL : fopen("/proc/self/mountinfo", "re");
    const char *name = NULL;
    while (mounts && !name && fgets(line, sizeof line, mounts))
        if (lmdb_overlay_upper(line, major(info.st_dev), minor(info.st_dev), upper, sizeof upper) &&
            statfs(upper, &system) == 0)
            name = lmdb_network_type((uint32_t)system.f_type);
    if (mounts) fclose(mounts);
    return name;
}

status lmdb_check_file_system(const char *path) {
    struct arena arena = {0};
    const char *directory = path_parent(&arena, path);
    const char *name = directory ? lmdb_network_file_system(directory) : NULL;
    status result = OK;
    if (name)
        result = fail(USAGE,
                      "%s: LMDB files do not work on %s, a network file system: set `store:` to a directory on a "
                      "local disk",
                      path, name);
    arena_release(&arena);
    return result;
}

// ---- files ----

// Makes the file at least `size` bytes long with all its blocks on the disk. LMDB writes to mapped files: a missing
// block on a full disk would be a fatal signal. File systems without fallocate are accepted as they are.
static status lmdb_allocate(int fd, off_t size, const char *path) {
    int code = fallocate(fd, 0, 0, size) ? errno : 0; // never makes a file shorter
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
    if (!code) code = mdb_env_set_maxdbs(*out, MAX_DBIS);
    if (!code) code = mdb_env_set_maxreaders(*out, MAX_READERS);
    if (!code) code = mdb_env_set_mapsize(*out, mapsize);
    if (!code) code = mdb_env_open(*out, path, flags, 0666);
    if (code) {
        mdb_env_close(*out);
        *out = NULL;
    }
    return code;
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

// Makes the file with its empty databases under another name first, so that whoever finds it, as a reader who looks at
// a run that has just begun, finds them, too. Under the lock of the lock file; what was left by a process that was
// killed here is replaced.
static status lmdb_file_create(const char *path, const char *const *names) {
    enum { MAPSIZE = 1 << 20 };
    const struct lmdb_options options = {0};
    struct arena arena = {0};
    char *new_path = arena_printf(&arena, "%s-new", path);
    MDB_env *mdb = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi dbi;
    unlink(new_path);
    int code = lmdb_open(&mdb, new_path, &options, MAPSIZE, true);
    if (!code) code = mdb_txn_begin(mdb, NULL, 0, &txn);
    for (; !code && *names; names++) code = mdb_dbi_open(txn, *names, MDB_CREATE, &dbi);
    if (!code) {
        code = mdb_txn_commit(txn);
        txn = NULL;
    }
    if (txn) mdb_txn_abort(txn);
    if (mdb) mdb_env_close(mdb);
    if (!code && rename(new_path, path)) code = errno;
    if (code) unlink(new_path);
    arena_release(&arena);
    return code ? lmdb_fail(path, code, "cannot create") : OK;
}

static void lmdb_file_free(struct lmdb_file *file) {
    if (file->mdb) mdb_env_close(file->mdb);
    pthread_cond_destroy(&file->txn_ended);
    pthread_mutex_destroy(&file->lock);
    free(file->path);
    free(file);
}

// Opens the file, which this process has not opened yet, with one reference. Under lmdb_registry_lock.
static status lmdb_file_open(struct lmdb_file **out, const char *path, const char *const *names,
                             const struct lmdb_options *options) {
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
        int locked;
        do locked = flock(fd, LOCK_EX);
        while (locked && errno == EINTR);
        if (locked) result = fail(UNAVAILABLE, "%s: %s", lock_path, strerror(errno));
        // First the lock file's blocks: whoever finds the file may be the first to write there.
        if (result == OK) result = lmdb_allocate(fd, LOCK_FILE_SIZE, path);
        if (result == OK && access(path, F_OK)) result = lmdb_file_create(path, names);
        close(fd); // gives up the lock
        TRY_TO(result, failure, result);
    }
    const bool in_use = lmdb_is_in_use(lock_path); // then another process has checked it
    if (!in_use) TRY_TO(result, failure, lmdb_check_head(path));
    file->path = mem_strdup(path);
    size_t mapsize = options->mapsize ? options->mapsize : lmdb_default_mapsize;
    int code = lmdb_open(&file->mdb, file->path, options, mapsize, false);
    // A process that was killed while it made the lock file leaves it empty, and LMDB makes it only when no other
    // process has it open: perhaps others try this now, too.
    for (int tries = 0; code == MDB_INVALID && tries < OPEN_TRIES; tries++) {
        if (lmdb_is_in_use(lock_path)) usleep(OPEN_PAUSE_US);
        code = lmdb_open(&file->mdb, file->path, options, mapsize, false);
    }
    const bool unlocked = code == EACCES && options->read_only && !access(path, R_OK);
    if (unlocked) { // a user who may not write the lock file, as readers do, too, reads while no process uses the file
        char owner[64];
        if (access(lock_path, R_OK) && errno != ENOENT)
            TRY_TO(result, failure, fail(UNAVAILABLE, "%s: %s", lock_path, strerror(errno)));
        path_owner(path, owner, sizeof owner);
        if (lmdb_is_in_use(lock_path))
            TRY_TO(result, failure,
                   fail(UNAVAILABLE,
                        "%s belongs to user %s, and a process uses it: others can read it when no process does", path,
                        owner));
        code = lmdb_open(&file->mdb, file->path, options, mapsize, true);
    }
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
    if (fd >= 0) {
        const status allocated = lmdb_allocate(fd, size, path);
        close(fd);
        if (!options->read_only) TRY_TO(result, failure, allocated); // those pages are not read if the file is sound
    }
    mdb_reader_check(file->mdb, &(int){0});
    file->refs = 1;
    file->next = lmdb_registry;
    *out = lmdb_registry = file;
    return OK;
failure:
    lmdb_file_free(file);
    return result;
}

// Resizes the map (0: to the size that another process gave it), once this process has no open transaction. UNAVAILABLE
// when it has one for too long, or when the disk is full.
static status lmdb_file_set_mapsize(struct lmdb_file *file, size_t size) {
    double deadline = clock_monotonic() + GROW_SECONDS;
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

static size_t lmdb_file_mapsize(struct lmdb_file *file) {
    MDB_envinfo info;
    pthread_mutex_lock(&file->lock); // mdb_env_info reads the map, which another thread may be mapping again
    mdb_env_info(file->mdb, &info);
    pthread_mutex_unlock(&file->lock);
    return info.me_mapsize;
}

// Counts a transaction that begins (1) or has ended (-1). After 256 transactions the file is mapped again as soon as
// none is open: the pages that were read would otherwise count as this process's resident memory for as long as it
// runs.
static void lmdb_file_count_txn(struct lmdb_file *file, int change) {
    pthread_mutex_lock(&file->lock);
    file->txn_count += change;
    assert(file->txn_count >= 0);
    if (change < 0) file->ended++;
    if (file->txn_count == 0 && file->ended >= REMAP_TXNS) {
        MDB_envinfo info;
        mdb_env_info(file->mdb, &info);
        file->map_error = mdb_env_set_mapsize(file->mdb, info.me_mapsize);
        file->ended = 0;
    }
    if (file->txn_count == 0) pthread_cond_broadcast(&file->txn_ended);
    pthread_mutex_unlock(&file->lock);
}

// ---- transactions ----

static status lmdb_begin(struct lmdb_env *env, unsigned flags, struct lmdb_txn **out) {
    enum { MAX_ATTEMPTS = 8 };
    struct lmdb_file *file = env->file;
    struct lmdb_txn *txn;
    *out = NULL;
    NEW(&txn, 1);
    txn->env = env;
    status result = OK;
    for (int attempt = 0; attempt < MAX_ATTEMPTS && result == OK; attempt++) {
        lmdb_file_count_txn(file, 1);
        int code = file->map_error ? file->map_error : mdb_txn_begin(file->mdb, NULL, flags, &txn->mdb);
        if (code == 0) {
            *out = txn;
            return OK;
        }
        lmdb_file_count_txn(file, -1);
        if (code == MDB_MAP_RESIZED) {
            result = lmdb_file_set_mapsize(file, 0);
        } else if (code == MDB_READERS_FULL && attempt == 0) {
            mdb_reader_check(file->mdb, &(int){0});
        } else {
            result = lmdb_fail(file->path, code, "cannot begin a transaction");
        }
    }
    free(txn);
    return result != OK ? result : fail(UNAVAILABLE, "%s: other processes keep resizing its map", file->path);
}

status lmdb_txn_begin_read(struct lmdb_env *env, struct lmdb_txn **out) {
    return lmdb_begin(env, MDB_RDONLY, out);
}

status lmdb_txn_begin_write(struct lmdb_env *env, struct lmdb_txn **out) {
    return lmdb_begin(env, env->file->read_only ? MDB_RDONLY : 0, out);
}

bool lmdb_txn_commit(struct lmdb_txn **txn, status *result) {
    if (!*txn) {
        assert(*result != OK);
        return false;
    }
    struct lmdb_file *file = (*txn)->env->file;
    bool map_full = (*txn)->map_full;
    if (*result == OK) {
        int code = mdb_txn_commit((*txn)->mdb);
        (*txn)->mdb = NULL; // LMDB frees it, also when it fails
        map_full |= code == MDB_MAP_FULL;
        if (code) *result = lmdb_fail(file->path, code, "cannot commit");
    }
    lmdb_txn_end(txn);
    if (*result == OK || !map_full) return false;
    size_t before = lmdb_file_mapsize(file);
    *result = lmdb_file_set_mapsize(file, 0); // another process may have grown it already
    if (*result == OK && lmdb_file_mapsize(file) <= before) *result = lmdb_file_set_mapsize(file, before * 2);
    return *result == OK;
}

void lmdb_txn_end(struct lmdb_txn **txn) {
    if (!*txn) return;
    if ((*txn)->mdb) mdb_txn_abort((*txn)->mdb);
    lmdb_file_count_txn((*txn)->env->file, -1);
    free(*txn);
    *txn = NULL;
}

// ---- opening ----

status lmdb_env_open(struct lmdb_env **out, const char *path, const char *const *names,
                     const struct lmdb_options *options) {
    const struct lmdb_options defaults = {0};
    struct lmdb_env *env;
    struct lmdb_txn *txn;
    struct stat info;
    status result = OK;
    *out = NULL;
    if (!options) options = &defaults;
    NEW(&env, 1);
    // Opens the file, or takes one more reference when this process has it open.
    pthread_mutex_lock(&lmdb_registry_lock);
    const bool exists = stat(path, &info) == 0;
    struct lmdb_file *file = exists ? lmdb_registry : NULL;
    while (file && (file->device != info.st_dev || file->inode != info.st_ino)) file = file->next;
    if (!exists && options->read_only)
        result = fail(DATAERR, "%s: %s", path, strerror(errno));
    else if (!file)
        result = lmdb_file_open(&file, path, names, options);
    else if (file->read_only && !options->read_only)
        result = fail(BUG, "%s: already open for reading only", path);
    else
        file->refs++;
    pthread_mutex_unlock(&lmdb_registry_lock);
    TRY_TO(result, done, result);
    env->file = file;
    pthread_mutex_lock(&lmdb_dbi_lock);
    do {
        result = lmdb_txn_begin_write(env, &txn);
        for (env->dbi_count = 0; result == OK && names[env->dbi_count]; env->dbi_count++) {
            const char *name = names[env->dbi_count];
            assert(env->dbi_count < MAX_DBIS);
            unsigned flags = env->file->read_only ? 0 : MDB_CREATE;
            int code = mdb_dbi_open(txn->mdb, name, flags, &env->dbis[env->dbi_count]);
            txn->map_full |= code == MDB_MAP_FULL;
            if (code == MDB_NOTFOUND && options->required && env->dbi_count >= options->required) break;
            if (code == MDB_NOTFOUND)
                result = fail(DATAERR, "%s: has no database '%s'", path, name);
            else if (code)
                result = lmdb_fail(path, code, name);
        }
    } while (lmdb_txn_commit(&txn, &result));
    pthread_mutex_unlock(&lmdb_dbi_lock);
done:
    *out = env;
    if (result != OK) lmdb_env_close(out);
    return result;
}

bool lmdb_env_has(const struct lmdb_env *env, int dbi) {
    return dbi < env->dbi_count;
}

void lmdb_env_close(struct lmdb_env **env) {
    if (!*env) return;
    struct lmdb_file *file = (*env)->file;
    pthread_mutex_lock(&lmdb_registry_lock);
    assert(!file || file->refs > 0);
    if (file && --file->refs == 0) { // the last handle closes the file
        assert(file->txn_count == 0);
        struct lmdb_file **link = &lmdb_registry;
        while (*link != file) link = &(*link)->next;
        *link = file->next;
        lmdb_file_free(file);
    }
    pthread_mutex_unlock(&lmdb_registry_lock);
    free(*env);
    *env = NULL;
}

status lmdb_env_fail_damaged(const struct lmdb_env *env, const char *what) {
    return lmdb_fail_damaged(env->file->path, "%s", what);
}

status lmdb_txn_fail_damaged(const struct lmdb_txn *txn, const char *what) {
    return lmdb_env_fail_damaged(txn->env, what);
}

// ---- keys and values ----

// LMDB's struct serves reading and writing, so its pointer is not const; LMDB does not write through it.
static MDB_val lmdb_to_mdb(struct lmdb_val val) {
    union {
        const void *in;
        void *out;
    } data = {val.data};
    return (MDB_val){val.size, data.out};
}

// An empty value has a pointer, too, which tells it from a missing one.
static struct lmdb_val lmdb_from_mdb(MDB_val val) {
    return (struct lmdb_val){val.mv_data ? val.mv_data : "", val.mv_size};
}

void lmdb_number_write(uint8_t *out, int64_t number) {
    for (int i = 0; i < LMDB_NUMBER_SIZE; i++) out[i] = (uint8_t)((uint64_t)number >> (56 - 8 * i));
}

int64_t lmdb_number_read(const uint8_t *bytes) {
    uint64_t number = 0;
    for (int i = 0; i < LMDB_NUMBER_SIZE; i++) number = number << 8 | bytes[i];
    return (int64_t)number;
}

static MDB_dbi lmdb_dbi(const struct lmdb_txn *txn, int dbi) {
    assert(dbi >= 0 && dbi < txn->env->dbi_count);
    return txn->env->dbis[dbi];
}

static status lmdb_result(struct lmdb_txn *txn, int code, const char *what) {
    if (code == 0) return OK;
    txn->map_full |= code == MDB_MAP_FULL;
    return lmdb_fail(txn->env->file->path, code, what);
}

status lmdb_txn_get(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val *value) {
    *value = (struct lmdb_val){0};
    MDB_val k = lmdb_to_mdb(key), v;
    int code = mdb_get(txn->mdb, lmdb_dbi(txn, dbi), &k, &v);
    if (code == MDB_NOTFOUND) return OK;
    if (code == 0) *value = lmdb_from_mdb(v);
    return lmdb_result(txn, code, "cannot read");
}

status lmdb_txn_get_fixed(struct lmdb_txn *txn, int dbi, struct lmdb_val key, void *value, size_t size, bool *found) {
    struct lmdb_val stored;
    status result = lmdb_txn_get(txn, dbi, key, &stored);
    const bool fits = stored.data && stored.size == size;
    if (fits) memcpy(value, stored.data, size);
    if (found) *found = fits;
    return result;
}

status lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value) {
    MDB_val k = lmdb_to_mdb(key), v = lmdb_to_mdb(value);
    return lmdb_result(txn, mdb_put(txn->mdb, lmdb_dbi(txn, dbi), &k, &v, 0), "cannot write");
}

status lmdb_txn_reserve(struct lmdb_txn *txn, int dbi, struct lmdb_val key, size_t size, void **data) {
    MDB_val k = lmdb_to_mdb(key), v = {size, NULL};
    int code = mdb_put(txn->mdb, lmdb_dbi(txn, dbi), &k, &v, MDB_RESERVE);
    *data = code ? NULL : v.mv_data;
    return lmdb_result(txn, code, "cannot write");
}

status lmdb_txn_del(struct lmdb_txn *txn, int dbi, struct lmdb_val key) {
    MDB_val k = lmdb_to_mdb(key);
    int code = mdb_del(txn->mdb, lmdb_dbi(txn, dbi), &k, NULL);
    return code == MDB_NOTFOUND ? OK : lmdb_result(txn, code, "cannot delete");
}

// ---- iteration ----

static status lmdb_cursor_move(struct lmdb_cursor *cursor, MDB_val key, MDB_cursor_op op) {
    MDB_val value;
    const int code = mdb_cursor_get(cursor->mdb, &key, &value, op);
    cursor->key = code ? (struct lmdb_val){0} : lmdb_from_mdb(key);
    cursor->value = code ? (struct lmdb_val){0} : lmdb_from_mdb(value);
    return code == MDB_NOTFOUND ? OK : lmdb_result(cursor->txn, code, "cannot iterate");
}

status lmdb_cursor_next(struct lmdb_cursor *cursor) {
    return lmdb_cursor_move(cursor, (MDB_val){0}, MDB_NEXT); // a new cursor moves to the first key
}

status lmdb_cursor_seek(struct lmdb_cursor *cursor, struct lmdb_val key) {
    return lmdb_cursor_move(cursor, lmdb_to_mdb(key), MDB_SET_RANGE);
}

status lmdb_cursor_init(struct lmdb_cursor *cursor, struct lmdb_txn *txn, int dbi) {
    *cursor = (struct lmdb_cursor){.txn = txn};
    TRY(lmdb_result(txn, mdb_cursor_open(txn->mdb, lmdb_dbi(txn, dbi), &cursor->mdb), "cannot iterate"));
    return lmdb_cursor_next(cursor);
}

void lmdb_cursor_release(struct lmdb_cursor *cursor) {
    if (cursor->mdb) mdb_cursor_close(cursor->mdb);
    *cursor = (struct lmdb_cursor){0};
}

status lmdb_txn_first(struct lmdb_txn *txn, int dbi, struct lmdb_val *key, struct lmdb_val *value) {
    struct lmdb_cursor cursor;
    status result = lmdb_cursor_init(&cursor, txn, dbi);
    *key = cursor.key;
    *value = cursor.value;
    lmdb_cursor_release(&cursor);
    return result;
}

// ---- one value at a time ----

status lmdb_env_get(struct lmdb_env *env, int dbi, struct lmdb_val key, struct buf *value, bool *found) {
    struct lmdb_txn *txn;
    TRY(lmdb_txn_begin_read(env, &txn));
    struct lmdb_val stored;
    status result = lmdb_txn_get(txn, dbi, key, &stored);
    *found = stored.data != NULL;
    if (result == OK && stored.data) buf_append(value, stored.data, stored.size);
    lmdb_txn_end(&txn);
    return result;
}

status lmdb_env_put(struct lmdb_env *env, int dbi, struct lmdb_val key, struct lmdb_val value) {
    struct lmdb_txn *txn;
    status result;
    do {
        result = lmdb_txn_begin_write(env, &txn);
        if (result == OK) result = lmdb_txn_put(txn, dbi, key, value);
    } while (lmdb_txn_commit(&txn, &result));
    return result;
}
