// The KV cache, keys and values in device memory in the type of the activations; and the rotary position embedding of
// queries and keys, which writes them into it.
//
// The cache holds the rotated keys after rounding, so that they have the same bits as those in qkv. A token whose
// position is not in the table or whose cache slot does not exist is reported and left as it is. The slot -1 is that of
// an idle row of decoding, which is rotated and not written.
#include <stdlib.h>

#include "kernels/cuda/attention_device.h"
#include "kernels/cuda/rows.h"

// ---- kv_cache ----

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

// ---- rope ----

enum { ROPE_THREADS = 128, NO_SLOT = -1 };

struct rope_args {
    void *qkv; // [T, (H+2K)D]
    int64_t stride;
    const float *cos, *sin; // [positions, D/2]
    int64_t cos_stride, sin_stride, positions;
    int section0, section1;      // pairs with the first and with the second of a token's positions
    const int32_t *position_ids; // [T,3]
    int64_t position_stride;
    int heads, key_heads, size;
    void *keys, *values; // [K][rows][D] of the layer; NULL in the gradient: nothing is written
    int64_t cache_rows;
    const int32_t *slots;
    int64_t slot_stride;
    uint32_t *reports;
};

DEVICE int rope_axis(const struct rope_args *a, int pair) {
    return pair < a->section0 ? 0 : pair < a->section0 + a->section1 ? 1 : 2;
}

// Rotates one pair of a head; `sign` is -1 in the gradient.
template <typename T> DEVICE void rope_rotate(T *low, T *high, float cos, float sin) {
    float a = f32_from(*low), b = f32_from(*high);
    store_f32(low, add_rn(mul_rn(a, cos), -mul_rn(b, sin)));
    store_f32(high, add_rn(mul_rn(b, cos), mul_rn(a, sin)));
}

// Whether the token's positions and slot exist.
DEVICE bool rope_token_valid(const struct rope_args *a, const int32_t *positions, int64_t slot) {
    for (int axis = 0; axis < 3; axis++) {
        if (positions[axis] >= 0 && positions[axis] < a->positions) continue;
        if (threadIdx.x == 0) report_error(a->reports, CUDA_REPORT_POSITION);
        return false;
    }
    if (!a->keys || (slot >= NO_SLOT && slot < a->cache_rows)) return true;
    if (threadIdx.x == 0) report_error(a->reports, CUDA_REPORT_SLOT);
    return false;
}

// A block for each token.
template <typename T> __global__ void rope_kernel(struct rope_args a) {
    int64_t token = blockIdx.x;
    int half = a.size / 2, rotated = a.heads + a.key_heads;
    const int32_t *positions = a.position_ids + token * a.position_stride;
    int64_t slot = a.keys ? a.slots[token * a.slot_stride] : 0;
    if (!rope_token_valid(&a, positions, slot)) return;
    T *row = (T *)a.qkv + token * a.stride;
    for (int i = (int)threadIdx.x; i < rotated * half; i += ROPE_THREADS) {
        int head = i / half, pair = i % half;
        int64_t position = positions[rope_axis(&a, pair)];
        float cos = a.cos[position * a.cos_stride + pair], sin = a.sin[position * a.sin_stride + pair];
        T *low = row + head * a.size + pair, *high = low + half;
        rope_rotate(low, high, cos, a.keys ? sin : -sin);
        if (!a.keys || head < a.heads || slot == NO_SLOT) continue;
        T *key = (T *)a.keys + ((head - a.heads) * a.cache_rows + slot) * a.size + pair;
        key[0] = *low;
        key[half] = *high;
    }
    for (int i = (int)threadIdx.x; a.keys && slot != NO_SLOT && i < a.key_heads * a.size; i += ROPE_THREADS) {
        int head = i / a.size, d = i % a.size;
        ((T *)a.values)[(head * a.cache_rows + slot) * a.size + d] = row[rotated * a.size + i];
    }
}

// The same for eight pairs at a time.
__global__ void __launch_bounds__(ROPE_THREADS) rope_octets_kernel(struct rope_args a) {
    int64_t token = blockIdx.x;
    int octets = a.size / 2 / OCTET, rotated = a.heads + a.key_heads; // octets of half a head
    const int32_t *positions = a.position_ids + token * a.position_stride;
    int64_t slot = a.keys ? a.slots[token * a.slot_stride] : (int64_t)NO_SLOT;
    if (!rope_token_valid(&a, positions, slot)) return;
    struct words16 *row = (struct words16 *)((struct bf16 *)a.qkv + token * a.stride);
    for (int i = (int)threadIdx.x; i < rotated * octets; i += ROPE_THREADS) {
        int head = i / octets, octet = i % octets;
        int64_t position = positions[rope_axis(&a, octet * OCTET)];
        struct words16 *at = row + head * 2 * octets + octet;
        float low[OCTET], high[OCTET], cos[OCTET], sin[OCTET];
        octet_unpack_bf16(low, at[0]);
        octet_unpack_bf16(high, at[octets]);
        octet_load_f32(cos, (const char *)(a.cos + position * a.cos_stride + octet * OCTET));
        octet_load_f32(sin, (const char *)(a.sin + position * a.sin_stride + octet * OCTET));
#pragma unroll
        for (int e = 0; e < OCTET; e++) rope_rotate(&low[e], &high[e], cos[e], a.keys ? sin[e] : -sin[e]);
        at[0] = octet_pack_bf16(low);
        at[octets] = octet_pack_bf16(high);
        if (head < a.heads || slot == NO_SLOT) continue;
        struct words16 *key = (struct words16 *)a.keys + ((head - a.heads) * a.cache_rows + slot) * 2 * octets + octet;
        key[0] = at[0];
        key[octets] = at[octets];
    }
    for (int i = (int)threadIdx.x; slot != NO_SLOT && i < a.key_heads * 2 * octets; i += ROPE_THREADS) {
        int head = i / (2 * octets), octet = i % (2 * octets);
        ((struct words16 *)a.values)[(head * a.cache_rows + slot) * 2 * octets + octet] = row[rotated * 2 * octets + i];
    }
}

