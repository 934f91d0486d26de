// Attention and its gradient for any head size, in float32 and bfloat16: what the tensor cores do not do.
//
// A block computes one query row, or the gradients of one cache row's key and value. Its threads take the keys (or
// query rows) of a step, one each, and then the elements d of the result, one each. Every score is one chain of fused
// multiply-adds over d, every result one chain over cache rows (or query rows).
#include "kernels/cuda/attention_device.h"

enum { PLAIN_KEYS = 128 }; // threads of a block, and keys or query rows in a step

// The cache rows that a query row sees: the prefix and its own.
struct plain_range {
    int64_t begin;
    int count;
};

DEVICE struct plain_range plain_range_of(const struct attention_tile *tile, int row, int group, int which) {
    struct plain_range range = {tile->prefix_begin, tile->prefix_len};
    if (which == 1) {
        int first = tile_first(tile, row, group);
        range.begin = tile->kv_begin + first;
        range.count = tile_end(tile, row, group) - first;
    }
    return range;
}

// The chain over d of a[d] b[d].
template <typename T> DEVICE float plain_dot(const float *a, const T *b, int size) {
    float sum = 0;
    for (int d = 0; d < size; d++) sum = fma_rn(a[d], f32_from(b[d]), sum);
    return sum;
}

// ---- forward ----

// A block for each tile, row of the tile and key head.
template <typename T> __global__ void attention_plain_kernel(struct attention_args a) {
    struct attention_tile tile = a.tiles[blockIdx.x];
    int row = (int)blockIdx.y, key_head = (int)blockIdx.z, group = a.heads / a.key_heads, self = (int)threadIdx.x;
    if (row >= tile.rows) return;
    int64_t token = tile_token(&tile, row, group);
    int head = tile_head(&tile, row, group, key_head);
    const T *query = (const T *)a.qkv + token * a.qkv_stride + head * a.size;
    const T *keys = (const T *)a.keys + key_head * a.cache_rows * a.size;
    const T *values = (const T *)a.values + key_head * a.cache_rows * a.size;
    float *q = (float *)dynamic_shared(), *out = q + a.size, *p = out + a.size;
    for (int d = self; d < a.size; d += PLAIN_KEYS) {
        q[d] = f32_from(query[d]);
        out[d] = 0;
    }
    __syncthreads();
    float max = -INFINITY, sum = 0, scale_log2 = mul_rn(a.scale, log2_e);
    for (int which = 0; which < 2; which++) {
        struct plain_range range = plain_range_of(&tile, row, group, which);
        for (int first = 0; first < range.count; first += PLAIN_KEYS) {
            int count = range.count - first < PLAIN_KEYS ? range.count - first : PLAIN_KEYS;
            int64_t begin = (range.begin + first) * a.size;
            if (self < count) p[self] = mul_rn(plain_dot(q, keys + begin + self * a.size, a.size), scale_log2);
            __syncthreads();
            float before = max;
            for (int i = 0; i < count; i++) max = fmaxf(max, p[i]);
            __syncthreads();
            if (self < count) p[self] = exp2_approx(add_rn(p[self], -max));
            __syncthreads();
            float fade = before == -INFINITY ? 0.0f : exp2_approx(add_rn(before, -max));
            sum = mul_rn(sum, fade);
            for (int i = 0; i < count; i++) sum = add_rn(sum, p[i]);
            for (int d = self; d < a.size; d += PLAIN_KEYS) {
                float total = mul_rn(out[d], fade);
                for (int i = 0; i < count; i++) total = fma_rn(p[i], f32_from(values[begin + i * a.size + d]), total);
                out[d] = total;
            }
            __syncthreads();
        }
    }
    float factor = sum > 0 ? div_rn(1.0f, sum) : sum; // 0: an idle row sees nothing; NaN stays
    T *to = (T *)a.out + token * a.out_stride + head * a.size;
    for (int d = self; d < a.size; d += PLAIN_KEYS) store_f32(&to[d], mul_rn(out[d], factor));
    if (a.lse && self == 0) a.lse[token * a.lse_stride + head] = lse_of(max, sum);
}

