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
    ROW_STAGES = 4,  // steps of which the rows are known
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
    struct grad_row to = {-1, 0, 0, 0, 0, 0, 0, 0};
    if (row < tile.rows) {
        int begin = tile_first(&tile, row, group), end = tile_end(&tile, row, group);
        to.token = (int32_t)tile_token(&tile, row, group);
        to.head = tile_head(&tile, row, group, key_head);
        to.lse_log2 = mul_rn(a.lse[to.token * a.lse_stride + to.head], log2_e);
        to.delta = delta;
        to.prefix_begin = tile.prefix_begin;
        to.prefix_len = tile.prefix_len;
        to.own_begin = tile.kv_begin + begin;
        to.own_len = end - begin;
    }
    g.rows[((int64_t)key_head * a.tile_count + blockIdx.x) * TILE_ROWS + row] = to;
}

// The rows of a tile.
DEVICE const struct grad_row *grad_rows_of(const struct attention_grad_args *g, int tile, int key_head) {
    return g->rows + ((int64_t)key_head * g->layer.tile_count + tile) * TILE_ROWS;
}

// to[i] = the elements of rows[i] in `from` [T,H*D], for i < count; zeros after a tile's last row.
template <int D, int count>
DEVICE void grad_load_queries(struct bf16 *to, const void *from, int64_t stride, bool aligned,
                              const struct grad_row *rows) {
    constexpr int pieces = pieces_of<D, count>;
    if (!aligned) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < count * (D / 8); i += TENSOR_THREADS) {
            const struct grad_row *row = rows + i / (D / 8);
            int column = i % (D / 8) * 8;
            const struct bf16 *head = (const struct bf16 *)from + row->token * stride + row->head * D + column;
            load_eight(to + i / (D / 8) * (D + 8) + column, row->token < 0 ? NULL : head, false);
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < pieces; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        if ((n + 1) * TENSOR_THREADS > count * (D / 8) && row >= count) continue;
        int token = rows[row].token, head = rows[row].head;
        cp_async16(to + row * (D + 8) + column, (const struct bf16 *)from + token * stride + head * D + column,
                   token < 0 ? 0 : 16);
    }
}

// ---- scores ----

// Returns v, or 0 where the condition does not hold: without a branch.
DEVICE float masked(float v, bool condition) {
    return f32_from_bits(bits_from_f32(v) & (0u - (uint32_t)condition));
}

// *score becomes p, and *value (grad_out . value) the gradient of the score; both are 0 if the key is not seen.
DEVICE void grad_of_score(float *score, float *value, float lse_log2, float delta, bool seen, float scale,
                          float scale_log2) {
    float p = exp2_approx(add_rn(mul_rn(*score, scale_log2), -lse_log2));
    *value = masked(mul_rn(mul_rn(p, add_rn(*value, -delta)), scale), seen);
    *score = masked(p, seen);
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
        if (row->token < 0) continue;
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
    grad_load_queries<D, TILE_ROWS>(q, a.qkv, a.qkv_stride, a.qkv_aligned, rows);
    grad_load_queries<D, TILE_ROWS>(grad_out, g.grad_out, g.grad_out_stride, g.grad_out_aligned, rows);
    cp_async_commit();
    float lse_log2[2], delta[2];
    int own_begin[2], own_len[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct grad_row row = rows[first_row + lane_id() / 4 + 8 * i];
        lse_log2[i] = row.lse_log2;
        delta[i] = row.delta;
        own_begin[i] = row.own_begin - tile.kv_begin;
        own_len[i] = row.own_len;
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
                grad_of_score(&p[j][e], &ds[j][e], lse_log2[i], delta[i], seen, a.scale, scale_log2);
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
    const struct attention_args *a = &g->layer;
    grad_load_queries<D, QUERY_STEP>(stage->q[0], a->qkv, a->qkv_stride, a->qkv_aligned, rows);
    grad_load_queries<D, QUERY_STEP>(stage->grad_out[0], g->grad_out, g->grad_out_stride, g->grad_out_aligned, rows);
}

// Starts the copy of QUERY_STEP rows.
DEVICE void grad_load_rows(struct grad_row *to, const struct grad_row *from) {
    int self = (int)threadIdx.x;
    if (self < QUERY_STEP * (int)sizeof *to / 16)
        cp_async16((char *)to + self * 16, (const char *)from + self * 16, 16);
}

// Writes a part's gradients of the keys or the values of a block, [KEY_BLOCK][D].
template <int D> DEVICE void grad_store_part(float *to, const float sums[column_tiles<D>][4]) {
    int lane = lane_id(), row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) to[(row + e / 2 * 8) * D + n * 8 + 2 * (lane % 4) + e % 2] = sums[n][e];
}

