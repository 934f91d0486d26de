// Writes the files of a model directory.
#ifndef SHARED_MODEL_CHECKPOINT_FILES_H
#define SHARED_MODEL_CHECKPOINT_FILES_H

#include "shared/model/param_array.h"

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
