// The parts of `caravan init`: the JSON files of the model directory, and the weights.
#ifndef TOOLS_DEMO_INIT_H
#define TOOLS_DEMO_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/model/parameters.h"
#include "shared/model/qwen_vl/model_config.h"
#include "shared/text/tokenizer.h"

// Whether the config is that of ModernBERT: of a classifier.
bool init_is_classifier(struct json *config);

// Returns the vocab_size of a config; without one a classifier has the default, and a language model 0.
int64_t init_vocabulary(struct json *config);

// Sets the token ids and the dtype of a config, and of a classifier the labels and the pooling that it lacks. A
// vocabulary that is not `fixed` gets the tokenizer's size, rounded up to a multiple of 64. DATAERR when a fixed one is
// too small for the tokenizer, or the tokenizer lacks a token that a classifier needs.
status init_fit(struct json *config, struct arena *arena, const struct tokenizer *t, bool fixed, const char *dtype);

// Appends the object's JSON, one line for each key.
void init_print(struct json *object, struct buf *out);

// Writes generation_config.json and preprocessor_config.json.
status init_write_settings(const char *dir, const struct tokenizer *t, const struct model_config *config);

struct init_weights {
    const char *dir;
    const float *ranges; // standard deviations, of each parameter of the table
    bool cut;            // the normal distribution is cut at two deviations
    uint64_t seed;
    enum element type;
    int threads;
};

// Writes model.safetensors, or shards of 5 GB with their index: matrices normal, biases 0, normalisation weights 1. A
// weight depends only on the seed, its tensor's name and its index. UNAVAILABLE when a file cannot be written.
status init_write_weights(const struct init_weights *weights, const struct parameter_table *table);

#endif
