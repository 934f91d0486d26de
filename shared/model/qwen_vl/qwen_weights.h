// The parameters of Qwen2.5-VL and Qwen2-VL. Order of the array: the language model's matrices, its vectors, the vision
// tower's matrices, its vectors. So a trainer without the tower needs the first two ranges only.
//
// Names are flat: "model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.norm1.weight". Newer state dicts nest
// them: "model.language_model.layers.0…", "model.visual.…".
#ifndef SHARED_MODEL_QWEN_WEIGHTS_H
#define SHARED_MODEL_QWEN_WEIGHTS_H

#include "shared/model/qwen_vl/model_config.h"
#include "shared/model/transformer.h"
#include "shared/model/weights.h"

enum qwen_group { GROUP_TEXT, GROUP_VISION };
enum { TEXT_RANGES = 2 }; // of the table; those of the vision tower follow

struct qwen_parameters {
    struct parameter_table table;
    struct fused_param embedding, lm_head, norm; // a tied model has no lm_head; a file may have it all the same
    struct block_params *text;                   // [num_hidden_layers]
    struct fused_param patch_embed, merger_norm, merger_norm_bias, merger_fc1, merger_fc1_bias, merger_fc2,
        merger_fc2_bias;
    struct block_params *vision; // [depth]
};

// Makes the table for a configuration. UNAVAILABLE when memory is short; DATAERR when the model is too large for 64
// bits.
status qwen_parameters_new(struct qwen_parameters **out, const struct model_config *config);

// NULL is fine; sets *params to NULL.
void qwen_parameters_free(struct qwen_parameters **params);

// ---- on a backend ----

// The matrices and vectors.
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
