// The KV cache: keys and values of all layers in float32. The attention kernels and rope.c read and write its memory
// directly.
//
// Keys are stored in blocks of sixteen rows, [K][rows / 16][D][16], so that the scores of sixteen keys are computed at
// once. Values are stored row by row, [K][rows][width]; the columns after the first D are 0.
#ifndef KERNELS_CPU_KV_CACHE_H
#define KERNELS_CPU_KV_CACHE_H

#include "kernels/ops.h"

struct cpu_backend;

enum { kv_block = 16 }; // rows in a block of keys

struct kv_cache {
    struct heads heads;
    int layers;
    int width;    // D rounded up to a multiple of kv_block
    int64_t rows; // a multiple of kv_block
    struct buffer *keys, *values;
};

// n rounded up to a multiple of kv_block.
static inline int64_t kv_block_align(int64_t n) {
    return (n + kv_block - 1) / kv_block * kv_block;
}

// The keys of one key/value head in one layer, [rows / 16][D][16]; valid as long as the cache.
float *kv_cache_keys(const struct kv_cache *cache, int layer, int kv_head);

// The values of one key/value head in one layer, [rows][width]; valid as long as the cache.
float *kv_cache_values(const struct kv_cache *cache, int layer, int kv_head);

// Stores `count` tokens in the rows slots[0..count) of all key/value heads of a layer. Token i is at
// kv[i * stride]: K heads of keys, then K heads of values, D floats each. A token with the slot -1 is not stored.
void kv_cache_store(const struct cpu_backend *cpu, const struct kv_cache *cache, int layer, const int32_t *slots,
                    const float *kv, int64_t stride, int64_t count);

// Whether `layer` exists and the cache was made for these heads.
bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads);

// Whether `slots` is I32 [rows,1] and every slot is at least `least` and less than the rows of the cache.
bool kv_cache_has_slots(const struct kv_cache *cache, struct tensor slots, int64_t rows, int32_t least);

#endif
