// From texts and likelihoods to rewards and advantages: one group at a time, in double, sums in order of completions.
#ifndef SHARED_REWARD_REWARD_H
#define SHARED_REWARD_REWARD_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

enum reward_method { METHOD_CARE, METHOD_DENSECONS, METHOD_PLAIN };

struct reward_options {
    enum reward_method method;
    double coefficient;       // of the bonus
    double margin;            // NaN: none
    double upper_bound;       // of a likelihood; NaN: none
    bool arithmetic;          // mean of probabilities, else exp of the mean log-probability
    double shortest, longest; // tokens that earn the length reward; NaN: off
};

// Writes the group's rewards and advantages. r = accuracy + format (+ length) (+ bonus),
// advantage = (r - mean r) / (s + 1e-4), s the unbiased standard deviation; exactly 0 where all r are equal or there is
// one. The bonus: care coefficient * accuracy for the accurate completions whose likelihood reaches the accurate ones'
// mean minus the margin; densecons coefficient * accuracy * likelihood. DATAERR naming the sample when its problem type
// is none, or its solution or reference cannot be used.
status reward_group(struct group *group, const struct reward_options *rules);

#endif
