// The mean of ROUGE-1, ROUGE-2 and ROUGE-L, as Google's rouge_score computes them with stemming.
#ifndef SHARED_REWARD_ROUGE_H
#define SHARED_REWARD_ROUGE_H

#include "shared/base/status.h"
#include "shared/group/group.h"

// *score = the mean of the three F-measures, 0 to 1: tokens are runs of [a-z0-9] of the lower-cased text, those longer
// than 3 stemmed. F = 2PR / (P + R), P and R the share of the answer's and of the target's n-grams (or of their longest
// common subsequence) that both have. UNAVAILABLE when memory is short.
status rouge_mean(struct string target, struct string answer, double *score);

// *rate = word-level edit distance / max(1, words in target). UNAVAILABLE when memory is short.
status word_error_rate(struct string target, struct string answer, double *rate);

#endif
