// What an evaluation counts: the scores of each completion by the rules of the benchmarks.
#ifndef SHARED_REWARD_SCORES_H
#define SHARED_REWARD_SCORES_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

// Writes the group's scores. The answer is what answer_extract returns, or the whole completion where that is empty;
// the ground truth is what answer_extract returns for the solution. `accuracy` is that of accuracy_of_answer, but the
// mean relative accuracy of a regression; with `released`, it is 0 for OCR and free-form. `letter` is 1 if the answer
// has the letter of the ground truth, and NaN if that has none. `correct`: accuracy is 1. `parsed`: answer_extract
// finds something. `formatted`: format_matches. DATAERR when the problem type is unknown or a completion has no text.
status score_group(struct group *group, bool released);

// Returns the share, in tenths, of the ten bounds from 0.5 down to 0.05 that the relative error of `number` is below,
// computed in float32.
double mean_relative_accuracy(double truth, double number);

#endif
