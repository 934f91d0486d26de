// An LMDB file as this process has it open, and its map, which grows. For lmdb_env.c only.
//
// LMDB forbids opening a file twice in a process, so all handles to a file share one of these.
#ifndef SHARED_STORE_LMDB_FILE_H
#define SHARED_STORE_LMDB_FILE_H

#include <lmdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "shared/base/status.h"
#include "shared/store/lmdb_env.h"

enum { lmdb_max_dbis = 16 };

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

// Opens the file, or takes one more reference when this process has it open. Errors as lmdb_env_open. The caller gives
// it back with lmdb_file_release.
status lmdb_file_acquire(struct lmdb_file **out, const char *path, const struct lmdb_options *options);

// Gives back a reference and sets *file to NULL; the last one closes the file. NULL is fine.
void lmdb_file_release(struct lmdb_file **file);

// Resizes the map (0: to the size that another process gave it), once this process has no open transaction. UNAVAILABLE
// when it has one for too long, or when the disk is full.
status lmdb_file_set_mapsize(struct lmdb_file *file, size_t size);

// Returns the size of this process's map in bytes.
size_t lmdb_file_mapsize(struct lmdb_file *file);

// Counts a transaction that begins (1) or has ended (-1). After 256 transactions the file is mapped again as soon as
// none is open: the pages that were read would otherwise count as this process's resident memory for as long as it
// runs.
void lmdb_file_count_txn(struct lmdb_file *file, int change);

// Fails with DATAERR and the way out: what is damaged, as the format says, and what to remove.
status lmdb_fail_damaged(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Fails with the message for LMDB's `code` about the file at `path`; `what` could not be done. Returns UNAVAILABLE,
// DATAERR when the file is damaged or of another kind, or BUG.
status lmdb_fail(const char *path, int code, const char *what);

#endif
