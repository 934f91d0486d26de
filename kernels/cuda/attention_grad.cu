// The gradient of attention, recomputed from the log-sum-exp that the forward pass stored; on tensor cores, or by
// attention_plain.cu.
//
// With p = exp(score - lse) and delta = out . grad_out, the gradient of a score is p (grad_out . value - delta) scale.
// One kernel computes the gradients of a tile of queries over all its keys. Another computes those of a block of 64
// keys and values over some tiles of queries (a part); parts are added in order. Nothing is added atomically.
#include "kernels/cuda/attention_device.h"

enum {
    DELTA_THREADS = 128,
    REDUCE_THREADS = 128,
    QUERY_STEP = 32, // query rows that are added to the gradients of a block of keys at a time
    ROW_STAGES = 3,  // steps of which the rows are known
    KEY_ROWS = 32,   // keys of a warp
};

// ---- out . grad_out ----

// A block for each token; a warp takes one head after the other.
template <typename T> __global__ void attention_delta_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    int64_t token = blockIdx.x;
    for (int head = (int)threadIdx.x / 32; head < a.heads; head += DELTA_THREADS / 32) {
        const T *out = (const T *)a.out + token * a.out_stride + head * a.size;
        const T *grad_out = (const T *)g.grad_out + token * g.grad_out_stride + head * a.size;
        float sum = 0;
        for (int d = lane_id(); d < a.size; d += 32) sum = fma_rn(f32_from(out[d]), f32_from(grad_out[d]), sum);
        for (int lanes = 16; lanes > 0; lanes /= 2) sum = add_rn(sum, shuffle_xor(sum, lanes));
        if (lane_id() == 0) g.delta[token * a.heads + head] = sum;
    }
}

// ---- query rows ----

// A block for each tile and key head: what the other kernels need of its rows. A warp takes 16 rows, some at a time.
template <int D> __global__ void attention_grad_rows_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct attention_tile tile = a.tiles[blockIdx.x];
    int key_head = (int)blockIdx.y, group = a.heads / a.key_heads, first = (int)threadIdx.x / 32 * 16;
    float delta = 0;
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        int row = first + i < tile.rows ? first + i : tile.rows - 1, head = tile_head(&tile, row, group, key_head);
        int64_t token = tile_token(&tile, row, group);
        const struct bf16 *out = (const struct bf16 *)a.out + token * a.out_stride + head * D;
        const struct bf16 *grad_out = (const struct bf16 *)g.grad_out + token * g.grad_out_stride + head * D;
        float sum = 0;
#pragma unroll
        for (int d = lane_id(); d < D; d += 32) sum = fma_rn(f32_from(out[d]), f32_from(grad_out[d]), sum);
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) sum = add_rn(sum, shuffle_xor(sum, lanes));
        if (lane_id() == i) delta = sum;
    }
    int row = first + lane_id();
    if (lane_id() >= 16) return;
    struct grad_row to = {NO_ROW, NO_ROW, 0, 0, {0, 0}, {0, 0}, {0, 0}};
    if (row < tile.rows) {
        int begin = tile_first(&tile, row, group), end = tile_end(&tile, row, group);
        to.token = (int32_t)tile_token(&tile, row, group);
        to.head = tile_head(&tile, row, group, key_head);
        to.query = to.token * a.qkv_stride + to.head * D;
        to.grad_out = to.token * g.grad_out_stride + to.head * D;
        to.softmax.lse_log2 = mul_rn(a.lse[to.token * a.lse_stride + to.head], log2_e);
        to.softmax.delta = delta;
        to.prefix.begin = tile.prefix_begin;
        to.prefix.len = tile.prefix_len;
        to.own.begin = tile.kv_begin + begin;
        to.own.len = end - begin;
    }
    g.rows[((int64_t)key_head * a.tile_count + blockIdx.x) * TILE_ROWS + row] = to;
}

// The rows of a tile.
DEVICE const struct grad_row *grad_rows_of(const struct attention_grad_args *g, int tile, int key_head) {
    return g->rows + ((int64_t)key_head * g->layer.tile_count + tile) * TILE_ROWS;
}

