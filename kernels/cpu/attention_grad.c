// The gradient of attention.
//
// With p = exp(score - lse) and delta = out . grad_out, the gradient of a score is p (grad_out . value -
// delta) scale. Strips are taken a batch at a time, so that a batch's p and score gradients fit the last cache: its
// strips first compute these and their queries' gradient, then blocks of cache rows add up the keys' and values'
// gradients over the batch. Each of them is one chain over the query rows in the order of spans, queries, heads.
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/q_tile.h"
#include "kernels/cpu/attention_tiles.h"

enum {
    near_most = 160 << 10, // floats of p and score gradients that a thread should hold
    batch_most = 2 << 20,  // floats of them in a batch
    batch_strips = 512,
    key_rows = 96 // cache rows a task of the second half
};

struct sloping {
    const struct cpu_backend *cpu;
    struct tensor grad_qkv, grad_out, out, qkv, slots, lse;
    struct heads heads;
    float scale;
    const struct kv_cache *cache;
    int layer;
    const struct attention_span *spans;
    const struct strip_start *starts;
    int64_t strips;         // of one key head
    int64_t origin, extent; // cache rows that are seen: the first and their number, multiples of sixteen
    int64_t columns;
    int width, most;     // most: rows a strip
    float *key_rows;     // [K][extent][width]
    float *value_blocks; // [K][extent / 16][D][16]
    float *key_slopes;   // [K][extent][width]
    float *value_slopes; // [K][extent][width]
    struct strip *batch; // its strips
    float *batch_rooms;  // a share for each of them
    size_t batch_room;   // floats
    int64_t first, size; // the strips of the present batch, among those of all key heads
    float *rooms;        // a share for each thread
    size_t room;         // floats
};

// A strip's share of the batch.
struct sheet {
    float *powers, *slopes;      // [rows][columns]
    float *queries, *out_slopes; // [rows][width]
};

static struct sheet sheet_of(const struct sloping *s, int64_t index) {
    float *room = s->batch_rooms + (size_t)index * s->batch_room;
    int64_t scores = s->most * s->columns, rows = (int64_t)s->most * s->width;
    return (struct sheet){room, room + scores, room + 2 * scores, room + 2 * scores + rows};
}

// ---- before: keys row by row, values in blocks, sums at zero ----

static void turn_rows(void *context, int task, int thread) {
    (void)thread;
    const struct sloping *s = context;
    int head = task % s->heads.key, size = s->heads.size, width = s->width;
    int64_t first = (int64_t)(task / s->heads.key) * kv_block;
    const float *keys = kv_cache_keys(s->cache, s->layer, head) + (s->origin + first) * size;
    const float *values = kv_cache_values(s->cache, s->layer, head) + (s->origin + first) * width;
    int64_t place = head * s->extent + first;
    float *rows = s->key_rows + place * width, *blocks = s->value_blocks + place * size;
    memset(rows, 0, (size_t)(kv_block * width) * sizeof *rows);
    for (int d = 0; d < size; d++) {
        for (int lane = 0; lane < kv_block; lane++) {
            rows[lane * width + d] = keys[d * kv_block + lane];
            blocks[d * kv_block + lane] = values[lane * width + d];
        }
    }
    memset(s->key_slopes + place * width, 0, (size_t)(kv_block * width) * sizeof(float));
    memset(s->value_slopes + place * width, 0, (size_t)(kv_block * width) * sizeof(float));
}

// ---- first half: the strips' own ----

static void slope_row(const struct sloping *s, const struct strip *strip, int row, struct sheet sheet, float delta) {
    float lse = *(const float *)element_at(&s->lse, strip->query[row], strip->head[row]);
    for (int index = 0; index < strip_regions(strip); index++) {
        struct region region = strip_region(strip, index);
        if (row < region.first || row >= region.first + region.rows) continue;
        int64_t place = row * s->columns + region.column, seen = region_seen(strip, &region, row);
        int64_t most = region_most(strip, &region, region.first, region.rows);
        s->cpu->simd.scores_grad(sheet.powers + place, sheet.slopes + place, seen, most, lse, delta, s->scale);
    }
}

static void write_queries(const struct sloping *s, const struct strip *strip, const float *rows) {
    int size = s->heads.size;
    for (int row = 0; row < strip->rows; row++, rows += s->width) {
        void *head = element_at(&s->grad_qkv, strip->query[row], strip->head[row] * size);
        cpu_convert(s->cpu, head, s->grad_qkv.type, rows, ELEMENT_F32, (size_t)size);
    }
}

