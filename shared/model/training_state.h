// The files of a training state beside a checkpoint: tensors, each under its parameter's name with a prefix
// ("master.model.norm.weight"), and the counters in JSON. Weights are stored in float32, moments in the type in which
// they are kept, so that nothing is lost.
#ifndef SHARED_MODEL_TRAINING_STATE_H
#define SHARED_MODEL_TRAINING_STATE_H

#include "shared/model/model.h"
#include "shared/model/parameters.h"

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

// ---- optimizer ----

// AdamW over the parameters of a table: gradients, both moments, step counts. A failure is the backend's.
struct optimizer {
    struct backend *backend;
    const struct parameter_table *table;
    struct param_array grads, exp_avg, exp_avg_sq; // of the trained ranges; those of vectors are float32
    int64_t steps[MAX_PARAM_GROUPS];               // of each group; every step is one of group 0
};

// Makes zeros for the first `ranges` ranges of the table, with gradients and moments of matrices in these types. The
// caller calls optimizer_release, also after a failure. UNAVAILABLE when memory is short.
status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, enum element grads, enum element moments);

// Frees the arrays. A zeroed struct is fine.
void optimizer_release(struct optimizer *optimizer);

// *norm = the norm of all gradients. DATAERR if it is not finite.
status optimizer_norm(struct optimizer *optimizer, double *norm);

// One step of the first `groups` groups, with the gradients scaled by max_grad_norm / norm if that is below 1; then
// zeroes all gradients. A group without gradient keeps its weights, moments and step count, as in PyTorch.
// `remainders`: a zeroed struct unless the weights are pairs.
status optimizer_step(struct optimizer *optimizer, const struct param_array *values,
                      const struct param_array *remainders, int groups, const struct optimizer_options *options,
                      double norm);

// ---- checkpoint ----

// Writes a safetensors file: tensors[i] (name, type, rank and shape are used) with the values of *params[i].
// `remainders`: a zeroed struct unless the values are pairs. `durable` is as in safetensors_create. UNAVAILABLE when
// memory is short or the file system refuses.
status checkpoint_write_tensors(struct backend *backend, const struct param_array *values,
                                const struct param_array *remainders, const char *path,
                                const struct stored_tensor *tensors, const struct parameter *const *params,
                                size_t count, bool durable);

// Copies the regular files of the directory `from` to `to`, except the store's, a training state's, hidden ones, and
// those that `except` names, a list up to NULL, or NULL. DATAERR when a file cannot be read; UNAVAILABLE as above.
status checkpoint_copy_files(const char *from, const char *to, const struct safetensors *store,
                             const char *const *except);

#endif
