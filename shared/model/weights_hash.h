// The hash by which weights are known: XXH3 over their type, the table's settings, each parameter's name and shape in
// the order of the table, and the digest of the bits. The digest is the sum of the fused parameters' digests
// (kernels/ops.h), each with the position of its first byte in the table's array, divided by 8, as `first`.
#ifndef SHARED_MODEL_WEIGHTS_HASH_H
#define SHARED_MODEL_WEIGHTS_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/model/param_array.h"

// *digest += the digest of a fused parameter's values, dense in the type of the weights. A failure is the backend's.
status weights_digest(struct backend *backend, const struct fused_param *param, struct tensor values, uint64_t *digest);

// *hash = the hash of weights in `type` with this digest.
void weights_hash_finish(const struct parameter_table *table, enum element type, uint64_t digest, uint64_t *hash);

// *hash = the hash of an array of weights, all in one type. UNAVAILABLE when memory is short.
status weights_hash_array(struct backend *backend, const struct param_array *values, uint64_t *hash);

// *hash = the hash of a store's weights, which must be in `type`. DATAERR names a tensor that is not, or that does not
// fit the table; UNAVAILABLE when memory is short.
status weights_hash_stored(struct backend *backend, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash);

// *hash = a hash of a store's weights as they are stored, whatever type they are used in: of the table's settings, and
// of the type and the bytes of each parameter's tensor. It is no hash of model_hash. DATAERR names a tensor that does
// not fit the table; UNAVAILABLE when memory is short.
status weights_hash_files(const struct parameter_table *table, const struct safetensors *store, uint64_t *hash);

#endif
