// What the files of the model share. Callers include model.h only.
#ifndef SHARED_MODEL_MODEL_INTERNAL_H
#define SHARED_MODEL_MODEL_INTERNAL_H

#include "shared/model/model.h"
#include "shared/model/workspace.h"
#include "shared/model/qwen_vl/sequence.h"
#include "shared/model/shared_weights.h"
#include "shared/model/training_state.h"
#include "shared/model/transformer.h"
#include "shared/model/qwen_vl/qwen_weights.h"

// All training state: the optimizer's, and the reference, an exponential moving average (EMA) of the weights.
struct trainer {
    struct optimizer optimizer;
    struct param_array reference;  // in the form of the weights; no array: there is no reference
    struct shared_weights lent[2]; // the weights and the reference, for other processes; zeroed: not lent
    bool vision_has_grad;          // a group with media was accumulated since the last step
};

struct model {
    struct arena arena; // the strings below
    struct backend *backend;
    struct backend_info backend_info; // memory_free is that of the opening
    struct model_options options;
    const char *dir;
    struct model_config config;
    struct qwen_parameters *params;
    const struct parameter_table *table; // of them
    struct safetensors *store;           // training: stays open for its names, types and first values
    struct qwen_weights *weights;
    struct shared_weights borrowed; // another process's weights; zeroed: none
    struct buffer *copied;          // own memory with a copy of them; NULL: they are used in place
    int64_t weights_replaced;       // how often model_swap and model_reset have replaced them
    struct model_info info;
    int64_t version;
    struct workspace workspace;
    size_t workspace_limit; // what it may grow to with kept activations; 0: not known yet
    struct rope_angles text_rope, vision_rope;
    struct kv_scratch text_kv, vision_kv; // for scoring and training
    struct trainer *trainer;              // NULL unless training
};

// Makes the trainer of a model that is opened for training, with gradients and moments of matrices in these types, and
// its reference, equal to the present weights. UNAVAILABLE when memory is short.
status trainer_new(struct model *model, enum element grads, enum element moments);

// NULL is fine; sets *trainer to NULL.
void trainer_free(struct trainer **trainer, struct backend *backend);

#endif
