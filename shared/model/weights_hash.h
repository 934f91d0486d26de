// The hash under which weights are known: XXH3 over the configuration's values, then each parameter's name, shape and
// bits in the order of the table.
#ifndef SHARED_MODEL_FINGERPRINT_H
#define SHARED_MODEL_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/model/model_config.h"
#include "shared/model/parameters.h"

struct weights_hasher;

// Starts with the configuration and the type of the bits to come. UNAVAILABLE when memory is short.
status weights_hasher_new(struct weights_hasher **out, const struct model_config *config, enum element type);

// NULL is fine; sets *print to NULL.
void weights_hasher_free(struct weights_hasher **hasher);

// The next parameter's name and shape; its bits follow.
void weights_hasher_parameter(struct weights_hasher *hasher, const struct parameter *parameter);

// The next bits. `print` is a fingerprint; the signature is that of an element_sink.
status weights_hasher_update(void *hasher, const void *elements, size_t bytes);

// The hash of all so far.
uint64_t weights_hasher_digest(const struct weights_hasher *hasher);

#endif
