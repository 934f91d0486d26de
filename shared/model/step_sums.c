#include "shared/model/step_sums.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

// A leaf's gradient of a bucket.
struct leaf_bucket {
    struct tensor grad; // one row; of a bucket without memory of its own: its sums
    bool touched;       // it may differ from zero, and is not the sums
};

// The table's buckets that the sums have.
static size_t step_sums_buckets(const struct parameter_table *table, int ranges) {
    size_t count = 0;
    while (count < table->bucket_count && table->buckets[count].range < ranges) count++;
    return count;
}

// Whether round(sum + leaf) is what a product does that is added to the sum.
static bool step_sums_are_direct(struct gradient_types types, bool rounds_products) {
    return rounds_products && types.products == ELEMENT_BF16 && types.leaf == ELEMENT_BF16 && types.sum == ELEMENT_BF16;
}

// Places a leaf's buckets one behind the other, the streamed ones all at the same place, and returns the bytes of all.
// `out` is NULL or has one for each bucket; the buffer is still missing. With `direct` those to which is added once
// have no place.
static size_t step_sums_place(const struct parameter_table *table, int ranges, enum element matrices, bool direct,
                              struct leaf_bucket *out) {
    const size_t count = step_sums_buckets(table, ranges);
    size_t streamed = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct parameter_bucket *bucket = &table->buckets[i];
        const enum element type = table->ranges[bucket->range].decay ? matrices : ELEMENT_F32; // matrices decay
        const size_t bytes = (size_t)bucket->count * element_size(type);
        if (out) out[i].grad = (struct tensor){NULL, end, type, 1, bucket->count, bucket->count};
        if (direct && bucket->use == BUCKET_ONCE) continue;
        if (bucket->use != BUCKET_ANY_TIME)
            streamed = bytes > streamed ? bytes : streamed;
        else
            end += bytes;
    }
    for (size_t i = 0; i < count && out; i++)
        if (table->buckets[i].use != BUCKET_ANY_TIME) out[i].grad.offset = end;
    return end + streamed;
}

size_t step_sums_leaf_bytes(const struct parameter_table *table, int ranges, struct gradient_types types,
                            bool rounds_products) {
    return step_sums_place(table, ranges, types.leaf, step_sums_are_direct(types, rounds_products), NULL);
}

// Whether a leaf's gradient of a bucket has memory of its own.
static bool step_sums_has_leaf(const struct step_sums *sums, size_t bucket) {
    return !sums->direct || sums->sums.table->buckets[bucket].use != BUCKET_ONCE;
}

status step_sums_init(struct step_sums *sums, struct backend *backend, const struct parameter_table *table, int ranges,
                      struct gradient_types types) {
    const size_t count = step_sums_buckets(table, ranges);
    struct backend_info info;
    *sums = (struct step_sums){.backend = backend};
    TRY(backend->ops->info(backend, &info));
    sums->direct = step_sums_are_direct(types, info.rounds_products);
    NEW(&sums->buckets, count);
    const size_t bytes = step_sums_place(table, ranges, types.leaf, sums->direct, sums->buckets);
    TRY(param_array_init(&sums->sums, backend, table, ranges, types.sum, ELEMENT_F32));
    TRY(backend->ops->buffer_new(backend, bytes, &sums->leaf));
    for (size_t i = 0; i < count; i++) {
        if (step_sums_has_leaf(sums, i))
            sums->buckets[i].grad.buffer = sums->leaf;
        else
            sums->buckets[i].grad = param_bucket(&sums->sums, &table->buckets[i]);
    }
    return OK;
}

void step_sums_release(struct step_sums *sums) {
    if (!sums->backend) return;
    param_array_release(&sums->sums, sums->backend);
    sums->backend->ops->buffer_free(sums->backend, &sums->leaf);
    free(sums->buckets);
    *sums = (struct step_sums){0};
}

// The number of the bucket that has a parameter.
static size_t step_sums_bucket_of(const struct step_sums *sums, const struct fused_param *param) {
    const struct parameter_bucket *buckets = sums->sums.table->buckets;
    size_t i = 0;
    while (param->offset >= buckets[i].offset + buckets[i].count) i++;
    assert(buckets[i].range < sums->sums.ranges);
    return i;
}

// Drops what the present leaf has of a bucket.
static status step_sums_drop(struct step_sums *sums, size_t bucket) {
    struct leaf_bucket *leaf = &sums->buckets[bucket];
    if (!leaf->touched) return OK;
    leaf->touched = false;
    return sums->backend->ops->zero(sums->backend, leaf->grad);
}

status step_sums_begin(struct step_sums *sums) {
    const size_t count = step_sums_buckets(sums->sums.table, sums->sums.ranges);
    for (size_t i = 0; i < count; i++) TRY(step_sums_drop(sums, i));
    return OK;
}

struct tensor step_sums_grad(struct step_sums *sums, const struct fused_param *param) {
    const struct parameter_table *table = sums->sums.table;
    const size_t bucket = step_sums_bucket_of(sums, param);
    struct leaf_bucket *leaf = &sums->buckets[bucket];
    const int64_t count = param->rows * param->columns;
    if (table->buckets[bucket].use != BUCKET_ANY_TIME) {
        const size_t last = sums->streamed;
        assert(last == bucket || table->buckets[last].use == BUCKET_ANY_TIME || !sums->buckets[last].touched);
        sums->streamed = bucket;
    }
    leaf->touched = step_sums_has_leaf(sums, bucket);
    const struct tensor row = tensor_columns(leaf->grad, param->offset - table->buckets[bucket].offset, count);
    return tensor_reshape(row, param->rows, param->columns);
}

// sum = round(sum + leaf), which begins at zero again.
static status step_sums_add(struct step_sums *sums, size_t bucket) {
    struct leaf_bucket *leaf = &sums->buckets[bucket];
    if (!leaf->touched) return OK;
    TRY(sums->backend->ops->add(sums->backend, param_bucket(&sums->sums, &sums->sums.table->buckets[bucket]),
                                leaf->grad));
    return step_sums_drop(sums, bucket);
}

status step_sums_done(struct step_sums *sums, const struct fused_param *param) {
    return step_sums_add(sums, step_sums_bucket_of(sums, param));
}

status step_sums_end(struct step_sums *sums) {
    const size_t count = step_sums_buckets(sums->sums.table, sums->sums.ranges);
    for (size_t i = 0; i < count; i++) TRY(step_sums_add(sums, i));
    return OK;
}

status step_sums_norm(const struct step_sums *sums, double *norm) {
    const struct parameter_table *table = sums->sums.table;
    const size_t count = step_sums_buckets(table, sums->sums.ranges);
    double squares = 0;
    for (size_t i = 0; i < count; i++) TRY(shard_add_squares(sums->backend, &sums->sums, &table->buckets[i], &squares));
    *norm = sqrt(squares);
    return isfinite(*norm) ? OK : fail(DATAERR, "the norm of the gradient is not finite");
}

status step_sums_clear(struct step_sums *sums) {
    for (int i = 0; i < sums->sums.ranges; i++)
        TRY(sums->backend->ops->zero(sums->backend, param_range(&sums->sums, i)));
    return OK;
}