// to[i] = the elements of rows[i] in `from`, for i < count; zeros where there is no row. `place` is the row's place.
template <int D, int count>
DEVICE void grad_load_queries(struct bf16 *to, const void *from, bool aligned, const struct grad_row *rows,
                              int64_t grad_row::*place) {
    const struct bf16 *elements = (const struct bf16 *)from;
    if (!aligned) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < count * (D / 8); i += TENSOR_THREADS) {
            int row = i / (D / 8), column = i % (D / 8) * 8;
            int64_t at = rows[row].*place;
            load_eight(to + row * (D + 8) + column, at == NO_ROW ? NULL : elements + at + column, false);
        }
        return;
    }
    int64_t at[(size_t)pieces_of<D, count>]; // all known before the first copy, which no load passes
#pragma unroll
    for (int n = 0; n < pieces_of<D, count>; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        at[n] = row < count ? rows[row].*place : NO_ROW;
    }
#pragma unroll
    for (int n = 0; n < pieces_of<D, count>; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        if ((n + 1) * TENSOR_THREADS > count * (D / 8) && row >= count) continue;
        cp_async16(to + row * (D + 8) + column, elements + at[n] + column, at[n] == NO_ROW ? 0 : 16);
    }
}

// ---- scores ----

// Returns v, or 0 where the condition does not hold: without a branch.
DEVICE float masked(float v, bool condition) {
    return f32_from_bits(bits_from_f32(v) & (0u - (uint32_t)condition));
}

// Returns p, the probability of a key in a row's softmax; 0 if the key is not seen.
DEVICE float grad_probability(float score, float lse_log2, float scale_log2, bool seen) {
    return masked(exp2_approx(add_rn(mul_rn(score, scale_log2), -lse_log2)), seen);
}

// Returns the gradient of a score, of grad_out . value; 0 if the key is not seen.
DEVICE float grad_of_score(float p, float value, float delta, float scale, bool seen) {
    return masked(mul_rn(mul_rn(p, add_rn(value, -delta)), scale), seen);
}

// ---- the gradients of queries ----

// Writes the gradients of a thread's two query rows.
template <int D>
DEVICE void grad_store_queries(const struct attention_grad_args *g, const struct grad_row *rows,
                               const float sums[column_tiles<D>][4]) {
    int lane = lane_id();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const struct grad_row *row = rows + (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
        if (row->query == NO_ROW) continue;
        struct bf16 *to = (struct bf16 *)g->grad_qkv + row->token * g->grad_qkv_stride + row->head * D + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < D / 8; n++) store_pair(to + n * 8, sums[n][2 * i], sums[n][2 * i + 1], g->grad_qkv_paired);
    }
}

