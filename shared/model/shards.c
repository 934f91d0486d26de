#include "shared/model/shards.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum { SHARD_ALIGNMENT = 64 };

int64_t shard_unit(int64_t elements) {
    const int64_t most = (int64_t)SHARD_ALIGNMENT * SHARD_UNITS;
    return (elements + most - 1) / most * SHARD_ALIGNMENT;
}

// elements / unit, rounded up.
static int64_t shard_units(int64_t elements, int64_t unit) {
    return (elements + unit - 1) / unit;
}

struct param_piece shard_piece(const struct parameter_bucket *bucket, int rank, int count) {
    const int64_t unit = shard_unit(bucket->count), units = shard_units(bucket->count, unit);
    const int64_t first = units * rank / count * unit, end = units * (rank + 1) / count * unit;
    return (struct param_piece){bucket->offset + first, bucket->offset + (end < bucket->count ? end : bucket->count)};
}

int64_t shard_most(const struct parameter_bucket *bucket, int count) {
    const int64_t unit = shard_unit(bucket->count), most = shard_units(shard_units(bucket->count, unit), count) * unit;
    return most < bucket->count ? most : bucket->count;
}

struct param_piece shard_own(const struct parameter_bucket *bucket, const struct ranks *ranks) {
    return ranks ? shard_piece(bucket, ranks->own, ranks->count) : shard_piece(bucket, 0, 1);
}

status shard_square_sum(struct backend *backend, const struct param_array *array, size_t buckets, struct ranks *ranks,
                        double *sum) {
    const int count = ranks ? ranks->count : 1, own = ranks ? ranks->own : 0;
    const size_t piece_count = buckets * (size_t)count;
    struct rank_piece *sends, *receives;
    struct rank_exchange *exchange = NULL;
    struct square_range *ranges; // of this rank
    double *squares, *mine;      // of all units, in the order of the buckets; this rank's
    size_t units = 0, at = 0, range_count = 0;
    status result = OK;
    for (size_t b = 0; b < buckets; b++) {
        const int64_t elements = array->table->buckets[b].count;
        units += (size_t)shard_units(elements, shard_unit(elements));
    }
    NEW(&squares, 2 * units);
    mine = squares + units;
    NEW(&ranges, buckets);
    for (size_t b = 0; b < buckets; b++) {
        const struct parameter_bucket *bucket = &array->table->buckets[b];
        const struct param_piece piece = shard_own(bucket, ranks);
        if (piece.first < piece.end)
            ranges[range_count++] = (struct square_range){param_slice(array, piece), shard_unit(bucket->count)};
    }
    NEW(&sends, 2 * piece_count);
    receives = sends + piece_count;
    TRY_TO(result, done, backend->ops->square_sums(backend, mine, ranges, range_count)); // waits once
    for (size_t b = 0; b < buckets; b++) {
        const struct parameter_bucket *bucket = &array->table->buckets[b];
        const int64_t unit = shard_unit(bucket->count);
        const size_t first = b * (size_t)count;
        for (int rank = 0; rank < count; rank++) {
            const struct param_piece piece = shard_piece(bucket, rank, count);
            const size_t piece_units = (size_t)shard_units(piece.end - piece.first, unit);
            receives[first + (size_t)rank] = (struct rank_piece){rank, squares + at, piece_units * sizeof *squares};
            if (rank == own) memcpy(squares + at, mine, piece_units * sizeof *squares);
            if (rank == own) mine += piece_units;
            at += piece_units;
        }
        for (int rank = 0; rank < count; rank++) {
            sends[first + (size_t)rank] = receives[first + (size_t)own];
            sends[first + (size_t)rank].rank = rank;
        }
    }
    if (ranks) TRY_TO(result, done, ranks_begin(ranks, sends, piece_count, receives, piece_count, &exchange));
    if (ranks) TRY_TO(result, done, ranks_end(ranks, &exchange));
    *sum = 0;
    for (size_t u = 0; u < units; u++) *sum += squares[u];
done:
    free(sends);
    free(ranges);
    free(squares);
    return result;
}

