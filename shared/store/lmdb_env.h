// An LMDB file with several named databases: opened once per process, grows by itself, safe for many processes.
//
// The surprise: a write may have to start again. When the map is full, LMDB cannot continue the transaction.
// lmdb_txn_commit then aborts it, grows the map and says so, and the caller repeats the writes:
//
//     do {
//         result = lmdb_txn_begin_write(env, &txn);
//         if (result == OK) result = lmdb_txn_put(txn, ...);
//     } while (lmdb_txn_commit(&txn, &result));
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct lmdb_env;
struct lmdb_txn;

// A key or a value, owned by someone else. data NULL: there is none.
struct lmdb_val {
    const void *data;
    size_t size;
};

// A number in a key is big-endian, so that LMDB sorts the keys by it; it is not negative.
enum { LMDB_NUMBER_SIZE = 8 };

// Writes a number, LMDB_NUMBER_SIZE bytes.
void lmdb_number_write(uint8_t *out, int64_t number);

// Returns the number that lmdb_number_write wrote.
int64_t lmdb_number_read(const uint8_t *bytes);

struct lmdb_options {
    // Never creates anything; DATAERR when there is no such file. A user who may not write the lock file can read while
    // no process uses the file, otherwise UNAVAILABLE.
    bool read_only;
    int required;   // the first that many databases must be there in a file that is read only; 0: all
    bool lazy;      // a power failure may undo the last transactions but never corrupts the file: for caches
    size_t mapsize; // bytes of address space at first; 0: 1 TiB or what the system grants; at least the file's size
};

// Opens or creates the file `path` and its lock file `path`-lock, with the databases names[0..], NULL last, 16 at most.
// Whoever finds a file that was created finds the databases in it.
// `dbi` in the functions below is an index into `names`. Opening a path again in the same process is allowed and cheap.
// options NULL: all off. Clears the slots of readers that died. UNAVAILABLE when the disk fails, DATAERR when the file
// is not an LMDB file, USAGE when it is on a network file system, unless read_only. Not to be used across fork(). The
// caller closes it with lmdb_env_close.
status lmdb_env_open(struct lmdb_env **out, const char *path, const char *const *names,
                     const struct lmdb_options *options);

// Whether the file has the database `dbi`, which was not required.
bool lmdb_env_has(const struct lmdb_env *env, int dbi);

// Closes and frees; sets *env to NULL. Every transaction must have ended. NULL is fine.
void lmdb_env_close(struct lmdb_env **env);

// Fails with DATAERR and the way out: what the file has is damaged.
status lmdb_env_fail_damaged(const struct lmdb_env *env, const char *what);

// The same for the file of a transaction.
status lmdb_txn_fail_damaged(const struct lmdb_txn *txn, const char *what);

// Appends the value of `key` to `value`. *found says whether there is one; if not, `value` is unchanged.
status lmdb_env_get(struct lmdb_env *env, int dbi, struct lmdb_val key, struct buf *value, bool *found);

// Sets or replaces one value; it is durable on return unless the environment is lazy. Keys have 1 to 511 bytes.
// UNAVAILABLE when the disk is full; nothing has changed then.
status lmdb_env_put(struct lmdb_env *env, int dbi, struct lmdb_val key, struct lmdb_val value);

// Begins a read transaction. What it returns stays valid and unchanged until lmdb_txn_end and may be used by any
// thread. While it is open, the file cannot reuse the space that writers free.
status lmdb_txn_begin_read(struct lmdb_env *env, struct lmdb_txn **out);

// Begins a write transaction; *out is NULL after a failure. All processes together have one writer at a time, so a
// second one of the same thread never returns.
status lmdb_txn_begin_write(struct lmdb_env *env, struct lmdb_txn **out);

// Ends a write transaction: commits it when *result, the status of the writes, is OK, and aborts it otherwise. Sets
// *txn to NULL and *result to the outcome. Returns true when the map was full and has grown: the caller then starts
// again with lmdb_txn_begin_write. A *txn of NULL is fine after a failure.
bool lmdb_txn_commit(struct lmdb_txn **txn, status *result);

// Ends a read transaction, or aborts a write transaction, and sets *txn to NULL; NULL is fine.
void lmdb_txn_end(struct lmdb_txn **txn);

// *value = the value of `key`; data is NULL when there is none. Valid until the transaction ends or changes something.
// Values larger than a page are aligned to 16 bytes.
status lmdb_txn_get(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val *value);

// Copies the value of `key` into value[0..size). *found (may be NULL) says whether there is one of that size; if not,
// `value` is unchanged.
status lmdb_txn_get_fixed(struct lmdb_txn *txn, int dbi, struct lmdb_val key, void *value, size_t size, bool *found);

// Sets *key and *value to those of the lowest key; key->data is NULL when the database is empty. Valid as in
// lmdb_txn_get.
status lmdb_txn_first(struct lmdb_txn *txn, int dbi, struct lmdb_val *key, struct lmdb_val *value);

// Sets or replaces a value. UNAVAILABLE when the disk is full.
status lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value);

// *data = space for `size` bytes as the value of `key`; the caller fills it before the next call.
status lmdb_txn_reserve(struct lmdb_txn *txn, int dbi, struct lmdb_val key, size_t size, void **data);

// Deletes a key; a missing one is no error.
status lmdb_txn_del(struct lmdb_txn *txn, int dbi, struct lmdb_val key);

// Iterates over the keys of a database in ascending order of bytes:
//
//     result = lmdb_cursor_init(&cursor, txn, dbi);
//     for (; result == OK && cursor.key.data; result = lmdb_cursor_next(&cursor)) ...
//     lmdb_cursor_release(&cursor);
struct lmdb_cursor {
    struct lmdb_val key, value; // key.data NULL: past the last one
    struct lmdb_txn *txn;
    struct MDB_cursor *mdb;
};

// Starts at the first key. The database must not change while the cursor is used. The caller releases it with
// lmdb_cursor_release before the transaction ends, also after a failure.
status lmdb_cursor_init(struct lmdb_cursor *cursor, struct lmdb_txn *txn, int dbi);

// Moves to the first key that is not below `key`.
status lmdb_cursor_seek(struct lmdb_cursor *cursor, struct lmdb_val key);

// Moves to the next key; only while there is one.
status lmdb_cursor_next(struct lmdb_cursor *cursor);

// Releases and zeroes; a zeroed cursor is fine.
void lmdb_cursor_release(struct lmdb_cursor *cursor);

// ---- file systems ----

// The processes of an LMDB file share memory through its lock file, so on a network file system two machines would
// write the same pages.

// Returns the name of the network file system that the directory is on; NULL when it is local, unknown or cannot be
// read.
const char *lmdb_network_file_system(const char *directory);

// USAGE when the file at `path`, which need not exist yet, would be on a network file system.
status lmdb_check_file_system(const char *path);

// Whether a line of /proc/self/mountinfo is the overlay file system with this device number; `upper` then gets the
// directory that has what is written to it. Declared for tests.
bool lmdb_overlay_upper(const char *line, unsigned device_major, unsigned device_minor, char *upper, size_t size);
