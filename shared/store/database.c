#include "shared/store/database.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/log.h"

enum { most_tables = 16, most_readers = 510, lock_bytes = 64 << 10, grow_patience = 20 };
static const size_t standard_map = (size_t)1 << 40, least_map = (size_t)1 << 30;

// One open LMDB environment. LMDB forbids opening a file twice in a process, so handles share it.
struct environment {
    struct environment *next;
    MDB_env *env;
    char *path;
    dev_t device;
    ino_t inode;
    int users;
    bool read_only;
    pthread_mutex_t lock; // of the two below
    pthread_cond_t calm;
    int active; // transactions of this process: the map must not move under them
    bool moving;
};

struct database {
    struct environment *home;
    MDB_dbi tables[most_tables];
    int table_count;
};

struct transaction {
    struct database *database;
    MDB_txn *txn;
    bool full; // an operation met the end of the map
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct environment *registry;

static bool disk_is_full(const char *path) {
    struct statvfs facts;
    return statvfs(path, &facts) == 0 && (unsigned long long)facts.f_bavail * facts.f_frsize < (64u << 10);
}

static status lmdb_failure(const struct environment *home, const char *path, int code, const char *what) {
    if (home) path = home->path;
    if (code == ENOSPC || code == EDQUOT || (code == EIO && disk_is_full(path))) {
        return fail(UNAVAILABLE, "%s: %s: no space left on the disk", path, what);
    }
    if (code == MDB_INVALID || code == MDB_VERSION_MISMATCH) return fail(DATAERR, "%s: not an LMDB file", path);
    if (code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND) return fail(DATAERR, "%s: %s: file is damaged", path, what);
    if (code == MDB_BAD_VALSIZE) return fail(BUG, "%s: %s: key or value of a size that cannot be kept", path, what);
    return fail(UNAVAILABLE, "%s: %s: %s", path, what, mdb_strerror(code));
}

// The lock file is mapped and written: on a full disk that would be a fatal signal, so its blocks are taken beforehand.
static status reserve_lock_file(const char *path) {
    char name[4200];
    if (snprintf(name, sizeof name, "%s-lock", path) >= (int)sizeof name)
        return fail(DATAERR, "%s: path too long", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", name, strerror(errno));
    int code = fallocate(fd, 0, 0, lock_bytes) ? errno : 0;
    close(fd);
    if (code == ENOSPC || code == EDQUOT) return fail(UNAVAILABLE, "%s: no space left on the disk", path);
    return OK; // file systems without fallocate take it as it comes
}

// LMDB ends the program when a file's inner order is broken; it is ended here, so that a line names the file.
static void give_up(MDB_env *env, const char *what) {
    log_info("%s: the file is damaged, remove it: %s", (const char *)mdb_env_get_userctx(env), what);
    _exit(DATAERR);
}

// A page that was cut off would be a fatal signal once it is read; as zeros it is found out. (LMDB's own files may be
// shorter than their last page too, where the last pages were never used.)
static status lengthen(const struct environment *home, off_t size) {
    MDB_envinfo info;
    MDB_stat stat;
    mdb_env_info(home->env, &info);
    mdb_env_stat(home->env, &stat);
    off_t wanted = (off_t)((info.me_last_pgno + 1) * stat.ms_psize);
    int fd = size < wanted ? open(home->path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd < 0) return OK;
    int code = fallocate(fd, 0, 0, wanted) ? errno : 0; // never makes it shorter, whoever else writes
    close(fd);
    if (code == ENOSPC || code == EDQUOT) return fail(UNAVAILABLE, "%s: no space left on the disk", home->path);
    return OK;
}

static int open_lmdb(MDB_env **out, const char *path, const struct database_options *options, size_t map) {
    unsigned flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD;
    if (options->read_only) flags |= MDB_RDONLY;
    if (options->lazy) flags |= MDB_NOMETASYNC;
    int code = mdb_env_create(out);
    if (code) return code;
    mdb_env_set_assert(*out, give_up);
    mdb_env_set_userctx(*out, (void *)path);
    code = mdb_env_set_maxdbs(*out, most_tables);
    if (!code) code = mdb_env_set_maxreaders(*out, most_readers);
    if (!code) code = mdb_env_set_mapsize(*out, map);
    if (!code) code = mdb_env_open(*out, path, flags, 0666);
    if (code) {
        mdb_env_close(*out);
        *out = NULL;
    }
    return code;
}

static status environment_new(struct environment **out, const char *path, const struct database_options *options) {
    if (!options->read_only) TRY(reserve_lock_file(path));
    struct environment *home;
    TRY(NEW(&home, 1));
    size_t map = options->map ? options->map : standard_map;
    int code = open_lmdb(&home->env, path, options, map);
    while (code == ENOMEM && map > least_map) code = open_lmdb(&home->env, path, options, map /= 2);
    status result = code ? lmdb_failure(NULL, path, code, "cannot open") : OK;
    struct stat facts = {0};
    home->path = strdup(path);
    if (result == OK && (!home->path || stat(path, &facts)))
        result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result == OK) mdb_env_set_userctx(home->env, home->path);
    if (result == OK) result = lengthen(home, facts.st_size);
    if (result != OK) {
        if (home->env) mdb_env_close(home->env);
        free(home->path);
        free(home);
        return result;
    }
    home->device = facts.st_dev;
    home->inode = facts.st_ino;
    home->read_only = options->read_only;
    pthread_mutex_init(&home->lock, NULL);
    pthread_cond_init(&home->calm, NULL);
    mdb_reader_check(home->env, &(int){0});
    *out = home;
    return OK;
}

static void environment_free(struct environment *home) {
    mdb_env_close(home->env);
    pthread_cond_destroy(&home->calm);
    pthread_mutex_destroy(&home->lock);
    free(home->path);
    free(home);
}

// Under registry_lock.
static status environment_share(struct environment **out, const char *path, const struct database_options *options) {
    struct stat facts;
    bool there = stat(path, &facts) == 0;
    if (!there && options->read_only) return fail(DATAERR, "%s: %s", path, strerror(errno));
    for (struct environment *home = registry; there && home; home = home->next) {
        if (home->device != facts.st_dev || home->inode != facts.st_ino) continue;
        if (home->read_only && !options->read_only) return fail(BUG, "%s: is open for reading only", path);
        home->users++;
        *out = home;
        return OK;
    }
    TRY(environment_new(out, path, options));
    (*out)->users = 1;
    (*out)->next = registry;
    registry = *out;
    return OK;
}

static void environment_drop(struct environment *home) {
    pthread_mutex_lock(&registry_lock);
    if (--home->users == 0) {
        struct environment **place = &registry;
        while (*place != home) place = &(*place)->next;
        *place = home->next;
        environment_free(home);
    }
    pthread_mutex_unlock(&registry_lock);
}

static void enter(struct environment *home) {
    pthread_mutex_lock(&home->lock);
    while (home->moving) pthread_cond_wait(&home->calm, &home->lock);
    home->active++;
    pthread_mutex_unlock(&home->lock);
}

static void leave(struct environment *home) {
    pthread_mutex_lock(&home->lock);
    home->active--;
    pthread_cond_broadcast(&home->calm);
    pthread_mutex_unlock(&home->lock);
}

// Sets the map's size (0: what another process made it) when no transaction of this process is left.
static status move_map(struct environment *home, size_t size) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += grow_patience;
    pthread_mutex_lock(&home->lock);
    int waited = 0;
    while ((home->active || home->moving) && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&home->calm, &home->lock, &until);
    }
    status result = OK;
    if (home->active || home->moving) {
        result = fail(UNAVAILABLE, "%s: the map has to grow, but %d readers of this program hold it", home->path,
                      home->active);
    } else {
        home->moving = true;
        int code = mdb_env_set_mapsize(home->env, size);
        if (code) result = lmdb_failure(home, NULL, code, "cannot grow");
        home->moving = false;
        pthread_cond_broadcast(&home->calm);
    }
    pthread_mutex_unlock(&home->lock);
    return result;
}

