// The training state's files beside a checkpoint: all numbers in float32, under the parameters' flat names with a word
// in front ("master.model.norm.weight"), and the counts in JSON.
#ifndef SHARED_MODEL_STATE_H
#define SHARED_MODEL_STATE_H

#include "shared/model/trainer.h"

#define STATE_TENSORS "training.safetensors"
#define STATE_NUMBERS "training.json"

// Gives a parameter of the reference, converted to `type`, to the sink.
status ema_download(struct model *model, const struct parameter *parameter, enum element type, element_sink *sink,
                    void *context);

#endif
