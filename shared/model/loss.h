// The loss of one group and its slope at each token's log-probability: plain arithmetic on the host.
//
// With G completions of n_i tokens, advantages A_i, and beta the KL's weight:
//   L = 1/G sum_i 1/n_i sum_t [ -s_it + beta (exp(d_it) - d_it - 1) ],  d = clamp(reference - logprob, -10, 10)
//   s = r A on-policy with r = 1 in value and d r = d logprob; stale: s = min(r A, clip(r, 1 - low, 1 + high) A) with
//   r = exp(logprob - behaviour).
#ifndef SHARED_MODEL_LOSS_H
#define SHARED_MODEL_LOSS_H

#include "shared/model/model.h"

// slopes[t] = weight * dL/d logprob of all tokens, completion after completion, as logprobs stand. Fills in *result but
// its prompt_tokens.
void group_loss(const struct train_completion *completions, size_t count, const struct loss_options *loss,
                double weight, const float *logprobs, float *slopes, struct train_result *result);

#endif