// A block for each token: its keys and values go to its slot.
template <typename T> __global__ void kv_cache_write_kernel(struct rope_args a) {
    int64_t token = blockIdx.x, slot = a.slots[token * a.slot_stride];
    if (slot < NO_SLOT || slot >= a.cache_rows) {
        if (threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_SLOT);
        return;
    }
    const T *row = (const T *)a.qkv + token * a.stride + a.heads * a.size;
    for (int i = (int)threadIdx.x; slot != NO_SLOT && i < a.key_heads * a.size; i += ROPE_THREADS) {
        int64_t to = (i / a.size * a.cache_rows + slot) * a.size + i % a.size;
        ((T *)a.keys)[to] = row[i];
        ((T *)a.values)[to] = row[a.key_heads * a.size + i];
    }
}

// Without a cache, in the gradient, nothing is written.
static status rope_args_init(struct rope_args *args, struct cuda_backend *cuda, struct tensor qkv, struct heads heads,
                             const struct kv_cache *cache, int layer, struct tensor cache_slots) {
    CHECK(tensor_is(qkv, -1, qkv.rows, (heads.query + 2 * heads.key) * heads.size));
    *args = {};
    args->qkv = tensor_row(qkv, 0);
    args->stride = qkv.stride;
    args->heads = heads.query;
    args->key_heads = heads.key;
    args->size = heads.size;
    args->reports = cuda->reports;
    if (!cache) return OK;
    CHECK(kv_cache_fits(cache, layer, heads, qkv.type));
    CHECK(tensor_is(cache_slots, ELEMENT_I32, qkv.rows, 1));
    args->keys = kv_cache_layer(cache, cache->keys, layer);
    args->values = kv_cache_layer(cache, cache->values, layer);
    args->cache_rows = cache->rows;
    args->slots = (const int32_t *)tensor_row(cache_slots, 0);
    args->slot_stride = cache_slots.stride;
    return OK;
}

static status rope_run(struct backend *backend, struct tensor qkv, const struct rope_table *table,
                       struct tensor position_ids, struct heads heads, const struct kv_cache *cache, int layer,
                       struct tensor cache_slots) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct rope_args args;
    CHECK(heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    TRY(rope_args_init(&args, cuda, qkv, heads, cache, layer, cache_slots));
    CHECK(tensor_is(table->cos, ELEMENT_F32, table->cos.rows, heads.size / 2));
    CHECK(tensor_is(table->sin, ELEMENT_F32, table->cos.rows, heads.size / 2));
    CHECK(tensor_is(position_ids, ELEMENT_I32, qkv.rows, 3));
    CHECK(table->sections[0] >= 0 && table->sections[1] >= 0);
    CHECK(table->sections[0] + table->sections[1] <= heads.size / 2);
    if (qkv.rows == 0) return OK;
    args.cos = (const float *)tensor_row(table->cos, 0);
    args.sin = (const float *)tensor_row(table->sin, 0);
    args.cos_stride = table->cos.stride;
    args.sin_stride = table->sin.stride;
    args.positions = table->cos.rows;
    args.section0 = table->sections[0];
    args.section1 = table->sections[1];
    args.position_ids = (const int32_t *)tensor_row(position_ids, 0);
    args.position_stride = position_ids.stride;
    // Eight pairs at a time need aligned rows of bfloat16, and one axis for the eight.
    bool octets = qkv.type == ELEMENT_BF16 && tensor_aligned16(qkv) && tensor_aligned16(table->cos) &&
                  tensor_aligned16(table->sin) && heads.size % (2 * OCTET) == 0 && args.section0 % OCTET == 0 &&
                  args.section1 % OCTET == 0;
    if (octets)
        LAUNCH(rope_octets_kernel, (unsigned)qkv.rows, ROPE_THREADS, 0, cuda->stream, args);
    else
        LAUNCH_TYPE(qkv.type, rope_kernel, (unsigned)qkv.rows, ROPE_THREADS, 0, cuda->stream, args);
    return cuda_launched("rope");
}

status cuda_rope(struct backend *backend, struct tensor qkv, const struct rope_table *table, struct tensor position_ids,
                 struct heads heads, struct kv_cache *cache, int layer, struct tensor cache_slots) {
    return rope_run(backend, qkv, table, position_ids, heads, cache, layer, cache_slots);
}

status cuda_rope_grad(struct backend *backend, struct tensor grad_qkv, const struct rope_table *table,
                      struct tensor position_ids, struct heads heads) {
    return rope_run(backend, grad_qkv, table, position_ids, heads, NULL, 0, {});
}

status cuda_kv_cache_write(struct backend *backend, struct tensor qkv, struct heads heads, struct kv_cache *cache,
                           int layer, struct tensor cache_slots) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct rope_args args;
    TRY(rope_args_init(&args, cuda, qkv, heads, cache, layer, cache_slots));
    if (qkv.rows == 0) return OK;
    LAUNCH_TYPE(qkv.type, kv_cache_write_kernel, (unsigned)qkv.rows, ROPE_THREADS, 0, cuda->stream, args);
    return cuda_launched("kv_cache_write");
}
