// Attention of texts on the matrix unit, for the consistency classifier only: no other model asks for f32_parts
// (ops.h). Its spans are not causal and have no prefix.
//
// A task computes one key head of one span. It packs the span's keys and values once, and then takes its query rows in
// tiles: their scores, the softmax of these, which is packed at once, and the weighted sum of values. Each score is one
// sum over steps of 32 channels, each output one over steps of 32 cache rows, counted from the first of the span; cache
// rows that a query row does not see have the weight 0. A number of F32 has cpu->f32_parts parts; of BF16 one, to which
// the weights are rounded as well.
#include <math.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention.h"

enum {
    TILE_ROWS = 2 * AMX_GROUP,
    SCORE_SLACK = AMX_INNER, // unused columns around a row of scores
};

struct attention_amx_job {
    const struct attention_call *call;
    int parts;
    int64_t columns, cache_rows; // the most that a span has, of scores and of cache rows
    char *scratch;               // scratch_bytes for each thread
    size_t scratch_bytes;
};

// What a task has in its scratch memory.
struct attention_amx_task {
    const struct attention_span *span;
    int64_t kv_len, shift; // of the span's cache rows; shift: of the first of them in its block of KV_BLOCK
    uint16_t *keys, *values, *queries, *weights;
    float *scores, *sums;
};

// The channels of a head, rounded up to whole blocks of columns.
static int64_t attention_amx_width(const struct heads *heads) {
    return (heads->size + AMX_BLOCK - 1) / AMX_BLOCK * AMX_BLOCK;
}

// Takes `count` elements of `size` bytes from the memory at *at.
static void *attention_amx_take(uintptr_t *at, int64_t count, size_t size) {
    uintptr_t taken = *at;
    *at += ((size_t)count * size + 63) / 64 * 64;
    return (void *)taken;
}

// Divides the memory from `begin` on. Returns how many bytes a task needs.
static size_t attention_amx_divide(const struct attention_amx_job *job, struct attention_amx_task *task,
                                   uintptr_t begin) {
    const struct heads *heads = &job->call->plan->heads;
    const int parts = job->parts;
    uintptr_t at = begin;
    int64_t width = attention_amx_width(heads), score_floats = TILE_ROWS * (job->columns + SCORE_SLACK);
    task->keys = attention_amx_take(&at, job->columns / AMX_BLOCK * amx_columns_size(parts, heads->size), 2);
    task->values = attention_amx_take(&at, width / AMX_BLOCK * amx_columns_size(parts, job->cache_rows), 2);
    task->queries = attention_amx_take(&at, amx_rows_size(parts, TILE_ROWS, heads->size), 2);
    task->weights = attention_amx_take(&at, amx_rows_size(parts, TILE_ROWS, job->cache_rows + AMX_INNER), 2);
    task->scores = attention_amx_take(&at, score_floats + 2 * SCORE_SLACK, sizeof(float));
    task->sums = attention_amx_take(&at, TILE_ROWS * width, sizeof(float));
    return at - begin;
}

// Computes the query rows [row, row + rows) of a span for one query head.
static void attention_amx_tile(const struct attention_amx_job *job, const struct attention_amx_task *task, int64_t row,
                               int64_t rows, int head) {
    const struct attention_span *span = task->span;
    const struct simd *simd = &job->call->cpu->simd;
    const int parts = job->parts, size = job->call->plan->heads.size;
    int64_t token = span->q_begin + row, width = attention_amx_width(&job->call->plan->heads);
    struct tensor queries = tensor_columns(tensor_rows(job->call->qkv, token, rows), (int64_t)head * size, size);
    int64_t first = attention_span_first(span, row), end = attention_span_end(span, row + rows - 1);

    int64_t key_block = (task->shift + first) / AMX_BLOCK;
    int64_t key_blocks = (task->shift + end + AMX_BLOCK - 1) / AMX_BLOCK - key_block;
    int64_t stride = key_blocks * AMX_BLOCK + SCORE_SLACK;
    amx_pack_rows(task->queries, tensor_row(queries, 0), queries.stride, parts, rows, size);
    struct amx_product scores = {.parts = parts,
                                 .out = task->scores + SCORE_SLACK,
                                 .out_stride = stride,
                                 .rows = task->queries,
                                 .columns = task->keys + key_block * amx_columns_size(parts, size),
                                 .rows_stride = amx_rows_size(parts, AMX_GROUP, size),
                                 .column_stride = amx_columns_size(parts, size),
                                 .row_count = rows,
                                 .column_count = key_blocks * AMX_BLOCK,
                                 .steps = (size + AMX_INNER - 1) / AMX_INNER};
    amx_multiply(&scores, false);

    int64_t step = first / AMX_INNER, steps = (end + AMX_INNER - 1) / AMX_INNER - step, origin = step * AMX_INNER;
    float factors[TILE_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        const float *row_scores = scores.out + i * stride + task->shift + origin - key_block * AMX_BLOCK;
        struct amx_softmax softmax = {.first = attention_span_first(span, row + i) - origin,
                                      .end = attention_span_end(span, row + i) - origin,
                                      .scale = job->call->scale};
        softmax.max = simd->scores_max(row_scores + softmax.first, softmax.end - softmax.first, -INFINITY);
        amx_pack_softmax(task->weights + amx_rows_size(parts, i / AMX_GROUP * AMX_GROUP, steps * AMX_INNER) +
                             i % AMX_GROUP * AMX_INNER,
                         row_scores, &softmax, parts, steps);
        factors[i] = 1 / softmax.sum;
        if (tensor_none(job->call->lse)) continue;
        tensor_f32(job->call->lse, token + i)[head] =
            (float)((double)softmax.max * (double)softmax.scale + log((double)softmax.sum));
    }
    struct amx_product sums = {.parts = parts,
                               .out = task->sums,
                               .out_stride = width,
                               .rows = task->weights,
                               .columns = task->values + amx_columns_at(parts, origin),
                               .rows_stride = amx_rows_size(parts, AMX_GROUP, steps * AMX_INNER),
                               .column_stride = amx_columns_size(parts, task->kv_len),
                               .row_count = rows,
                               .column_count = width,
                               .steps = steps};
    amx_multiply(&sums, false);
    struct tensor out = tensor_columns(tensor_rows(job->call->out, token, rows), (int64_t)head * size, size);
    for (int64_t i = 0; i < rows; i++) {
        float *values = task->sums + i * width;
        for (int64_t d = 0; d < width; d += 16) { // compilers make vectors of a constant number of steps
            for (int k = 0; k < 16; k++) values[d + k] *= factors[i];
        }
        cpu_convert(job->call->cpu, tensor_row(out, i), out.type, values, ELEMENT_F32, (size_t)size);
    }
}

