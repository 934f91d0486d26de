// The hash under which weights are known: XXH3 over the configuration's values, then each parameter's name, shape and
// bits in the order of the table.
#ifndef SHARED_MODEL_FINGERPRINT_H
#define SHARED_MODEL_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/model/config.h"
#include "shared/model/parameters.h"

struct fingerprint;

// Starts with the configuration and the type of the bits to come. UNAVAILABLE when memory is short.
status fingerprint_new(struct fingerprint **out, const struct model_config *config, enum element type);

// NULL is fine; sets *print to NULL.
void fingerprint_free(struct fingerprint **print);

// The next parameter's name and shape; its bits follow.
void fingerprint_parameter(struct fingerprint *print, const struct parameter *parameter);

// The next bits. `print` is a fingerprint; the signature is that of an element_sink.
status fingerprint_bits(void *print, const void *elements, size_t bytes);

// The hash of all so far.
uint64_t fingerprint_value(const struct fingerprint *print);

#endif
