// The advantages of a group's completions.
#ifndef SHARED_REWARD_ADVANTAGES_H
#define SHARED_REWARD_ADVANTAGES_H

#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"

// Writes the group's advantages: z(r) = (r - mean r) / (s + 1e-4) of the total, where s is the unbiased standard
// deviation, exactly 0 if all r are equal or there is only one. Method cora with `advantages: split` has alpha *
// z(accuracy + format + length) + beta * z(consistency), where consistency_floor takes the place of 1e-4 if it is
// larger, and beta follows its schedule if the group's place in the run is known.
void advantages_compute(struct group *group, const struct reward_options *options);

#endif
