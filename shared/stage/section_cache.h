// Done work, kept in STORE/groups.lmdb: a section is keyed by all that it was computed from (the group's earlier
// sections, the stage's keys, the version of its weights), so a stale one is never found.
#ifndef SHARED_STAGE_SECTION_CACHE_H
#define SHARED_STAGE_SECTION_CACHE_H

#include "shared/stage/runner.h"

// *key = the key of the section that the stage is about to add to `group`; *found = whether it was there, and then the
// group has it. Needs context->store.
status section_cache_find(const struct stage_context *context, struct section_key *key, struct group *group,
                          bool *found);

// Keeps the group as the stage leaves it and the section that the stage has added. A quarantined group's section is not
// kept: it is tried again. Needs context->store.
status section_cache_save(const struct stage_context *context, const struct section_key *key,
                          const struct group *group);

#endif
