// What a method adds to the rewards for accuracy, format and length.
#ifndef SHARED_REWARD_BONUS_H
#define SHARED_REWARD_BONUS_H

#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"
#include "shared/reward/accuracy.h"

// Writes rewards.bonus as the method defines it from the accuracies in the group; nothing if the method has no bonus.
//   care       coefficient * accuracy of each accurate completion whose likelihood is at least the mean of the accurate
//              ones' minus the margin
//   densecons  coefficient * accuracy * likelihood
//   refgen     coefficient * the accuracy of the answer that the reference generated
// A completion without a likelihood or a generated answer gets none. Method cora writes rewards.consistency instead.
// DATAERR when the group lacks what the method needs; UNAVAILABLE.
status bonus_compute(struct group *group, enum problem_type type, const struct reward_options *options);

#endif
