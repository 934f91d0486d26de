#include "shared/model/step_sums.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// A leaf's gradient of a bucket.
struct leaf_bucket {
    struct tensor grad; // one row; of a bucket without memory of its own: its sums
    bool touched;       // it may differ from zero, and is not the sums
};

// A bucket on its way.
struct sum_exchange {
    struct rank_exchange *exchange; // through the hosts
    bool under_way;
    size_t bucket;
    char *leaf, *received; // on the host: this rank's leaf; of every other leaf what this rank owns
};

struct sum_traffic {
    size_t *order;                       // the buckets, as they are exchanged
    size_t begun;                        // how many of them, of the present leaf
    unsigned char *groups;               // of each rank's leaf, as step_sums_begin has them
    struct sum_exchange two[2];          // one after the other; from device to device the first one
    struct rank_piece *sends, *receives; // one for each rank
    struct comm_piece *device_sends, *device_receives;
    struct buffer *piece; // of a leaf: what this rank owns of it; from device to device of every other leaf
};

// Whether round(sum + leaf) is what a product does that is added to the sum.
static bool step_sums_are_direct(struct gradient_types types, bool rounds_products) {
    return rounds_products && types.products == ELEMENT_BF16 && types.leaf == ELEMENT_BF16 && types.sum == ELEMENT_BF16;
}

// Places a leaf's buckets one behind the other, the streamed ones at one place, or in turn at two `places`, and returns
// the bytes of all. `out` is NULL or has one for each bucket; the buffer is still missing. With `direct` those to which
// is added once have no place.
static size_t step_sums_place(const struct parameter_table *table, int ranges, enum element matrices, bool direct,
                              size_t places, struct leaf_bucket *out) {
    const size_t count = parameter_table_buckets(table, ranges);
    size_t most[2] = {0}, end = 0, streamed = 0;
    for (size_t i = 0; i < count; i++) {
        const struct parameter_bucket *bucket = &table->buckets[i];
        const enum element type = table->ranges[bucket->range].decay ? matrices : ELEMENT_F32; // matrices decay
        const size_t bytes = (size_t)bucket->count * element_size(type);
        if (out) out[i].grad = (struct tensor){NULL, end, type, 1, bucket->count, bucket->count};
        if (direct && bucket->use == BUCKET_ONCE) continue;
        size_t *place = &most[streamed % places];
        if (bucket->use == BUCKET_ANY_TIME) {
            end += bytes;
        } else {
            streamed++;
            if (bytes > *place) *place = bytes;
        }
    }
    streamed = 0;
    for (size_t i = 0; i < count && out; i++)
        if (table->buckets[i].use != BUCKET_ANY_TIME) out[i].grad.offset = end + (streamed++ % places ? *most : 0);
    return end + most[0] + most[1];
}

size_t step_sums_leaf_bytes(const struct parameter_table *table, int ranges, struct gradient_types types,
                            bool rounds_products, bool devices) {
    const bool direct = !devices && step_sums_are_direct(types, rounds_products);
    return step_sums_place(table, ranges, types.leaf, direct, devices ? 2 : 1, NULL);
}

// The bytes of a leaf's largest bucket, and the largest of what one of `count` ranks owns of a bucket.
static size_t step_sums_largest(const struct parameter_table *table, int ranges, enum element matrices, int count,
                                size_t *piece) {
    size_t largest = 0;
    *piece = 0;
    for (size_t i = 0; i < parameter_table_buckets(table, ranges); i++) {
        const struct parameter_bucket *bucket = &table->buckets[i];
        const size_t size = element_size(table->ranges[bucket->range].decay ? matrices : ELEMENT_F32);
        const size_t whole = (size_t)bucket->count * size, most = (size_t)shard_most(bucket, count) * size;
        if (whole > largest) largest = whole;
        if (most > *piece) *piece = most;
    }
    return largest;
}

size_t step_sums_traffic_bytes(const struct parameter_table *table, int ranges, struct gradient_types types, int count,
                               bool devices, size_t *device) {
    const size_t largest = step_sums_largest(table, ranges, types.leaf, count, device), others = (size_t)(count - 1);
    const size_t host = 2 * (largest + others * *device);
    if (devices) *device *= others;
    return devices ? 0 : host;
}

// Whether a leaf's gradient of a bucket has memory of its own.
static bool step_sums_has_leaf(const struct step_sums *sums, size_t bucket) {
    return !sums->direct || sums->sums.table->buckets[bucket].use != BUCKET_ONCE;
}

