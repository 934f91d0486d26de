// What the kernels of attention are made of: the arguments of a layer, query rows, and products of tiles on tensor
// cores.
//
// In the tensor-core kernels a warp owns sixteen rows of a product, and a thread the elements that mma_bf16 gives it:
// of each eight columns the two at 2 (lane % 4), in the rows lane / 4 and lane / 4 + 8. Tiles stand in shared memory
// row by row, D + 8 elements apart, so that ldmatrix meets no bank conflict.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"

static const float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

enum { TENSOR_THREADS = 128 }; // four warps, sixteen rows each

// The matrices of eight columns side by side in a product.
template <int columns> constexpr size_t column_tiles = (size_t)columns / 8;

// A layer of a pass. Strides are in elements.
struct attention_args {
    const void *qkv; // [T, (H+2K)D]
    void *out;       // [T,H*D]
    float *lse;      // [T,H], or NULL
    int64_t qkv_stride, out_stride, lse_stride;
    const void *keys, *values; // [K][rows][D]
    int64_t cache_rows;
    int heads, key_heads, size; // H, K, D
    float scale;
    bool qkv_aligned, out_paired; // rows begin at multiples of 16 bytes
    const struct attention_tile *tiles;
    int tile_count;
};

// What the gradient of a query row's scores needs besides products.
struct alignas(8) grad_softmax {
    float lse_log2, delta;
};

// Cache rows.
struct alignas(8) grad_range {
    int32_t begin, len;
};

// Instead of a place, after the tile's last row, which sees no keys. It is a multiple of 16 bytes.
constexpr int64_t NO_ROW = -8;

// A query row of the gradient; kept for each row of a tile and key head.
struct alignas(16) grad_row {
    int64_t query, grad_out; // where its elements are in qkv and grad_out; or NO_ROW
    int32_t token, head;
    struct grad_softmax softmax;
    struct grad_range prefix, own; // the keys that it sees
};

// What the gradient adds. `out` of attention_args is read.
struct attention_grad_args {
    struct attention_args layer;
    const void *grad_out; // [T,H*D]
    void *grad_qkv;       // [T, (H+2K)D]
    int64_t grad_out_stride, grad_qkv_stride;
    bool grad_out_aligned, grad_qkv_paired;
    float *delta;          // [T,H]: out . grad_out; of attention_plain.cu
    struct grad_row *rows; // [K][tile_count][TILE_ROWS]; of tensor cores
    const int32_t *slots;
    int64_t slot_stride;
    const struct grad_block *blocks;
    const struct grad_part *parts;
    int block_count, part_count;
    float *partial; // [K][part_count][2][KEY_BLOCK][D]: gradients of keys, of values
};

// ---- elements ----

DEVICE float f32_from(float v) {
    return v;
}

DEVICE float f32_from(struct bf16 v) {
    return f32_from_bf16(v);
}

DEVICE void store_f32(float *to, float v) {
    *to = v;
}

DEVICE void store_f32(struct bf16 *to, float v) {
    *to = bf16_from_f32(v);
}

// Starts kernel<float>(...) or kernel<struct bf16>(...).
#define LAUNCH_TYPE(type, kernel, ...)                                                                                 \
    do {                                                                                                               \
        if ((type) == ELEMENT_F32)                                                                                     \
            LAUNCH(kernel<float>, __VA_ARGS__);                                                                        \
        else                                                                                                           \
            LAUNCH(kernel<struct bf16>, __VA_ARGS__);                                                                  \
    } while (0)

// call<D>, for the head sizes of tensor cores.
#define ATTENTION_OF_SIZE(size, call) ((size) == 64 ? call<64> : (size) == 80 ? call<80> : call<128>)

// ---- query rows ----

// The token of a row of a tile.
DEVICE int64_t tile_token(const struct attention_tile *tile, int row, int group) {
    return tile->q_begin + (tile->first + row) / group;
}

// The query head of a row of a tile.
DEVICE int tile_head(const struct attention_tile *tile, int row, int group, int key_head) {
    return key_head * group + (tile->first + row) % group;
}

// The first of its own cache rows that a row of a tile sees, counted from kv_begin.
DEVICE int tile_first(const struct attention_tile *tile, int row, int group) {
    int query = (tile->first + row) / group;
    return tile->window > 0 && query > tile->window ? query - tile->window : 0;
}

