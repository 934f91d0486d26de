// Rotary position embedding of queries and keys, and the writing of keys and values into the KV cache.
//
// In bfloat16 the cache holds the rotated keys after rounding, so that they have the same bits as those in qkv.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_cache.h"

enum { rope_block = kv_block }; // tokens per task; consecutive tokens mostly fill one block of keys

struct rope_job {
    const struct cpu_backend *cpu;
    const struct rope_table *table;
    struct tensor qkv, position_ids, slots;
    struct heads heads;
    const struct kv_cache *cache; // NULL in the gradient: nothing is written
    int layer;
    float *scratch; // scratch_size floats for each thread: cosines and sines; rope_block rows, unless qkv is F32
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

static void rope_rows(void *context, int64_t first, int64_t end, int thread) {
    const struct rope_job *job = context;
    const struct tensor *qkv = &job->qkv;
    assert(end - first <= rope_block);
    bool convert = qkv->type != ELEMENT_F32;
    int size = job->heads.size;
    int64_t query_size = (int64_t)job->heads.query * size, key_size = (int64_t)job->heads.key * size;
    int32_t slots[rope_block] = {0};
    int64_t stride = convert ? qkv->columns : qkv->stride;
    float *factors = job->scratch + thread * job->scratch_size;
    float *rows = convert ? factors + kv_block_align(size) : tensor_f32(*qkv, first);
    for (int64_t token = first; token < end; token++) {
        float *row = rows + (token - first) * stride;
        void *stored = tensor_row(*qkv, token);
        if (convert) cpu_convert(job->cpu, row, ELEMENT_F32, stored, qkv->type, (size_t)stride);
        const int32_t *position = tensor_i32(job->position_ids, token);
        const float *cos = rope_factors(job->table, job->table->cos, position, factors);
        const float *sin = rope_factors(job->table, job->table->sin, position, factors + size / 2);
        for (int head = 0; head < job->heads.query + job->heads.key; head++) {
            job->cpu->simd.rope(row + head * size, cos, sin, size / 2, !job->cache);
        }
        if (convert) cpu_convert(job->cpu, stored, qkv->type, row, ELEMENT_F32, (size_t)(query_size + key_size));
        if (!job->cache) continue;
        if (convert)
            cpu_convert(job->cpu, row + query_size, ELEMENT_F32, (uint16_t *)stored + query_size, qkv->type,
                        (size_t)key_size);
        slots[token - first] = *tensor_i32(job->slots, token);
    }
    if (job->cache) {
        const float *kv = rows + query_size;
        kv_cache_store(job->cpu, job->cache, job->layer, slots, kv, stride, end - first);
    }
}

static bool rope_table_is_valid(const struct rope_table *table, int pairs) {
    const int *sections = table->sections;
    return tensor_is(table->cos, ELEMENT_F32, table->cos.rows, pairs) &&
           tensor_is(table->sin, ELEMENT_F32, table->cos.rows, pairs) && sections[0] >= 0 && sections[1] >= 0 &&
           sections[0] + sections[1] <= pairs;
}

static bool rope_table_has_positions(const struct rope_table *table, struct tensor position_ids, int64_t rows) {
    if (!tensor_is(position_ids, ELEMENT_I32, rows, 3)) return false;
    for (int64_t row = 0; row < rows; row++) {
        const int32_t *position = tensor_i32(position_ids, row);
        for (int axis = 0; axis < 3; axis++) {
            if (position[axis] < 0 || position[axis] >= table->cos.rows) return false;
        }
    }
    return true;
}

static status rope_run(struct cpu_backend *cpu, struct rope_job *job) {
    struct tensor qkv = job->qkv;
    struct heads heads = job->heads;
    CHECK(heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    CHECK(tensor_is(qkv, -1, qkv.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(rope_table_is_valid(job->table, heads.size / 2));
    CHECK(rope_table_has_positions(job->table, job->position_ids, qkv.rows));
    job->scratch_size = kv_block_align(heads.size);
    if (qkv.type != ELEMENT_F32) job->scratch_size += rope_block * qkv.columns;
    size_t floats = (size_t)pool_threads(cpu->pool) * (size_t)job->scratch_size;
    TRY(cpu_scratch(cpu, SCRATCH_ROWS, floats * sizeof(float), &job->scratch));
    parallel_for(cpu, qkv.rows, rope_block, rope_rows, job);
    return OK;
}

status cpu_rope(struct backend *backend, struct tensor qkv, const struct rope_table *table, struct tensor position_ids,
                struct heads heads, struct kv_cache *cache, int layer, struct tensor cache_slots) {
    CHECK(kv_cache_fits(cache, layer, heads) && kv_cache_has_slots(cache, cache_slots, qkv.rows, -1));
    struct rope_job job = {.cpu = cpu_of(backend),
                           .table = table,
                           .qkv = qkv,
                           .position_ids = position_ids,
                           .slots = cache_slots,
                           .heads = heads,
                           .cache = cache,
                           .layer = layer};
    return rope_run(cpu_of(backend), &job);
}

status cpu_rope_grad(struct backend *backend, struct tensor grad_qkv, const struct rope_table *table,
                     struct tensor position_ids, struct heads heads) {
    struct rope_job job = {
        .cpu = cpu_of(backend), .table = table, .qkv = grad_qkv, .position_ids = position_ids, .heads = heads};
    return rope_run(cpu_of(backend), &job);
}