// A block for each tile, the last one first, and each key head. In shared memory: queries, gradients of outputs, two
// blocks of keys, one of values. The next values are loaded once all warps have used these.
template <int D, bool window>
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_grad_queries_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    int tile_index = a.tile_count - 1 - (int)blockIdx.x, key_head = (int)blockIdx.y;
    struct attention_tile tile = a.tiles[tile_index];
    const struct grad_row *rows = grad_rows_of(&g, tile_index, key_head);
    int group = a.heads / a.key_heads, own = tile_end(&tile, tile.rows - 1, group);
    int first_step = window ? tile_first(&tile, 0, group) / KEY_BLOCK : 0;
    int steps = tile_steps_of(tile.prefix_len) + tile_steps_of(own) - first_step;
    int first_row = (int)threadIdx.x / 32 * 16, column = 2 * (lane_id() % 4);
    const struct bf16 *keys = (const struct bf16 *)a.keys + key_head * a.cache_rows * D;
    const struct bf16 *values = (const struct bf16 *)a.values + key_head * a.cache_rows * D;
    constexpr int tile_elements = TILE_ROWS * (D + 8);
    struct bf16 *q = (struct bf16 *)dynamic_shared(), *grad_out = q + tile_elements, *k = grad_out + tile_elements;
    struct bf16 *v = k + 2 * tile_elements;
    struct tile_step step = tile_step_of(&tile, first_step, own, 0);
    load_rows<D, KEY_BLOCK>(k, keys + step.begin * D, step.count);
    load_rows<D, KEY_BLOCK>(v, values + step.begin * D, step.count);
    grad_load_queries<D, TILE_ROWS>(q, a.qkv, a.qkv_aligned, rows, &grad_row::query);
    grad_load_queries<D, TILE_ROWS>(grad_out, g.grad_out, g.grad_out_aligned, rows, &grad_row::grad_out);
    cp_async_commit();
    float lse_log2[2], delta[2];
    int own_begin[2], own_len[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct grad_row row = rows[first_row + lane_id() / 4 + 8 * i];
        lse_log2[i] = row.softmax.lse_log2;
        delta[i] = row.softmax.delta;
        own_begin[i] = row.own.begin - tile.kv_begin;
        own_len[i] = row.own.len;
    }
    float sums[column_tiles<D>][4], scale_log2 = mul_rn(a.scale, log2_e);
    tile_clear<D>(sums);
    for (int block = 0; block < steps; block++) {
        const struct bf16 *step_keys = k + block % 2 * tile_elements;
        float p[KEY_BLOCK / 8][4], ds[KEY_BLOCK / 8][4];
        cp_async_wait<0>();
        __syncthreads();
        tile_scores<D, KEY_BLOCK>(ds, grad_out + first_row * (D + 8), v);
        __syncthreads(); // the values may be overwritten, and so may the other keys
        struct tile_step next = tile_step_of(&tile, first_step, own, block + 1);
        if (block + 1 < steps) {
            load_rows<D, KEY_BLOCK>(k + (block + 1) % 2 * tile_elements, keys + next.begin * D, next.count);
            load_rows<D, KEY_BLOCK>(v, values + next.begin * D, next.count);
            cp_async_commit();
        }
        tile_scores<D, KEY_BLOCK>(p, q + first_row * (D + 8), step_keys);
        int begin[2], len[2]; // the keys of the step that a row sees
#pragma unroll
        for (int i = 0; i < 2; i++) {
            begin[i] = (step.is_prefix || !window ? 0 : own_begin[i]) - step.first - column;
            len[i] = step.is_prefix ? tile.prefix_len : own_len[i];
        }
#pragma unroll
        for (int j = 0; j < KEY_BLOCK / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = j * 8 + e % 2, i = e / 2;
                bool seen = window ? (uint32_t)(key - begin[i]) < (uint32_t)len[i] : key < begin[i] + len[i];
                float probability = grad_probability(p[j][e], lse_log2[i], scale_log2, true);
                ds[j][e] = grad_of_score(probability, ds[j][e], delta[i], a.scale, seen);
            }
        tile_add<D, KEY_BLOCK>(sums, ds, step_keys);
        step = next;
    }
    grad_store_queries<D>(&g, rows, sums);
}

// ---- the gradients of keys and values ----

// The query rows of one step, in shared memory.
template <int D> struct grad_stage { struct bf16 q[QUERY_STEP][(size_t)D + 8], grad_out[QUERY_STEP][(size_t)D + 8]; };

// Starts the copy of what `rows`, in shared memory, name.
template <int D>
DEVICE void grad_load_stage(struct grad_stage<D> *stage, const struct attention_grad_args *g,
                            const struct grad_row *rows) {
    grad_load_queries<D, QUERY_STEP>(stage->q[0], g->layer.qkv, g->layer.qkv_aligned, rows, &grad_row::query);
    grad_load_queries<D, QUERY_STEP>(stage->grad_out[0], g->grad_out, g->grad_out_aligned, rows, &grad_row::grad_out);
}

// Starts the copy of QUERY_STEP rows.
DEVICE void grad_load_rows(struct grad_row *to, const struct grad_row *from) {
    int self = (int)threadIdx.x;
    if (self < QUERY_STEP * (int)sizeof *to / 16)
        cp_async16((char *)to + self * 16, (const char *)from + self * 16, 16);
}

