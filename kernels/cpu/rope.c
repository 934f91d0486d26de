// Rotary position embedding of queries and keys, and the writing of keys and values into the KV cache.
//
// In bfloat16 the cache holds the rotated keys after rounding, so that they have the same bits as those in qkv.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_cache.h"

enum { rope_block = kv_block }; // tokens per task; consecutive tokens mostly fill one block of keys

struct rope_job {
    const struct cpu_backend *cpu;
    struct tensor qkv, cos, sin, slots;
    struct heads heads;
    const struct kv_cache *cache; // NULL in the gradient: nothing is written
    int layer;
    float *scratch; // rope_block rows in float32 for each thread, unless qkv is F32
};

static void rope_rows(void *context, int64_t first, int64_t end, int thread) {
    const struct rope_job *job = context;
    const struct tensor *qkv = &job->qkv;
    assert(end - first <= rope_block);
    bool convert = qkv->type != ELEMENT_F32;
    int32_t slots[rope_block] = {0};
    int64_t stride = convert ? qkv->columns : qkv->stride;
    float *rows = convert ? job->scratch + thread * rope_block * stride : tensor_f32(*qkv, first);
    for (int64_t token = first; token < end; token++) {
        float *row = rows + (token - first) * stride;
        void *stored = tensor_row(*qkv, token);
        if (convert) cpu_convert(job->cpu, row, ELEMENT_F32, stored, qkv->type, (size_t)stride);
        const float *cos = tensor_f32(job->cos, token), *sin = tensor_f32(job->sin, token);
        for (int head = 0; head < job->heads.query + job->heads.key; head++) {
            job->cpu->simd.rope(row + head * job->heads.size, cos, sin, job->heads.size / 2, !job->cache);
        }
        if (convert) cpu_convert(job->cpu, stored, qkv->type, row, ELEMENT_F32, (size_t)stride);
        if (!job->cache) continue;
        if (convert) cpu_convert(job->cpu, row, ELEMENT_F32, stored, qkv->type, (size_t)stride);
        slots[token - first] = *tensor_i32(job->slots, token);
    }
    if (job->cache) {
        const float *kv = rows + job->heads.query * job->heads.size;
        kv_cache_store(job->cache, job->layer, slots, kv, stride, end - first);
    }
}

static status rope_run(struct cpu_backend *cpu, struct rope_job *job) {
    struct tensor qkv = job->qkv;
    struct heads heads = job->heads;
    CHECK(heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    CHECK(tensor_is(qkv, -1, qkv.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(job->cos, ELEMENT_F32, qkv.rows, heads.size / 2));
    CHECK(tensor_is(job->sin, ELEMENT_F32, qkv.rows, heads.size / 2));
    if (qkv.type != ELEMENT_F32) {
        size_t bytes = (size_t)(rope_block * qkv.columns) * sizeof(float);
        TRY(cpu_scratch(cpu, SCRATCH_ROWS, (size_t)pool_threads(cpu->pool) * bytes, &job->scratch));
    }
    parallel_for(cpu, qkv.rows, rope_block, rope_rows, job);
    return OK;
}

status cpu_rope(struct backend *backend, struct tensor qkv, struct tensor cos, struct tensor sin, struct heads heads,
                struct kv_cache *cache, int layer, struct tensor slots) {
    CHECK(kv_cache_fits(cache, layer, heads) && kv_cache_has_slots(cache, slots, qkv.rows));
    struct rope_job job = {.cpu = cpu_of(backend),
                           .qkv = qkv,
                           .cos = cos,
                           .sin = sin,
                           .slots = slots,
                           .heads = heads,
                           .cache = cache,
                           .layer = layer};
    return rope_run(cpu_of(backend), &job);
}

status cpu_rope_grad(struct backend *backend, struct tensor grad_qkv, struct tensor cos, struct tensor sin,
                     struct heads heads) {
    struct rope_job job = {.cpu = cpu_of(backend), .qkv = grad_qkv, .cos = cos, .sin = sin, .heads = heads};
    return rope_run(cpu_of(backend), &job);
}
