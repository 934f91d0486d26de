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

// ---- scores ----

// What the gradient of a query row's scores needs besides the products.
struct grad_row {
    float lse_log2, delta;
    int begin, end; // the keys that the row sees, of the block or of its own rows; none if begin >= end
};

DEVICE struct grad_row grad_row_of(const struct attention_grad_args *g, const struct attention_tile *tile, int row,
                                   int key_head) {
    const struct attention_args *a = &g->layer;
    struct grad_row out = {0, 0, 0, 0};
    if (row >= tile->rows) return out;
    int group = a->heads / a->key_heads, head = tile_head(tile, row, group, key_head);
    int64_t token = tile_token(tile, row, group);
    out.lse_log2 = mul_rn(a->lse[token * a->lse_stride + head], log2_e);
    out.delta = g->delta[token * a->heads + head];
    return out;
}

// *score becomes p, and *value (grad_out . value) the gradient of the score; both are 0 if the key is not seen.
DEVICE void grad_of_score(float *score, float *value, const struct grad_row *row, bool seen, float scale,
                          float scale_log2) {
    float p = seen ? exp2_approx(add_rn(mul_rn(*score, scale_log2), -row->lse_log2)) : 0.0f;
    *score = p;
    *value = seen ? mul_rn(mul_rn(p, add_rn(*value, -row->delta)), scale) : 0.0f;
}

// ---- the gradients of queries ----

// Writes the gradients of a thread's two query rows.
template <int D>
DEVICE void grad_store_queries(const struct attention_grad_args *g, const struct attention_tile *tile, int key_head,
                               const float sums[column_tiles<D>][4]) {
    int lane = lane_id(), group = g->layer.heads / g->layer.key_heads;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
        if (row >= tile->rows) continue;
        struct bf16 *to = (struct bf16 *)g->grad_qkv + tile_token(tile, row, group) * g->grad_qkv_stride +
                          tile_head(tile, row, group, key_head) * D + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < D / 8; n++) store_pair(to + n * 8, sums[n][2 * i], sums[n][2 * i + 1], g->grad_qkv_paired);
    }
}

// A block for each tile, the last one first, and each key head. In shared memory: queries, gradients of outputs, two
// blocks of keys, one of values. The next values are loaded once all warps have used these.
template <int D, bool window>
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_grad_queries_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct attention_tile tile = a.tiles[a.tile_count - 1 - (int)blockIdx.x];
    int key_head = (int)blockIdx.y, group = a.heads / a.key_heads, own = tile_end(&tile, tile.rows - 1, group);
    int first_step = window ? tile_first(&tile, 0, group) / KEY_BLOCK : 0;
    int steps = tile_steps_of(tile.prefix_len) + tile_steps_of(own) - first_step;
    int first_row = (int)threadIdx.x / 32 * 16, column = 2 * (lane_id() % 4);
    const struct bf16 *keys = (const struct bf16 *)a.keys + key_head * a.cache_rows * D;
    const struct bf16 *values = (const struct bf16 *)a.values + key_head * a.cache_rows * D;
    constexpr int tile_elements = TILE_ROWS * (D + 8);
    struct bf16 *q = (struct bf16 *)dynamic_shared(), *grad_out = q + tile_elements, *k = grad_out + tile_elements;
    struct bf16 *v = k + 2 * tile_elements;
    struct grad_row rows[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first_row + lane_id() / 4 + 8 * i;
        rows[i] = grad_row_of(&g, &tile, row, key_head);
        if (window) rows[i].begin = tile_first(&tile, row, group);
        rows[i].end = row < tile.rows ? tile_end(&tile, row, group) : 0;
    }
    load_queries<D, TILE_ROWS>(q, a.qkv, a.qkv_stride, a.qkv_aligned, &tile, 0, group, key_head);
    load_queries<D, TILE_ROWS>(grad_out, g.grad_out, g.grad_out_stride, g.grad_out_aligned, &tile, 0, group, key_head);
    struct tile_step step = tile_step_of(&tile, first_step, own, 0);
    load_rows<D, KEY_BLOCK>(k, keys + step.begin * D, step.count);
    load_rows<D, KEY_BLOCK>(v, values + step.begin * D, step.count);
    cp_async_commit();
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
#pragma unroll
        for (int j = 0; j < KEY_BLOCK / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int end = (step.is_prefix ? tile.prefix_len : rows[e / 2].end) - step.first;
                int key = j * 8 + column + e % 2;
                bool seen = key < end && (!window || step.is_prefix || key >= rows[e / 2].begin - step.first);
                grad_of_score(&p[j][e], &ds[j][e], &rows[e / 2], seen, a.scale, scale_log2);
            }
        tile_add<D, KEY_BLOCK>(sums, ds, step_keys);
        step = next;
    }
    grad_store_queries<D>(&g, &tile, key_head, sums);
}

// ---- the gradients of keys and values ----

// The query rows of one step, in shared memory.
template <int D> struct grad_stage {
    struct bf16 q[QUERY_STEP][(size_t)D + 8], grad_out[QUERY_STEP][(size_t)D + 8];
    struct grad_row rows[QUERY_STEP];
};

