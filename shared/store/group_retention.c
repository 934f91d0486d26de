// Each whole group has a place in the order in which they were saved, by a number that only grows. Sections are
// ordered by the seq of their group.
#include "shared/store/group_retention.h"

#include <assert.h>
#include <string.h>

enum {
    group_removed_per_save = 8, // more than one, so that a store that is too large becomes smaller
    group_removed_per_txn = 64,
};

// The value of the key "totals" in DBI_TOTALS.
struct group_totals {
    int64_t next;  // number of the next whole group that is saved; the keys of DBI_ORDER, the values of DBI_NUMBERS
    int64_t bytes; // of all whole groups
    int64_t step;  // of the last one that optim trained
};

// The fixed part of a value of DBI_ORDER. The group's key in DBI_GROUPS follows.
struct group_place {
    int64_t bytes, step;
};

static_assert(sizeof(struct group_totals) == 24, "the totals are a format on disk");
static_assert(sizeof(struct group_place) == 16, "a group's place is a format on disk");

// ---- whole groups ----

static const struct lmdb_val group_retention_totals_key = {"totals", 6};

static status group_retention_put_totals(struct lmdb_txn *txn, const struct group_totals *totals) {
    return lmdb_txn_put(txn, DBI_TOTALS, group_retention_totals_key, (struct lmdb_val){totals, sizeof *totals});
}

// Gives a whole group the next place in the order.
static status group_retention_add_place(struct lmdb_txn *txn, struct group_totals *totals, struct lmdb_val id,
                                        const struct group_place *place) {
    uint8_t number[lmdb_number_size], value[sizeof *place + group_max_key];
    assert(id.size <= group_max_key);
    memcpy(value, place, sizeof *place);
    memcpy(value + sizeof *place, id.data, id.size);
    lmdb_number_write(number, totals->next++);
    totals->bytes += place->bytes;
    TRY(lmdb_txn_put(txn, DBI_ORDER, (struct lmdb_val){number, sizeof number},
                     (struct lmdb_val){value, sizeof *place + id.size}));
    return lmdb_txn_put(txn, DBI_NUMBERS, id, (struct lmdb_val){number, sizeof number});
}

// Reads the totals, which a new store lacks.
static status group_retention_read_totals(struct lmdb_txn *txn, struct group_totals *totals) {
    struct lmdb_val key, value;
    bool found;
    *totals = (struct group_totals){0};
    TRY(lmdb_txn_get_fixed(txn, DBI_TOTALS, group_retention_totals_key, totals, sizeof *totals, &found));
    if (found) return OK;
    TRY(lmdb_txn_first(txn, DBI_GROUPS, &key, &value));
    return key.data ? lmdb_txn_fail_damaged(txn, "the totals of the groups") : OK;
}

// Sets the place, the number and the key in DBI_GROUPS of the oldest whole group; *id_size is 0 when there is none.
static status group_retention_oldest(struct lmdb_txn *txn, struct group_place *place, uint8_t number[lmdb_number_size],
                                     uint8_t id[group_max_key], size_t *id_size) {
    struct lmdb_val key, value;
    *id_size = 0;
    TRY(lmdb_txn_first(txn, DBI_ORDER, &key, &value));
    if (!key.data) return OK;
    if (key.size != lmdb_number_size || value.size <= sizeof *place || value.size > sizeof *place + group_max_key)
        return lmdb_txn_fail_damaged(txn, "the order of the groups");
    memcpy(number, key.data, lmdb_number_size);
    memcpy(place, value.data, sizeof *place);
    *id_size = value.size - sizeof *place;
    memcpy(id, (const char *)value.data + sizeof *place, *id_size);
    return OK;
}

// Removes the oldest whole groups beyond `keep`, at most `most`. The newest group always stays.
static status group_retention_remove_oldest(struct lmdb_txn *txn, struct group_totals *totals,
                                            const struct group_keep *keep, int most, int64_t *removed, int64_t *freed) {
    for (int count = 0; count < most; count++) {
        uint8_t number[lmdb_number_size], id[group_max_key];
        struct group_place place;
        size_t id_size;
        TRY(group_retention_oldest(txn, &place, number, id, &id_size));
        if (!id_size || lmdb_number_read(number) == totals->next - 1) return OK;
        const struct lmdb_val key = {id, id_size};
        bool beyond = keep->bytes && totals->bytes > keep->bytes;
        if (!beyond && keep->steps) beyond = place.step + keep->steps <= totals->step;
        if (!beyond) return OK;
        TRY(lmdb_txn_del(txn, DBI_GROUPS, key, NULL));
        TRY(lmdb_txn_del(txn, DBI_NUMBERS, key, NULL));
        TRY(lmdb_txn_del(txn, DBI_ORDER, (struct lmdb_val){number, sizeof number}, NULL));
        totals->bytes -= place.bytes;
        *removed += 1;
        *freed += place.bytes;
    }
    return OK;
}

