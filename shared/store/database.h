// An LMDB file with named tables: opened once a process, growing by itself, safe for many processes at once.
//
// The surprise: a write may run twice. When the map is full, LMDB cannot go on inside the transaction, so
// database_write drops it, grows the map and calls the work again from its beginning; work must depend on what it reads
// there alone.
#ifndef SHARED_STORE_DATABASE_H
#define SHARED_STORE_DATABASE_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct database;
struct transaction;

// Bytes that someone else owns. data == NULL: absent.
struct slice {
    const void *data;
    size_t size;
};

struct database_options {
    bool read_only; // never creates; DATAERR when there is no such file
    bool lazy;      // a power failure may undo the last transactions (never corrupt): for caches
    size_t map;     // bytes of address space at first, 0: 1 TiB or what the system grants; a file takes what it holds
};

// Opens or makes PATH (one file, beside it PATH-lock) with tables named tables[0..], NULL last, 16 at most; a table is
// called by its place in that list. Opening a path again in the same process is fine and cheap; options NULL: all off.
// UNAVAILABLE when the disk refuses, DATAERR when it is no LMDB file. Readers that died are cleared. Not to be used
// across fork().
status database_open(struct database **out, const char *path, const char *const *tables,
                     const struct database_options *options);

// Closes; every transaction must have ended. NULL is fine; sets *database to NULL.
void database_close(struct database **database);

// Appends the value under `key` to `value`; *found says whether there was one (value is untouched if not).
status database_get(struct database *database, int table, struct slice key, struct buf *value, bool *found);

// Sets or replaces one value; durable on return (unless lazy). Keys have 1 to 511 bytes. UNAVAILABLE when the disk is
// full: nothing has changed then.
status database_put(struct database *database, int table, struct slice key, struct slice value);

// Removes a key; a missing one is fine, *found (may be NULL) says so.
status database_delete(struct database *database, int table, struct slice key, bool *found);

// Runs work(transaction, context) as one write: all of it or, when it answers other than OK, nothing. It may be called
// again after the map has grown. One writer at a time over all processes; not to be nested.
status database_write(struct database *database, status (*work)(struct transaction *transaction, void *context),
                      void *context);

// A snapshot for reading; what it returns stays valid and unchanged until transaction_end, from any thread. Holding one
// for long keeps the file from using freed space again.
status database_read(struct database *database, struct transaction **out);

// Ends a snapshot; NULL is fine; sets *transaction to NULL. (Not for the one that database_write hands to its work.)
void transaction_end(struct transaction **transaction);

// *value = what stands under `key`, data NULL when there is none. Valid until the transaction's end or next change;
// values of more than a page are aligned to 16.
status transaction_get(struct transaction *transaction, int table, struct slice key, struct slice *value);

// Sets or replaces a value.
status transaction_put(struct transaction *transaction, int table, struct slice key, struct slice value);

// *place = room for `size` bytes under `key`, to be filled before the next call.
status transaction_reserve(struct transaction *transaction, int table, struct slice key, size_t size, void **place);

// Removes a key; *found (may be NULL) says whether it was there.
status transaction_delete(struct transaction *transaction, int table, struct slice key, bool *found);

// Calls visit for each key from `first` on (size 0: from the beginning), in order of bytes. END from visit ends the
// walk with OK, any other failure is passed on. Do not change the table inside a walk.
status transaction_each(struct transaction *transaction, int table, struct slice first,
                        status (*visit)(void *context, struct slice key, struct slice value), void *context);

// The greatest key and its value; key.data NULL for an empty table.
status transaction_last(struct transaction *transaction, int table, struct slice *key, struct slice *value);

// How many keys the table has.
status transaction_count(struct transaction *transaction, int table, size_t *count);

// Bytes of the file's pages in use (freed ones left out) and the file's bytes in all; either may be NULL.
status database_size(struct database *database, size_t *used, size_t *file);

#endif
