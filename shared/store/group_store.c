#include "shared/store/group_store.h"

#include <assert.h>
#include <stdlib.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/store/group_retention.h"
#include "shared/store/lmdb_env.h"

static const char *const group_store_dbis[] = {"sections", "groups", "order", "numbers", "seqs", "totals", NULL};
static const char *const group_store_read_dbis[] = {"sections", "groups", NULL}; // what every version has

struct group_store {
    struct lmdb_env *env;
    struct group_keep keep;
    int64_t sections; // 0: all
};

status group_store_open(struct group_store **out, const char *directory, bool read_only) {
    // Sections that a power failure undoes are computed again.
    const struct lmdb_options options = {.read_only = read_only, .lazy = true};
    struct arena arena = {0};
    NEW(out, 1);
    char *path = path_join(&arena, directory, "groups.lmdb");
    status result = OK;
    if (result == OK && !read_only) result = dir_make(directory);
    const char *const *dbis = read_only ? group_store_read_dbis : group_store_dbis;
    if (result == OK) result = lmdb_env_open(&(*out)->env, path, dbis, &options);
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

static struct lmdb_val group_store_section_key(const struct section_key *key) {
    return (struct lmdb_val){key->bytes, sizeof key->bytes};
}

// The id itself, or its hash in *hash when it is empty or too long for a key.
static struct lmdb_val group_store_id_key(struct string id, XXH128_canonical_t *hash) {
    if (id.size > 0 && id.size <= group_max_key) return (struct lmdb_val){id.data, id.size};
    XXH128_canonicalFromHash(hash, XXH3_128bits(id.data, id.size));
    return (struct lmdb_val){hash->digest, sizeof hash->digest};
}

status group_store_find(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group, bool *found) {
    struct buf packed = {0};
    status result = lmdb_env_get(store->env, DBI_SECTIONS, group_store_section_key(key), &packed, found);
    if (result == OK && *found) result = group_section_from_msgpack(group, section, packed.data, packed.size);
    if (result == DATAERR) result = lmdb_env_fail_damaged(store->env, fail_text());
    buf_release(&packed);
    return result;
}

status group_store_save(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group) {
    struct group_record record = {.group = group, .section = key ? (int)section : -1};
    if (key) record.key = *key;
    return group_store_save_all(store, &record, 1);
}

// ---- what stays ----

void group_store_set_keep(struct group_store *store, const struct group_keep *keep, int64_t sections) {
    assert(keep->steps >= 0 && keep->bytes >= 0 && sections >= 0);
    store->keep = *keep;
    store->sections = sections;
}

status group_store_prune(struct group_store *store, const struct group_keep *keep, bool sections, int64_t *removed,
                         int64_t *freed) {
    struct lmdb_txn *txn;
    status result;
    int64_t before, bytes_before;
    bool sections_left = sections, left = sections;
    *removed = *freed = 0;
    do {
        before = *removed;
        bytes_before = *freed;
        left = sections_left;
        do {
            *removed = before;
            *freed = bytes_before;
            result = lmdb_txn_begin_write(store->env, &txn);
            if (result == OK) result = group_retention_remove_groups(txn, keep, removed, freed);
            if (result == OK && left) result = group_retention_remove_sections(txn, &sections_left);
        } while (lmdb_txn_commit(&txn, &result));
    } while (result == OK && (*removed > before || sections_left));
    return result;
}

// ---- saving ----

// What a record is in the store.
struct group_store_values {
    struct buf group, section;
};

static status group_store_put(const struct group_store *store, struct lmdb_txn *txn, const struct group_record *record,
                              const struct group_store_values *values) {
    XXH128_canonical_t hash;
    if (record->section >= 0) {
        const struct lmdb_val key = group_store_section_key(&record->key);
        const struct requirement *requires = &record->group->requires;
        struct lmdb_val stored;
        TRY(lmdb_txn_get(txn, DBI_SECTIONS, key, &stored));
        if (stored.data) return OK;
        TRY(lmdb_txn_put(txn, DBI_SECTIONS, key, (struct lmdb_val){values->section.data, values->section.size}));
        if (store->sections && requires->present && requires->order >= 0)
            TRY(group_retention_add_section(txn, store->sections, requires->order, &record->key));
    }
    if (record->section_only) return OK;
    const struct group *group = record->group;
    const struct lmdb_val id = group_store_id_key(group->id, &hash), packed = {values->group.data, values->group.size};
    TRY(group_retention_add_group(txn, &store->keep, id, (int64_t)packed.size,
                                  group->trained.present ? &group->trained.step : NULL));
    return lmdb_txn_put(txn, DBI_GROUPS, id, packed);
}

status group_store_save_all(struct group_store *store, const struct group_record *records, size_t count) {
    struct group_store_values *values;
    struct lmdb_txn *txn = NULL;
    status result;
    NEW(&values, count);
    for (size_t i = 0; i < count; i++) {
        if (!records[i].section_only) group_to_msgpack(records[i].group, &values[i].group);
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
    status result = lmdb_cursor_init(&cursor, txn, DBI_GROUPS, (struct lmdb_val){0});
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