static status grow(struct environment *home) {
    MDB_envinfo before;
    mdb_env_info(home->env, &before);
    TRY(move_map(home, 0)); // another process may have grown it already
    MDB_envinfo now;
    mdb_env_info(home->env, &now);
    return now.me_mapsize > before.me_mapsize ? OK : move_map(home, before.me_mapsize * 2);
}

// Begins with active counted; on failure it is not.
static status begin(struct environment *home, unsigned flags, MDB_txn **txn) {
    for (int attempt = 0; attempt < 8; attempt++) {
        enter(home);
        int code = mdb_txn_begin(home->env, NULL, flags, txn);
        if (code == 0) return OK;
        leave(home);
        if (code == MDB_MAP_RESIZED) {
            TRY(move_map(home, 0));
        } else if (code == MDB_READERS_FULL && attempt == 0) {
            mdb_reader_check(home->env, &(int){0});
        } else {
            return lmdb_failure(home, NULL, code, "cannot begin a transaction");
        }
    }
    return fail(UNAVAILABLE, "%s: its map is resized without end", home->path);
}

static status open_tables(struct transaction *transaction, void *context) {
    const char *const *names = context;
    struct database *database = transaction->database;
    unsigned flags = database->home->read_only ? 0 : MDB_CREATE;
    for (database->table_count = 0; names[database->table_count]; database->table_count++) {
        int n = database->table_count;
        if (n == most_tables) return fail(BUG, "%s: more than %d tables", database->home->path, most_tables);
        int code = mdb_dbi_open(transaction->txn, names[n], flags, &database->tables[n]);
        transaction->full |= code == MDB_MAP_FULL;
        if (code == MDB_NOTFOUND) return fail(DATAERR, "%s: has no table '%s'", database->home->path, names[n]);
        if (code) return lmdb_failure(database->home, NULL, code, names[n]);
    }
    return OK;
}

