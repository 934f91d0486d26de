// The rewards and advantages of a group: computed in double, sums in the order of the completions.
#ifndef SHARED_REWARD_REWARD_H
#define SHARED_REWARD_REWARD_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

enum reward_method { METHOD_CARE, METHOD_DENSECONS, METHOD_PLAIN };

struct reward_options {
    enum reward_method method;
    double coefficient;            // of the consistency bonus
    double margin;                 // NaN: none
    double upper_bound;            // of a likelihood; NaN: none
    bool arithmetic_mean;          // likelihood is the mean of the probabilities, else exp of the mean log-probability
    double min_length, max_length; // completions of so many tokens get the length reward; NaN: none does
};

// Writes the group's rewards and advantages. r = accuracy + format (+ length) (+ bonus) and
// advantage = (r - mean r) / (s + 1e-4), where s is the unbiased standard deviation; exactly 0 if all r are equal or
// there is only one. The bonus of care is coefficient * accuracy for each accurate completion whose likelihood is at
// least the mean of the accurate completions' minus the margin; that of densecons is coefficient * accuracy *
// likelihood. DATAERR with the sample's name when its problem type is unknown, or its solution or reference is invalid.
status reward_group(struct group *group, const struct reward_options *options);

// accurate[i] = whether completion i of a group counts as accurate: its accuracy is above 0.1 and not below the group's
// mean, each with a tolerance of 1e-6.
void reward_find_accurate(const struct double_array *accuracy, bool *accurate);

#endif
