#include "shared/stage/keep.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/store/database.h"

struct keep {
    database *database;
};

static const char *const tables[] = {"sections", NULL};
enum { SECTIONS };

status keep_open(keep **out, const char *store) {
    arena memory = {0};
    keep *fresh = NULL;
    database_options options = {.lazy = true}; // what a power failure takes is computed again
    status result;
    *out = NULL;
    TRY_TO(result, done, NEW(&fresh, 1));
    TRY_TO(result, done, folder_make(store));
    char *path = path_join(&memory, store, "groups.lmdb");
    TRY_TO(result, done, path ? OK : fail(SERVICE, "out of memory"));
    TRY_TO(result, done, database_open(&fresh->database, path, tables, &options));
    *out = fresh;
    fresh = NULL;
done:
    free(fresh);
    arena_release(&memory);
    return result;
}

void keep_close(keep **keep) {
    if (!*keep) return;
    database_close(&(*keep)->database);
    free(*keep);
    *keep = NULL;
}

// Appends all that the stage's section depends on.
static status add_inputs(const stage_context *context, const group *group, bytes *inputs) {
    const stage *stage = context->stage;
    uint64_t hashes[3] = {settings_hash(context->settings), stage->version ? stage->version(context->state) : 0,
                          (uint64_t)context->weights_version};
    TRY(bytes_print(inputs, "%s %d ", stage->name, stage->section));
    TRY(bytes_add(inputs, hashes, sizeof hashes));
    for (int section = SECTION_PROMPT; section < stage->section; section++)
        TRY(group_section_to_msgpack(group, (group_section)section, inputs));
    return OK;
}

static status make_key(const stage_context *context, const group *group, keep_key *key) {
    bytes inputs = {0};
    status result = add_inputs(context, group, &inputs);
    if (result == OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(inputs.data, inputs.size));
        memcpy(key->bytes, canonical.digest, sizeof key->bytes);
    }
    bytes_release(&inputs);
    return result;
}

status keep_find(keep *keep, const stage_context *context, keep_key *key, group *group, bool *found) {
    bytes section = {0};
    slice name = {key->bytes, sizeof key->bytes};
    status result;
    *found = false;
    TRY_TO(result, done, make_key(context, group, key));
    TRY_TO(result, done, database_get(keep->database, SECTIONS, name, &section, found));
    if (!*found) goto done;
    group_section kind = (group_section)context->stage->section;
    TRY_TO(result, done, group_section_from_msgpack(group, kind, section.data, section.size));
    if (context->stage->usable) *found = context->stage->usable(context->state, group);
done:
    bytes_release(&section);
    return result;
}

status keep_save(keep *keep, const stage_context *context, const keep_key *key, const group *group) {
    bytes section = {0};
    slice name = {key->bytes, sizeof key->bytes};
    if (group->quarantine.present) return OK;
    status result = group_section_to_msgpack(group, (group_section)context->stage->section, &section);
    if (result == OK) result = database_put(keep->database, SECTIONS, name, (slice){section.data, section.size});
    bytes_release(&section);
    return result;
}
