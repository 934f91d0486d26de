// What a stage has that computes with weights which optim trains: its inputs, its model, and the way to newer weights.
#ifndef SHARED_STAGE_STAGE_MODEL_H
#define SHARED_STAGE_STAGE_MODEL_H

#include <stdint.h>

#include "shared/model/model.h"
#include "shared/stage/stage_input.h"
#include "shared/stage/stage.h"

struct stage_model {
    struct input_builder *input;
    struct model *model;
    uint64_t hash; // of the weights in use
};

// Opens the tokenizer, the store and the model that the stage's options name. USAGE, DATAERR or UNAVAILABLE as
// input_builder_new and model_open. To be released in any case.
status stage_model_open(struct stage_model *model, struct stage_context *context);

// Takes other weights, between two groups; the folder's own (version 0) are asked for again when optim began anew. On
// failure the old ones stay in use.
status stage_model_load(struct stage_model *model, const struct stage_weights *weights);

// Closes all of it; a zeroed follower is fine.
void stage_model_release(struct stage_model *model);

#endif
