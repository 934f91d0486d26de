#include "shared/store/group_store.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/store/lmdb_env.h"

enum { SECTIONS, GROUPS, longest_key = 500 };

static const char *const dbis[] = {"sections", "groups", NULL};

struct group_store {
    struct lmdb_env *env;
};

static status open_database(struct group_store *store, const char *folder, bool read_only) {
    struct arena memory = {0};
    struct lmdb_options options = {.read_only = read_only,
                                   .lazy = true}; // what a power failure takes is computed again
    char *path = path_join(&memory, folder, "groups.lmdb");
    status result = path ? OK : fail_oom();
    if (result == OK && !read_only) result = dir_make(folder);
    if (result == OK) result = lmdb_env_open(&store->env, path, dbis, &options);
    arena_release(&memory);
    return result;
}

status group_store_open(struct group_store **out, const char *folder, bool read_only) {
    TRY(NEW(out, 1));
    status result = open_database(*out, folder, read_only);
    if (result != OK) group_store_close(out);
    return result;
}

void group_store_close(struct group_store **store) {
    if (!*store) return;
    lmdb_env_close(&(*store)->env);
    free(*store);
    *store = NULL;
}

// The id itself, or its hash where it would be no key.
static struct lmdb_val key_of(const char *id, size_t size, XXH128_canonical_t *hash) {
    if (size > 0 && size <= longest_key) return (struct lmdb_val){id, size};
    XXH128_canonicalFromHash(hash, XXH3_128bits(id, size));
    return (struct lmdb_val){hash->digest, sizeof hash->digest};
}

status group_store_find(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group, bool *found) {
    struct buf packed = {0};
    status result =
        lmdb_env_get(store->env, SECTIONS, (struct lmdb_val){key->bytes, sizeof key->bytes}, &packed, found);
    if (result == OK && *found) result = group_section_from_msgpack(group, section, packed.data, packed.size);
    buf_release(&packed);
    return result;
}

// What one write puts.
struct saved {
    struct lmdb_val section_key, section, id, whole;
};

static status put(struct lmdb_txn *txn, void *context) {
    const struct saved *saved = context;
    if (saved->section_key.data) TRY(lmdb_txn_put(txn, SECTIONS, saved->section_key, saved->section));
    return lmdb_txn_put(txn, GROUPS, saved->id, saved->whole);
}

status group_store_save(struct group_store *store, const struct section_key *key, enum group_section section,
                        const struct group *group) {
    struct buf packed = {0}, whole = {0};
    XXH128_canonical_t hash;
    struct saved saved = {.id = key_of(group->id.data, group->id.size, &hash)};
    status result = group_to_msgpack(group, &whole);
    if (result == OK && key) result = group_section_to_msgpack(group, section, &packed);
    if (key) saved.section_key = (struct lmdb_val){key->bytes, sizeof key->bytes};
    saved.section = (struct lmdb_val){packed.data, packed.size};
    saved.whole = (struct lmdb_val){whole.data, whole.size};
    if (result == OK) result = lmdb_env_write(store->env, put, &saved);
    buf_release(&packed);
    buf_release(&whole);
    return result;
}

status group_store_get(struct group_store *store, const char *id, struct group **out) {
    struct buf packed = {0};
    XXH128_canonical_t hash;
    bool found = false;
    *out = NULL;
    status result = lmdb_env_get(store->env, GROUPS, key_of(id, strlen(id), &hash), &packed, &found);
    if (result == OK && found) result = group_from_msgpack(out, packed.data, packed.size);
    buf_release(&packed);
    return result;
}

struct walk {
    status (*visit)(void *context, const struct group *group);
    void *context;
    status result; // apart, since END means something to the walk below
};

static status visit_record(void *context, struct lmdb_val key, struct lmdb_val value) {
    struct walk *walk = context;
    struct group *group = NULL;
    (void)key;
    walk->result = group_from_msgpack(&group, value.data, value.size);
    if (walk->result == OK) walk->result = walk->visit(walk->context, group);
    group_free(&group);
    return walk->result == OK ? OK : END;
}

status group_store_each(struct group_store *store, status (*visit)(void *context, const struct group *group),
                        void *context) {
    struct walk walk = {visit, context, OK};
    struct lmdb_txn *snapshot = NULL;
    TRY(lmdb_txn_begin_read(store->env, &snapshot));
    status result = lmdb_txn_each(snapshot, GROUPS, (struct lmdb_val){0}, visit_record, &walk);
    lmdb_txn_end(&snapshot);
    return result == OK ? walk.result : result;
}