// A block for each part and key head. A warp has the scores of sixteen keys and the query rows of a step. Queries and
// gradients of outputs are loaded one step ahead, and what tells where they are another step before.
template <int D>
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_grad_keys_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct grad_part part = g.parts[blockIdx.x];
    int key_head = (int)blockIdx.y, first_key = (int)threadIdx.x / 32 * 16, lane = lane_id();
    int steps = part.tiles * (TILE_ROWS / QUERY_STEP), own_key = part.begin + first_key + lane / 4;
    const struct bf16 *keys = (const struct bf16 *)a.keys + (key_head * a.cache_rows + part.begin) * D;
    const struct bf16 *values = (const struct bf16 *)a.values + (key_head * a.cache_rows + part.begin) * D;
    const struct grad_row *all_rows = grad_rows_of(&g, part.first_tile, key_head);
    struct bf16 *k = (struct bf16 *)dynamic_shared(), *v = k + KEY_BLOCK * (D + 8);
    struct grad_stage<D> *stages = (struct grad_stage<D> *)(v + KEY_BLOCK * (D + 8));
    struct grad_row *rows = (struct grad_row *)(stages + 2); // of step i from i % ROW_STAGES * QUERY_STEP on
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
    float grad_keys[column_tiles<D>][4], grad_values[column_tiles<D>][4], scale_log2 = mul_rn(a.scale, log2_e);
    tile_clear<D>(grad_keys);
    tile_clear<D>(grad_values);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the other stage any more
        const struct grad_stage<D> *stage = &stages[step % 2];
        const struct grad_row *step_rows = rows + step % ROW_STAGES * QUERY_STEP;
        if (step + 1 < steps)
            grad_load_stage<D>(&stages[(step + 1) % 2], &g, rows + (step + 1) % ROW_STAGES * QUERY_STEP);
        if (step + 2 < steps)
            grad_load_rows(rows + (step + 2) % ROW_STAGES * QUERY_STEP, all_rows + (step + 2) * QUERY_STEP);
        cp_async_commit();
        float p[QUERY_STEP / 8][4], ds[QUERY_STEP / 8][4];
        tile_scores<D, QUERY_STEP>(p, k + first_key * (D + 8), stage->q[0]);
        tile_scores<D, QUERY_STEP>(ds, v + first_key * (D + 8), stage->grad_out[0]);
#pragma unroll
        for (int j = 0; j < QUERY_STEP / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const struct grad_row *row = &step_rows[j * 8 + 2 * (lane % 4) + i];
                const int32_t *seen = part.is_prefix ? &row->prefix_begin : &row->own_begin;
                float lse_log2 = row->lse_log2, delta = row->delta;
                uint32_t begin = (uint32_t)seen[0], len = (uint32_t)seen[1];
#pragma unroll
                for (int e = i; e < 4; e += 2)
                    grad_of_score(&p[j][e], &ds[j][e], lse_log2, delta, (uint32_t)(own_key + e / 2 * 8) - begin < len,
                                  a.scale, scale_log2);
            }
        tile_add<D, QUERY_STEP>(grad_values, p, stage->grad_out[0]);
        tile_add<D, QUERY_STEP>(grad_keys, ds, stage->q[0]);
    }
    float *to = g.partial + ((int64_t)key_head * g.part_count + blockIdx.x) * (2 * KEY_BLOCK * D);
    grad_store_part<D>(to, grad_keys);
    grad_store_part<D>(to + KEY_BLOCK * D, grad_values);
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
    keys_shared += ROW_STAGES * QUERY_STEP * sizeof(struct grad_row);
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
