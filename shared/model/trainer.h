// All training state: gradients, both moments, the step, and the averaged reference.
#ifndef SHARED_MODEL_TRAINER_H
#define SHARED_MODEL_TRAINER_H

#include "shared/model/model_internal.h"

struct trainer {
    int64_t elements;                                // trained: the first so many of the table's row
    int range_count;                                 // of the table's ranges
    struct buffer *gradients, *exp_avg, *exp_avg_sq; // F32
    int64_t step;                                    // optimizer steps taken
    int64_t vision_step;                             // of them those in which the vision tower had a gradient
    bool vision_has_grad;                            // a group with media was accumulated since the last step
    const char *scratch;                             // the folder of the reference's file
    int ema_fd; // file of all elements as float32; -1: the reference has not been made
};

// Makes the state of a model that is opened for training.
status trainer_new(struct trainer **out, struct model *model);

// NULL is fine; sets *trainer to NULL.
void trainer_free(struct trainer **trainer, struct backend *backend);

// Makes the reference from the present weights, if there is none.
status ema_open(struct model *model);

// Reads `count` elements of the reference, from element `place` on.
status ema_read(const struct trainer *trainer, int64_t offset, int64_t count, float *out);

// Writes as many.
status ema_write(const struct trainer *trainer, int64_t offset, int64_t count, const float *values);

#endif
