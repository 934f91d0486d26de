// The parameters of Qwen2.5-VL and Qwen2-VL. Order of the array: the language model's matrices, its vectors, the vision
// tower's matrices, its vectors. So a trainer without the tower needs the first two ranges only.
//
// Names are flat: "model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.norm1.weight". Newer state dicts nest
// them: "model.language_model.layers.0…", "model.visual.…".
#ifndef SHARED_MODEL_QWEN_PARAMETERS_H
#define SHARED_MODEL_QWEN_PARAMETERS_H

#include "shared/model/qwen_vl/model_config.h"
#include "shared/model/transformer.h"

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

#endif
