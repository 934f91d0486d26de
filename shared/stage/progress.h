// The file `progress` of a checkpoint or a training state, the directories OUT/step-NNNNNN and OUT/state-NNNNNN that
// optim writes, and their names.
#pragma once

#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// The name of the file. It is written last: a directory that has it is complete.
#define PROGRESS_NAME "progress"

// The file of the training state's tensors beside it (shared/model/training_state.h).
#define PROGRESS_TENSORS "training.safetensors"

// Where a training stands.
struct progress {
    long long step;
    long long cursor;              // the seq below which everything is trained
    long long ema_step;            // the step at which the reference last changed, 0: never
    long long schedule_steps;      // of the learning rate's schedule, 0: without an end
    double lr;                     // of the last step
    unsigned long long model_hash; // model_hash_files of the weights with which the training began
    const char *model;             // their directory without links
};

// Reads the file at `path`; progress->model is in the arena. DATAERR when it is not such a file, UNAVAILABLE.
status progress_read(struct progress *progress, struct arena *arena, const char *path);

// Appends the file's text.
void progress_print(const struct progress *progress, struct buf *out);

// Returns N for the name "PREFIX-N" of a directory, -1 for any other name.
int64_t checkpoint_number(const char *name, const char *prefix);
