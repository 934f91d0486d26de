// The forward pass over a group: the log-probabilities of its completions.
#ifndef SHARED_MODEL_GROUP_LOGPROBS_H
#define SHARED_MODEL_GROUP_LOGPROBS_H

#include "shared/model/qwen_vl/model_internal.h"

// Computes the sequence of a prompt and its completions, and the logprobs of model_score. `cache` has a layer for each
// block, and keeps the keys and values of all rows; NULL: a scratch cache of one layer, and nothing is computed if no
// token is wanted. The arena holds the host's part. BAD_SAMPLE as in model_check; UNAVAILABLE when memory is short.
status group_score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                   struct sequence *sequence, const struct model_completion *completions, size_t count,
                   const struct token_range *wanted, struct kv_cache *cache, float *const *logprobs);

#endif
