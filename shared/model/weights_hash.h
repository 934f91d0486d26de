// The hash by which weights are known: XXH3 over the configuration's values, then each parameter's name, shape and bits
// in the order of the parameter table.
#ifndef SHARED_MODEL_WEIGHTS_HASH_H
#define SHARED_MODEL_WEIGHTS_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/model/model_config.h"
#include "shared/model/parameters.h"

struct weights_hasher;

// Starts with the configuration and the type of the bits to come. UNAVAILABLE when memory is short.
status weights_hasher_new(struct weights_hasher **out, const struct model_config *config, enum element type);

// NULL is fine; sets *hasher to NULL.
void weights_hasher_free(struct weights_hasher **hasher);

// Adds the next parameter's name and shape; its bits follow.
void weights_hasher_parameter(struct weights_hasher *hasher, const struct parameter *parameter);

// Adds the next bits. `hasher` is a struct weights_hasher; the signature is that of an element_sink.
status weights_hasher_update(void *hasher, const void *elements, size_t bytes);

// The hash of everything so far.
uint64_t weights_hasher_digest(const struct weights_hasher *hasher);

// *hash = the hash of a store's weights, which must be in `type`. DATAERR names a tensor that is not, or that does not
// fit the table; UNAVAILABLE when memory is short.
status weights_hash_stored(const struct model_config *config, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash);

#endif