static void attention_amx_run(void *context, int number, int thread) {
    const struct attention_amx_job *job = context;
    const struct attention_call *call = job->call;
    const struct heads *heads = &call->plan->heads;
    struct attention_amx_task task = {.span = &call->plan->spans[number / heads->key]};
    const int kv_head = number % heads->key, group = heads->query / heads->key, size = heads->size;
    const int64_t kv_begin = task.span->kv_begin, width = call->cache->width;
    task.kv_len = attention_span_kv_len(task.span);
    task.shift = kv_begin % KV_BLOCK;
    attention_amx_divide(job, &task, (uintptr_t)job->scratch + (size_t)thread * job->scratch_bytes);

    const float *keys = kv_cache_keys(call->cache, call->layer, kv_head) + (kv_begin - task.shift) * size;
    int64_t key_blocks = (task.shift + task.kv_len + KV_BLOCK - 1) / KV_BLOCK;
    int64_t block_size = amx_columns_size(job->parts, size);
    uint16_t *out = task.keys;
    for (int64_t block = 0; block < key_blocks; block += AMX_BLOCK / KV_BLOCK, out += block_size) {
        int64_t left = key_blocks - block;
        struct amx_columns columns = {.row_stride = KV_BLOCK,
                                      .tile_stride = KV_BLOCK * size,
                                      .tiles = left < AMX_BLOCK / KV_BLOCK ? (int)left : AMX_BLOCK / KV_BLOCK};
        amx_pack_columns(out, keys + block * KV_BLOCK * size, &columns, job->parts, size, block_size);
    }
    const float *values = kv_cache_values(call->cache, call->layer, kv_head) + kv_begin * width;
    block_size = amx_columns_size(job->parts, task.kv_len);
    out = task.values;
    for (int64_t channel = 0; channel < width; channel += AMX_BLOCK, out += block_size) {
        int64_t left = width - channel;
        struct amx_columns columns = {
            .row_stride = width, .tile_stride = 16, .tiles = (int)(left < AMX_BLOCK ? left : AMX_BLOCK) / 16};
        amx_pack_columns(out, values + channel, &columns, job->parts, task.kv_len, block_size);
    }
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t row = 0; row < task.span->q_len; row += TILE_ROWS)
            attention_amx_tile(job, &task, row, task.span->q_len - row < TILE_ROWS ? task.span->q_len - row : TILE_ROWS,
                               head);
}

status attention_amx(const struct attention_call *call) {
    const struct attention_plan *plan = call->plan;
    struct cpu_backend *cpu = call->cpu;
    struct attention_amx_job job = {.call = call, .parts = call->qkv.type == ELEMENT_F32 ? cpu->f32_parts : 1};
    for (size_t i = 0; i < plan->span_count; i++) {
        int64_t kv_len = attention_span_kv_len(&plan->spans[i]);
        if (kv_len > job.cache_rows) job.cache_rows = kv_len;
    }
    job.columns = (job.cache_rows + KV_BLOCK - 1 + AMX_BLOCK - 1) / AMX_BLOCK * AMX_BLOCK;
    struct attention_amx_task unused;
    job.scratch_bytes = (attention_amx_divide(&job, &unused, 0) + 4095) / 4096 * 4096;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, (size_t)pool_threads(cpu->pool) * job.scratch_bytes, &job.scratch));
    pool_run(cpu->pool, (int)plan->span_count * plan->heads.key, attention_amx_run, &job);
    return OK;
}