// One attempt at a write; *again: the map was full, or moved by another process.
static status write_once(struct database *database, status (*work)(struct transaction *, void *), void *context,
                         bool *again) {
    struct transaction transaction = {.database = database};
    *again = false;
    TRY(begin(database->home, database->home->read_only ? MDB_RDONLY : 0, &transaction.txn));
    status result = work(&transaction, context);
    if (result == OK) {
        int code = mdb_txn_commit(transaction.txn);
        transaction.full |= code == MDB_MAP_FULL;
        if (code) result = lmdb_failure(database->home, NULL, code, "cannot commit");
    } else {
        mdb_txn_abort(transaction.txn);
    }
    leave(database->home);
    *again = result != OK && transaction.full;
    return result;
}

status database_write(struct database *database, status (*work)(struct transaction *, void *), void *context) {
    for (;;) {
        bool again;
        status result = write_once(database, work, context, &again);
        if (!again) return result;
        TRY(grow(database->home));
    }
}

status database_open(struct database **out, const char *path, const char *const *tables,
                     const struct database_options *options) {
    *out = NULL;
    struct database *database;
    TRY(NEW(&database, 1));
    pthread_mutex_lock(&registry_lock);
    status result = environment_share(&database->home, path, options ? options : &(struct database_options){0});
    // The names are looked up under the lock: LMDB allows one thread of a process at a time there.
    if (result == OK) result = database_write(database, open_tables, (void *)tables);
    pthread_mutex_unlock(&registry_lock);
    *out = database;
    if (result != OK) database_close(out);
    return result;
}

void database_close(struct database **place) {
    struct database *database = *place;
    if (!database) return;
    if (database->home) environment_drop(database->home);
    free(database);
    *place = NULL;
}

status database_read(struct database *database, struct transaction **out) {
    TRY(NEW(out, 1));
    (*out)->database = database;
    status result = begin(database->home, MDB_RDONLY, &(*out)->txn);
    if (result != OK) {
        free(*out);
        *out = NULL;
    }
    return result;
}

void transaction_end(struct transaction **place) {
    struct transaction *transaction = *place;
    if (!transaction) return;
    mdb_txn_abort(transaction->txn);
    leave(transaction->database->home);
    free(transaction);
    *place = NULL;
}

static MDB_val val(struct slice slice) {
    return (MDB_val){slice.size, (void *)slice.data};
}

static struct slice unval(MDB_val val) {
    return (struct slice){val.mv_data ? val.mv_data : "", val.mv_size};
}

static status outcome(struct transaction *transaction, int code, const char *what) {
    if (code == 0) return OK;
    transaction->full |= code == MDB_MAP_FULL;
    return lmdb_failure(transaction->database->home, NULL, code, what);
}

status transaction_get(struct transaction *transaction, int table, struct slice key, struct slice *value) {
    *value = (struct slice){0};
    MDB_val k = val(key), v;
    int code = mdb_get(transaction->txn, transaction->database->tables[table], &k, &v);
    if (code == MDB_NOTFOUND) return OK;
    if (code == 0) *value = unval(v);
    return outcome(transaction, code, "cannot read");
}

status transaction_put(struct transaction *transaction, int table, struct slice key, struct slice value) {
    MDB_val k = val(key), v = val(value);
    return outcome(transaction, mdb_put(transaction->txn, transaction->database->tables[table], &k, &v, 0),
                   "cannot write");
}