// The end of the own cache rows that a row of a tile sees, counted from kv_begin.
DEVICE int tile_end(const struct attention_tile *tile, int row, int group) {
    int query = (tile->first + row) / group, end = tile->visible + (tile->causal ? query : 0);
    return tile->window > 0 && end - query > tile->window ? query + tile->window + 1 : end;
}

// ---- steps ----

// The block-th step of a tile: `count` keys from the cache row `begin` on. The steps of own rows that no row of the
// tile sees are left out.
struct tile_step {
    int64_t begin;
    int first, count; // first: of the prefix or of the own rows
    bool is_prefix, ends_chunk;
};

DEVICE int tile_steps_of(int keys) {
    return (keys + KEY_BLOCK - 1) / KEY_BLOCK;
}

// The last row of the tile sees its own rows up to `own`, and the first row its own rows from the step `first` on.
DEVICE struct tile_step tile_step_of(const struct attention_tile *tile, int first, int own, int block) {
    struct tile_step step;
    int before = tile_steps_of(tile->prefix_len);
    step.is_prefix = block < before;
    step.first = (step.is_prefix ? block : block - before + first) * KEY_BLOCK;
    int keys = step.is_prefix ? tile->prefix_len : own;
    step.begin = (step.is_prefix ? tile->prefix_begin : tile->kv_begin) + step.first;
    step.count = keys - step.first < KEY_BLOCK ? keys - step.first : KEY_BLOCK;
    step.ends_chunk = (step.first + KEY_BLOCK) % CHUNK_KEYS == 0 || step.first + KEY_BLOCK >= keys;
    return step;
}

// ---- shared memory ----

// to[0..8) = from[0..8), or zeros if `from` is NULL; there after cp_async_wait and a barrier.
DEVICE void load_eight(struct bf16 *to, const struct bf16 *from, bool aligned) {
    if (from && aligned)
        cp_async16(to, from, 16);
    else
        for (int i = 0; i < 8; i++) to[i].bits = from ? from[i].bits : 0;
}

// The n-th piece of eight elements that a thread copies, of rows of D elements.
template <int D> DEVICE void piece_of(int n, int *row, int *column) {
    constexpr int pieces = D / 8, rows_at_once = TENSOR_THREADS / pieces;
    int self = (int)(threadIdx.x % TENSOR_THREADS), i = self + n * TENSOR_THREADS;
    *row = TENSOR_THREADS % pieces == 0 ? self / pieces + n * rows_at_once : i / pieces;
    *column = (TENSOR_THREADS % pieces == 0 ? self : i) % pieces * 8;
}

// How many pieces of `rows` rows the busiest thread copies.
template <int D, int rows> constexpr int pieces_of = (rows * (D / 8) + TENSOR_THREADS - 1) / TENSOR_THREADS;

// to[row] = from[row] of `rows` dense rows of D elements, for row < there; zeros for the rest. The rows of `from` are
// aligned.
template <int D, int rows> DEVICE void load_rows(struct bf16 *to, const struct bf16 *from, int there) {
    static_assert(rows * (D / 8) % TENSOR_THREADS == 0, "the threads copy alike");
    const struct bf16 *own = from + (int)threadIdx.x * 8;
#pragma unroll
    for (int n = 0; n < pieces_of<D, rows>; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        cp_async16(to + row * (D + 8) + column, own + n * TENSOR_THREADS * 8, row < there ? 16 : 0);
    }
}

// to[i] = row first + i of a tile in `from` [T,H*D], for i < rows; zeros after the tile's last row.
template <int D, int rows>
DEVICE void load_queries(struct bf16 *to, const void *from, int64_t stride, bool aligned,
                         const struct attention_tile *tile, int first, int group, int key_head) {
    for (int i = (int)threadIdx.x; i < rows * (D / 8); i += TENSOR_THREADS) {
        int row = first + i / (D / 8), column = i % (D / 8) * 8;
        const struct bf16 *head = NULL;
        if (row < tile->rows)
            head = (const struct bf16 *)from + tile_token(tile, row, group) * stride +
                   tile_head(tile, row, group, key_head) * D + column;
        load_eight(to + i / (D / 8) * (D + 8) + column, head, aligned);
    }
}

