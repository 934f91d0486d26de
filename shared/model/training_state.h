// What training has beside the weights: the optimizer, and the files of a checkpoint.
#pragma once

#include "shared/model/model.h"
#include "shared/model/step_sums.h"

// AdamW over the parameters of a table: gradients, both moments, step counts. A failure is the backend's.
struct optimizer {
    struct backend *backend;
    struct step_sums grads;
    struct param_array exp_avg, exp_avg_sq; // of the trained ranges; those of vectors are float32
    int64_t steps[MAX_PARAM_GROUPS];        // of each group; every step is one of group 0
};

// Makes zeros for the first `ranges` ranges of the table, with gradients and moments of matrices in these types;
// `rank_list` and `devices` are as in step_sums_init. The caller calls optimizer_release, also after a failure.
// UNAVAILABLE when memory is short.
status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, struct gradient_types grads, enum element moments, struct ranks *rank_list,
                      struct rank_devices *devices);

// Frees the arrays. A zeroed struct is fine.
void optimizer_release(struct optimizer *optimizer);

// One step of the first `groups` groups, with the gradients scaled by max_grad_norm / norm if that is below 1; then
// zeroes all gradients. A group without gradient keeps its weights, moments and step count, as in PyTorch. Each rank
// computes what it owns, and gets the others' values.
status optimizer_step(struct optimizer *optimizer, const struct param_array *weights, int groups,
                      const struct optimizer_options *options, double norm);

// ---- the files of a checkpoint ----

// What this process, one of several ranks, saves and loads of every array. The pieces of all ranks are all elements of
// the table, each once.
struct param_share {
    struct file_ranks *ranks; // NULL: one process
    const struct param_piece *pieces;
    size_t count;
    struct ranks *partners; // the ranks, if some have partners, to whom they give what they own (shards.h); or NULL
};

// The share of a rank: what it owns of every bucket (shards.h); all without ranks. `share` is for the functions below.
struct rank_share {
    struct param_share share;
    struct file_ranks file;
    struct ranks *ranks;
};

// The struct stays where it is; its memory is in the arena.
void rank_share_init(struct rank_share *out, struct arena *arena, const struct parameter_table *table,
                     struct ranks *ranks);

// Tells all ranks this one's result of something that they have done together. Returns it, with its fail_text, unless
// it is OK; else OK if it is OK on all, or the code of another rank, which the text names. So they go on alike.
status rank_share_agree(const struct rank_share *share, status result);

// Tensors that become a file, each with a parameter's numbers in an array.
struct tensor_list {
    struct stored_tensor *tensors;
    struct tensor_source {
        const struct param_array *array;
        const struct parameter *parameter;
    } * sources;
    size_t count;
    struct param_share share;
};

// Returns an empty list with room for `capacity` tensors, in the arena. This process has all of the arrays.
struct tensor_list tensor_list_make(struct arena *arena, size_t capacity);

// Appends a parameter's numbers, to be stored under that name, which must outlive the list, in that type.
void tensor_list_add(struct tensor_list *list, const struct param_array *array, const struct parameter *parameter,
                     const char *name, enum element type);

// Writes the tensors, together with the other ranks, to a safetensors file; `durable` is as in safetensors_create.
// UNAVAILABLE when memory is short or the file system refuses.
status tensor_list_write(const struct tensor_list *list, struct backend *backend, const char *path, bool durable);

// Copies the regular files of the directory `from` to `to`, except the store's and other safetensors files, an
// adapter's, those of a training, hidden ones, and those that `except` names, a list up to NULL, or NULL. DATAERR when
// a file cannot be read; UNAVAILABLE as above.
status checkpoint_copy_files(const char *from, const char *to, const struct safetensors *store,
                             const char *const *except);

// ---- the training state ----

// It has two files beside a checkpoint: tensors, each under its parameter's name with a prefix
// ("master.model.norm.weight"), and the counters in JSON. Weights are stored in float32, moments in the type in which
// they are kept, so that nothing is lost.

enum { MAX_STATE_ARRAYS = 4, MAX_STATE_COUNTERS = 3 };

struct training_state {
    struct backend *backend;
    const struct param_share *share; // NULL: one process has all
    struct state_array {
        const char *prefix;              // NULL behind the last one
        const struct param_array *array; // stored for each parameter that it has; the first has all of its table
    } arrays[MAX_STATE_ARRAYS + 1];
    struct state_counter {
        const char *name; // NULL behind the last one
        int64_t *value;   // 0 at least
    } counters[MAX_STATE_COUNTERS + 1];
};

// Writes the files into `dir`, which must exist; rank 0 writes the counters. UNAVAILABLE when memory is short or the
// file system refuses.
status training_state_save(const struct training_state *state, const char *dir);

// Reads this process's pieces and the counters, after every tensor was found; how many ranks have written them does not
// matter. USAGE names a tensor that is missing or of another type: it was saved with other options. DATAERR when the
// files are missing or damaged, or are those of another model.
status training_state_load(const struct training_state *state, const char *dir);

// Returns the bytes of the tensors.
uint64_t training_state_bytes(const struct training_state *state);
