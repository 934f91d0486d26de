#include "shared/store/group_store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_env.h"

// A key of DBI_SAMPLES is the hash of a sample and the number of one of its groups.
enum {
    DBI_SECTIONS,
    DBI_GROUPS,
    DBI_ORDER,
    DBI_NUMBERS,
    DBI_SEQS,
    DBI_TOTALS,
    DBI_SUMMARIES,
    DBI_ROWS,
    DBI_SAMPLES,
    DBIS,
};
static const char *const group_store_dbis[DBIS + 1] = {"sections", "groups",    "order", "numbers", "seqs",
                                                       "totals",   "summaries", "rows",  "samples"};

enum { SAMPLE_SIZE = 8, SAMPLE_KEY_SIZE = SAMPLE_SIZE + LMDB_NUMBER_SIZE };

enum { MAX_KEY = 500 }; // bytes of a key in DBI_GROUPS
static_assert(MAX_KEY <= 511, "LMDB's keys have at most 511 bytes");

enum {
    REMOVED_PER_SAVE = 8, // more than one, so that a store that is too large becomes smaller
    REMOVED_PER_TXN = 64,
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

struct group_store {
    struct lmdb_env *env;
    struct group_keep keep;
    int64_t sections; // 0: all
    bool told;        // that a group replaced one of another sample
};

status group_store_open(struct group_store **out, const char *directory, bool read_only) {
    const struct lmdb_options options = {
        .read_only = read_only,
        .required = DBI_SUMMARIES, // what was added to the format later may be missing
        .lazy = true,              // sections that a power failure undoes are computed again
    };
    struct arena arena = {0};
    NEW(out, 1);
    char *path = path_join(&arena, directory, "groups.lmdb");
    status result = read_only ? OK : dir_make(directory);
    if (result == OK) result = lmdb_env_open(&(*out)->env, path, group_store_dbis, &options);
    arena_release(&arena);
    if (result != OK) group_store_close(out);
    return result;
}

void group_store_close(struct group_store **store) {
    if (!*store) return;
    lmdb_env_close(&(*store)->env);
    free(*store);
    *store = NULL;
}

// The id itself, or its hash in *hash when it is empty or too long for a key.
static struct lmdb_val group_store_id_key(struct string id, XXH128_canonical_t *hash) {
    if (id.size > 0 && id.size <= MAX_KEY) return (struct lmdb_val){id.data, id.size};
    XXH128_canonicalFromHash(hash, XXH3_128bits(id.data, id.size));
    return (struct lmdb_val){hash->digest, sizeof hash->digest};
}

status group_store_find(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group, bool *found) {
    const struct lmdb_val stored = {key->bytes, sizeof key->bytes};
    struct buf packed = {0};
    status result = lmdb_env_get(store->env, DBI_SECTIONS, stored, &packed, found);
    if (result == OK && *found) result = group_section_from_msgpack(group, section, packed.data, packed.size);
    if (result == DATAERR) result = lmdb_env_fail_damaged(store->env, fail_text());
    buf_release(&packed);
    return result;
}

// ---- what stays ----

// Each whole group has a place in the order in which they were saved, by a number that only grows. Sections are ordered
// by the seq of their group. All of this is part of a write transaction. It fails with DATAERR when the store is
// damaged and with UNAVAILABLE when the disk is full.

static const struct lmdb_val group_retention_totals_key = {"totals", 6};

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

static struct lmdb_val group_store_sample_key(uint64_t sample, const uint8_t *number, uint8_t key[SAMPLE_KEY_SIZE]) {
    memcpy(key, &sample, SAMPLE_SIZE);
    memcpy(key + SAMPLE_SIZE, number, LMDB_NUMBER_SIZE);
    return (struct lmdb_val){key, SAMPLE_KEY_SIZE};
}

// Removes what is under the number of a group: its place, summary, row and that it is one of its sample. What an older
// version has saved has only a place.
static status group_store_remove_number(struct lmdb_txn *txn, const uint8_t *number) {
    const struct lmdb_val key = {number, LMDB_NUMBER_SIZE};
    struct group_summary summary;
    uint8_t sample[SAMPLE_KEY_SIZE];
    bool found;
    TRY(lmdb_txn_get_fixed(txn, DBI_SUMMARIES, key, &summary, sizeof summary, &found));
    if (found) TRY(lmdb_txn_del(txn, DBI_SAMPLES, group_store_sample_key(summary.sample, number, sample)));
    TRY(lmdb_txn_del(txn, DBI_SUMMARIES, key));
    TRY(lmdb_txn_del(txn, DBI_ROWS, key));
    return lmdb_txn_del(txn, DBI_ORDER, key);
}

// Removes the oldest whole groups beyond `keep`, at most `most`. The newest group always stays.
static status group_retention_remove_oldest(struct lmdb_txn *txn, struct group_totals *totals,
                                            const struct group_keep *keep, int most, int64_t *removed, int64_t *freed) {
    for (int count = 0; count < most; count++) {
        uint8_t number[LMDB_NUMBER_SIZE], id[MAX_KEY];
        struct group_place place;
        struct lmdb_val first, value;
        TRY(lmdb_txn_first(txn, DBI_ORDER, &first, &value));
        if (!first.data) return OK;
        if (first.size != sizeof number || value.size <= sizeof place || value.size > sizeof place + sizeof id)
            return lmdb_txn_fail_damaged(txn, "the order of the groups");
        const struct lmdb_val key = {id, value.size - sizeof place}; // in DBI_GROUPS
        memcpy(number, first.data, sizeof number);
        memcpy(&place, value.data, sizeof place);
        memcpy(id, (const char *)value.data + sizeof place, key.size);
        if (lmdb_number_read(number) == totals->next - 1) return OK;
        bool beyond = keep->bytes && totals->bytes > keep->bytes;
        if (!beyond && keep->steps) beyond = place.step + keep->steps <= totals->step;
        if (!beyond) return OK;
        TRY(lmdb_txn_del(txn, DBI_GROUPS, key));
        TRY(lmdb_txn_del(txn, DBI_NUMBERS, key));
        TRY(group_store_remove_number(txn, number));
        totals->bytes -= place.bytes;
        *removed += 1;
        *freed += place.bytes;
    }
    return OK;
}

// Removes some sections; *left says whether there are more.
static status group_retention_remove_sections(struct lmdb_txn *txn, bool *left) {
    static const int dbis[] = {DBI_SEQS, DBI_SECTIONS};
    *left = true;
    for (int count = 0, i = 0; count < REMOVED_PER_TXN; count++) {
        struct lmdb_val first, value;
        uint8_t key[MAX_KEY];
        TRY(lmdb_txn_first(txn, dbis[i], &first, &value));
        if (first.size > sizeof key) return lmdb_txn_fail_damaged(txn, "the order of the sections");
        if (first.data) {
            memcpy(key, first.data, first.size);
            TRY(lmdb_txn_del(txn, dbis[i], (struct lmdb_val){key, first.size}));
        } else if (++i == sizeof dbis / sizeof *dbis) {
            *left = false;
            return OK;
        }
    }
    return OK;
}

void group_store_set_keep(struct group_store *store, const struct group_keep *keep, int64_t sections) {
    assert(keep->steps >= 0 && keep->bytes >= 0 && sections >= 0);
    store->keep = *keep;
    store->sections = sections;
}

status group_store_prune(struct group_store *store, const struct group_keep *keep, bool sections, int64_t *removed,
                         int64_t *freed) {
    struct lmdb_txn *txn;
    struct group_totals totals;
    const struct lmdb_val value = {&totals, sizeof totals};
    status result;
    int64_t count, bytes; // that one transaction removes
    bool sections_left = sections;
    *removed = *freed = 0;
    do {
        do {
            count = bytes = 0;
            result = lmdb_txn_begin_write(store->env, &txn);
            if (result == OK) result = group_retention_read_totals(txn, &totals);
            if (result == OK)
                result = group_retention_remove_oldest(txn, &totals, keep, REMOVED_PER_TXN, &count, &bytes);
            if (result == OK) result = lmdb_txn_put(txn, DBI_TOTALS, group_retention_totals_key, value);
            if (result == OK && sections) result = group_retention_remove_sections(txn, &sections_left);
        } while (lmdb_txn_commit(&txn, &result));
        *removed += count;
        *freed += bytes;
    } while (result == OK && (count || sections_left));
    return result;
}

// ---- saving ----

// What a record is in the store.
struct group_store_values {
    struct buf group, section, row;
    struct group_summary summary;
};

static status group_store_put(struct group_store *store, struct lmdb_txn *txn, const struct group_record *record,
                              const struct group_store_values *values) {
    if (record->section >= 0) {
        const struct lmdb_val key = {record->key.bytes, sizeof record->key.bytes},
                              section = {values->section.data, values->section.size};
        const struct requirement *requires = &record->group->requires;
        struct lmdb_val stored;
        TRY(lmdb_txn_get(txn, DBI_SECTIONS, key, &stored));
        if (stored.data && stored.size == section.size && !memcmp(stored.data, section.data, section.size)) return OK;
        TRY(lmdb_txn_put(txn, DBI_SECTIONS, key, section));
        if (store->sections && requires->present && requires->order >= 0) {
            // Remembers at which seq it was stored, and removes some of those of groups more than `sections` before it.
            uint8_t own[LMDB_NUMBER_SIZE + sizeof record->key.bytes], oldest[sizeof own];
            lmdb_number_write(own, requires->order);
            memcpy(own + LMDB_NUMBER_SIZE, key.data, key.size);
            TRY(lmdb_txn_put(txn, DBI_SEQS, (struct lmdb_val){own, sizeof own}, (struct lmdb_val){"", 0}));
            for (int count = 0; count < REMOVED_PER_SAVE; count++) {
                struct lmdb_val first, unused;
                TRY(lmdb_txn_first(txn, DBI_SEQS, &first, &unused));
                if (first.size != sizeof oldest) return lmdb_txn_fail_damaged(txn, "the order of the sections");
                memcpy(oldest, first.data, sizeof oldest);
                if (lmdb_number_read(oldest) >= requires->order - store->sections) break;
                TRY(lmdb_txn_del(txn, DBI_SECTIONS, (struct lmdb_val){oldest + LMDB_NUMBER_SIZE, key.size}));
                TRY(lmdb_txn_del(txn, DBI_SEQS, (struct lmdb_val){oldest, sizeof oldest}));
            }
        }
    }
    if (record->section_only) return OK;

    // The whole group gets the newest place, and some of those beyond `keep` are removed.
    const struct group *group = record->group;
    XXH128_canonical_t hash;
    struct group_totals totals;
    struct group_place place = {0};
    uint8_t number[LMDB_NUMBER_SIZE], value[sizeof place + MAX_KEY];
    const struct lmdb_val order = {number, sizeof number}; // its key in DBI_ORDER
    const struct lmdb_val id = group_store_id_key(group->id, &hash), packed = {values->group.data, values->group.size};
    int64_t removed = 0, freed = 0;
    bool found;
    assert(id.size <= MAX_KEY);
    TRY(group_retention_read_totals(txn, &totals));
    TRY(lmdb_txn_get_fixed(txn, DBI_NUMBERS, id, number, sizeof number, &found));
    if (found) { // it leaves its old place
        struct lmdb_val stored;
        struct group_summary before;
        bool known;
        TRY(lmdb_txn_get_fixed(txn, DBI_SUMMARIES, order, &before, sizeof before, &known));
        if (known && before.sample != values->summary.sample && !store->told) {
            store->told = true;
            log_info("group %s of sample %s replaces that of another sample in the store: each data set needs a store "
                     "of its own",
                     group->id.data, group->sample_id.data ? group->sample_id.data : group->id.data);
        }
        TRY(lmdb_txn_get(txn, DBI_ORDER, order, &stored));
        if (stored.data && stored.size >= sizeof place) memcpy(&place, stored.data, sizeof place);
        TRY(group_store_remove_number(txn, number));
        totals.bytes -= place.bytes;
    }
    if (group->trained.present) totals.step = group->trained.step;
    place = (struct group_place){.bytes = (int64_t)packed.size, .step = totals.step};
    memcpy(value, &place, sizeof place);
    memcpy(value + sizeof place, id.data, id.size);
    lmdb_number_write(number, totals.next++);
    totals.bytes += place.bytes;
    TRY(lmdb_txn_put(txn, DBI_ORDER, order, (struct lmdb_val){value, sizeof place + id.size}));
    TRY(lmdb_txn_put(txn, DBI_NUMBERS, id, order));
    const struct lmdb_val summary = {&values->summary, sizeof values->summary};
    uint8_t sample[SAMPLE_KEY_SIZE];
    TRY(lmdb_txn_put(txn, DBI_SUMMARIES, order, summary));
    TRY(lmdb_txn_put(txn, DBI_ROWS, order, (struct lmdb_val){values->row.data, values->row.size}));
    TRY(lmdb_txn_put(txn, DBI_SAMPLES, group_store_sample_key(values->summary.sample, number, sample),
                     (struct lmdb_val){"", 0}));
    TRY(group_retention_remove_oldest(txn, &totals, &store->keep, REMOVED_PER_SAVE, &removed, &freed));
    TRY(lmdb_txn_put(txn, DBI_TOTALS, group_retention_totals_key, (struct lmdb_val){&totals, sizeof totals}));
    return lmdb_txn_put(txn, DBI_GROUPS, id, packed);
}

status group_store_save_all(struct group_store *store, const struct group_record *records, size_t count) {
    struct group_store_values *values;
    struct lmdb_txn *txn = NULL;
    status result;
    NEW(&values, count);
    for (size_t i = 0; i < count; i++) {
        if (!records[i].section_only) {
            group_to_msgpack(records[i].group, &values[i].group);
            group_summary_make(records[i].group, &values[i].summary);
            group_row_make(records[i].group, values[i].summary.issued, &values[i].row);
        }
        if (records[i].section >= 0)
            group_section_to_msgpack(records[i].group, (enum group_section)records[i].section, &values[i].section);
    }
    do {
        result = lmdb_txn_begin_write(store->env, &txn);
        for (size_t i = 0; i < count && result == OK; i++)
            result = group_store_put(store, txn, &records[i], &values[i]);
    } while (lmdb_txn_commit(&txn, &result));
    for (size_t i = 0; i < count; i++) {
        buf_release(&values[i].group);
        buf_release(&values[i].section);
        buf_release(&values[i].row);
    }
    free(values);
    return result;
}

status group_store_get(struct group_store *store, const char *id, struct group **out) {
    struct buf packed = {0};
    XXH128_canonical_t hash;
    bool found = false;
    *out = NULL;
    struct lmdb_val key = group_store_id_key(string_of(id), &hash);
    status result = lmdb_env_get(store->env, DBI_GROUPS, key, &packed, &found);
    if (result == OK && found) result = group_from_msgpack(out, packed.data, packed.size);
    if (result == DATAERR) result = lmdb_env_fail_damaged(store->env, fail_text());
    buf_release(&packed);
    return result;
}

status group_store_each(struct group_store *store, status (*visit)(void *context, const struct group *group),
                        void *context) {
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor;
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_cursor_init(&cursor, txn, DBI_GROUPS);
    while (result == OK && cursor.key.data) {
        struct group *group = NULL;
        result = group_from_msgpack(&group, cursor.value.data, cursor.value.size);
        if (result == DATAERR) result = lmdb_env_fail_damaged(store->env, fail_text());
        if (result == OK) result = visit(context, group);
        group_free(&group);
        if (result == OK) result = lmdb_cursor_next(&cursor);
    }
    lmdb_cursor_release(&cursor);
    lmdb_txn_end(&txn);
    return result;
}

// ---- summaries ----

bool group_store_has_summaries(const struct group_store *store) {
    return lmdb_env_has(store->env, DBI_SAMPLES);
}

status group_store_summaries(struct group_store *store, int64_t first, struct numbered_summary *out, size_t most,
                             size_t *count) {
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor;
    uint8_t number[LMDB_NUMBER_SIZE];
    *count = 0;
    if (!group_store_has_summaries(store)) return OK;
    lmdb_number_write(number, first);
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_cursor_init(&cursor, txn, DBI_SUMMARIES);
    if (result == OK) result = lmdb_cursor_seek(&cursor, (struct lmdb_val){number, sizeof number});
    while (result == OK && cursor.key.data && *count < most) {
        struct numbered_summary *to = &out[*count];
        const bool right = cursor.key.size == sizeof number && cursor.value.size == sizeof to->summary;
        if (!right) TRY_TO(result, done, lmdb_txn_fail_damaged(txn, "the summaries of the groups"));
        to->number = lmdb_number_read(cursor.key.data);
        memcpy(&to->summary, cursor.value.data, sizeof to->summary);
        ++*count;
        result = lmdb_cursor_next(&cursor);
    }
done:
    lmdb_cursor_release(&cursor);
    lmdb_txn_end(&txn);
    return result;
}

status group_store_row(struct group_store *store, int64_t number, struct group_row *out, struct buf *bytes,
                       bool *found) {
    uint8_t key[LMDB_NUMBER_SIZE];
    buf_clear(bytes);
    *found = false;
    if (!group_store_has_summaries(store)) return OK;
    lmdb_number_write(key, number);
    TRY(lmdb_env_get(store->env, DBI_ROWS, (struct lmdb_val){key, sizeof key}, bytes, found));
    if (!*found || group_row_read(out, bytes->data, bytes->size) == OK) return OK;
    return lmdb_env_fail_damaged(store->env, fail_text());
}

status group_store_of_sample(struct group_store *store, uint64_t sample, int64_t *numbers, size_t most, size_t *count) {
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor;
    uint8_t zero[LMDB_NUMBER_SIZE] = {0}, key[SAMPLE_KEY_SIZE];
    *count = 0;
    if (!group_store_has_summaries(store)) return OK;
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_cursor_init(&cursor, txn, DBI_SAMPLES);
    if (result == OK) result = lmdb_cursor_seek(&cursor, group_store_sample_key(sample, zero, key));
    while (result == OK && cursor.key.data && *count < most) {
        if (cursor.key.size != sizeof key || memcmp(cursor.key.data, key, SAMPLE_SIZE) != 0) break;
        numbers[(*count)++] = lmdb_number_read((const uint8_t *)cursor.key.data + SAMPLE_SIZE);
        result = lmdb_cursor_next(&cursor);
    }
    lmdb_cursor_release(&cursor);
    lmdb_txn_end(&txn);
    return result;
}

status group_store_get_number(struct group_store *store, int64_t number, struct group **out) {
    struct lmdb_txn *txn;
    struct lmdb_val place, packed = {0};
    uint8_t key[LMDB_NUMBER_SIZE];
    *out = NULL;
    lmdb_number_write(key, number);
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_txn_get(txn, DBI_ORDER, (struct lmdb_val){key, sizeof key}, &place);
    if (result == OK && place.data && place.size > sizeof(struct group_place)) {
        const struct lmdb_val id = {(const char *)place.data + sizeof(struct group_place),
                                    place.size - sizeof(struct group_place)};
        result = lmdb_txn_get(txn, DBI_GROUPS, id, &packed);
    }
    if (result == OK && packed.data) result = group_from_msgpack(out, packed.data, packed.size);
    if (result == DATAERR) result = lmdb_txn_fail_damaged(txn, fail_text());
    lmdb_txn_end(&txn);
    return result;
}

status group_store_number_of(struct group_store *store, const char *id, int64_t *number) {
    XXH128_canonical_t hash;
    const struct lmdb_val key = group_store_id_key(string_of(id), &hash);
    struct buf stored = {0};
    bool found = false;
    *number = -1;
    const status result = lmdb_env_get(store->env, DBI_NUMBERS, key, &stored, &found);
    if (result == OK && found && stored.size == LMDB_NUMBER_SIZE)
        *number = lmdb_number_read((const uint8_t *)stored.data);
    buf_release(&stored);
    return result;
}
