#include "shared/model/shards.h"

enum { SHARD_ALIGNMENT = 64 };

int64_t shard_unit(int64_t elements) {
    const int64_t most = (int64_t)SHARD_ALIGNMENT * SHARD_UNITS;
    return (elements + most - 1) / most * SHARD_ALIGNMENT;
}

status shard_add_squares(struct backend *backend, const struct param_array *array,
                         const struct parameter_bucket *bucket, double *squares) {
    double sums[SHARD_UNITS];
    const int64_t unit = shard_unit(bucket->count);
    TRY(backend->ops->square_sums(backend, sums, param_bucket(array, bucket), unit));
    for (int64_t u = 0; u * unit < bucket->count; u++) *squares += sums[u];
    return OK;
}
