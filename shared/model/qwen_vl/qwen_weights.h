// A model directory of Qwen2.5-VL or Qwen2-VL: its configuration files, the table of its parameters, and these on a
// backend.
//
// config.json, generation_config.json and preprocessor_config.json say everything that the model is built from. The
// published flat layout and the nested ones (text_config, rope_parameters, dtype) give the same struct. Fields are
// named as Qwen2.5-VL's keys; those of Qwen2-VL's tower are translated.
//
// Order of the parameters' array: the language model's matrices, its vectors, the vision tower's matrices, its vectors.
// So a trainer without the tower needs the first two ranges only. Names are flat:
// "model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.norm1.weight". Newer state dicts nest them:
// "model.language_model.layers.0…", "model.visual.…".
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/model/transformer.h"
#include "shared/model/weights.h"

enum { MAX_EOS_IDS = 64, MAX_VISION_BLOCKS = 1024 };

struct text_config {
    int64_t vocab_size, hidden_size, intermediate_size;
    int num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    float rms_norm_eps;
    float rope_theta;
    int mrope_section[3];     // pairs of dimensions rotated by time, height, width; they sum to head_dim / 2
    bool tie_word_embeddings; // the output embedding is the input embedding
};

// The two towers differ in the norm (RMSNorm, or LayerNorm with bias), the MLP (SwiGLU, or fc1 and fc2 with
// quick_gelu), the attention (in windows, or over whole frame pairs), and in what a clip's position ids in time count
// (seconds, or frame pairs).
enum vision_kind { VISION_QWEN2_5, VISION_QWEN2 };

struct vision_config {
    enum vision_kind kind;
    int64_t hidden_size, intermediate_size, out_hidden_size; // out_hidden_size is the language model's hidden_size
    int depth, num_heads, head_dim;
    int patch_size;                         // pixels a side
    int spatial_merge_size;                 // patches a side of a unit, which becomes one token
    int temporal_patch_size;                // frames
    int window_size;                        // pixels a side; 0: there are no windows
    float tokens_per_second;                // 0: position ids count frame pairs
    bool fullatt_blocks[MAX_VISION_BLOCKS]; // fullatt_block_indexes: blocks that attend over a whole frame pair
};

struct model_config {
    struct text_config text;
    struct vision_config vision;
    bool has_dtype;
    enum element dtype; // or torch_dtype; valid if has_dtype
    int64_t image_token_id, video_token_id, vision_start_token_id, vision_end_token_id;
    int64_t eos_ids[MAX_EOS_IDS]; // eos_token_id of generation_config.json, else of config.json
    size_t eos_count;
    float image_mean[3], image_std[3], rescale_factor; // of preprocessor_config.json, else the published values
};

// Reads the files of a model directory; generation_config.json and preprocessor_config.json may be missing. DATAERR
// names the file and the key.
status model_config_read(struct model_config *config, const char *dir);

// Reads the config.json that `model` stands for (named_shape_read). What the other two files may say gets its default.
// DATAERR names the key.
status model_config_read_shape(struct model_config *config, const char *model);

// The files, in the order in which a config is filled.
enum config_file { CONFIG_MODEL, CONFIG_GENERATION, CONFIG_PREPROCESSOR, CONFIG_FILES };

// Reads the object of one of the files; `name` is used in messages. That of CONFIG_MODEL makes the config, with the
// defaults of what the others may say. DATAERR names the key.
status model_config_fill(struct model_config *config, enum config_file file, struct json *root, const char *name);

// ---- weights ----

enum qwen_group { GROUP_TEXT, GROUP_VISION };
enum { TEXT_RANGES = 2 }; // of the table; those of the vision tower follow

// The parameters, and their values on a backend once they are loaded.
struct qwen_weights {
    struct weights base;
    // Without any, its table is empty. They are trained instead of the base, and their hash includes that of the base.
    struct weights adapters;
    const struct model_config *config;
    struct fused_param embedding, lm_head, norm; // a tied model's lm_head is empty; a file may have it all the same
    struct fused_param patch_embed, merger_norm, merger_norm_bias, merger_fc1, merger_fc1_bias, merger_fc2,
        merger_fc2_bias;
    struct transformer text, vision;
};

// Makes the table for a configuration, which must outlive the weights. These must stay where they are. The caller
// releases the adapters and the base, in this order. DATAERR when the model is too large for 64 bits: then there is
// nothing to release.
status qwen_weights_init(struct qwen_weights *weights, const struct model_config *config);

// Makes the table of the adapters of the language model. Their backend and type are the base's. DATAERR when they are
// too large for 64 bits: then there are none.
status qwen_add_adapters(struct qwen_weights *weights, int64_t rank, float scale);

// Says which base the adapters are added to: their hash includes its hash. Before they have values.
void qwen_set_base_hash(struct qwen_weights *weights, uint64_t base_hash);

// Returns a hash of what the weights are but the values, those of the base too: parameters, types, settings.
uint64_t qwen_layout(const struct qwen_weights *weights);

// The weights that training changes and that have versions: the adapters, or else the base.
static inline struct weights *qwen_trained(struct qwen_weights *weights) {
    return weights->adapters.table.count ? &weights->adapters : &weights->base;
}
