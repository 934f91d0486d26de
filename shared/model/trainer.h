// All training state: gradients, both moments, the step, and the averaged reference.
#ifndef SHARED_MODEL_TRAINER_H
#define SHARED_MODEL_TRAINER_H

#include "shared/model/inside.h"

struct trainer {
    int64_t elements;                          // trained: the first so many of the table's row
    int range_count;                           // of the table's ranges
    struct buffer *gradients, *first, *second; // F32
    int64_t step;                              // optimizer steps taken
    int64_t tower_step;                        // of them those in which the vision tower had a gradient
    bool tower_seen;                           // a group with media was accumulated since the last step
    const char *scratch;                       // the folder of the reference's file
    int reference;                             // file of all elements as float32; -1: the reference has not been made
};

// Makes the state of a model that is opened for training.
status trainer_new(struct trainer **out, struct model *model);

// NULL is fine; sets *trainer to NULL.
void trainer_free(struct trainer **trainer, struct backend *backend);

// Makes the reference from the present weights, if there is none.
status reference_make(struct model *model);

// Reads `count` elements of the reference, from element `place` on.
status reference_read(const struct trainer *trainer, int64_t place, int64_t count, float *out);

// Writes as many.
status reference_write(const struct trainer *trainer, int64_t place, int64_t count, const float *values);

#endif
