// The matrices and vectors of Qwen2.5-VL and Qwen2-VL on a backend.
#ifndef SHARED_MODEL_QWEN_WEIGHTS_H
#define SHARED_MODEL_QWEN_WEIGHTS_H

#include "shared/model/qwen_vl/qwen_parameters.h"
#include "shared/model/weights.h"

struct qwen_weights {
    struct weights base;
    const struct qwen_parameters *params;
    struct tensor embedding; // [V,C]
    struct weight *lm_head, *patch_embed, *merger_fc1, *merger_fc2;
    struct tensor norm, merger_norm, merger_norm_bias, merger_fc1_bias, merger_fc2_bias;
    struct transformer text, vision;
};

// The blocks of the language model and of the tower, without their parameters.
struct transformer text_transformer(const struct text_config *text);

// The same for the vision tower.
struct transformer vision_transformer(const struct vision_config *vision);

// Loads the weights of a store for computing in `type`. `hash`: their hash if it is known already, else NULL. DATAERR
// names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status qwen_weights_load(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                         const struct qwen_parameters *params, const struct safetensors *store, enum element type,
                         bool training, const uint64_t *hash);

// Makes weights without values, which can only be asked for their type and shape and be freed.
void qwen_weights_new(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                      const struct qwen_parameters *params, enum element type);

// Makes weights of an array of values in `type` that is in `values` already, on a backend that does not pack; `hash` is
// theirs. `values` must outlive them. UNAVAILABLE when memory is short.
status qwen_weights_borrow(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                           const struct qwen_parameters *params, enum element type, struct buffer *values,
                           uint64_t hash);

// NULL is fine; sets *weights to NULL.
void qwen_weights_free(struct qwen_weights **weights);

#endif
