// All training state: gradients, both moments, step counts, and the reference, an exponential moving average (EMA) of
// the weights in a file.
#ifndef SHARED_MODEL_TRAINER_H
#define SHARED_MODEL_TRAINER_H

#include "shared/model/model_internal.h"

// The files of the training state beside a checkpoint.
#define TRAINING_TENSORS  "training.safetensors"
#define TRAINING_COUNTERS "training.json"

struct trainer {
    int64_t elements;                            // trained ones: the first of the parameter table's elements
    int range_count;                             // the parameter table's ranges with trained elements
    struct buffer *grads, *exp_avg, *exp_avg_sq; // F32
    int64_t step;                                // optimizer steps
    int64_t vision_step;                         // those of them in which the vision tower had a gradient
    bool vision_has_grad;                        // a group with media was accumulated since the last step
    const char *ema_dir;                         // the directory of the reference's file
    int ema_fd;                                  // all elements as float32; -1: there is no reference
};

// Allocates the state of a model that is opened for training. UNAVAILABLE when memory is short.
status trainer_new(struct trainer **out, struct model *model);

// NULL is fine; sets *trainer to NULL.
void trainer_free(struct trainer **trainer, struct backend *backend);

// Creates the reference, equal to the present weights, unless there is one. UNAVAILABLE when the disk or the memory is
// full.
status ema_open(struct model *model);

// Reads `count` elements of the reference, from element `offset` on. UNAVAILABLE when the file cannot be read.
status ema_read(const struct trainer *trainer, int64_t offset, int64_t count, float *out);

// Writes `count` elements of the reference, from element `offset` on. UNAVAILABLE when the file cannot be written.
status ema_write(const struct trainer *trainer, int64_t offset, int64_t count, const float *values);

// Passes the reference's values of a parameter, converted to `type`, to the sink. Returns the sink's failure;
// UNAVAILABLE when memory is short or the file cannot be read.
status ema_download(struct model *model, const struct parameter *parameter, enum element type, element_sink *sink,
                    void *context);

#endif
