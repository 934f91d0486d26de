// Finished sections in STORE/groups.lmdb. A section's key is a hash of everything that it was computed from (the
// group's earlier sections, the stage's options, its weights), so an outdated section is never found.
#ifndef SHARED_STAGE_SECTION_CACHE_H
#define SHARED_STAGE_SECTION_CACHE_H

#include "shared/stage/runner.h"

// Sets *key to the key of the section that the stage is about to add to `group`. If *found, the group has the section
// now. Needs context->store. DATAERR or UNAVAILABLE when the store fails.
status section_cache_find(const struct stage_context *context, struct section_key *key, struct group *group,
                          bool *found);

// Stores the group as the stage leaves it and, unless it is quarantined, the section that the stage has added: a
// quarantined group is tried again in the next run. Needs context->store. UNAVAILABLE when the disk fails.
status section_cache_save(const struct stage_context *context, const struct section_key *key,
                          const struct group *group);

#endif