// Makes what ranks need to exchange leaves.
static status step_sums_connect(struct step_sums *sums, const struct parameter_table *table, int ranges,
                                enum element matrices) {
    const size_t buckets = parameter_table_buckets(table, ranges), count = (size_t)sums->ranks->count;
    struct sum_traffic *traffic;
    size_t at = 0, piece;
    NEW(&sums->traffic, 1);
    traffic = sums->traffic;
    NEW(&traffic->order, buckets);
    NEW(&traffic->groups, count);
    NEW(&traffic->sends, count);
    NEW(&traffic->receives, count);
    NEW(&traffic->device_sends, count);
    NEW(&traffic->device_receives, count);
    for (size_t i = buckets; i-- > 0;)
        if (table->buckets[i].use != BUCKET_ANY_TIME) traffic->order[at++] = i;
    for (size_t i = 0; i < buckets; i++)
        if (table->buckets[i].use == BUCKET_ANY_TIME) traffic->order[at++] = i;
    const size_t largest = step_sums_largest(table, ranges, matrices, sums->ranks->count, &piece);
    if (sums->devices) return sums->backend->ops->buffer_new(sums->backend, (count - 1) * piece, &traffic->piece);
    for (int i = 0; i < 2; i++) {
        TRY(NEW_LARGE(&traffic->two[i].leaf, largest));
        TRY(mem_new_large(&traffic->two[i].received, count - 1, piece));
    }
    return sums->backend->ops->buffer_new(sums->backend, piece, &traffic->piece);
}

status step_sums_init(struct step_sums *sums, struct backend *backend, const struct parameter_table *table, int ranges,
                      struct gradient_types types, struct ranks *rank_list, struct rank_devices *devices) {
    const size_t count = parameter_table_buckets(table, ranges);
    struct backend_info info;
    *sums = (struct step_sums){.backend = backend, .ranks = rank_list, .devices = devices};
    TRY(backend->ops->info(backend, &info));
    sums->direct = !rank_list && step_sums_are_direct(types, info.rounds_products);
    NEW(&sums->buckets, count);
    const size_t bytes = step_sums_place(table, ranges, types.leaf, sums->direct, devices ? 2 : 1, sums->buckets);
    TRY(param_array_init(&sums->sums, backend, table, ranges, types.sum, ELEMENT_F32, rank_list));
    TRY(backend->ops->buffer_new(backend, bytes, &sums->leaf));
    for (size_t i = 0; i < count; i++) {
        if (step_sums_has_leaf(sums, i))
            sums->buckets[i].grad.buffer = sums->leaf;
        else
            sums->buckets[i].grad = param_slice(&sums->sums, shard_own(&table->buckets[i], NULL));
    }
    return rank_list ? step_sums_connect(sums, table, ranges, types.leaf) : OK;
}

