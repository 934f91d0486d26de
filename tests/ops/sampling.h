// Sampling through a decode batch of its own, keys for random numbers that a test wants, and the order of tokens.
#ifndef TESTS_OPS_SAMPLING_H
#define TESTS_OPS_SAMPLING_H

#include "tests/ops/harness.h"

// A key with low <= rng_uniform(key, 0, 0) < high.
uint64_t sampling_key(double low, double high);

// Makes a batch with a slot for each of rows[0..in.rows), takes one step with `in`, and reads it: a token and a
// log-probability for each row.
void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs);

// A token, in the order in which sampling keeps them: by logit from the highest, equal ones by number.
struct ranked {
    double logit, weight; // the weight is the test's own
    int32_t token;
};

// For qsort.
static inline int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

#endif
