// The KV cache: keys and values in device memory, in the type of the activations.
#include <stdlib.h>

#include "kernels/cuda/attention.h"
#include "shared/base/memory.h"

status cuda_kv_cache_new(struct backend *backend, struct kv_cache **out, enum element type, int layers, int64_t rows,
                         struct heads heads) {
    *out = NULL;
    CHECK(type == ELEMENT_F32 || type == ELEMENT_BF16);
    CHECK(layers > 0 && rows > 0 && rows <= INT32_MAX && heads.size > 0 && heads.size % 2 == 0);
    CHECK(heads.key > 0 && heads.query > 0 && heads.query % heads.key == 0);
    struct kv_cache *cache;
    NEW(&cache, 1);
    cache->heads = heads;
    cache->type = type;
    cache->layers = layers;
    cache->rows = rows;
    size_t bytes = (size_t)layers * (size_t)heads.key * (size_t)rows * (size_t)heads.size * element_size(type);
    status result;
    TRY_TO(result, release, cuda_buffer_new(backend, bytes, &cache->keys));
    TRY_TO(result, release, cuda_buffer_new(backend, bytes, &cache->values));
    *out = cache;
    return OK;
release:
    cuda_kv_cache_free(backend, &cache);
    return result;
}

void cuda_kv_cache_free(struct backend *backend, struct kv_cache **cache) {
    if (!*cache) return;
    cuda_buffer_free(backend, &(*cache)->keys);
    cuda_buffer_free(backend, &(*cache)->values);
    free(*cache);
    *cache = NULL;
}

bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads, enum element type) {
    return layer >= 0 && layer < cache->layers && heads.query == cache->heads.query && heads.key == cache->heads.key &&
           heads.size == cache->heads.size && type == cache->type;
}

void *kv_cache_layer(const struct kv_cache *cache, const struct buffer *of, int layer) {
    size_t elements = (size_t)cache->heads.key * (size_t)cache->rows * (size_t)cache->heads.size;
    return of->data + (size_t)layer * elements * element_size(cache->type);
}
