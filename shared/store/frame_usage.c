// Three databases go together: the usage of each record, the records in the order of last use, and their total size.
#include "shared/store/frame_usage.h"

#include <assert.h>
#include <string.h>

// The key of DBI_ORDER, whose values are empty: sorted by time.
struct frame_order_key {
    uint8_t time[lmdb_number_size];
    uint8_t key[frame_key_bytes];
};

// These are stored as they are in memory.
static_assert(sizeof(struct frame_usage) == 16, "the usage is a format on disk");
static_assert(sizeof(struct frame_order_key) == 24, "the key of a record's use is a format on disk");

static const struct lmdb_val frame_usage_total_key = {"bytes", 5};

static struct frame_order_key frame_usage_order_key(int64_t time, const uint8_t key[frame_key_bytes]) {
    struct frame_order_key order;
    lmdb_number_write(order.time, time);
    memcpy(order.key, key, frame_key_bytes);
    return order;
}

// Sets *total to the size of all records.
static status frame_usage_total(struct lmdb_txn *txn, uint64_t *total) {
    *total = 0;
    return lmdb_txn_get_fixed(txn, DBI_TOTAL, frame_usage_total_key, total, sizeof *total, NULL);
}

status frame_usage_set(struct lmdb_txn *txn, const uint8_t key[frame_key_bytes], struct frame_usage usage,
                       bool only_existing) {
    const struct lmdb_val id = {key, frame_key_bytes};
    struct frame_usage before = {0};
    uint64_t total;
    TRY(frame_usage_total(txn, &total));
    TRY(lmdb_txn_get_fixed(txn, DBI_USED, id, &before, sizeof before, NULL));
    if (only_existing && !before.bytes) return OK;
    if (only_existing) usage.bytes = before.bytes;
    if (usage.bytes && usage.time < before.time) usage.time = before.time;
    const struct frame_order_key old = frame_usage_order_key(before.time, key),
                                 new = frame_usage_order_key(usage.time, key);
    if (before.bytes) TRY(lmdb_txn_del(txn, DBI_ORDER, (struct lmdb_val){&old, sizeof old}, NULL));
    if (usage.bytes) {
        TRY(lmdb_txn_put(txn, DBI_ORDER, (struct lmdb_val){&new, sizeof new}, (struct lmdb_val){"", 0}));
        TRY(lmdb_txn_put(txn, DBI_USED, id, (struct lmdb_val){&usage, sizeof usage}));
    } else {
        TRY(lmdb_txn_del(txn, DBI_USED, id, NULL));
    }
    total = total - before.bytes + usage.bytes;
    return lmdb_txn_put(txn, DBI_TOTAL, frame_usage_total_key, (struct lmdb_val){&total, sizeof total});
}

status frame_usage_make_room(struct lmdb_txn *txn, uint64_t limit, uint64_t bytes) {
    uint64_t total;
    for (;;) {
        struct frame_order_key oldest;
        struct lmdb_val key, value;
        TRY(frame_usage_total(txn, &total));
        if (total == 0 || total + bytes <= limit) return OK;
        TRY(lmdb_txn_first(txn, DBI_ORDER, &key, &value));
        if (key.size != sizeof oldest) return lmdb_txn_fail_damaged(txn, "the use of the frames");
        memcpy(&oldest, key.data, sizeof oldest);
        TRY(lmdb_txn_del(txn, DBI_FRAMES, (struct lmdb_val){oldest.key, sizeof oldest.key}, NULL));
        TRY(frame_usage_set(txn, oldest.key, (struct frame_usage){0}, false));
    }
}
