// The rewards and advantages of a group: computed in double, sums in the order of the completions.
#pragma once

#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"
#include "shared/reward/accuracy.h"

// Writes the group's rewards and advantages: total = accuracy + format (+ length) (+ the method's bonus, or coefficient
// * consistency). DATAERR with the sample's name when its problem type is unknown or its solution invalid, and "not a
// group: ..." when the method needs what the group lacks.
//
// The bonus, from the accuracies in the group; a completion without a likelihood or a generated answer gets none:
//   care       coefficient * accuracy of each accurate completion whose likelihood is at least the mean of the accurate
//              ones' minus the margin
//   densecons  coefficient * accuracy * likelihood
//   refgen     coefficient * the accuracy of the answer that the reference generated
// Method cora writes rewards.consistency instead.
//
// The advantages: z(r) = (r - mean r) / (s + 1e-4) of the total, where s is the unbiased standard deviation, exactly 0
// if all r are equal or there is only one. Method cora with `advantages: split` has alpha * z(accuracy + format +
// length) + beta * z(consistency), where consistency_floor takes the place of 1e-4 if it is larger, and beta follows
// its schedule if the group's place in the run is known.
status reward_group(struct group *group, const struct reward_options *options);

// accurate[i] = whether completion i of a group counts as accurate: its accuracy is above 0.1 and not below the group's
// mean, each with a tolerance of 1e-6.
void reward_find_accurate(const struct double_array *accuracy, bool *accurate);
