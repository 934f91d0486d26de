#include "shared/store/groups.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/store/database.h"

enum { SECTIONS, GROUPS, longest_key = 500 };

static const char *const tables[] = {"sections", "groups", NULL};

struct group_store {
    database *database;
};

static status open_database(group_store *store, const char *folder, bool read_only) {
    arena memory = {0};
    database_options options = {.read_only = read_only, .lazy = true}; // what a power failure takes is computed again
    char *path = path_join(&memory, folder, "groups.lmdb");
    status result = path ? OK : fail(SERVICE, "out of memory");
    if (result == OK && !read_only) result = folder_make(folder);
    if (result == OK) result = database_open(&store->database, path, tables, &options);
    arena_release(&memory);
    return result;
}

status group_store_open(group_store **out, const char *folder, bool read_only) {
    TRY(NEW(out, 1));
    status result = open_database(*out, folder, read_only);
    if (result != OK) group_store_close(out);
    return result;
}

void group_store_close(group_store **store) {
    if (!*store) return;
    database_close(&(*store)->database);
    free(*store);
    *store = NULL;
}

// The id itself, or its hash where it would be no key.
static slice key_of(const char *id, size_t size, XXH128_canonical_t *hash) {
    if (size > 0 && size <= longest_key) return (slice){id, size};
    XXH128_canonicalFromHash(hash, XXH3_128bits(id, size));
    return (slice){hash->digest, sizeof hash->digest};
}

status group_store_find(group_store *store, const section_key *key, group_section section, group *group, bool *found) {
    bytes packed = {0};
    status result = database_get(store->database, SECTIONS, (slice){key->bytes, sizeof key->bytes}, &packed, found);
    if (result == OK && *found) result = group_section_from_msgpack(group, section, packed.data, packed.size);
    bytes_release(&packed);
    return result;
}

// What one write puts.
typedef struct saved {
    slice section_key, section, id, whole;
} saved;

static status put(transaction *transaction, void *context) {
    const saved *saved = context;
    if (saved->section_key.data) TRY(transaction_put(transaction, SECTIONS, saved->section_key, saved->section));
    return transaction_put(transaction, GROUPS, saved->id, saved->whole);
}

status group_store_save(group_store *store, const section_key *key, group_section section, const group *group) {
    bytes packed = {0}, whole = {0};
    XXH128_canonical_t hash;
    saved saved = {.id = key_of(group->id.data, group->id.size, &hash)};
    status result = group_to_msgpack(group, &whole);
    if (result == OK && key) result = group_section_to_msgpack(group, section, &packed);
    if (key) saved.section_key = (slice){key->bytes, sizeof key->bytes};
    saved.section = (slice){packed.data, packed.size};
    saved.whole = (slice){whole.data, whole.size};
    if (result == OK) result = database_write(store->database, put, &saved);
    bytes_release(&packed);
    bytes_release(&whole);
    return result;
}

status group_store_get(group_store *store, const char *id, group **out) {
    bytes packed = {0};
    XXH128_canonical_t hash;
    bool found = false;
    *out = NULL;
    status result = database_get(store->database, GROUPS, key_of(id, strlen(id), &hash), &packed, &found);
    if (result == OK && found) result = group_from_msgpack(out, packed.data, packed.size);
    bytes_release(&packed);
    return result;
}

typedef struct walk {
    status (*visit)(void *context, const group *group);
    void *context;
    status result; // apart, since STOPPED means something to the walk below
} walk;

static status visit_record(void *context, slice key, slice value) {
    walk *walk = context;
    group *group = NULL;
    (void)key;
    walk->result = group_from_msgpack(&group, value.data, value.size);
    if (walk->result == OK) walk->result = walk->visit(walk->context, group);
    group_free(&group);
    return walk->result == OK ? OK : STOPPED;
}

status group_store_each(group_store *store, status (*visit)(void *context, const group *group), void *context) {
    walk walk = {visit, context, OK};
    transaction *snapshot = NULL;
    TRY(database_read(store->database, &snapshot));
    status result = transaction_each(snapshot, GROUPS, (slice){0}, visit_record, &walk);
    transaction_end(&snapshot);
    return result == OK ? walk.result : result;
}