// Starts the copy of query rows [first, first + QUERY_STEP) of a tile, and finds which keys of the part's block they
// see.
template <int D>
DEVICE void grad_load_stage(struct grad_stage<D> *stage, const struct attention_grad_args *g,
                            const struct grad_part *part, int step, int key_head) {
    const struct attention_args *a = &g->layer;
    int group = a->heads / a->key_heads, steps_of_tile = TILE_ROWS / QUERY_STEP;
    struct attention_tile tile = a->tiles[part->first_tile + step / steps_of_tile];
    int first = step % steps_of_tile * QUERY_STEP, row = first + (int)threadIdx.x;
    load_queries<D, QUERY_STEP>(stage->q[0], a->qkv, a->qkv_stride, a->qkv_aligned, &tile, first, group, key_head);
    load_queries<D, QUERY_STEP>(stage->grad_out[0], g->grad_out, g->grad_out_stride, g->grad_out_aligned, &tile, first,
                                group, key_head);
    cp_async_commit();
    if (threadIdx.x >= QUERY_STEP) return;
    struct grad_row out = grad_row_of(g, &tile, row, key_head);
    if (row < tile.rows) {
        int begin = (part->is_prefix ? tile.prefix_begin : tile.kv_begin) - part->begin;
        out.begin = begin + (part->is_prefix ? 0 : tile_first(&tile, row, group));
        out.end = begin + (part->is_prefix ? tile.prefix_len : tile_end(&tile, row, group));
    }
    stage->rows[threadIdx.x] = out;
}

// Writes a part's gradients of the keys or the values of a block, [KEY_BLOCK][D].
template <int D> DEVICE void grad_store_part(float *to, const float sums[column_tiles<D>][4]) {
    int lane = lane_id(), row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) to[(row + e / 2 * 8) * D + n * 8 + 2 * (lane % 4) + e % 2] = sums[n][e];
}

// A block for each part and key head. A warp has the scores of sixteen keys and the query rows of a step.
template <int D>
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_grad_keys_kernel(struct attention_grad_args g) {
    const struct attention_args a = g.layer;
    struct grad_part part = g.parts[blockIdx.x];
    int key_head = (int)blockIdx.y, first_key = (int)threadIdx.x / 32 * 16, lane = lane_id();
    int steps = part.tiles * (TILE_ROWS / QUERY_STEP);
    const struct bf16 *keys = (const struct bf16 *)a.keys + (key_head * a.cache_rows + part.begin) * D;
    const struct bf16 *values = (const struct bf16 *)a.values + (key_head * a.cache_rows + part.begin) * D;
    struct bf16 *k = (struct bf16 *)dynamic_shared(), *v = k + KEY_BLOCK * (D + 8);
    struct grad_stage<D> *stages = (struct grad_stage<D> *)(v + KEY_BLOCK * (D + 8));
    load_rows<D, KEY_BLOCK>(k, keys, part.rows);
    load_rows<D, KEY_BLOCK>(v, values, part.rows);
    grad_load_stage<D>(&stages[0], &g, &part, 0, key_head);
    float grad_keys[column_tiles<D>][4], grad_values[column_tiles<D>][4], scale_log2 = mul_rn(a.scale, log2_e);
    tile_clear<D>(grad_keys);
    tile_clear<D>(grad_values);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the other stage any more
        const struct grad_stage<D> *stage = &stages[step % 2];
        if (step + 1 < steps) grad_load_stage<D>(&stages[(step + 1) % 2], &g, &part, step + 1, key_head);
        float p[QUERY_STEP / 8][4], ds[QUERY_STEP / 8][4];
        tile_scores<D, QUERY_STEP>(p, k + first_key * (D + 8), stage->q[0]);
        tile_scores<D, QUERY_STEP>(ds, v + first_key * (D + 8), stage->grad_out[0]);
#pragma unroll
        for (int j = 0; j < QUERY_STEP / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = first_key + lane / 4 + e / 2 * 8;
                const struct grad_row *row = &stage->rows[j * 8 + 2 * (lane % 4) + e % 2];
                grad_of_score(&p[j][e], &ds[j][e], row, key >= row->begin && key < row->end, a.scale, scale_log2);
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
    dim3 queries((unsigned)plan->tile_count, key_heads);
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
    // Delta and, on tensor cores, the sums of parts.
    size_t deltas = ((size_t)rows * (size_t)heads.query + 63) / 64 * 64, partials = 0;
    if (tensor_cores) partials = (size_t)plan->part_count * 2 * KEY_BLOCK * (size_t)(heads.size * heads.key);
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_ATTENTION, (deltas + partials) * sizeof(float), &args.delta));
    args.partial = args.delta + deltas;
    LAUNCH_TYPE(qkv.type, attention_delta_kernel, (unsigned)rows, DELTA_THREADS, 0, cuda->stream, args);
    if (!tensor_cores) return attention_plain_grad(cuda, plan, &args, qkv.type);
    return ATTENTION_OF_SIZE(heads.size, attention_grad_tensor)(cuda, plan, &args);
}
