// All training state: the optimizer's, and the reference, an exponential moving average (EMA) of the weights.
#ifndef SHARED_MODEL_TRAINER_H
#define SHARED_MODEL_TRAINER_H

#include "shared/model/model_optimizer.h"
#include "shared/model/qwen_vl/model_internal.h"

struct trainer {
    struct optimizer optimizer;
    struct param_array reference; // in the form of the weights; no array: there is no reference
    struct param_array reference_remainders;
    struct shared_weights lent[2]; // the weights and the reference, for other processes; zeroed: not lent
    bool vision_has_grad;          // a group with media was accumulated since the last step
};

// Allocates the state of a model that is opened for training, with gradients and moments of matrices in these types.
// UNAVAILABLE when memory is short.
status trainer_new(struct trainer **out, struct model *model, enum element grads, enum element moments);

// NULL is fine; sets *trainer to NULL.
void trainer_free(struct trainer **trainer, struct backend *backend);

// Makes the reference, equal to the present weights. UNAVAILABLE when memory is short.
status ema_new(struct model *model);

#endif
