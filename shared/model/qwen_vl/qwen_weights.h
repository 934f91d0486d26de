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
    const struct model_config *config;
    struct parameter_table table;
    struct fused_param embedding, lm_head, norm; // a tied model has no lm_head; a file may have it all the same
    struct block_params *text;                   // [num_hidden_layers]
    struct fused_param patch_embed, merger_norm, merger_norm_bias, merger_fc1, merger_fc1_bias, merger_fc2,
        merger_fc2_bias;
    struct block_params *vision; // [depth]
};

// Makes the table for a configuration, which must outlive the parameters. These must stay where they are. The caller
// releases the table. DATAERR when the model is too large for 64 bits: then there is nothing to release.
status qwen_parameters_init(struct qwen_parameters *params, const struct model_config *config);

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

// Returns the blocks of the language model, without their parameters.
struct transformer text_transformer(const struct text_config *text);

// The same of the vision tower.
struct transformer vision_transformer(const struct vision_config *vision);

// Returns weights without values for computing in `type`: they can only be asked for their type and shape, be loaded
// and be freed.
struct qwen_weights *qwen_weights_new(struct backend *backend, const struct qwen_parameters *params, enum element type);

// Loads new weights; after a failure they can only be freed. DATAERR names the tensor that does not fit the table.
status qwen_weights_load(struct qwen_weights *weights, const struct weights_source *source);

// NULL is fine; sets *weights to NULL.
void qwen_weights_free(struct qwen_weights **weights);

#endif
