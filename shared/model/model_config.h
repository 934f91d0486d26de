// config.json, generation_config.json and preprocessor_config.json of a model folder: all that the model is built from.
// The published flat form and the nested ones (text_config, rope_parameters, dtype) give the same struct.
#ifndef SHARED_MODEL_CONFIG_H
#define SHARED_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/status.h"

enum { MAX_EOS_IDS = 64, MAX_VISION_BLOCKS = 1024 };

struct text_config {
    int64_t vocab_size, hidden_size, intermediate_size;
    int num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    float rms_norm_eps;
    float rope_theta;
    int mrope_section[3];     // pairs of dimensions turned by t, h, w; they sum to head_dim / 2
    bool tie_word_embeddings; // the output embedding is the input's
};

struct vision_config {
    int64_t hidden_size, intermediate_size, out_hidden_size; // out_hidden_size == text.hidden_size
    int depth, num_heads, head_dim;
    int patch_size, spatial_merge_size, temporal_patch_size; // pixels a side, patches a side of a unit, frames
    int window_size;                                         // pixels a side
    float tokens_per_second;
    bool fullatt_blocks[MAX_VISION_BLOCKS]; // blocks that attend over a whole frame pair
};

struct model_config {
    struct text_config text;
    struct vision_config vision;
    bool has_dtype;
    enum element dtype; // torch_dtype or dtype, if the file says it
    int64_t image_token_id, video_token_id, vision_start_token_id, vision_end_token_id;
    int64_t eos_ids[MAX_EOS_IDS]; // end-of-sequence tokens: generation_config.json's, else config.json's
    size_t eos_count;
    float image_mean[3], image_std[3], rescale_factor; // preprocessor_config.json, or the published values
};

// Reads the files of a model folder; generation_config.json and preprocessor_config.json may be missing. DATAERR names
// the file and the key.
status model_config_read(struct model_config *config, const char *dir);

// The same from a config.json alone (a path).
status model_config_read_file(struct model_config *config, const char *path);

// Reads config.json's text (for a generator of configs, and for fuzzing); `name` stands in messages. Ends, mean and
// deviation get config.json's and the published values.
status model_config_parse(struct model_config *config, const char *text, size_t size, const char *name);

// Reads generation_config.json's text into a config that model_config_parse filled.
status model_config_parse_generation(struct model_config *config, const char *text, size_t size, const char *name);

// The same for preprocessor_config.json's.
status model_config_parse_preprocessor(struct model_config *config, const char *text, size_t size, const char *name);

#endif
