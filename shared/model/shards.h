// Where arrays of all parameters may be cut, so that any number of ranks can divide the work on them and add up the
// same sums in the same order.
//
// A bucket of the table (parameters.h) is cut into units, at most SHARD_UNITS, each of the same multiple of 64 elements
// but the last, which has what is left. Units depend on the number of elements alone. Each rank owns a piece of every
// bucket: whole units, as many as the others, or one more or less.
#pragma once

#include "shared/model/parameters.h"
#include "shared/model/rank_devices.h"

enum { SHARD_UNITS = 4096 };

// Returns the elements of a unit of so many elements.
int64_t shard_unit(int64_t elements);

// Returns what rank number `rank` of `count` owns of a bucket; may be empty.
struct param_piece shard_piece(const struct parameter_bucket *bucket, int rank, int count);

// Returns the most elements of a bucket that one of `count` ranks owns.
int64_t shard_most(const struct parameter_bucket *bucket, int count);

// Returns what this rank owns of a bucket; all of it without ranks (NULL).
struct param_piece shard_own(const struct parameter_bucket *bucket, const struct ranks *ranks);

// *sum = the sum of the squares of the array's numbers in the first `buckets` buckets, unit by unit in their order;
// each rank has the numbers that it owns. Waits for all. A failure is the backend's or one of the ranks.
status shard_square_sum(struct backend *backend, const struct param_array *array, size_t buckets, struct ranks *ranks,
                        double *sum);

// Sets the values of an array of one type in the first `buckets` buckets to those of their owners. Waits for all.
// `devices` are those of the ranks; NULL: the values go through the hosts. UNAVAILABLE when memory is short, or as
// above. Does nothing without ranks.
status shard_gather(struct backend *backend, const struct param_array *array, size_t buckets, struct ranks *ranks,
                    struct rank_devices *devices);

// Returns the bytes that this takes on the host for an array of one type, if it goes through the hosts.
size_t shard_gather_bytes(const struct parameter_table *table, size_t buckets, enum element type);
