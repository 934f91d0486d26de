// Keys and values of all layers. Keys lie in blocks of sixteen rows, [K][rows / 16][D][16], so that scores are taken
// for sixteen keys at once; values lie row by row, [K][rows][width], zeros behind the first D columns.
#ifndef KERNELS_CPU_KV_CACHE_H
#define KERNELS_CPU_KV_CACHE_H

#include "kernels/ops.h"

struct kv_cache {
    struct heads heads;
    int layers;
    int width;    // D rounded up to sixteen
    int64_t rows; // a multiple of sixteen
    struct buffer *keys, *values;
};

// The keys of one key head in one layer, [rows / 16][D][16].
float *kv_cache_keys(const struct kv_cache *cache, int layer, int key_head);

// The values of one key head in one layer, [rows][width].
float *kv_cache_values(const struct kv_cache *cache, int layer, int key_head);

// Whether `layer` exists and the cache was made for these heads.
bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads);

// Whether every slot is a row of the cache: I32 [rows,1].
bool kv_cache_has_slots(const struct kv_cache *cache, struct tensor slots, int64_t rows);

#endif
