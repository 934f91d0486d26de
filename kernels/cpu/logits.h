// Operations on one row of logits: log-sum-exp, softmax and sampling.
#ifndef KERNELS_CPU_LOGITS_H
#define KERNELS_CPU_LOGITS_H

#include "kernels/cpu/cpu.h"

// Returns log(sum(exp(logits))) of one row, summed in an order that depends on the vocabulary's size alone.
float logits_lse(const struct cpu_backend *cpu, const float *logits, int64_t vocabulary);

// logits = factor * exp(logits - lse), in place.
void logits_softmax(const struct cpu_backend *cpu, float *logits, int64_t vocabulary, float lse, float factor);

// Samples one token by `settings` and `uniform`, a random number in [0,1). *logprob = the token's log-probability at
// temperature 1 over the whole vocabulary. *token is within the vocabulary even if logits are NaN or infinite.
void logits_sample(const struct cpu_backend *cpu, int32_t *token, float *logprob, const float *logits,
                   int64_t vocabulary, struct sampling settings, double uniform);

#endif
