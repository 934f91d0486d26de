// Attention over the KV cache, softmax(q k^T * scale) v for the cache rows that each span names, and its gradient.
//
// A task of attention computes one tile of query rows (attention.h): its scores for every visible key, their softmax,
// and the weighted sum of values. The scores of a tile fit into the second-level cache, so nothing is rescaled on the
// way, unlike in FlashAttention. Each score and each output is one chain of fused multiply-adds, in the order of d or
// of cache rows; softmax adds its exponentials in sixteen lanes, counted from the first cache row of the range that the
// row sees.
//
// The loops over elements are in tiles.inc. The plain formula is the double-precision reference in
// tests/ops/attention.c.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/attention.h"

struct attention_job {
    struct attention_call call;
    float *scratch; // scratch_size floats for each thread
    size_t scratch_size;
};

static void attention_tile(void *context, int task, int thread) {
    const struct attention_job *job = context;
    const struct attention_plan *plan = job->call.plan;
    const struct simd *simd = &job->call.cpu->simd;
    struct q_tile tile;
    int tiles = plan->forward.count, size = plan->heads.size, width = job->call.cache->width;
    q_tile_init(&tile, plan->spans, plan->heads, plan->forward.starts[task % tiles], task / tiles);
    float *rows = job->scratch + (size_t)thread * job->scratch_size, *panels = rows + MAX_Q_TILE * width;
    float *scores = panels + MAX_Q_TILE * width, max[MAX_Q_TILE] = {0}, sum[MAX_Q_TILE] = {0};

    q_tile_gather(job->call.cpu, &tile, job->call.qkv, size, width, rows);
    q_tile_pack(panels, rows, tile.rows, width, size);
    q_tile_qk(simd, &tile, scores, plan->columns, panels, kv_cache_keys(job->call.cache, job->call.layer, tile.kv_head),
              0, size, job->call.scale);
    for (int row = 0; row < tile.rows; row++) {
        struct score_run runs[2];
        int count = q_tile_score_runs(&tile, row, runs);
        float *row_scores = scores + row * plan->columns, sums[16] = {0};
        max[row] = -INFINITY;
        for (int i = 0; i < count; i++) {
            max[row] = simd->scores_max(row_scores + runs[i].column, runs[i].visible, max[row]);
        }
        for (int i = 0; i < count; i++) {
            simd->scores_exp(row_scores + runs[i].column, runs[i].visible, runs[i].len, max[row], sums);
            memset(row_scores + runs[i].column - runs[i].hidden, 0, (size_t)runs[i].hidden * sizeof *scores);
        }
        sum[row] = simd->sum_lanes(sums);
    }
    memset(rows, 0, (size_t)(tile.rows * width) * sizeof *rows);
    q_tile_av(simd, &tile, rows, width, scores, plan->columns,
              kv_cache_values(job->call.cache, job->call.layer, tile.kv_head), 0);
    for (int row = 0; row < tile.rows; row++) {
        float *out = rows + row * width, factor = 1 / sum[row];
        for (int d = 0; d < width; d += KV_BLOCK) { // compilers make vectors of a constant number of steps
            for (int i = 0; i < KV_BLOCK; i++) out[d + i] *= factor;
        }
        cpu_convert(job->call.cpu, q_tile_head(&tile, row, job->call.out, size), job->call.out.type, out, ELEMENT_F32,
                    (size_t)size);
        if (tensor_none(job->call.lse)) continue;
        tensor_f32(job->call.lse, tile.token[row])[tile.head[row]] = (float)((double)max[row] + log((double)sum[row]));
    }
}

