// config.json, generation_config.json and preprocessor_config.json of a model folder: all that the model is built from.
// The published flat form and the nested ones (text_config, rope_parameters, dtype) give the same struct.
#ifndef SHARED_MODEL_CONFIG_H
#define SHARED_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/status.h"

enum { MOST_ENDS = 64, MOST_BLOCKS = 1024 };

struct text_config {
    int64_t vocabulary, hidden, inner;
    int layers, heads, key_heads, head_size;
    float epsilon; // of RMSNorm
    float theta;
    int section[3]; // pairs of dimensions turned by t, h, w; they sum to head_size / 2
    bool tied;      // the output embedding is the input's
};

struct vision_config {
    int64_t hidden, inner, out; // out == text.hidden
    int depth, heads, head_size;
    int patch, merge, time; // pixels a side, patches a side of a unit, frames
    int window;             // pixels a side
    float tokens_per_second;
    bool full[MOST_BLOCKS]; // blocks that attend over a whole frame pair
};

struct model_config {
    struct text_config text;
    struct vision_config vision;
    bool has_type;
    enum element type; // torch_dtype or dtype, if the file says it
    int64_t image_token, video_token, vision_start_token, vision_end_token;
    int64_t ends[MOST_ENDS]; // end-of-sequence tokens: generation_config.json's, else config.json's
    size_t end_count;
    float mean[3], deviation[3], rescale; // preprocessor_config.json, or the published values
};

// Reads the files of a model folder; generation_config.json and preprocessor_config.json may be missing. DATAERR names
// the file and the key.
status config_read(struct model_config *config, const char *folder);

// The same from a config.json alone (a path).
status config_read_file(struct model_config *config, const char *path);

// Reads config.json's text (for a generator of configs, and for fuzzing); `name` stands in messages. Ends, mean and
// deviation get config.json's and the published values.
status config_parse(struct model_config *config, const char *text, size_t size, const char *name);

// Reads generation_config.json's text into a config that config_parse filled.
status config_parse_generation(struct model_config *config, const char *text, size_t size, const char *name);

// The same for preprocessor_config.json's.
status config_parse_preprocessor(struct model_config *config, const char *text, size_t size, const char *name);

#endif
