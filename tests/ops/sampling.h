// Sampling through a decode batch of its own, and keys for random numbers that a test wants.
#ifndef TESTS_OPS_SAMPLING_H
#define TESTS_OPS_SAMPLING_H

#include "tests/ops/harness.h"

// A key with low <= rng_uniform(key, 0, 0) < high.
uint64_t sampling_key(double low, double high);

// Makes a batch with a slot for each of rows[0..in.rows), takes one step with `in`, and reads it: a token and a
// log-probability for each row.
void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs);

#endif
