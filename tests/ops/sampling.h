// Sampling through a decode batch of its own, keys for random numbers that a test wants, and the order of tokens
// (decoding.c).
#pragma once

#include "tests/ops/harness.h"

// A key with low <= rng_uniform(key, 0, 0) < high.
uint64_t sampling_key(double low, double high);

// Makes a batch with a slot for each of rows[0..in.rows), takes one step with `in`, and reads it: a token and a
// log-probability for each row.
void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs);

// Draws `rows` tokens from the same logits, with the random numbers of keys[0..rows).
void sampling_draw(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                   const uint64_t *keys, int64_t rows, int32_t *tokens, float *logprobs);

// A token, in the order in which sampling keeps them: by logit from the highest, equal ones by number.
struct ranked {
    double logit, weight;
    int32_t token;
};

// Sorts `count` tokens, whose logits and numbers are set, and computes their weights. Returns how many of them top-k
// and then top-p keep.
int64_t sampling_order(struct ranked *order, int64_t count, struct sampling settings);