status attention_plain(struct cuda_backend *cuda, const struct attention_plan *plan, const struct attention_args *args,
                       enum element type) {
    dim3 grid((unsigned)plan->tile_count, (unsigned)plan->max_rows, (unsigned)args->key_heads);
    size_t shared = (size_t)(2 * args->size + PLAIN_KEYS) * sizeof(float);
    LAUNCH_TYPE(type, attention_plain_kernel, grid, PLAIN_KEYS, shared, cuda->stream, *args);
    return cuda_launched("attention");
}

// ---- the gradient of queries ----

// The probability of a key, and the gradient of its score.
struct plain_score {
    float p, grad;
};

DEVICE struct plain_score plain_score_of(float score, float value, float lse, float delta, float scale) {
    struct plain_score out;
    out.p = exp2_approx(add_rn(mul_rn(score, mul_rn(scale, log2_e)), -mul_rn(lse, log2_e)));
    out.grad = mul_rn(mul_rn(out.p, add_rn(value, -delta)), scale);
    return out;
}

// A block for each tile, row of the tile and key head.
template <typename T> __global__ void attention_plain_grad_queries_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct attention_tile tile = a.tiles[blockIdx.x];
    int row = (int)blockIdx.y, key_head = (int)blockIdx.z, group = a.heads / a.key_heads, self = (int)threadIdx.x;
    if (row >= tile.rows) return;
    int64_t token = tile_token(&tile, row, group);
    int head = tile_head(&tile, row, group, key_head);
    const T *query = (const T *)a.qkv + token * a.qkv_stride + head * a.size;
    const T *grad_out = (const T *)g.grad_out + token * g.grad_out_stride + head * a.size;
    const T *keys = (const T *)a.keys + key_head * a.cache_rows * a.size;
    const T *values = (const T *)a.values + key_head * a.cache_rows * a.size;
    float *q = (float *)dynamic_shared(), *go = q + a.size, *dq = go + a.size, *ds = dq + a.size;
    for (int d = self; d < a.size; d += PLAIN_KEYS) {
        q[d] = f32_from(query[d]);
        go[d] = f32_from(grad_out[d]);
        dq[d] = 0;
    }
    __syncthreads();
    float lse = a.lse[token * a.lse_stride + head], delta = g.delta[token * a.heads + head];
    for (int which = 0; which < 2; which++) {
        struct plain_range range = plain_range_of(&tile, row, group, which);
        for (int first = 0; first < range.count; first += PLAIN_KEYS) {
            int count = range.count - first < PLAIN_KEYS ? range.count - first : PLAIN_KEYS;
            int64_t begin = (range.begin + first) * a.size;
            if (self < count) {
                float score = plain_dot(q, keys + begin + self * a.size, a.size);
                float value = plain_dot(go, values + begin + self * a.size, a.size);
                ds[self] = plain_score_of(score, value, lse, delta, a.scale).grad;
            }
            __syncthreads();
            for (int d = self; d < a.size; d += PLAIN_KEYS)
                for (int i = 0; i < count; i++) dq[d] = fma_rn(ds[i], f32_from(keys[begin + i * a.size + d]), dq[d]);
            __syncthreads();
        }
    }
    T *to = (T *)g.grad_qkv + token * g.grad_qkv_stride + head * a.size;
    for (int d = self; d < a.size; d += PLAIN_KEYS) store_f32(&to[d], dq[d]);
}

// ---- the gradients of keys and values ----

// A block for each token and key head: the cache row of the token, in shared memory.
struct plain_key {
    float *key, *value, *grad_key, *grad_value; // [D]
    float *p, *ds;                              // [PLAIN_KEYS], of query rows
};

// p and the gradient of the score of row `row` of a tile and the cache row `slot`; zeros if the row does not see it.
template <typename T>
DEVICE struct plain_score plain_row_score(const struct attention_grad_args *g, const struct plain_key *key,
                                          const struct attention_tile *tile, int row, int key_head, int is_prefix,
                                          int64_t slot) {
    const struct attention_args *a = &g->layer;
    int group = a->heads / a->key_heads;
    struct plain_range range = plain_range_of(tile, row, group, is_prefix ? 0 : 1);
    struct plain_score none = {0, 0};
    if (slot < range.begin || slot >= range.begin + range.count) return none;
    int64_t token = tile_token(tile, row, group);
    int head = tile_head(tile, row, group, key_head);
    float score = plain_dot(key->key, (const T *)a->qkv + token * a->qkv_stride + head * a->size, a->size);
    float value = plain_dot(key->value, (const T *)g->grad_out + token * g->grad_out_stride + head * a->size, a->size);
    return plain_score_of(score, value, a->lse[token * a->lse_stride + head], g->delta[token * a->heads + head],
                          a->scale);
}