// ---- products ----
//
// A warp may have several matrices of sixteen rows one below the other: `tall`, of which one after the other stands in
// the thread's elements. Then it reads the other side's elements once for all of them.

// Sets a thread's elements of a product of so many columns to 0.
template <int columns> DEVICE void tile_clear(float sums[column_tiles<columns>][4]) {
#pragma unroll
    for (int n = 0; n < columns / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = 0;
}

// scores[16 tall,columns] = a[16 tall,D] b[columns,D]^T: `a` is the warp's first row. Every score is one sum over d, in
// order.
template <int D, int columns, int tall = 1>
DEVICE void tile_scores(float scores[column_tiles<columns * tall>][4], const struct bf16 *a, const struct bf16 *b) {
    int lane = lane_id();
    tile_clear<columns * tall>(scores);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t left[(size_t)tall][4];
#pragma unroll
        for (int m = 0; m < tall; m++)
            ldmatrix_x4<false>(left[m], a + (m * 16 + lane % 16) * (D + 8) + d + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < columns / 8; j += 2) {
            uint32_t right[4];
            ldmatrix_x4<false>(right, b + (j * 8 + lane / 16 * 8 + lane % 8) * (D + 8) + d + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < tall; m++) {
                mma_bf16(scores[m * (columns / 8) + j], left[m], right);
                mma_bf16(scores[m * (columns / 8) + j + 1], left[m], right + 2);
            }
        }
    }
}

// out[16 tall,D] += factors[16 tall,inner] b[inner,D]; the factors are rounded to bfloat16.
template <int D, int inner, int tall = 1>
DEVICE void tile_add(float out[column_tiles<D * tall>][4], const float factors[column_tiles<inner * tall>][4],
                     const struct bf16 *b) {
    int lane = lane_id();
#pragma unroll
    for (int j = 0; j < inner / 8; j += 2) {
        uint32_t left[(size_t)tall][4];
#pragma unroll
        for (int m = 0; m < tall; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = &factors[m * (inner / 8) + j + i / 2][i % 2 * 2];
                left[m][i] = pack_bf16(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t right[4];
            ldmatrix_x4<true>(right, b + (j * 8 + lane % 16) * (D + 8) + n * 8 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < tall; m++) {
                mma_bf16(out[m * (D / 8) + n], left[m], right);
                mma_bf16(out[m * (D / 8) + n + 1], left[m], right + 2);
            }
        }
    }
}

// ---- softmax ----

// The softmax of one chunk of keys for the two rows of a thread: the largest score (times log2(e)), the sum of
// exponentials, and the sum of values weighted by them. `sum` is of the thread's own columns until chunk_finish.
template <int D> struct chunk_sums { float max[2], sum[2], out[column_tiles<D>][4]; };

template <int D> DEVICE void chunk_clear(struct chunk_sums<D> *chunk) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        chunk->max[i] = -INFINITY;
        chunk->sum[i] = 0;
    }
    tile_clear<D>(chunk->out);
}

// Adds a block of keys, of which the thread's rows see those before end[0] and end[1], and with a window only those
// from first[0] and first[1] on. A key that a row does not see leaves the row's sums as they are, to the bit. `q` is
// the warp's first row.
template <int D, bool window>
DEVICE void chunk_add(struct chunk_sums<D> *chunk, const struct bf16 *q, const struct bf16 *keys,
                      const struct bf16 *values, const int first[2], const int end[2], float scale_log2) {
    int column = 2 * (lane_id() % 4);
    float p[KEY_BLOCK / 8][4], max[2] = {chunk->max[0], chunk->max[1]}, base[2], fade[2];
    tile_scores<D, KEY_BLOCK>(p, q, keys);
#pragma unroll
    for (int j = 0; j < KEY_BLOCK / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = j * 8 + column + e % 2;
            bool seen = key < end[e / 2] && (!window || key >= first[e / 2]);
            p[j][e] = seen ? mul_rn(p[j][e], scale_log2) : -INFINITY;
            max[e / 2] = fmaxf(max[e / 2], p[j][e]);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        max[i] = fmaxf(max[i], shuffle_xor(max[i], 1));
        max[i] = fmaxf(max[i], shuffle_xor(max[i], 2));
        base[i] = max[i] == -INFINITY ? 0.0f : max[i]; // so that the exponential of minus infinity is always 0
        fade[i] = exp2_approx(add_rn(chunk->max[i], -base[i]));
        chunk->max[i] = max[i];
        chunk->sum[i] = mul_rn(chunk->sum[i], fade[i]);
    }
#pragma unroll
    for (int j = 0; j < KEY_BLOCK / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            p[j][e] = exp2_approx(add_rn(p[j][e], -base[e / 2]));
            chunk->sum[e / 2] = add_rn(chunk->sum[e / 2], p[j][e]);
        }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) chunk->out[n][e] = mul_rn(chunk->out[n][e], fade[e / 2]);
    tile_add<D, KEY_BLOCK>(chunk->out, p, values);
}