void step_sums_release(struct step_sums *sums) {
    if (!sums->backend) return;
    struct sum_traffic *traffic = sums->traffic;
    char reason[1000]; // why there may be something on its way
    snprintf(reason, sizeof reason, "%s", fail_text());
    for (int i = 0; traffic && i < 2; i++) {
        if (ranks_end(sums->ranks, &traffic->two[i].exchange) != OK) (void)fail(UNAVAILABLE, "%s", reason);
        free(traffic->two[i].leaf);
        free(traffic->two[i].received);
    }
    if (traffic) {
        sums->backend->ops->buffer_free(sums->backend, &traffic->piece);
        free(traffic->order);
        free(traffic->groups);
        free(traffic->sends);
        free(traffic->receives);
        free(traffic->device_sends);
        free(traffic->device_receives);
        free(traffic);
    }
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

// Waits for what is on its way.
static status step_sums_await(struct step_sums *sums, struct sum_exchange *part) {
    if (!part->under_way) return OK;
    return sums->devices ? rank_devices_end(sums->devices) : ranks_end(sums->ranks, &part->exchange);
}

status step_sums_begin(struct step_sums *sums, int groups) {
    const size_t count = parameter_table_buckets(sums->sums.table, sums->sums.ranges);
    for (int i = 0; i < 2 && sums->ranks; i++) { // of a leaf given up
        TRY(step_sums_await(sums, &sums->traffic->two[i]));
        sums->traffic->two[i].under_way = false;
    }
    for (size_t i = 0; i < count; i++) TRY(step_sums_drop(sums, i));
    if (!sums->ranks) return OK;
    sums->traffic->begun = 0;
    sums->traffic->groups[sums->ranks->own] = (unsigned char)groups;
    return ranks_gather(sums->ranks, sums->traffic->groups, 1);
}

struct tensor step_sums_grad(struct step_sums *sums, const struct fused_param *param) {
    const struct parameter_table *table = sums->sums.table;
    const size_t bucket = step_sums_bucket_of(sums, param);
    struct leaf_bucket *leaf = &sums->buckets[bucket];
    const int64_t count = param->rows * param->columns;
    if (table->buckets[bucket].use != BUCKET_ANY_TIME) {
        const size_t last = sums->streamed;
        assert(last == bucket || table->buckets[last].use == BUCKET_ANY_TIME || !sums->buckets[last].touched ||
               sums->buckets[last].grad.offset != leaf->grad.offset);
        sums->streamed = bucket;
    }
    leaf->touched = step_sums_has_leaf(sums, bucket);
    const struct tensor row = tensor_columns(leaf->grad, param->offset - table->buckets[bucket].offset, count);
    return tensor_reshape(row, param->rows, param->columns);
}

// Waits for a bucket that is on its way, or does nothing; sum = round(sum + leaf) of each rank's leaf, in their order.
static status step_sums_arrive(struct step_sums *sums, struct sum_exchange *part) {
    const struct operations *ops = sums->backend->ops;
    const struct sum_traffic *traffic = sums->traffic;
    const struct parameter_bucket *bucket = &sums->sums.table->buckets[part->bucket];
    const int group = sums->sums.table->ranges[bucket->range].group;
    const enum element type = sums->buckets[part->bucket].grad.type;
    const struct param_piece own = shard_own(bucket, sums->ranks);
    const size_t skipped = (size_t)(own.first - bucket->offset) * element_size(type);
    struct tensor piece = {traffic->piece, 0, type, 1, own.end - own.first, own.end - own.first};
    const char *received = part->received;
    if (!part->under_way) return OK;
    TRY(step_sums_await(sums, part));
    part->under_way = false;
    for (int rank = 0; rank < sums->ranks->count && piece.columns; rank++) {
        if (traffic->groups[rank] <= group) continue;
        const bool mine = rank == sums->ranks->own;
        struct tensor from = piece;
        if (!sums->devices) TRY(ops->upload(sums->backend, piece, mine ? part->leaf + skipped : received, type));
        if (sums->devices && mine)
            from = tensor_columns(sums->buckets[part->bucket].grad, own.first - bucket->offset, piece.columns);
        TRY(ops->add(sums->backend, param_slice(&sums->sums, own), from));
        if (mine) continue;
        received += sums->devices ? 0 : (size_t)piece.columns * element_size(type);
        piece.offset += sums->devices ? (size_t)piece.columns * element_size(type) : 0;
    }
    return sums->devices ? step_sums_drop(sums, part->bucket) : OK;
}

// Begins to send a bucket from device to device. The one before it has ended: what comes needs its memory.
static status step_sums_send_devices(struct step_sums *sums, struct sum_exchange *part) {
    const struct sum_traffic *traffic = sums->traffic;
    const struct parameter_bucket *bucket = &sums->sums.table->buckets[part->bucket];
    const int group = sums->sums.table->ranges[bucket->range].group;
    const size_t count = (size_t)sums->ranks->count;
    const struct tensor grad = sums->buckets[part->bucket].grad;
    const struct param_piece own = shard_own(bucket, sums->ranks);
    struct tensor received = {traffic->piece, 0, grad.type, 1, own.end - own.first, own.end - own.first};
    for (int rank = 0; rank < sums->ranks->count; rank++) {
        const struct param_piece piece = shard_piece(bucket, rank, sums->ranks->count);
        struct comm_piece *send = &traffic->device_sends[rank], *receive = &traffic->device_receives[rank];
        *send = *receive = (struct comm_piece){.rank = rank};
        if (rank == sums->ranks->own) continue;
        if (traffic->groups[sums->ranks->own] > group)
            send->tensor = tensor_columns(grad, piece.first - bucket->offset, piece.end - piece.first);
        if (traffic->groups[rank] <= group) continue;
        receive->tensor = received;
        received.offset += (size_t)received.columns * element_size(grad.type);
    }
    part->under_way = true;
    return rank_devices_begin(sums->devices, traffic->device_sends, count, traffic->device_receives, count);
}

// Sends the next bucket's pieces of the leaf to their owners; meanwhile adds the bucket before it.
static status step_sums_send(struct step_sums *sums) {
    struct sum_traffic *traffic = sums->traffic;
    const size_t number = traffic->order[traffic->begun], count = (size_t)sums->ranks->count;
    const struct parameter_bucket *bucket = &sums->sums.table->buckets[number];
    const int group = sums->sums.table->ranges[bucket->range].group;
    const struct tensor grad = sums->buckets[number].grad;
    const size_t size = element_size(grad.type);
    const struct param_piece own = shard_own(bucket, sums->ranks);
    struct sum_exchange *part = &traffic->two[sums->devices ? 0 : traffic->begun % 2];
    const bool sends = traffic->groups[sums->ranks->own] > group;
    char *received = part->received;
    assert(sends || !sums->buckets[number].touched);
    if (sums->devices) {
        TRY(step_sums_arrive(sums, part));
        part->bucket = number;
        traffic->begun++;
        return step_sums_send_devices(sums, part);
    }
    if (sends) TRY(sums->backend->ops->download(sums->backend, part->leaf, grad.type, grad));
    TRY(step_sums_drop(sums, number));
    for (int rank = 0; rank < sums->ranks->count; rank++) {
        const struct param_piece piece = shard_piece(bucket, rank, sums->ranks->count);
        const bool receives = traffic->groups[rank] > group && rank != sums->ranks->own;
        traffic->sends[rank] = (struct rank_piece){rank, part->leaf + (size_t)(piece.first - bucket->offset) * size,
                                                   sends ? (size_t)(piece.end - piece.first) * size : 0};
        traffic->receives[rank] =
            (struct rank_piece){rank, received, receives ? (size_t)(own.end - own.first) * size : 0};
        received += traffic->receives[rank].bytes;
    }
    part->bucket = number;
    TRY(ranks_begin(sums->ranks, traffic->sends, count, traffic->receives, count, &part->exchange));
    part->under_way = true;
    traffic->begun++;
    return step_sums_arrive(sums, &traffic->two[traffic->begun % 2]);
}

// sum = round(sum + leaf), which begins at zero again.
static status step_sums_add(struct step_sums *sums, size_t bucket) {
    const struct leaf_bucket *leaf = &sums->buckets[bucket];
    if (!leaf->touched) return OK;
    const struct param_piece whole = shard_own(&sums->sums.table->buckets[bucket], NULL);
    TRY(sums->backend->ops->add(sums->backend, param_slice(&sums->sums, whole), leaf->grad));
    return step_sums_drop(sums, bucket);
}

status step_sums_done(struct step_sums *sums, const struct fused_param *param) {
    const size_t bucket = step_sums_bucket_of(sums, param);
    if (!sums->ranks) return step_sums_add(sums, bucket);
    assert(sums->traffic->begun < parameter_table_buckets(sums->sums.table, sums->sums.ranges));
    if (bucket != sums->traffic->order[sums->traffic->begun])
        return fail(BUG, "bucket %zu is complete before bucket %zu", bucket,
                    sums->traffic->order[sums->traffic->begun]);
    return step_sums_send(sums);
}

status step_sums_end(struct step_sums *sums) {
    const size_t count = parameter_table_buckets(sums->sums.table, sums->sums.ranges);
    if (!sums->ranks) {
        for (size_t i = 0; i < count; i++) TRY(step_sums_add(sums, i));
        return OK;
    }
    while (sums->traffic->begun < count) TRY(step_sums_send(sums));
    return step_sums_arrive(sums, &sums->traffic->two[sums->devices ? 0 : (count - 1) % 2]);
}

status step_sums_norm(const struct step_sums *sums, double *norm) {
    const size_t count = parameter_table_buckets(sums->sums.table, sums->sums.ranges);
    double squares;
    TRY(shard_square_sum(sums->backend, &sums->sums, count, sums->ranks, &squares));
    *norm = sqrt(squares);
    return isfinite(*norm) ? OK : fail(DATAERR, "the norm of the gradient is not finite");
}

status step_sums_clear(struct step_sums *sums) {
    const struct parameter_table *table = sums->sums.table;
    for (size_t i = 0; i < parameter_table_buckets(table, sums->sums.ranges); i++) {
        const struct param_piece own = shard_own(&table->buckets[i], sums->ranks);
        if (own.first < own.end) TRY(sums->backend->ops->zero(sums->backend, param_slice(&sums->sums, own)));
    }
    return OK;
}
