#include "shared/stage/section_cache.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Appends all that the stage's section depends on.
static status add_inputs(const struct stage_context *context, const struct group *group, struct buf *inputs) {
    const struct stage *stage = context->stage;
    uint64_t hashes[2] = {0, stage->fingerprint ? stage->fingerprint(context->state) : 0};
    TRY(options_hash(&context->options, &hashes[0]));
    TRY(buf_printf(inputs, "%s %d ", stage->name, stage->section));
    TRY(buf_append(inputs, hashes, sizeof hashes));
    for (int section = SECTION_PROMPT; section < stage->section; section++)
        TRY(group_section_to_msgpack(group, (enum group_section)section, inputs));
    return OK;
}

static status make_key(const struct stage_context *context, const struct group *group, struct section_key *key) {
    struct buf inputs = {0};
    status result = add_inputs(context, group, &inputs);
    if (result == OK) {
        XXH128_canonical_t canonical;
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
    TRY(make_key(context, group, key));
    TRY(group_store_find(context->store, key, (enum group_section)stage->section, group, found));
    if (*found && stage->usable) *found = stage->usable(context->state, group);
    return OK;
}

status section_cache_save(const struct stage_context *context, const struct section_key *key,
                          const struct group *group) {
    int section = context->stage->section;
    bool work = section >= 0 && !group->quarantine.present;
    return group_store_save(context->store, work ? key : NULL, work ? (enum group_section)section : SECTION_PROMPT,
                            group);
}
