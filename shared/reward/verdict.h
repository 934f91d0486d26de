// What the judges of consistency share: which completions can be judged, and how a verdict is written into the group.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"

// Prepares the group for the verdicts of the judge of that name: makes every verdict NaN and every reason absent. The
// other fields of `consistency` stay. DATAERR when a completion has no text or the problem type is unknown.
status verdict_init(struct group *group, const char *judge);

// Sets the verdict of completion i (1: the thinking supports the answer, 0: it does not, NaN: not judged) and its
// reason.
void verdict_set(struct group *group, size_t i, double verdict, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Checks that the group's verdicts, if it has any, are 1, 0 or NaN for each completion. DATAERR.
status verdict_check(const struct group *group);

// Sets *thinking to the thinking of completion i and *answer to the letter of the option that it answers with. Returns
// NULL, or why the completion cannot be judged: no multiple choice with options, no thinking, no such option.
const char *verdict_obstacle(const struct group *group, size_t i, struct string *thinking, char *answer);

// ---- the judge `concludes` ----

// The judge `concludes`: whether a completion answers with the option that its thinking names last. It needs no model.

// Returns the letter of the option that the last sentence of the thinking which names one names last, 0 if none does.
// An option is named by its letter or by its text; a mention inside a longer one does not count.
char concludes_option(struct string thinking, const struct string_array *options);

// Writes the verdicts of this judge into the group. DATAERR as verdict_init.
status concludes_group(struct group *group);
