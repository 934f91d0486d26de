// The judge `concludes`: whether a completion answers with the option that its thinking names last. It needs no model.
#ifndef SHARED_REWARD_CONCLUDES_H
#define SHARED_REWARD_CONCLUDES_H

#include "shared/base/status.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"

// Returns the letter of the option that the last sentence of the thinking which names one names last, 0 if none does.
// An option is named by its letter or by its text; a mention inside a longer one does not count.
char concludes_option(struct string thinking, const struct string_array *options);

// Writes the verdicts of this judge into the group. DATAERR as verdict_init.
status concludes_group(struct group *group);

#endif