static void slope_strip(void *context, int task, int thread) {
    const struct sloping *s = context;
    const struct simd *simd = &s->cpu->simd;
    struct strip *strip = &s->batch[task];
    int size = s->heads.size, width = s->width;
    int64_t index = s->first + task;
    strip_open(strip, s->spans, s->heads, s->starts[index % s->strips], (int)(index / s->strips));
    struct sheet sheet = sheet_of(s, task);
    float *tiles = s->rooms + (size_t)thread * s->room, *rows = tiles + strip_most * width, deltas[strip_most] = {0};
    int64_t place = strip->key_head * s->extent;

    strip_queries(s->cpu, strip, s->out, size, width, rows);
    strip_queries(s->cpu, strip, s->grad_out, size, width, sheet.out_slopes);
    for (int row = 0; row < strip->rows; row++) {
        deltas[row] = simd->dot(rows + row * width, sheet.out_slopes + row * width, width);
    }
    strip_tiles(tiles, sheet.out_slopes, strip->rows, width, size);
    strip_scores(simd, strip, sheet.slopes, s->columns, tiles, s->value_blocks + place * size, s->origin, size, 1);
    strip_queries(s->cpu, strip, s->qkv, size, width, sheet.queries);
    strip_tiles(tiles, sheet.queries, strip->rows, width, size);
    strip_scores(simd, strip, sheet.powers, s->columns, tiles, kv_cache_keys(s->cache, s->layer, strip->key_head), 0,
                 size, s->scale);
    for (int row = 0; row < strip->rows; row++) slope_row(s, strip, row, sheet, deltas[row]);
    memset(rows, 0, (size_t)(strip->rows * width) * sizeof *rows);
    strip_products(simd, strip, rows, width, sheet.slopes, s->columns, s->key_rows + place * width, s->origin);
    write_queries(s, strip, rows);
}

// ---- second half: keys' and values' ----

// The first of a region's rows that sees its cache row `key`.
static int first_seeing(const struct strip *strip, const struct region *region, int64_t key) {
    int row = region->first;
    while (row < region->first + region->rows && region_seen(strip, region, row) <= key) row++;
    return row;
}

// sums[key] += sum over rows of factors[row][key] vectors[row]. The factors' rows lie pages apart: a dense copy first.
static void add_keys(const struct sloping *s, float *sums, const float *factors, int keys, const float *vectors,
                     int rows) {
    float near[strip_most * key_rows];
    for (int row = 0; row < rows; row++) {
        memcpy(near + row * key_rows, factors + row * s->columns, (size_t)keys * sizeof *near);
    }
    s->cpu->simd.av_tile(sums, s->width, near, 1, key_rows, keys, vectors, s->width, rows, s->width);
}

// Adds what the rows of one region have to say about cache rows [first, end).
static void slope_region(const struct sloping *s, int64_t index, const struct region *region, int64_t first,
                         int64_t end) {
    const struct strip *strip = &s->batch[index];
    int64_t most = region_most(strip, region, region->first, region->rows);
    if (first < region->begin) first = region->begin;
    if (end > region->begin + most) end = region->begin + most;
    if (first >= end) return;
    int row = first_seeing(strip, region, first - region->begin), rows = region->first + region->rows - row;
    struct sheet sheet = sheet_of(s, index);
    int64_t from = row * s->columns + region->column + first - region->begin;
    int64_t to = (strip->key_head * s->extent + first - s->origin) * s->width;
    add_keys(s, s->value_slopes + to, sheet.powers + from, (int)(end - first), sheet.out_slopes + row * s->width, rows);
    add_keys(s, s->key_slopes + to, sheet.slopes + from, (int)(end - first), sheet.queries + row * s->width, rows);
}

static void slope_keys(void *context, int task, int thread) {
    (void)thread;
    const struct sloping *s = context;
    int64_t blocks = (s->extent + key_rows - 1) / key_rows;
    int head = (int)(s->first / s->strips + task / blocks);
    int64_t first = s->origin + task % blocks * key_rows, end = first + key_rows;
    for (int64_t index = 0; index < s->size; index++) {
        const struct strip *strip = &s->batch[index];
        if (strip->key_head != head) continue;
        for (int i = 0; i < strip_regions(strip); i++) {
            struct region region = strip_region(strip, i);
            slope_region(s, index, &region, first, end);
        }
    }
}

// ---- after ----

// A token's part of the sums of one kind, to column `column` of the result; zeros where nobody saw it.
static void write_key(const struct sloping *s, int64_t token, int head, const float *sums, int column) {
    int64_t slot = *tensor_i32(s->slots, token) - s->origin, size = s->heads.size;
    void *out = element_at(&s->grad_qkv, token, column * size);
    if (slot >= 0 && slot < s->extent) {
        const float *sum = sums + (head * s->extent + slot) * s->width;
        cpu_convert(s->cpu, out, s->grad_qkv.type, sum, ELEMENT_F32, (size_t)size);
    } else {
        memset(out, 0, (size_t)size * element_size(s->grad_qkv.type));
    }
}

static void write_keys(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sloping *s = context;
    for (int64_t token = first; token < end; token++) {
        for (int head = 0; head < s->heads.key; head++) {
            write_key(s, token, head, s->key_slopes, s->heads.query + head);
            write_key(s, token, head, s->value_slopes, s->heads.query + s->heads.key + head);
        }
    }
}

// ---- the plan ----