// Four elements of a thread, which are moved at once.
struct alignas(16) grad_quad {
    float of[4];
};

// A warp's elements of the scores of a step.
enum { STEP_QUADS = KEY_ROWS / 16 * (QUERY_STEP / 8) };

// p[keys,rows] of scores; also written to probabilities[i][lane]. `key` is the thread's first key, and `rows` are the
// step's.
DEVICE void grad_probabilities(float p[STEP_QUADS][4], struct grad_quad *probabilities, const struct grad_row *rows,
                               int key, bool is_prefix, float scale_log2) {
    int lane = lane_id();
#pragma unroll
    for (int j = 0; j < QUERY_STEP / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const struct grad_row *row = &rows[j * 8 + 2 * (lane % 4) + i];
            struct grad_softmax softmax = row->softmax;
            struct grad_range seen = *(is_prefix ? &row->prefix : &row->own);
#pragma unroll
            for (int m = 0; m < KEY_ROWS / 8; m++) {
                float *score = &p[m / 2 * (QUERY_STEP / 8) + j][m % 2 * 2 + i];
                bool sees = (uint32_t)(key + m * 8 - seen.begin) < (uint32_t)seen.len;
                *score = grad_probability(*score, softmax.lse_log2, scale_log2, sees);
            }
        }
#pragma unroll
        for (int m = 0; m < KEY_ROWS / 16; m++) {
            int at = m * (QUERY_STEP / 8) + j;
            struct grad_quad quad = {{p[at][0], p[at][1], p[at][2], p[at][3]}};
            probabilities[at * 32 + lane] = quad;
        }
    }
}

// The gradients of scores, of grad_out . value and of what grad_probabilities wrote: p is 0 where a key is not seen.
DEVICE void grad_of_scores(float values[STEP_QUADS][4], const struct grad_quad *probabilities,
                           const struct grad_row *rows, float scale) {
    int lane = lane_id();
#pragma unroll
    for (int j = 0; j < QUERY_STEP / 8; j++) {
        const struct grad_row *row = &rows[j * 8 + 2 * (lane % 4)];
        float delta[2] = {row[0].softmax.delta, row[1].softmax.delta};
#pragma unroll
        for (int m = 0; m < KEY_ROWS / 16; m++) {
            int at = m * (QUERY_STEP / 8) + j;
            struct grad_quad p = probabilities[at * 32 + lane];
#pragma unroll
            for (int e = 0; e < 4; e++)
                values[at][e] = grad_of_score(p.of[e], values[at][e], delta[e % 2], scale, p.of[e] != 0);
        }
    }
}