status cpu_attention(struct backend *backend, struct tensor out, struct tensor qkv, float scale, struct kv_cache *cache,
                     int layer, const struct attention_plan *plan, struct tensor lse) {
    struct cpu_backend *cpu = cpu_of(backend);
    struct heads heads = plan->heads;
    CHECK(kv_cache_fits(cache, layer, heads) && plan->kv_end <= cache->rows && plan->rows == out.rows);
    CHECK(tensor_is(qkv, -1, out.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(out, -1, out.rows, heads.query * heads.size));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, out.rows, heads.query));
    struct attention_job job = {.call = {cpu, out, qkv, lse, scale, cache, layer, plan}};
    if (cpu->f32_parts > 0 && plan->texts && scale > 0) return attention_amx(&job.call);
    job.scratch_size = (size_t)(2 * MAX_Q_TILE * cache->width + plan->forward.max_rows * plan->columns);
    size_t floats = (size_t)pool_threads(cpu->pool) * job.scratch_size;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, floats * sizeof(float), &job.scratch));
    pool_run(cpu->pool, plan->forward.count * heads.key, attention_tile, &job);
    return OK;
}

// ---- the gradient ----
//
// It is recomputed from the log-sum-exp that the forward pass stored. With p = exp(score - lse) and
// delta = out . grad_out, the gradient of a score is p (grad_out . value - delta) scale.
//
// Tiles of query rows are processed a batch at a time, so that the p and the score gradients of a batch fit into the
// last-level cache. The first pass over a batch computes these and the gradients of its queries. The second pass adds
// the gradients of keys and values, one task per block of cache rows. Every element of a gradient is one chain of fused
// multiply-adds, over the query rows in the order of spans, queries, heads.

enum {
    BATCH_FLOATS = 2 << 20, // of grad tiles in a batch
    BATCH_TILES = 512,
    KV_ROWS = 96,        // cache rows per task of the second pass
    WINDOW_KV_ROWS = 24, // cache rows at a time where a window hides some of them from some rows
};

static_assert(KV_ROWS % KV_BLOCK == 0, "a task of the second pass has whole blocks of keys");

struct attention_grad_job {
    struct attention_call call;
    struct tensor grad_qkv, grad_out;
    struct heads heads;
    int64_t tiles;            // per key/value head
    int64_t kv_begin, kv_len; // the cache rows that the spans name, rounded to whole blocks
    int64_t columns;          // of a row of scores
    int width;
    float *key_rows;     // [K][kv_len][width]
    float *value_blocks; // [K][kv_len / 16][D][16]
    float *grad_keys;    // [K][kv_len][width]
    float *grad_values;  // [K][kv_len][width]
    struct q_tile *batch;
    float *batch_scratch;           // grad_tile_size floats for each tile of the batch
    size_t grad_tile_size;          // floats
    int64_t batch_begin, batch_len; // tiles, among those of all key/value heads
    float *scratch;                 // scratch_size floats for each thread
    size_t scratch_size;
};

// What the second pass needs from one tile of the batch.
struct grad_tile {
    float *p, *grad_scores; // [max_rows][columns]
    float *q, *grad_out;    // [max_rows][width]
};

static struct grad_tile attention_grad_tile_at(const struct attention_grad_job *job, int64_t index) {
    float *scratch = job->batch_scratch + (size_t)index * job->grad_tile_size;
    int64_t max_rows = job->call.plan->grad.max_rows, scores = max_rows * job->columns, rows = max_rows * job->width;
    return (struct grad_tile){scratch, scratch + scores, scratch + 2 * scores, scratch + 2 * scores + rows};
}

// ---- before: the keys row by row, the values in blocks, zeroed sums ----

static void attention_grad_prepare(void *context, int task, int thread) {
    (void)thread;
    const struct attention_grad_job *job = context;
    int head = task % job->heads.key, size = job->heads.size, width = job->width;
    int64_t first = (int64_t)(task / job->heads.key) * KV_BLOCK;
    const float *keys = kv_cache_keys(job->call.cache, job->call.layer, head) + (job->kv_begin + first) * size;
    const float *values = kv_cache_values(job->call.cache, job->call.layer, head) + (job->kv_begin + first) * width;
    int64_t row = head * job->kv_len + first;
    float *key_rows = job->key_rows + row * width, *value_block = job->value_blocks + row * size;
    memset(key_rows, 0, (size_t)(KV_BLOCK * width) * sizeof *key_rows);
    for (int d = 0; d < size; d++) {
        for (int i = 0; i < KV_BLOCK; i++) {
            key_rows[i * width + d] = keys[d * KV_BLOCK + i];
            value_block[d * KV_BLOCK + i] = values[i * width + d];
        }
    }
    memset(job->grad_keys + row * width, 0, (size_t)(KV_BLOCK * width) * sizeof(float));
    memset(job->grad_values + row * width, 0, (size_t)(KV_BLOCK * width) * sizeof(float));
}

