#include "shared/stage/section_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Hashes all that the stage's section depends on: its options, its fingerprint and the group's earlier sections.
static status section_cache_key(const struct stage_context *context, const struct group *group,
                                struct section_key *key) {
    const struct stage *stage = context->stage;
    struct buf inputs = {0};
    uint64_t hashes[2] = {0, stage->fingerprint ? stage->fingerprint(context->state) : 0};
    status result = options_hash(&context->options, &hashes[0]);
    if (result == OK) result = buf_printf(&inputs, "%s %d ", stage->name, stage->section);
    if (result == OK) result = buf_append(&inputs, hashes, sizeof hashes);
    for (int section = SECTION_PROMPT; section < stage->section && result == OK; section++)
        result = group_section_to_msgpack(group, (enum group_section)section, &inputs);
    if (result == OK) {
        XXH128_canonical_t canonical;
        static_assert(sizeof canonical.digest == sizeof key->bytes, "a key is a hash");
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(inputs.data, inputs.size));
        memcpy(key->bytes, canonical.digest, sizeof key->bytes);
    }
    buf_release(&inputs);
    return result;
}

status section_cache_find(const struct stage_context *context, struct section_key *key, struct group *group,
                          bool *found) {
    const struct stage *stage = context->stage;
    *found = false;
    if (stage->section < 0) return OK;
    TRY(section_cache_key(context, group, key));
    TRY(group_store_find(context->store, key, (enum group_section)stage->section, group, found));
    if (*found && stage->usable) *found = stage->usable(context->state, group);
    return OK;
}

status section_cache_save(const struct stage_context *context, const struct section_key *key,
                          const struct group *group) {
    int section = context->stage->section;
    bool keep = section >= 0 && !group->quarantine.present;
    return group_store_save(context->store, keep ? key : NULL, keep ? (enum group_section)section : SECTION_PROMPT,
                            group);
}