status group_retention_add_group(struct lmdb_txn *txn, const struct group_keep *keep, struct lmdb_val id, int64_t bytes,
                                 const int64_t *step) {
    struct group_totals totals;
    uint8_t number[lmdb_number_size];
    bool found;
    int64_t removed = 0, freed = 0;
    TRY(group_retention_read_totals(txn, &totals));
    TRY(lmdb_txn_get_fixed(txn, DBI_NUMBERS, id, number, sizeof number, &found));
    if (found) { // it leaves its old place
        struct group_place old = {0};
        struct lmdb_val stored;
        TRY(lmdb_txn_get(txn, DBI_ORDER, (struct lmdb_val){number, sizeof number}, &stored));
        if (stored.data && stored.size >= sizeof old) memcpy(&old, stored.data, sizeof old);
        TRY(lmdb_txn_del(txn, DBI_ORDER, (struct lmdb_val){number, sizeof number}, NULL));
        totals.bytes -= old.bytes;
    }
    if (step) totals.step = *step;
    const struct group_place place = {.bytes = bytes, .step = totals.step};
    TRY(group_retention_add_place(txn, &totals, id, &place));
    TRY(group_retention_remove_oldest(txn, &totals, keep, group_removed_per_save, &removed, &freed));
    return group_retention_put_totals(txn, &totals);
}

status group_retention_remove_groups(struct lmdb_txn *txn, const struct group_keep *keep, int64_t *removed,
                                     int64_t *freed) {
    struct group_totals totals;
    TRY(group_retention_read_totals(txn, &totals));
    TRY(group_retention_remove_oldest(txn, &totals, keep, group_removed_per_txn, removed, freed));
    return group_retention_put_totals(txn, &totals);
}

// ---- sections ----

status group_retention_add_section(struct lmdb_txn *txn, int64_t keep, int64_t seq, const struct section_key *key) {
    uint8_t own[lmdb_number_size + sizeof key->bytes];
    lmdb_number_write(own, seq);
    memcpy(own + lmdb_number_size, key->bytes, sizeof key->bytes);
    TRY(lmdb_txn_put(txn, DBI_SEQS, (struct lmdb_val){own, sizeof own}, (struct lmdb_val){"", 0}));
    for (int count = 0; count < group_removed_per_save; count++) {
        struct lmdb_val first, value;
        uint8_t oldest[sizeof own];
        TRY(lmdb_txn_first(txn, DBI_SEQS, &first, &value));
        if (first.size != sizeof oldest) return lmdb_txn_fail_damaged(txn, "the order of the sections");
        memcpy(oldest, first.data, sizeof oldest);
        if (lmdb_number_read(oldest) >= seq - keep) return OK;
        TRY(lmdb_txn_del(txn, DBI_SECTIONS, (struct lmdb_val){oldest + lmdb_number_size, sizeof key->bytes}, NULL));
        TRY(lmdb_txn_del(txn, DBI_SEQS, (struct lmdb_val){oldest, sizeof oldest}, NULL));
    }
    return OK;
}

status group_retention_remove_sections(struct lmdb_txn *txn, bool *left) {
    static const int dbis[] = {DBI_SEQS, DBI_SECTIONS};
    *left = true;
    for (int count = 0, i = 0; count < group_removed_per_txn; count++) {
        struct lmdb_val first, value;
        uint8_t key[group_max_key];
        TRY(lmdb_txn_first(txn, dbis[i], &first, &value));
        if (first.size > sizeof key) return lmdb_txn_fail_damaged(txn, "the order of the sections");
        if (first.data) {
            memcpy(key, first.data, first.size);
            TRY(lmdb_txn_del(txn, dbis[i], (struct lmdb_val){key, first.size}, NULL));
        } else if (++i == sizeof dbis / sizeof *dbis) {
            *left = false;
            return OK;
        }
    }
    return OK;
}
