// An LMDB file with several named databases: opened once a process, grows by itself, safe for many processes.
//
// The surprise: a write may run twice. When the map is full, LMDB cannot continue the transaction. lmdb_env_write then
// aborts it, grows the map and calls the work again from its start, so the work may depend only on what it reads in the
// transaction.
#ifndef SHARED_STORE_LMDB_ENV_H
#define SHARED_STORE_LMDB_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct lmdb_env;
struct lmdb_txn;

// A key or a value, owned by someone else. data NULL: there is none.
struct lmdb_val {
    const void *data;
    size_t size;
};

struct lmdb_options {
    bool read_only; // never creates anything; DATAERR when there is no such file
    bool lazy;      // a power failure may undo the last transactions but never corrupts the file: for caches
    size_t mapsize; // bytes of address space at first; 0: 1 TiB or what the system grants; at least the file's size
};

// Opens or creates the file `path` and its lock file `path`-lock, with the databases names[0..], NULL last, 16 at most.
// `dbi` in the functions below is an index into `names`. Opening a path again in the same process is allowed and cheap.
// options NULL: all off. Clears the slots of readers that died. UNAVAILABLE when the disk fails, DATAERR when the file
// is not an LMDB file. Not to be used across fork(). The caller closes it with lmdb_env_close.
status lmdb_env_open(struct lmdb_env **out, const char *path, const char *const *names,
                     const struct lmdb_options *options);

// Closes and frees; sets *env to NULL. Every transaction must have ended. NULL is fine.
void lmdb_env_close(struct lmdb_env **env);

// Appends the value of `key` to `value`. *found says whether there is one; if not, `value` is unchanged.
status lmdb_env_get(struct lmdb_env *env, int dbi, struct lmdb_val key, struct buf *value, bool *found);

// Sets or replaces one value; it is durable on return unless the environment is lazy. Keys have 1 to 511 bytes.
// UNAVAILABLE when the disk is full; nothing has changed then.
status lmdb_env_put(struct lmdb_env *env, int dbi, struct lmdb_val key, struct lmdb_val value);

// Deletes a key; a missing one is no error. *found (may be NULL) says whether it existed.
status lmdb_env_del(struct lmdb_env *env, int dbi, struct lmdb_val key, bool *found);

// Runs work(txn, context) as one write transaction and commits it; when work does not return OK, the transaction is
// aborted and that status is returned. The work may be called again after the map has grown. All processes together
// have one writer at a time. Not to be nested.
status lmdb_env_write(struct lmdb_env *env, status (*work)(struct lmdb_txn *txn, void *context), void *context);

// Begins a read transaction. What it returns stays valid and unchanged until lmdb_txn_end and may be used by any
// thread. While it is open, the file cannot reuse the space that writers free.
status lmdb_txn_begin_read(struct lmdb_env *env, struct lmdb_txn **out);

// Ends a read transaction and sets *txn to NULL; NULL is fine. Not for the transaction that lmdb_env_write passes to
// its work.
void lmdb_txn_end(struct lmdb_txn **txn);

// *value = the value of `key`; data is NULL when there is none. Valid until the transaction ends or changes something.
// Values larger than a page are aligned to 16 bytes.
status lmdb_txn_get(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val *value);

// Sets or replaces a value. UNAVAILABLE when the disk is full.
status lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value);

// *data = space for `size` bytes as the value of `key`; the caller fills it before the next call.
status lmdb_txn_reserve(struct lmdb_txn *txn, int dbi, struct lmdb_val key, size_t size, void **data);

// Deletes a key; a missing one is no error. *found (may be NULL) says whether it existed.
status lmdb_txn_del(struct lmdb_txn *txn, int dbi, struct lmdb_val key, bool *found);

// Calls visit for every key from `first` on (size 0: from the start) in ascending order of bytes. END from visit ends
// the iteration with OK, any other failure is returned. visit must not change the database.
status lmdb_txn_each(struct lmdb_txn *txn, int dbi, struct lmdb_val first,
                     status (*visit)(void *context, struct lmdb_val key, struct lmdb_val value), void *context);

// *key, *value = the greatest key and its value; key->data is NULL when the database is empty.
status lmdb_txn_last(struct lmdb_txn *txn, int dbi, struct lmdb_val *key, struct lmdb_val *value);

// *count = the number of keys.
status lmdb_txn_count(struct lmdb_txn *txn, int dbi, size_t *count);

// *used = bytes of the file's pages without the free ones; *file = bytes of the file. Either may be NULL.
status lmdb_env_size(struct lmdb_env *env, size_t *used, size_t *file);

#endif
