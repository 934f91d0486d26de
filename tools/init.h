// The parts of `caravan init`: what stands in the folder's JSON files, and the weights.
#ifndef TOOLS_INIT_H
#define TOOLS_INIT_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/model/model_config.h"
#include "shared/text/tokenizer.h"

// The config.json of a shape: tiny, 3b, 7b, or a file's. *fixed: its vocabulary has a given size. USAGE when the shape
// is neither a name nor a file; release with json_object_put.
status init_shape(json_object **out, const char *shape, bool *fixed);

// The vocab_size that a config says, 0 if it says none.
int64_t init_vocabulary(json_object *config);

// Fits a config to a tokenizer, whose ids it gets, and a type of weights; a vocabulary that is not `fixed` gets the
// tokenizer's size. DATAERR when a fixed one is too small.
status init_fit(json_object *config, const struct tokenizer *t, bool fixed, const char *dtype);

// Appends an object with a line for each key.
status init_print(json_object *object, struct buf *out);

// Writes generation_config.json and preprocessor_config.json.
status init_write_settings(const char *folder, const struct tokenizer *t, const struct model_config *config);

struct init_weights {
    const char *folder;
    float text_range, vision_range; // standard deviations
    uint64_t seed;
    enum element type;
    int threads;
};

// Writes model.safetensors, or shards of 5 GB with their index: matrices normal, biases 0, normalisation weights 1. A
// weight is a function of the seed, its tensor's name and its place alone. UNAVAILABLE when the disk refuses.
status init_write_weights(const struct init_weights *how, const struct model_config *config);

#endif
