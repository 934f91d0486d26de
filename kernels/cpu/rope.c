// The KV cache: memory, checks and writing rows; and the rotary position embedding of queries and keys, which writes
// them into it. attention.h has the memory layout.
//
// In bfloat16 the cache holds the rotated keys after rounding, so that they have the same bits as those in qkv.
#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/attention.h"
#include "shared/base/memory.h"

// ---- kv_cache ----

bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads) {
    return layer >= 0 && layer < cache->layers && heads.query == cache->heads.query && heads.key == cache->heads.key &&
           heads.size == cache->heads.size;
}

status cpu_kv_cache_new(struct backend *backend, struct kv_cache **out, enum element type, int layers, int64_t rows,
                        struct heads heads) {
    *out = NULL;
    CHECK(type == ELEMENT_F32 || type == ELEMENT_BF16);
    CHECK(layers > 0 && rows > 0 && heads.size > 0 && heads.size % 2 == 0);
    CHECK(heads.key > 0 && heads.query % heads.key == 0);
    struct kv_cache *cache;
    NEW(&cache, 1);
    cache->heads = heads;
    cache->layers = layers;
    cache->width = (int)kv_block_align(heads.size);
    cache->rows = kv_block_align(rows);
    size_t all_rows = (size_t)cache->rows * (size_t)layers * (size_t)heads.key;
    status result;
    TRY_TO(result, release, cpu_buffer_new(backend, all_rows * (size_t)heads.size * sizeof(float), &cache->keys));
    TRY_TO(result, release, cpu_buffer_new(backend, all_rows * (size_t)cache->width * sizeof(float), &cache->values));
    *out = cache;
    return OK;
release:
    cpu_kv_cache_free(backend, &cache);
    return result;
}

void cpu_kv_cache_free(struct backend *backend, struct kv_cache **cache) {
    if (!*cache) return;
    cpu_buffer_free(backend, &(*cache)->keys);
    cpu_buffer_free(backend, &(*cache)->values);
    free(*cache);
    *cache = NULL;
}

// ---- rope ----

enum { ROPE_BLOCK = KV_BLOCK }; // tokens per task; consecutive tokens mostly fill one block of keys

struct rope_job {
    const struct cpu_backend *cpu;
    const struct rope_table *table; // NULL: nothing is rotated
    struct tensor qkv, position_ids, slots;
    struct heads heads;
    const struct kv_cache *cache; // NULL in the gradient: nothing is written
    int layer;
    float *scratch; // scratch_size floats for each thread: cosines and sines; ROPE_BLOCK rows, unless qkv is F32
    int64_t scratch_size;
};

// Returns the cosines or sines of a token: a row of the table if its three positions are equal; otherwise they are
// gathered into `scratch`.
static const float *rope_factors(const struct rope_table *table, struct tensor values, const int32_t position[3],
                                 float *scratch) {
    if (position[0] == position[1] && position[0] == position[2]) return tensor_f32(values, position[0]);
    int64_t begin = 0, ends[3] = {table->sections[0], table->sections[0] + table->sections[1], values.columns};
    for (int axis = 0; axis < 3; begin = ends[axis++]) {
        memcpy(scratch + begin, tensor_f32(values, position[axis]) + begin,
               (size_t)(ends[axis] - begin) * sizeof(float));
    }
    return scratch;
}