// ---- first pass: p, the gradients of scores and of queries ----

static void attention_grad_queries(void *context, int task, int thread) {
    const struct attention_grad_job *job = context;
    const struct simd *simd = &job->call.cpu->simd;
    struct q_tile *tile = &job->batch[task];
    int size = job->heads.size, width = job->width;
    int64_t index = job->batch_begin + task;
    q_tile_init(tile, job->call.plan->spans, job->heads, job->call.plan->grad.starts[index % job->tiles],
                (int)(index / job->tiles));
    struct grad_tile grad = attention_grad_tile_at(job, task);
    float *panels = job->scratch + (size_t)thread * job->scratch_size, *rows = panels + MAX_Q_TILE * width;
    float delta[MAX_Q_TILE] = {0};
    int64_t first_row = tile->kv_head * job->kv_len;

    q_tile_gather(job->call.cpu, tile, job->call.out, size, width, rows);
    q_tile_gather(job->call.cpu, tile, job->grad_out, size, width, grad.grad_out);
    for (int row = 0; row < tile->rows; row++) {
        delta[row] = simd->dot(rows + row * width, grad.grad_out + row * width, width);
    }
    // grad_scores = grad_out . value, p = scores.
    q_tile_pack(panels, grad.grad_out, tile->rows, width, size);
    q_tile_qk(simd, tile, grad.grad_scores, job->columns, panels, job->value_blocks + first_row * size, job->kv_begin,
              size, 1);
    q_tile_gather(job->call.cpu, tile, job->call.qkv, size, width, grad.q);
    q_tile_pack(panels, grad.q, tile->rows, width, size);
    q_tile_qk(simd, tile, grad.p, job->columns, panels, kv_cache_keys(job->call.cache, job->call.layer, tile->kv_head),
              0, size, job->call.scale);
    for (int row = 0; row < tile->rows; row++) {
        float lse = tensor_f32(job->call.lse, tile->token[row])[tile->head[row]];
        struct score_run runs[2];
        int count = q_tile_score_runs(tile, row, runs);
        for (int i = 0; i < count; i++) {
            int64_t at = row * job->columns + runs[i].column;
            simd->scores_grad(grad.p + at, grad.grad_scores + at, runs[i].visible, runs[i].len, lse, delta[row],
                              job->call.scale);
            memset(grad.p + at - runs[i].hidden, 0, (size_t)runs[i].hidden * sizeof(float));
            memset(grad.grad_scores + at - runs[i].hidden, 0, (size_t)runs[i].hidden * sizeof(float));
        }
    }
    memset(rows, 0, (size_t)(tile->rows * width) * sizeof *rows);
    q_tile_av(simd, tile, rows, width, grad.grad_scores, job->columns, job->key_rows + first_row * width,
              job->kv_begin);
    for (int row = 0; row < tile->rows; row++) {
        cpu_convert(job->call.cpu, q_tile_head(tile, row, job->grad_qkv, size), job->grad_qkv.type, rows + row * width,
                    ELEMENT_F32, (size_t)size);
    }
}

// ---- second pass: the gradients of keys and values ----

// sums[key] += sum over rows of factors[row][key] vectors[row]. Rows of factors are far apart in memory, so they are
// copied to a dense buffer first.
static void attention_grad_add(const struct attention_grad_job *job, float *sums, const float *factors, int keys,
                               const float *vectors, int rows) {
    float dense[MAX_Q_TILE * KV_ROWS];
    assert(rows <= MAX_Q_TILE && keys <= KV_ROWS);
    for (int row = 0; row < rows; row++) {
        memcpy(dense + row * KV_ROWS, factors + row * job->columns, (size_t)keys * sizeof *dense);
    }
    job->call.cpu->simd.av_tile(sums, job->width, dense, 1, KV_ROWS, keys, vectors, job->width, rows, job->width);
}

