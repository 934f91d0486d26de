// Where arrays of all parameters may be cut, so that any number of processes can divide the work on them and add up the
// same sums in the same order.
//
// A bucket of the table (parameters.h) is cut into units, at most SHARD_UNITS, each of the same multiple of 64 elements
// but the last, which has what is left. Units depend on the number of elements alone.
#pragma once

#include "shared/model/parameters.h"

enum { SHARD_UNITS = 4096 };

// Returns the elements of a unit of so many elements.
int64_t shard_unit(int64_t elements);

// *squares += the squares of the array's numbers in the bucket, unit by unit in their order. Waits. A failure is the
// backend's.
status shard_add_squares(struct backend *backend, const struct param_array *array,
                         const struct parameter_bucket *bucket, double *squares);
