// The last use of the records in frames.lmdb, and the eviction of those that were not used for longest.
#ifndef SHARED_STORE_FRAME_USAGE_H
#define SHARED_STORE_FRAME_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/store/frames_record.h"
#include "shared/store/lmdb_env.h"

// The databases of frames.lmdb.
enum { DBI_FRAMES, DBI_USED, DBI_FILES, DBI_ORDER, DBI_TOTAL, DBI_ORIGINS };

// The value of DBI_USED.
struct frame_usage {
    int64_t time; // of the last use, nanoseconds since 1970
    uint64_t bytes;
};

// Sets the usage of a record, its place in the order and the total; bytes 0: there is none any more. only_existing:
// nothing is done for a record that was evicted. A time before the last one is ignored. DATAERR when the store is
// damaged, UNAVAILABLE when the disk is full.
status frame_usage_set(struct lmdb_txn *txn, const uint8_t key[frame_key_bytes], struct frame_usage usage,
                       bool only_existing);

// Evicts the least recently used records until `bytes` more fit `limit`, or none is left. Fails as frame_usage_set.
status frame_usage_make_room(struct lmdb_txn *txn, uint64_t limit, uint64_t bytes);

#endif