// Writes a warp's gradients of the keys or the values of a block, [KEY_BLOCK][D].
template <int D> DEVICE void grad_store_part(float *to, int first_key, const float sums[column_tiles<2 * D>][4]) {
    int lane = lane_id(), row = first_key + lane / 4;
#pragma unroll
    for (int n = 0; n < KEY_ROWS / 16 * (D / 8); n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[(row + n / (D / 8) * 16 + e / 2 * 8) * D + n % (D / 8) * 8 + 2 * (lane % 4) + e % 2] = sums[n][e];
}

// A block for each part and key head. A pair of warps has 32 keys: one computes p and the gradients of values, and the
// other, which takes p from it, the gradients of scores and keys. Queries and gradients of outputs are loaded one step
// ahead, and what tells where they are another step before.
template <int D>
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_grad_keys_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct grad_part part = g.parts[blockIdx.x];
    int key_head = (int)blockIdx.y, warp = (int)threadIdx.x / 32, first_key = warp % 2 * KEY_ROWS;
    bool of_values = warp < 2;
    int steps = part.tiles * (TILE_ROWS / QUERY_STEP), own_key = part.begin + first_key + lane_id() / 4;
    const struct bf16 *keys = (const struct bf16 *)a.keys + (key_head * a.cache_rows + part.begin) * D;
    const struct bf16 *values = (const struct bf16 *)a.values + (key_head * a.cache_rows + part.begin) * D;
    const struct grad_row *all_rows = grad_rows_of(&g, part.first_tile, key_head);
    struct bf16 *k = (struct bf16 *)dynamic_shared(), *v = k + KEY_BLOCK * (D + 8);
    struct grad_stage<D> *stages = (struct grad_stage<D> *)(v + KEY_BLOCK * (D + 8));
    struct grad_row *rows = (struct grad_row *)(stages + 2); // of step i from i % ROW_STAGES * QUERY_STEP on
    struct grad_quad *probabilities = (struct grad_quad *)(rows + ROW_STAGES * QUERY_STEP) + warp % 2 * STEP_QUADS * 32;
    grad_load_rows(rows, all_rows);
    grad_load_rows(rows + QUERY_STEP, all_rows + QUERY_STEP);
    cp_async_commit();
    load_rows<D, KEY_BLOCK>(k, keys, part.rows);
    load_rows<D, KEY_BLOCK>(v, values, part.rows);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    grad_load_stage<D>(&stages[0], &g, rows);
    cp_async_commit();
    float sums[column_tiles<2 * D>][4], scale_log2 = mul_rn(a.scale, log2_e);
    tile_clear<2 * D>(sums);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the other stage any more
        const struct grad_stage<D> *stage = &stages[step % 2];
        const struct grad_row *step_rows = rows + step % ROW_STAGES * QUERY_STEP;
        const struct bf16 *q = stage->q[0], *grad_out = stage->grad_out[0];
        if (step + 1 < steps)
            grad_load_stage<D>(&stages[(step + 1) % 2], &g, rows + (step + 1) % ROW_STAGES * QUERY_STEP);
        if (step + 2 < steps)
            grad_load_rows(rows + (step + 2) % ROW_STAGES * QUERY_STEP, all_rows + (step + 2) * QUERY_STEP);
        cp_async_commit();
        float factors[STEP_QUADS][4];
        tile_scores<D, QUERY_STEP, KEY_ROWS / 16>(factors, (of_values ? k : v) + first_key * (D + 8),
                                                  of_values ? q : grad_out);
        if (of_values) grad_probabilities(factors, probabilities, step_rows, own_key, part.is_prefix, scale_log2);
        __syncthreads(); // p is there
        if (!of_values) grad_of_scores(factors, probabilities, step_rows, a.scale);
        tile_add<D, QUERY_STEP, KEY_ROWS / 16>(sums, factors, of_values ? grad_out : q);
    }
    float *to = g.partial + ((int64_t)key_head * g.part_count + blockIdx.x) * (2 * KEY_BLOCK * D);
    grad_store_part<D>(to + (of_values ? KEY_BLOCK * D : 0), first_key, sums);
}

// A block for each token and key head: the sum of the parts of the token's cache row, or zeros if no span names it.
__global__ void attention_grad_reduce_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    int64_t token = blockIdx.x, slot = g.slots[token * g.slot_stride];
    int key_head = (int)blockIdx.y;
    const struct grad_block *block = grad_block_of(&g, slot);
    struct bf16 *to = (struct bf16 *)g.grad_qkv + token * g.grad_qkv_stride + (a.heads + key_head) * a.size;
    for (int i = (int)threadIdx.x; i < 2 * a.size; i += REDUCE_THREADS) {
        int which = i / a.size, d = i % a.size; // 0: key, 1: value
        float sum = 0;
        for (int part = 0; block && part < block->parts; part++) {
            int64_t at = (int64_t)key_head * g.part_count + block->first_part + part;
            sum = add_rn(sum, g.partial[((2 * at + which) * KEY_BLOCK + slot - block->begin) * a.size + d]);
        }
        to[which * a.key_heads * a.size + d] = bf16_from_f32(sum);
    }
}

// ---- the operation ----