// Adds to the gradients of up to KV_ROWS cache rows of one key/value head, over all tiles of the batch.
static void attention_grad_keys_values(void *context, int task, int thread) {
    (void)thread;
    const struct attention_grad_job *job = context;
    int64_t tasks = (job->kv_len + KV_ROWS - 1) / KV_ROWS; // per key/value head
    int head = (int)(job->batch_begin / job->tiles + task / tasks);
    int64_t task_begin = job->kv_begin + task % tasks * KV_ROWS, task_end = task_begin + KV_ROWS;
    for (int64_t index = 0; index < job->batch_len; index++) {
        const struct q_tile *tile = &job->batch[index];
        if (tile->kv_head != head) continue;
        struct grad_tile grad = attention_grad_tile_at(job, index);
        for (const struct kv_range *range = tile->range; range < tile->range + tile->ranges; range++) {
            int64_t range_end = range->kv_begin + kv_range_len(tile, range);
            int64_t begin = task_begin > range->kv_begin ? task_begin : range->kv_begin;
            int64_t end = task_end < range_end ? task_end : range_end;
            bool window = kv_range_first(tile, range, range->row_begin + range->rows - 1) > 0;
            for (int64_t step = window ? WINDOW_KV_ROWS : KV_ROWS, next; begin < end; begin = next) {
                next = begin + step < end ? begin + step : end;
                int row = range->row_begin, row_end = range->row_begin + range->rows;
                while (kv_range_end(tile, range, row) <= begin - range->kv_begin) row++; // they do not see `begin`
                while (kv_range_first(tile, range, row_end - 1) >= next - range->kv_begin) row_end--;
                assert(row < row_end);
                int64_t from = row * job->columns + range->column + begin - range->kv_begin;
                int64_t to = (tile->kv_head * job->kv_len + begin - job->kv_begin) * job->width;
                attention_grad_add(job, job->grad_values + to, grad.p + from, (int)(next - begin),
                                   grad.grad_out + row * job->width, row_end - row);
                attention_grad_add(job, job->grad_keys + to, grad.grad_scores + from, (int)(next - begin),
                                   grad.q + row * job->width, row_end - row);
            }
        }
    }
}

// ---- after ----

// Writes head `column` of a token's row of grad_qkv: the sums of the token's cache row, or zeros if no span names that
// row.
static void attention_grad_write_head(const struct attention_grad_job *job, int64_t token, const float *sums,
                                      int kv_head, int column) {
    int64_t row = *tensor_i32(job->call.plan->cache_slots, token) - job->kv_begin, size = job->heads.size;
    void *out = tensor_row(tensor_columns(job->grad_qkv, column * size, size), token);
    if (row >= 0 && row < job->kv_len) {
        const float *sum = sums + (kv_head * job->kv_len + row) * job->width;
        cpu_convert(job->call.cpu, out, job->grad_qkv.type, sum, ELEMENT_F32, (size_t)size);
    } else {
        memset(out, 0, (size_t)size * element_size(job->grad_qkv.type));
    }
}

static void attention_grad_write_rows(void *context, struct task_range range) {
    const struct attention_grad_job *job = context;
    for (int64_t token = range.first; token < range.end; token++) {
        for (int head = 0; head < job->heads.key; head++) {
            attention_grad_write_head(job, token, job->grad_keys, head, job->heads.query + head);
            attention_grad_write_head(job, token, job->grad_values, head, job->heads.query + job->heads.key + head);
        }
    }
}

// ---- the operation ----

