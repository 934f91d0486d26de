// The versions of a run's weights that are still on disk: what optim has published last, and its checkpoints. Version 0
// is the run's model directory.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// A version above 0.
struct stored_version {
    bool reference;
    int64_t version;
    const char *path;   // a file of tensors
    const char *prefix; // what stands before their names
};

// A zeroed struct is empty.
struct stored_weights {
    struct arena arena;
    struct stored_version *list;
    size_t count;
    bool knows_model;        // a checkpoint is there, so it is known with which weights the run began:
    unsigned long long hash; // model_hash_files of them
};

// Lists those in the run's directory and in optim's directory `out`. DATAERR when a checkpoint is damaged.
status stored_weights_list(struct stored_weights *weights, const char *run, const char *out);

// Frees the list and leaves an empty one.
void stored_weights_release(struct stored_weights *weights);

// Returns a version of the policy or of the reference, NULL if it is not there.
const struct stored_version *stored_weights_find(const struct stored_weights *weights, bool reference, int64_t version);

// Appends the versions that there are, 0 included: "0, 3, 6 to 8".
void stored_weights_print(const struct stored_weights *weights, bool reference, struct buf *out);