status transaction_reserve(struct transaction *transaction, int table, struct slice key, size_t size, void **place) {
    MDB_val k = val(key), v = {size, NULL};
    int code = mdb_put(transaction->txn, transaction->database->tables[table], &k, &v, MDB_RESERVE);
    *place = code ? NULL : v.mv_data;
    return outcome(transaction, code, "cannot write");
}

status transaction_delete(struct transaction *transaction, int table, struct slice key, bool *found) {
    MDB_val k = val(key);
    int code = mdb_del(transaction->txn, transaction->database->tables[table], &k, NULL);
    if (found) *found = code == 0;
    return code == MDB_NOTFOUND ? OK : outcome(transaction, code, "cannot remove");
}

status transaction_each(struct transaction *transaction, int table, struct slice first,
                        status (*visit)(void *context, struct slice key, struct slice value), void *context) {
    MDB_cursor *cursor;
    TRY(outcome(transaction, mdb_cursor_open(transaction->txn, transaction->database->tables[table], &cursor),
                "cannot walk"));
    MDB_val k = val(first), v;
    int code = mdb_cursor_get(cursor, &k, &v, first.size ? MDB_SET_RANGE : MDB_FIRST);
    status result = OK;
    while (code == 0 && result == OK) {
        result = visit(context, unval(k), unval(v));
        if (result == OK) code = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    if (result == END) return OK;
    return result != OK || code == MDB_NOTFOUND ? result : outcome(transaction, code, "cannot walk");
}

status transaction_last(struct transaction *transaction, int table, struct slice *key, struct slice *value) {
    *key = *value = (struct slice){0};
    MDB_cursor *cursor;
    TRY(outcome(transaction, mdb_cursor_open(transaction->txn, transaction->database->tables[table], &cursor),
                "cannot walk"));
    MDB_val k, v;
    int code = mdb_cursor_get(cursor, &k, &v, MDB_LAST);
    mdb_cursor_close(cursor);
    if (code == MDB_NOTFOUND) return OK;
    TRY(outcome(transaction, code, "cannot walk"));
    *key = unval(k);
    *value = unval(v);
    return OK;
}

status transaction_count(struct transaction *transaction, int table, size_t *count) {
    MDB_stat facts = {0};
    int code = mdb_stat(transaction->txn, transaction->database->tables[table], &facts);
    *count = facts.ms_entries;
    return outcome(transaction, code, "cannot count");
}

status database_get(struct database *database, int table, struct slice key, struct buf *value, bool *found) {
    struct transaction *transaction;
    TRY(database_read(database, &transaction));
    struct slice there;
    status result = transaction_get(transaction, table, key, &there);
    *found = there.data != NULL;
    if (result == OK && there.data) result = buf_append(value, there.data, there.size);
    transaction_end(&transaction);
    return result;
}

struct one_change {
    int table;
    struct slice key, value;
    bool *found;
};

static status put_one(struct transaction *transaction, void *context) {
    struct one_change *change = context;
    return transaction_put(transaction, change->table, change->key, change->value);
}

static status delete_one(struct transaction *transaction, void *context) {
    struct one_change *change = context;
    return transaction_delete(transaction, change->table, change->key, change->found);
}

status database_put(struct database *database, int table, struct slice key, struct slice value) {
    return database_write(database, put_one, &(struct one_change){table, key, value, NULL});
}

status database_delete(struct database *database, int table, struct slice key, bool *found) {
    return database_write(database, delete_one, &(struct one_change){table, key, {0}, found});
}

static status free_pages(MDB_txn *txn, size_t *pages) {
    MDB_cursor *cursor;
    if (mdb_cursor_open(txn, 0, &cursor)) return fail(UNAVAILABLE, "cannot walk the list of free pages");
    MDB_val k, v;
    *pages = 0;
    while (mdb_cursor_get(cursor, &k, &v, MDB_NEXT) == 0) *pages += *(size_t *)v.mv_data;
    mdb_cursor_close(cursor);
    return OK;
}

status database_size(struct database *database, size_t *used, size_t *file) {
    struct transaction *transaction;
    TRY(database_read(database, &transaction));
    MDB_envinfo info;
    MDB_stat stat;
    size_t pages = 0;
    mdb_env_info(database->home->env, &info);
    mdb_env_stat(database->home->env, &stat);
    status result = free_pages(transaction->txn, &pages);
    transaction_end(&transaction);
    if (result != OK) return result;
    if (used) *used = (info.me_last_pgno + 1 - pages) * stat.ms_psize;
    if (file) *file = (info.me_last_pgno + 1) * stat.ms_psize;
    return OK;
}