status cpu_attention_grad(struct backend *backend, struct tensor grad_qkv, struct tensor grad_out, struct tensor out,
                          struct tensor qkv, float scale, struct kv_cache *cache, int layer,
                          const struct attention_plan *plan, struct tensor lse) {
    struct cpu_backend *cpu = cpu_of(backend);
    struct heads heads = plan->heads;
    int64_t rows = out.rows, columns = (heads.query + 2 * heads.key) * heads.size;
    CHECK(kv_cache_fits(cache, layer, heads) && plan->kv_end <= cache->rows && plan->rows == rows);
    CHECK(tensor_in_range(plan->cache_slots, rows, 1, 0, cache->rows));
    CHECK(tensor_is(qkv, -1, rows, columns) && tensor_is(grad_qkv, -1, rows, columns));
    CHECK(tensor_is(out, -1, rows, heads.query * heads.size));
    CHECK(tensor_is(grad_out, -1, rows, heads.query * heads.size));
    CHECK(tensor_is(lse, ELEMENT_F32, rows, heads.query));
    if (rows == 0) return OK;
    struct attention_grad_job job = {.call = {cpu, out, qkv, lse, scale, cache, layer, plan},
                                     .grad_qkv = grad_qkv,
                                     .grad_out = grad_out,
                                     .heads = heads,
                                     .tiles = plan->grad.count,
                                     .columns = plan->columns,
                                     .width = cache->width};
    job.kv_begin = plan->kv_begin / KV_BLOCK * KV_BLOCK;
    job.kv_len = kv_block_align(plan->kv_end - job.kv_begin);
    const int64_t tiles = job.tiles * heads.key, kv_tasks = (job.kv_len + KV_ROWS - 1) / KV_ROWS;

    // The number of tiles in a batch, and the division of one scratch buffer: neither affects the bits of the result.
    const int threads = pool_threads(cpu->pool);
    job.grad_tile_size = (size_t)(2 * plan->grad.max_rows * (job.columns + job.width));
    job.scratch_size = 2 * (size_t)MAX_Q_TILE * (size_t)job.width;
    int64_t batch = BATCH_FLOATS / (int64_t)job.grad_tile_size;
    if (batch < 4 * threads) batch = 4 * threads;
    if (batch > BATCH_TILES) batch = BATCH_TILES;
    if (batch > tiles) batch = tiles;
    size_t kv_floats = (size_t)(heads.key * job.kv_len * job.width);
    size_t blocks = (size_t)(heads.key * job.kv_len * heads.size);
    size_t floats = 3 * kv_floats + blocks + (size_t)batch * job.grad_tile_size + (size_t)threads * job.scratch_size;
    size_t bytes = floats * sizeof(float) + (size_t)batch * sizeof(struct q_tile);
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, bytes, &job.key_rows));
    job.grad_keys = job.key_rows + kv_floats;
    job.grad_values = job.grad_keys + kv_floats;
    job.value_blocks = job.grad_values + kv_floats;
    job.batch_scratch = job.value_blocks + blocks;
    job.scratch = job.batch_scratch + (size_t)batch * job.grad_tile_size;
    job.batch = (void *)(job.scratch + (size_t)threads * job.scratch_size);
    assert((uintptr_t)job.batch % _Alignof(struct q_tile) == 0); // all sizes before it are multiples of 16 floats

    pool_run(cpu->pool, (int)(job.kv_len / KV_BLOCK * heads.key), attention_grad_prepare, &job);
    for (job.batch_begin = 0; job.batch_begin < tiles; job.batch_begin += batch) {
        job.batch_len = tiles - job.batch_begin < batch ? tiles - job.batch_begin : batch;
        pool_run(cpu->pool, (int)job.batch_len, attention_grad_queries, &job);
        int64_t last_head = (job.batch_begin + job.batch_len - 1) / job.tiles;
        int64_t batch_heads = last_head - job.batch_begin / job.tiles + 1;
        pool_run(cpu->pool, (int)(batch_heads * kv_tasks), attention_grad_keys_values, &job);
    }
    parallel_for(cpu, qkv.rows, KV_BLOCK, attention_grad_write_rows, &job);
    return OK;
}