static void find_extent(struct sloping *s, size_t count) {
    int64_t first = INT64_MAX, end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *span = &s->spans[i];
        if (span->q_len == 0) continue;
        int64_t last = span->kv_begin + span->visible + (span->causal ? span->q_len - 1 : 0);
        if (span->prefix_len > 0 && span->prefix_begin < first) first = span->prefix_begin;
        if (span->kv_begin < first) first = span->kv_begin;
        if (span->prefix_len > 0 && span->prefix_begin + span->prefix_len > end)
            end = span->prefix_begin + span->prefix_len;
        if (last > end) end = last;
    }
    if (first > end) first = end;
    s->origin = first / kv_block * kv_block;
    s->extent = (end - s->origin + kv_block - 1) / kv_block * kv_block;
}

static int64_t batch_size(const struct sloping *s, int threads) {
    int64_t size = batch_most / (int64_t)s->batch_room, all = s->strips * s->heads.key;
    if (size < 4 * threads) size = 4 * threads;
    if (size > batch_strips) size = batch_strips;
    return size < all ? size : all;
}

// One piece of scratch memory for everything; *batch is how many strips make one.
static status plan(struct cpu_backend *cpu, struct sloping *s, size_t count, int64_t *batch) {
    int threads = pool_threads(cpu->pool);
    find_extent(s, count);
    s->columns = strip_columns(s->spans, count);
    s->width = s->cache->width;
    s->most = strip_most;
    while (s->most > q_panel && 2 * s->most * s->columns > near_most) s->most /= 2;
    s->strips = (int64_t)strips_cut(s->spans, count, s->heads, s->most, NULL);
    s->batch_room = (size_t)(2 * s->most * (s->columns + s->width));
    s->room = 2 * (size_t)strip_most * (size_t)s->width;
    *batch = batch_size(s, threads);
    size_t rows = (size_t)(s->heads.key * s->extent * s->width);
    size_t blocks = (size_t)(s->heads.key * s->extent * s->heads.size);
    size_t floats = 3 * rows + blocks + (size_t)*batch * s->batch_room + (size_t)threads * s->room;
    size_t strips = (size_t)*batch * sizeof(struct strip), starts = (size_t)s->strips * sizeof(struct strip_start);
    float *scratch;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, floats * sizeof(float) + strips + starts, &scratch));
    s->key_rows = scratch;
    s->key_slopes = s->key_rows + rows;
    s->value_slopes = s->key_slopes + rows;
    s->value_blocks = s->value_slopes + rows;
    s->batch_rooms = s->value_blocks + blocks;
    s->rooms = s->batch_rooms + (size_t)*batch * s->batch_room;
    s->batch = (struct strip *)(s->rooms + (size_t)threads * s->room);
    struct strip_start *cuts = (struct strip_start *)(s->batch + *batch);
    strips_cut(s->spans, count, s->heads, s->most, cuts);
    s->starts = cuts;
    return OK;
}

static void run(struct cpu_backend *cpu, struct sloping *s, int64_t batch) {
    int64_t all = s->strips * s->heads.key, blocks = (s->extent + key_rows - 1) / key_rows;
    pool_run(cpu->pool, (int)(s->extent / kv_block * s->heads.key), turn_rows, s);
    for (s->first = 0; s->first < all; s->first += batch) {
        s->size = all - s->first < batch ? all - s->first : batch;
        pool_run(cpu->pool, (int)s->size, slope_strip, s);
        int64_t heads = (s->first + s->size - 1) / s->strips - s->first / s->strips + 1;
        pool_run(cpu->pool, (int)(heads * blocks), slope_keys, s);
    }
    parallel_for(cpu, s->qkv.rows, kv_block, write_keys, s);
}

status cpu_attention_grad(struct backend *backend, struct tensor grad_qkv, struct tensor grad_out, struct tensor out,
                          struct tensor qkv, struct heads heads, float scale, struct kv_cache *cache, int layer,
                          struct tensor slots, const struct attention_span *spans, size_t count, struct tensor lse) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t rows = out.rows, columns = (heads.query + 2 * heads.key) * heads.size;
    CHECK(kv_cache_fits(cache, layer, heads) && kv_cache_has_slots(cache, slots, rows));
    CHECK(tensor_is(qkv, -1, rows, columns) && tensor_is(grad_qkv, -1, rows, columns));
    CHECK(tensor_is(out, -1, rows, heads.query * heads.size));
    CHECK(tensor_is(grad_out, -1, rows, heads.query * heads.size));
    CHECK(tensor_is(lse, ELEMENT_F32, rows, heads.query));
    CHECK(attention_spans_fit(cache, spans, count, rows));
    if (rows == 0) return OK;
    struct sloping sloping = {.cpu = cpu,
                              .grad_qkv = grad_qkv,
                              .grad_out = grad_out,
                              .out = out,
                              .qkv = qkv,
                              .slots = slots,
                              .lse = lse,
                              .heads = heads,
                              .scale = scale,
                              .cache = cache,
                              .layer = layer,
                              .spans = spans};
    int64_t batch;
    TRY(plan(cpu, &sloping, count, &batch));
    run(cpu, &sloping, batch);
    return OK;
}
