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

// The parameters, and their values on a backend once they are loaded.
struct qwen_weights {
    struct weights base;
    const struct model_config *config;
    struct fused_param embedding, lm_head, norm; // a tied model's lm_head is empty; a file may have it all the same
    struct fused_param patch_embed, merger_norm, merger_norm_bias, merger_fc1, merger_fc1_bias, merger_fc2,
        merger_fc2_bias;
    struct transformer text, vision;
};

// Makes the table for a configuration, which must outlive the weights. These must stay where they are. The caller
// releases the base. DATAERR when the model is too large for 64 bits: then there is nothing to release.
status qwen_weights_init(struct qwen_weights *weights, const struct model_config *config);

// Returns the language model without its blocks.
struct transformer text_transformer(const struct text_config *text);

// The same of the vision tower.
struct transformer vision_transformer(const struct vision_config *vision);

#endif
