// The files of a training state beside a checkpoint: tensors, each under its parameter's name with a prefix
// ("master.model.norm.weight"), and the counters in JSON. Weights are stored in float32, moments in the type in which
// they are kept, so that nothing is lost.
#ifndef SHARED_MODEL_TRAINING_STATE_H
#define SHARED_MODEL_TRAINING_STATE_H

#include "shared/model/param_array.h"

#define TRAINING_TENSORS  "training.safetensors"
#define TRAINING_COUNTERS "training.json"

enum { MAX_STATE_COUNTERS = 4 };

struct state_array {
    const char *prefix;
    const struct param_array *values;     // stored for each parameter that it has
    const struct param_array *remainders; // a zeroed struct unless the values are pairs, which are stored in float32
};

struct state_counter {
    const char *name;
    int64_t *value; // 0 at least
};

struct training_state {
    struct backend *backend;
    const struct parameter_table *table;
    const struct state_array *arrays;
    size_t array_count;
    const struct state_counter *counters;
    size_t counter_count;
};

// Writes the files into `dir`, which must exist. UNAVAILABLE when memory is short or the file system refuses.
status training_state_save(const struct training_state *state, const char *dir);

// Reads them into the arrays and counters, after every tensor was found. DATAERR names what is missing or does not fit;
// UNAVAILABLE when memory is short.
status training_state_load(const struct training_state *state, const char *dir);

// Returns the bytes of the tensors.
uint64_t training_state_bytes(const struct training_state *state);

#endif