// Adds the rows of a tile to the gradients of the block's cache row.
template <typename T>
DEVICE void plain_add_tile(const struct attention_grad_args *g, const struct plain_key *key,
                           const struct attention_tile *tile, int key_head, int is_prefix, int64_t slot) {
    const struct attention_args *a = &g->layer;
    int group = a->heads / a->key_heads, self = (int)threadIdx.x;
    for (int first = 0; first < tile->rows; first += PLAIN_KEYS) {
        int count = tile->rows - first < PLAIN_KEYS ? tile->rows - first : PLAIN_KEYS;
        if (self < count) {
            struct plain_score score = plain_row_score<T>(g, key, tile, first + self, key_head, is_prefix, slot);
            key->p[self] = score.p;
            key->ds[self] = score.grad;
        }
        __syncthreads();
        for (int d = self; d < a->size; d += PLAIN_KEYS)
            for (int i = 0; i < count; i++) {
                int64_t token = tile_token(tile, first + i, group);
                int element = tile_head(tile, first + i, group, key_head) * a->size + d;
                float q = f32_from(((const T *)a->qkv)[token * a->qkv_stride + element]);
                float go = f32_from(((const T *)g->grad_out)[token * g->grad_out_stride + element]);
                key->grad_key[d] = fma_rn(key->ds[i], q, key->grad_key[d]);
                key->grad_value[d] = fma_rn(key->p[i], go, key->grad_value[d]);
            }
        __syncthreads();
    }
}

template <typename T> __global__ void attention_plain_grad_keys_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    int64_t token = blockIdx.x, slot = g.slots[token * g.slot_stride];
    int key_head = (int)blockIdx.y, self = (int)threadIdx.x;
    const struct grad_block *block = grad_block_of(&g, slot);
    float *shared = (float *)dynamic_shared();
    struct plain_key key = {shared,
                            shared + a.size,
                            shared + 2 * a.size,
                            shared + 3 * a.size,
                            shared + 4 * a.size,
                            shared + 4 * a.size + PLAIN_KEYS};
    int64_t from = block ? (key_head * a.cache_rows + slot) * a.size : 0;
    for (int d = self; d < a.size; d += PLAIN_KEYS) {
        key.key[d] = f32_from(((const T *)a.keys)[from + d]);
        key.value[d] = f32_from(((const T *)a.values)[from + d]);
        key.grad_key[d] = key.grad_value[d] = 0;
    }
    __syncthreads();
    for (int i = 0; block && i < block->parts; i++) {
        struct grad_part part = g.parts[block->first_part + i];
        for (int t = 0; t < part.tiles; t++) {
            struct attention_tile tile = a.tiles[part.first_tile + t];
            plain_add_tile<T>(&g, &key, &tile, key_head, part.is_prefix, slot);
        }
    }
    T *to = (T *)g.grad_qkv + token * g.grad_qkv_stride + (a.heads + key_head) * a.size;
    for (int d = self; d < a.size; d += PLAIN_KEYS) {
        store_f32(&to[d], key.grad_key[d]);
        store_f32(&to[a.key_heads * a.size + d], key.grad_value[d]);
    }
}

status attention_plain_grad(struct cuda_backend *cuda, const struct attention_plan *plan,
                            const struct attention_grad_args *args, enum element type) {
    const struct attention_args *a = &args->layer;
    dim3 rows((unsigned)plan->tile_count, (unsigned)plan->max_rows, (unsigned)a->key_heads);
    dim3 keys((unsigned)plan->rows, (unsigned)a->key_heads);
    size_t rows_shared = (size_t)(3 * a->size + PLAIN_KEYS) * sizeof(float);
    size_t keys_shared = (size_t)(4 * a->size + 2 * PLAIN_KEYS) * sizeof(float);
    LAUNCH_TYPE(type, attention_plain_grad_queries_kernel, rows, PLAIN_KEYS, rows_shared, cuda->stream, *args);
    LAUNCH_TYPE(type, attention_plain_grad_keys_kernel, keys, PLAIN_KEYS, keys_shared, cuda->stream, *args);
    return cuda_launched("attention_grad");
}
