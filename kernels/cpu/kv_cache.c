// The KV cache: allocation, addresses, checks, and writing rows. See kv_cache.h for the memory layout.
#include "kernels/cpu/kv_cache.h"

#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

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

float *kv_cache_keys(const struct kv_cache *cache, int layer, int kv_head) {
    float *keys = (void *)cache->keys->data;
    return keys + (layer * cache->heads.key + kv_head) * cache->rows * cache->heads.size;
}

float *kv_cache_values(const struct kv_cache *cache, int layer, int kv_head) {
    float *values = (void *)cache->values->data;
    return values + (layer * cache->heads.key + kv_head) * cache->rows * cache->width;
}

// Whether the rows fill a block, in its order.
static bool kv_cache_fills_block(const int32_t *slots, int64_t count) {
    if (count != kv_block || slots[0] < 0 || slots[0] % kv_block) return false;
    for (int i = 1; i < kv_block; i++)
        if (slots[i] != slots[0] + i) return false;
    return true;
}

// The loop over heads is outside, so that a block of keys stays in the first-level cache while its rows are filled.
void kv_cache_store(const struct cpu_backend *cpu, const struct kv_cache *cache, int layer, const int32_t *slots,
                    const float *kv, int64_t stride, int64_t count) {
    const int size = cache->heads.size, width = cache->width;
    const bool block = kv_cache_fills_block(slots, count);
    for (int64_t i = 0; i < count; i++) assert(slots[i] >= -1 && slots[i] < cache->rows);
    for (int head = 0; head < cache->heads.key; head++) {
        float *head_keys = kv_cache_keys(cache, layer, head), *head_values = kv_cache_values(cache, layer, head);
        const float *keys = kv + head * size, *values = keys + cache->heads.key * size;
        if (block)
            cpu->simd.transpose((uint32_t *)(head_keys + (int64_t)slots[0] * size), kv_block, (const uint32_t *)keys,
                                stride, kv_block, size);
        for (int64_t i = 0; i < count; i++) {
            if (slots[i] < 0) continue;
            float *column = head_keys + slots[i] / kv_block * kv_block * size + slots[i] % kv_block;
            if (!block)
                for (int d = 0; d < size; d++) column[d * kv_block] = keys[i * stride + d];
            memcpy(head_values + (int64_t)slots[i] * width, values + i * stride, (size_t)size * sizeof *values);
        }
    }
}

struct kv_cache_job {
    const struct cpu_backend *cpu;
    const struct kv_cache *cache;
    int layer;
    struct tensor kv, slots; // kv: the keys and values of qkv
    float *scratch;          // kv_block rows in float32 for each thread, unless kv is F32
};

static void kv_cache_task(void *context, int64_t first, int64_t end, int thread) {
    const struct kv_cache_job *job = context;
    const struct tensor *kv = &job->kv;
    int32_t slots[kv_block] = {0};
    assert(end - first <= kv_block);
    for (int64_t row = first; row < end; row++) slots[row - first] = *tensor_i32(job->slots, row);
    if (kv->type == ELEMENT_F32) {
        kv_cache_store(job->cpu, job->cache, job->layer, slots, tensor_f32(*kv, first), kv->stride, end - first);
        return;
    }
    float *rows = job->scratch + thread * kv_block * kv->columns;
    for (int64_t row = first; row < end; row++) {
        cpu_convert(job->cpu, rows + (row - first) * kv->columns, ELEMENT_F32, tensor_row(*kv, row), kv->type,
                    (size_t)kv->columns);
    }
    kv_cache_store(job->cpu, job->cache, job->layer, slots, rows, kv->columns, end - first);
}

status cpu_kv_cache_write(struct backend *backend, struct tensor qkv, struct heads heads, struct kv_cache *cache,
                          int layer, struct tensor slots) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t query_size = (int64_t)heads.query * heads.size, kv_size = 2 * (int64_t)heads.key * heads.size;
    CHECK(kv_cache_fits(cache, layer, heads) && kv_cache_has_slots(cache, slots, qkv.rows, -1));
    CHECK(tensor_is(qkv, -1, qkv.rows, query_size + kv_size));
    struct kv_cache_job job = {
        .cpu = cpu, .cache = cache, .layer = layer, .kv = tensor_columns(qkv, query_size, kv_size), .slots = slots};
    size_t bytes = (size_t)(kv_block * kv_size) * sizeof(float);
    if (qkv.type != ELEMENT_F32)
        TRY(cpu_scratch(cpu, SCRATCH_ROWS, (size_t)pool_threads(cpu->pool) * bytes, &job.scratch));
    parallel_for(cpu, qkv.rows, kv_block, kv_cache_task, &job);
    return OK;
}

bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads) {
    return layer >= 0 && layer < cache->layers && heads.query == cache->heads.query && heads.key == cache->heads.key &&
           heads.size == cache->heads.size;
}

bool kv_cache_has_slots(const struct kv_cache *cache, struct tensor slots, int64_t rows, int32_t least) {
    if (!tensor_is(slots, ELEMENT_I32, rows, 1)) return false;
    for (int64_t row = 0; row < rows; row++) {
        int32_t slot = *tensor_i32(slots, row);
        if (slot < least || slot >= cache->rows) return false;
    }
    return true;
}
