// ROUGE-1, ROUGE-2 and ROUGE-L as Google's rouge_score computes them with use_stemmer, and the word error rate.
#ifndef SHARED_REWARD_ROUGE_H
#define SHARED_REWARD_ROUGE_H

#include <stddef.h>

#include "shared/base/status.h"
#include "shared/base/memory.h"

// Returns the mean of the three F-measures, 0 to 1. Tokens are runs of [a-z0-9] of the lower-cased text; those
// longer than 3 are stemmed. F = 2PR / (P + R), where P and R are the shares of the prediction's and of the target's
// n-grams (for ROUGE-L: of their longest common subsequence) that both have.
double rouge_mean(struct string target, struct string prediction);

// Returns the edit distance in words / max(1, words of the target).
double word_error_rate(struct string target, struct string prediction);

// The Porter stemmer in the variant that NLTK uses by default and rouge_score with it.
// Stems word[0..size), ASCII lower-case letters and digits, in place. Returns the new size, which is at most `size`.
size_t porter_stem(char *word, size_t size);

#endif
