// What a stage has that computes with weights which optim trains: its inputs, its model, and the way to newer weights.
#ifndef SHARED_STAGE_FOLLOWER_H
#define SHARED_STAGE_FOLLOWER_H

#include <stdint.h>

#include "shared/model/model.h"
#include "shared/stage/inputs.h"
#include "shared/stage/stage.h"

struct follower {
    struct inputs *inputs;
    struct model *model;
    uint64_t hash; // of the weights in use
};

// Opens the tokenizer, the store and the model that the stage's settings name. USAGE, DATAERR or UNAVAILABLE as
// inputs_new and model_open. To be released in any case.
status follower_open(struct follower *follower, struct stage_context *context);

// Takes other weights, between two groups; the folder's own (version 0) are asked for again when optim began anew. On
// failure the old ones stay in use.
status follower_use(struct follower *follower, const struct stage_weights *weights);

// Closes all of it; a zeroed follower is fine.
void follower_release(struct follower *follower);

#endif