static void rope_rows(void *context, struct task_range range) {
    const struct rope_job *job = context;
    const struct tensor *qkv = &job->qkv;
    assert(range.end - range.first <= ROPE_BLOCK);
    bool convert = qkv->type != ELEMENT_F32;
    int size = job->heads.size;
    int64_t query_size = (int64_t)job->heads.query * size, key_size = (int64_t)job->heads.key * size;
    int32_t slots[ROPE_BLOCK] = {0};
    int64_t stride = convert ? qkv->columns : qkv->stride;
    float *factors = job->scratch + range.thread * job->scratch_size;
    float *rows = convert ? factors + kv_block_align(size) : tensor_f32(*qkv, range.first);
    for (int64_t token = range.first; token < range.end; token++) {
        float *row = rows + (token - range.first) * stride;
        void *stored = tensor_row(*qkv, token);
        if (convert) cpu_convert(job->cpu, row, ELEMENT_F32, stored, qkv->type, (size_t)stride);
        if (job->cache) slots[token - range.first] = *tensor_i32(job->slots, token);
        if (!job->table) continue;
        const int32_t *position = tensor_i32(job->position_ids, token);
        const float *cos = rope_factors(job->table, job->table->cos, position, factors);
        const float *sin = rope_factors(job->table, job->table->sin, position, factors + size / 2);
        for (int head = 0; head < job->heads.query + job->heads.key; head++) {
            job->cpu->simd.rope(row + head * size, cos, sin, size / 2, !job->cache);
        }
        if (convert) cpu_convert(job->cpu, stored, qkv->type, row, ELEMENT_F32, (size_t)(query_size + key_size));
        if (convert && job->cache)
            cpu_convert(job->cpu, row + query_size, ELEMENT_F32, (uint16_t *)stored + query_size, qkv->type,
                        (size_t)key_size);
    }
    if (!job->cache) return;

    // Stores keys and values in the rows slots[0..count) of the layer. A token with the slot -1 is not stored. The loop
    // over heads is outside, so that a block of keys stays in the first-level cache while its rows are filled.
    const int width = job->cache->width;
    const int64_t count = range.end - range.first;
    bool block = count == KV_BLOCK && slots[0] >= 0 && slots[0] % KV_BLOCK == 0; // the rows fill one, in its order
    for (int i = 1; i < KV_BLOCK && block; i++) block = slots[i] == slots[0] + i;
    for (int64_t i = 0; i < count; i++) assert(slots[i] >= -1 && slots[i] < job->cache->rows);
    for (int head = 0; head < job->heads.key; head++) {
        float *head_keys = kv_cache_keys(job->cache, job->layer, head);
        float *head_values = kv_cache_values(job->cache, job->layer, head);
        const float *keys = rows + query_size + head * size, *values = keys + key_size;
        if (block)
            job->cpu->simd.transpose((uint32_t *)(head_keys + (int64_t)slots[0] * size), KV_BLOCK,
                                     (const uint32_t *)keys, stride, KV_BLOCK, size);
        for (int64_t i = 0; i < count; i++) {
            if (slots[i] < 0) continue;
            float *column = head_keys + slots[i] / KV_BLOCK * KV_BLOCK * size + slots[i] % KV_BLOCK;
            if (!block)
                for (int d = 0; d < size; d++) column[d * KV_BLOCK] = keys[i * stride + d];
            memcpy(head_values + (int64_t)slots[i] * width, values + i * stride, (size_t)size * sizeof *values);
        }
    }
}

static status rope_run(struct cpu_backend *cpu, struct rope_job *job) {
    job->cpu = cpu;
    job->scratch_size = kv_block_align(job->heads.size);
    if (job->qkv.type != ELEMENT_F32) job->scratch_size += ROPE_BLOCK * job->qkv.columns;
    size_t floats = (size_t)pool_threads(cpu->pool) * (size_t)job->scratch_size;
    TRY(cpu_scratch(cpu, SCRATCH_ROWS, floats * sizeof(float), &job->scratch));
    parallel_for(cpu, job->qkv.rows, ROPE_BLOCK, rope_rows, job);
    return OK;
}

static status rope_rotate(struct backend *backend, struct rope_job *job) {
    const struct tensor *qkv = &job->qkv;
    const struct heads heads = job->heads;
    const struct rope_table *table = job->table;
    CHECK(heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    CHECK(tensor_is(*qkv, -1, qkv->rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(table->cos, ELEMENT_F32, table->cos.rows, heads.size / 2));
    CHECK(tensor_is(table->sin, ELEMENT_F32, table->cos.rows, heads.size / 2));
    CHECK(table->sections[0] >= 0 && table->sections[1] >= 0);
    CHECK(table->sections[0] + table->sections[1] <= heads.size / 2);
    CHECK(tensor_in_range(job->position_ids, qkv->rows, 3, 0, table->cos.rows));
    return rope_run(cpu_of(backend), job);
}

status cpu_rope(struct backend *backend, struct tensor qkv, const struct rope_table *table, struct tensor position_ids,
                struct heads heads, struct kv_cache *cache, int layer, struct tensor cache_slots) {
    CHECK(kv_cache_fits(cache, layer, heads) && tensor_in_range(cache_slots, qkv.rows, 1, -1, cache->rows));
    struct rope_job job = {NULL, table, qkv, position_ids, cache_slots, heads, cache, .layer = layer};
    return rope_rotate(backend, &job);
}

status cpu_rope_grad(struct backend *backend, struct tensor grad_qkv, const struct rope_table *table,
                     struct tensor position_ids, struct heads heads) {
    struct rope_job job = {.table = table, .qkv = grad_qkv, .position_ids = position_ids, .heads = heads};
    return rope_rotate(backend, &job);
}

status cpu_kv_cache_write(struct backend *backend, struct tensor qkv, struct heads heads, struct kv_cache *cache,
                          int layer, struct tensor slots) {
    int64_t query_size = (int64_t)heads.query * heads.size, kv_size = 2 * (int64_t)heads.key * heads.size;
    CHECK(kv_cache_fits(cache, layer, heads) && tensor_in_range(slots, qkv.rows, 1, -1, cache->rows));
    CHECK(tensor_is(qkv, -1, qkv.rows, query_size + kv_size));
    struct rope_job job = {.qkv = tensor_columns(qkv, query_size, kv_size),
                           .slots = slots,
                           .heads = {.key = heads.key, .size = heads.size}, // without those of queries
                           .cache = cache,
                           .layer = layer};
    return rope_run(cpu_of(backend), &job);
}