// The bytes of the largest bucket.
static size_t shard_largest(const struct parameter_table *table, size_t buckets, enum element type) {
    int64_t largest = 0;
    for (size_t b = 0; b < buckets; b++)
        if (table->buckets[b].count > largest) largest = table->buckets[b].count;
    return (size_t)largest * element_size(type);
}

size_t shard_gather_bytes(const struct parameter_table *table, size_t buckets, enum element type) {
    return 2 * shard_largest(table, buckets, type);
}

// From device to device, where they belong.
static status shard_gather_devices(const struct param_array *array, size_t buckets, const struct ranks *ranks,
                                   struct rank_devices *devices) {
    const size_t count = (size_t)ranks->count;
    struct comm_piece *sends, *receives;
    NEW(&sends, 2 * buckets * count);
    receives = sends + buckets * count;
    for (size_t i = 0; i < buckets * count; i++) {
        const struct parameter_bucket *bucket = &array->table->buckets[i / count];
        const int rank = (int)(i % count);
        const struct param_piece own = shard_own(bucket, ranks), piece = shard_piece(bucket, rank, ranks->count);
        sends[i].rank = receives[i].rank = rank;
        if (own.first < own.end && rank != ranks->own) sends[i].tensor = param_slice(array, own);
        if (piece.first < piece.end && rank != ranks->own) receives[i].tensor = param_slice(array, piece);
    }
    status result = rank_devices_begin(devices, sends, buckets * count, receives, buckets * count);
    if (result == OK) result = rank_devices_end(devices);
    free(sends);
    return result;
}

// Through the hosts, each bucket is on its way while the one before it is uploaded and the next one downloaded.
status shard_gather(struct backend *backend, const struct param_array *array, size_t buckets, struct ranks *ranks,
                    struct rank_devices *devices) {
    if (!ranks) return OK;
    if (devices) return shard_gather_devices(array, buckets, ranks, devices);
    const struct operations *ops = backend->ops;
    const size_t count = (size_t)ranks->count, size = element_size(array->types[0]);
    const size_t largest = shard_largest(array->table, buckets, array->types[0]);
    struct rank_exchange *exchanges[2] = {NULL, NULL};
    struct rank_piece *sends, *receives;
    char *values; // of two buckets
    status result = OK;
    TRY(mem_new_large(&values, 2, largest));
    NEW(&sends, 2 * count);
    receives = sends + count;
    for (size_t b = 0; b <= buckets; b++) {
        if (b < buckets) {
            const struct parameter_bucket *bucket = &array->table->buckets[b];
            const struct param_piece own = shard_own(bucket, ranks);
            for (int rank = 0; rank < ranks->count; rank++) {
                const struct param_piece piece = shard_piece(bucket, rank, ranks->count);
                receives[rank].rank = rank;
                receives[rank].data = values + b % 2 * largest + (size_t)(piece.first - bucket->offset) * size;
                receives[rank].bytes = (size_t)(piece.end - piece.first) * size;
            }
            for (int rank = 0; rank < ranks->count; rank++) {
                sends[rank] = receives[ranks->own];
                sends[rank].rank = rank;
            }
            if (own.first < own.end)
                TRY_TO(result, done,
                       ops->download(backend, receives[ranks->own].data, array->types[0], param_slice(array, own)));
            TRY_TO(result, done, ranks_begin(ranks, sends, count, receives, count, &exchanges[b % 2]));
        }
        if (b == 0) continue;
        const struct parameter_bucket *bucket = &array->table->buckets[b - 1];
        const struct param_piece own = shard_own(bucket, ranks);
        const struct param_piece others[] = {{bucket->offset, own.first}, {own.end, bucket->offset + bucket->count}};
        TRY_TO(result, done, ranks_end(ranks, &exchanges[(b - 1) % 2]));
        for (int i = 0; i < 2; i++)
            if (others[i].first < others[i].end)
                TRY_TO(result, done,
                       ops->upload(backend, param_slice(array, others[i]),
                                   values + (b - 1) % 2 * largest + (size_t)(others[i].first - bucket->offset) * size,
                                   array->types[0]));
    }
done:
    for (int i = 0; i < 2; i++) (void)ranks_end(ranks, &exchanges[i]); // those that a failure has left
    free(sends);
    free(values);
    return result;
}
