// The cache of keys and values.
#include "kernels/cpu/kv_cache.h"

#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/attention_tiles.h"
#include "shared/base/memory.h"

status cpu_kv_cache_new(struct backend *backend, struct kv_cache **out, int layers, int64_t rows, struct heads heads) {
    *out = NULL;
    CHECK(layers > 0 && rows > 0 && heads.size > 0 && heads.size % 2 == 0);
    CHECK(heads.key > 0 && heads.query % heads.key == 0);
    struct kv_cache *cache;
    TRY(NEW(&cache, 1));
    cache->heads = heads;
    cache->layers = layers;
    cache->width = (heads.size + kv_block - 1) / kv_block * kv_block;
    cache->rows = (rows + kv_block - 1) / kv_block * kv_block;
    size_t all = (size_t)cache->rows * (size_t)layers * (size_t)heads.key;
    status result;
    TRY_TO(result, release, cpu_buffer_new(backend, all * (size_t)heads.size * sizeof(float), &cache->keys));
    TRY_TO(result, release, cpu_buffer_new(backend, all * (size_t)cache->width * sizeof(float), &cache->values));
    *out = cache;
    return OK;
release:
    cpu_kv_cache_free(backend, &cache);
    return result;
}

void cpu_kv_cache_free(struct backend *backend, struct kv_cache **place) {
    struct kv_cache *cache = *place;
    if (!cache) return;
    cpu_buffer_free(backend, &cache->keys);
    cpu_buffer_free(backend, &cache->values);
    free(cache);
    *place = NULL;
}

float *kv_cache_keys(const struct kv_cache *cache, int layer, int key_head) {
    return (float *)cache->keys->data + (layer * cache->heads.key + key_head) * cache->rows * cache->heads.size;
}

float *kv_cache_values(const struct kv_cache *cache, int layer, int key_head) {
    return (float *)cache->values->data + (layer * cache->heads.key + key_head) * cache->rows * cache->width;
}

bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads) {
    return layer >= 0 && layer < cache->layers && heads.query == cache->heads.query && heads.key == cache->heads.key &&
           heads.size == cache->heads.size;
}

bool kv_cache_has_slots(const struct kv_cache *cache, struct tensor slots, int64_t rows) {
    if (!tensor_is(slots, ELEMENT_I32, rows, 1)) return false;
    for (int64_t row = 0; row < rows; row++) {
        int32_t slot = *tensor_i32(slots, row);
        if (slot < 0 || slot >= cache->rows) return false;
    }
    return true;
}