template <int D>
static status attention_grad_tensor(struct cuda_backend *cuda, const struct attention_plan *plan,
                                    const struct attention_grad_args *args) {
    unsigned key_heads = (unsigned)plan->heads.key;
    size_t tile_bytes = (size_t)TILE_ROWS * (D + 8) * sizeof(struct bf16);
    size_t keys_shared = 2 * tile_bytes + 2 * sizeof(struct grad_stage<D>);
    keys_shared += ROW_STAGES * QUERY_STEP * sizeof(struct grad_row) + KEY_BLOCK * QUERY_STEP * sizeof(float);
    dim3 queries((unsigned)plan->tile_count, key_heads);
    LAUNCH(attention_grad_rows_kernel<D>, queries, TENSOR_THREADS, 0, cuda->stream, *args);
    if (plan->has_window)
        LAUNCH((attention_grad_queries_kernel<D, true>), queries, TENSOR_THREADS, 5 * tile_bytes, cuda->stream, *args);
    else
        LAUNCH((attention_grad_queries_kernel<D, false>), queries, TENSOR_THREADS, 5 * tile_bytes, cuda->stream, *args);
    if (plan->part_count > 0)
        LAUNCH(attention_grad_keys_kernel<D>, dim3((unsigned)plan->part_count, key_heads), TENSOR_THREADS, keys_shared,
               cuda->stream, *args);
    LAUNCH(attention_grad_reduce_kernel, dim3((unsigned)plan->rows, key_heads), REDUCE_THREADS, 0, cuda->stream, *args);
    return cuda_launched("attention_grad");
}

status cuda_attention_grad(struct backend *backend, struct tensor grad_qkv, struct tensor grad_out, struct tensor out,
                           struct tensor qkv, float scale, struct kv_cache *cache, int layer,
                           const struct attention_plan *plan, struct tensor lse) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct heads heads = plan->heads;
    int64_t rows = out.rows, columns = (heads.query + 2 * heads.key) * heads.size;
    int type = (int)qkv.type;
    CHECK(kv_cache_fits(cache, layer, heads, qkv.type) && plan->kv_end <= cache->rows && plan->rows == rows);
    CHECK(tensor_is(plan->cache_slots, ELEMENT_I32, rows, 1));
    CHECK(tensor_is(qkv, -1, rows, columns) && tensor_is(grad_qkv, type, rows, columns));
    CHECK(tensor_is(out, type, rows, heads.query * heads.size));
    CHECK(tensor_is(grad_out, type, rows, heads.query * heads.size));
    CHECK(tensor_is(lse, ELEMENT_F32, rows, heads.query));
    if (rows == 0) return OK;
    bool tensor_cores = attention_on_tensor_cores(heads, qkv.type);
    struct attention_grad_args args = {};
    attention_args_init(&args.layer, out, qkv, scale, cache, layer, plan, lse);
    args.grad_out = tensor_row(grad_out, 0);
    args.grad_qkv = tensor_row(grad_qkv, 0);
    args.grad_out_stride = grad_out.stride;
    args.grad_qkv_stride = grad_qkv.stride;
    args.grad_out_aligned = tensor_aligned16(grad_out);
    args.grad_qkv_paired = tensor_aligned16(grad_qkv);
    args.slots = (const int32_t *)tensor_row(plan->cache_slots, 0);
    args.slot_stride = plan->cache_slots.stride;
    args.blocks = plan->blocks;
    args.parts = plan->parts;
    args.block_count = plan->block_count;
    args.part_count = plan->part_count;
    if (!tensor_cores) {
        size_t deltas = (size_t)rows * (size_t)heads.query * sizeof(float);
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_ATTENTION, deltas, &args.delta));
        LAUNCH_TYPE(qkv.type, attention_delta_kernel, (unsigned)rows, DELTA_THREADS, 0, cuda->stream, args);
        return attention_plain_grad(cuda, plan, &args, qkv.type);
    }
    size_t row_bytes = (size_t)heads.key * (size_t)plan->tile_count * TILE_ROWS * sizeof(struct grad_row);
    size_t partial_bytes = (size_t)plan->part_count * 2 * KEY_BLOCK * (size_t)(heads.size * heads.key) * sizeof(float);
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_ATTENTION, row_bytes + partial_bytes, &args.rows));
    args.partial = (float *)((char *)args.rows + row_bytes);
    return ATTENTION_OF_SIZE(heads.size, attention_grad_tensor)(cuda, plan, &args);
}
