// Handles to LMDB files, transactions, keys and values, iteration.
#include "shared/store/lmdb_env.h"

#include <assert.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shared/store/lmdb_file.h"

struct lmdb_env {
    struct lmdb_file *file;
    MDB_dbi dbis[lmdb_max_dbis];
    int dbi_count;
};

struct lmdb_txn {
    struct lmdb_env *env;
    MDB_txn *mdb;
    bool map_full; // an operation returned MDB_MAP_FULL
};

static pthread_mutex_t lmdb_dbi_lock = PTHREAD_MUTEX_INITIALIZER; // LMDB opens databases in one thread at a time

// ---- transactions ----

static status lmdb_begin(struct lmdb_env *env, unsigned flags, struct lmdb_txn **out) {
    enum { max_attempts = 8 };
    struct lmdb_file *file = env->file;
    struct lmdb_txn *txn;
    *out = NULL;
    NEW(&txn, 1);
    txn->env = env;
    status result = OK;
    for (int attempt = 0; attempt < max_attempts && result == OK; attempt++) {
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
    status result = OK;
    *out = NULL;
    if (!options) options = &defaults;
    NEW(&env, 1);
    TRY_TO(result, done, lmdb_file_acquire(&env->file, path, options));
    pthread_mutex_lock(&lmdb_dbi_lock);
    do {
        result = lmdb_txn_begin_write(env, &txn);
        for (env->dbi_count = 0; result == OK && names[env->dbi_count]; env->dbi_count++) {
            const char *name = names[env->dbi_count];
            assert(env->dbi_count < lmdb_max_dbis);
            unsigned flags = env->file->read_only ? 0 : MDB_CREATE;
            int code = mdb_dbi_open(txn->mdb, name, flags, &env->dbis[env->dbi_count]);
            txn->map_full |= code == MDB_MAP_FULL;
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

void lmdb_env_close(struct lmdb_env **env) {
    if (!*env) return;
    lmdb_file_release(&(*env)->file);
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
    for (int i = 0; i < lmdb_number_size; i++) out[i] = (uint8_t)((uint64_t)number >> (56 - 8 * i));
}

int64_t lmdb_number_read(const uint8_t *bytes) {
    uint64_t number = 0;
    for (int i = 0; i < lmdb_number_size; i++) number = number << 8 | bytes[i];
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

status lmdb_txn_del(struct lmdb_txn *txn, int dbi, struct lmdb_val key, bool *found) {
    MDB_val k = lmdb_to_mdb(key);
    int code = mdb_del(txn->mdb, lmdb_dbi(txn, dbi), &k, NULL);
    if (found) *found = code == 0;
    return code == MDB_NOTFOUND ? OK : lmdb_result(txn, code, "cannot delete");
}

// ---- iteration ----

// Moves the cursor; past the last key it has no key.
static status lmdb_cursor_move(struct lmdb_cursor *cursor, MDB_val key, MDB_cursor_op op) {
    MDB_val value;
    int code = mdb_cursor_get(cursor->mdb, &key, &value, op);
    cursor->key = code ? (struct lmdb_val){0} : lmdb_from_mdb(key);
    cursor->value = code ? (struct lmdb_val){0} : lmdb_from_mdb(value);
    return code == MDB_NOTFOUND ? OK : lmdb_result(cursor->txn, code, "cannot iterate");
}

status lmdb_cursor_init(struct lmdb_cursor *cursor, struct lmdb_txn *txn, int dbi, struct lmdb_val first) {
    *cursor = (struct lmdb_cursor){.txn = txn};
    TRY(lmdb_result(txn, mdb_cursor_open(txn->mdb, lmdb_dbi(txn, dbi), &cursor->mdb), "cannot iterate"));
    return lmdb_cursor_move(cursor, lmdb_to_mdb(first), first.size ? MDB_SET_RANGE : MDB_FIRST);
}

status lmdb_cursor_next(struct lmdb_cursor *cursor) {
    assert(cursor->key.data);
    return lmdb_cursor_move(cursor, (MDB_val){0}, MDB_NEXT);
}

void lmdb_cursor_release(struct lmdb_cursor *cursor) {
    if (cursor->mdb) mdb_cursor_close(cursor->mdb);
    *cursor = (struct lmdb_cursor){0};
}

status lmdb_txn_first(struct lmdb_txn *txn, int dbi, struct lmdb_val *key, struct lmdb_val *value) {
    struct lmdb_cursor cursor;
    status result = lmdb_cursor_init(&cursor, txn, dbi, (struct lmdb_val){0});
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
