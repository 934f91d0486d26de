// The rewards and advantages of a group: computed in double, sums in the order of the completions.
#ifndef SHARED_REWARD_REWARD_H
#define SHARED_REWARD_REWARD_H

#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"

// Writes the group's rewards and advantages: total = accuracy + format (+ length) (+ the method's bonus, as bonus.h
// says, or coefficient * consistency), and the advantages as advantages.h says. DATAERR with the sample's name when its
// problem type is unknown or its solution invalid, and "not a group: ..." when the method needs what the group lacks.
status reward_group(struct group *group, const struct reward_options *options);

// accurate[i] = whether completion i of a group counts as accurate: its accuracy is above 0.1 and not below the group's
// mean, each with a tolerance of 1e-6.
void reward_find_accurate(const struct double_array *accuracy, bool *accurate);

#endif