// Completes the sums of exponentials over the columns.
template <int D> DEVICE void chunk_finish(struct chunk_sums<D> *chunk) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        chunk->sum[i] = add_rn(chunk->sum[i], shuffle_xor(chunk->sum[i], 1));
        chunk->sum[i] = add_rn(chunk->sum[i], shuffle_xor(chunk->sum[i], 2));
    }
}

// Merges the largest score and the sum of a chunk into those of the chunks before it. *keep and *take are the factors
// for chunk_merge. A chunk in which a row sees no key changes nothing.
DEVICE void chunk_merge_sums(float *max, float *sum, float chunk_max, float chunk_sum, float *keep, float *take) {
    float now = fmaxf(*max, chunk_max);
    *keep = *max == -INFINITY ? 0.0f : exp2_approx(add_rn(*max, -now));
    *take = chunk_max == -INFINITY ? 0.0f : exp2_approx(add_rn(chunk_max, -now));
    *sum = fma_rn(*sum, *keep, mul_rn(chunk_sum, *take));
    *max = now;
}

// Returns an output of all chunks so far.
DEVICE float chunk_merge(float total, float chunk, float keep, float take) {
    return fma_rn(total, keep, mul_rn(chunk, take));
}

// The log of the sum of exponentials of a row.
DEVICE float lse_of(float max, float sum) {
    return mul_rn(add_rn(max, log2f(sum)), ln_2);
}

// ---- results ----

// to[0], to[1] = the two numbers, rounded. `paired`: they are written together.
DEVICE void store_pair(struct bf16 *to, float low, float high, bool paired) {
    uint32_t pair = pack_bf16(low, high);
    if (paired) {
        *(uint32_t *)(void *)to = pair;
    } else {
        to[0].bits = (uint16_t)pair;
        to[1].bits = (uint16_t)(pair >> 16);
    }
}

// ---- the gradient ----

// The block that holds a cache row; NULL if no span names the row.
DEVICE const struct grad_block *grad_block_of(const struct attention_grad_args *a, int64_t slot) {
    int low = 0, high = a->block_count; // the blocks before `low` end at or before the slot
    while (low < high) {
        int middle = (low + high) / 2;
        if (a->blocks[middle].begin + a->blocks[middle].rows <= slot)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->block_count && slot >= a->blocks[low].begin ? &a->blocks[low] : NULL;
}

// ---- the versions of attention ----

// Whether tensor cores compute attention for these heads: it depends on nothing else, since the bits differ.
static inline bool attention_on_tensor_cores(struct heads heads, enum element type) {
    return type == ELEMENT_BF16 && (heads.size == 64 || heads.size == 80 || heads.size == 128) &&
           heads.query / heads.key <= TILE_ROWS;
}

// Fills the arguments of a layer (attention.cu).
void attention_args_init(struct attention_args *args, struct tensor out, struct tensor qkv, float scale,
                         const struct kv_cache *cache, int layer, const struct attention_plan *plan, struct tensor lse);

// Starts the kernels for any head size (attention_plain.cu).
status attention_plain(struct cuda_backend *cuda, const struct attention_plan *plan, const struct attention_args *args,
                       enum element type);

// Starts the kernels of the gradient for any head size (attention_plain.cu).
status attention_plain_grad(struct cuda_backend *cuda, const struct attention_plan *plan,
                            const struct attention_grad_args *args, enum element type);
