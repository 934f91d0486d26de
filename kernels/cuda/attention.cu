// Attention of packed sequences on tensor cores; and the operation, which chooses a version.
//
// A block computes a tile of 64 query rows of one key head. It goes through the keys of the prefix and then of the own
// rows in blocks of 64; each chunk of 512 keys has its own softmax, and chunks are merged in order. So the bits of a
// row depend on its own keys and values alone: attention_decode.cu computes the same chunks apart and merges them with
// the same instructions.
#include "kernels/cuda/attention_device.h"

// The block-th step of a tile: `count` keys from the cache row `begin` on. The steps of own rows that no row of the
// tile sees are left out.
struct tile_step {
    int64_t begin;
    int index, count; // index: among the steps of the prefix or of the own rows
    bool is_prefix, ends_chunk;
};

DEVICE int tile_steps_of(int keys) {
    return (keys + key_block - 1) / key_block;
}

// The last row of the tile sees its own rows up to `own`, and the first row its own rows from the step `first` on.
DEVICE struct tile_step tile_step_of(const struct attention_tile *tile, int first, int own, int block) {
    struct tile_step step;
    int before = tile_steps_of(tile->prefix_len);
    step.is_prefix = block < before;
    step.index = step.is_prefix ? block : block - before + first;
    int at = step.index * key_block, keys = step.is_prefix ? tile->prefix_len : own;
    step.begin = (step.is_prefix ? tile->prefix_begin : tile->kv_begin) + at;
    step.count = keys - at < key_block ? keys - at : key_block;
    step.ends_chunk = (at + key_block) % chunk_keys == 0 || at + key_block >= keys;
    return step;
}

// Starts the copy of a step's keys and values to to[0..64) and to[64..128).
template <int D>
DEVICE void tile_step_load(struct bf16 *to, const struct bf16 *keys, const struct bf16 *values,
                           const struct tile_step *step) {
    load_rows<D, key_block>(to, keys + step->begin * D, step->count);
    load_rows<D, key_block>(to + key_block * (D + 8), values + step->begin * D, step->count);
    cp_async_commit();
}

// Writes the two rows of a thread.
template <int D>
DEVICE void tile_store(const struct attention_args *a, const struct attention_tile *tile, int key_head,
                       const float total[column_tiles<D>][4], const float max[2], const float sum[2]) {
    int lane = lane_id(), group = a->heads / a->key_heads;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
        if (row >= tile->rows) continue;
        int64_t token = tile_token(tile, row, group);
        int head = tile_head(tile, row, group, key_head);
        struct bf16 *out = (struct bf16 *)a->out + token * a->out_stride + head * D + 2 * (lane % 4);
        float factor = div_rn(1.0f, sum[i]);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(out + n * 8, mul_rn(total[n][2 * i], factor), mul_rn(total[n][2 * i + 1], factor),
                       a->out_paired);
        if (a->lse && lane % 4 == 0) a->lse[token * a->lse_stride + head] = lse_of(max[i], sum[i]);
    }
}

// A block for each tile, the last tile first: it has the most keys; and for each key head.
template <int D, bool window>
__global__ void __launch_bounds__(tensor_threads, 2) attention_kernel(struct attention_args a) {
    struct attention_tile tile = a.tiles[a.tile_count - 1 - (int)blockIdx.x];
    int key_head = (int)blockIdx.y, group = a.heads / a.key_heads, warp = (int)threadIdx.x / 32;
    const struct bf16 *keys = (const struct bf16 *)a.keys + key_head * a.cache_rows * D;
    const struct bf16 *values = (const struct bf16 *)a.values + key_head * a.cache_rows * D;
    struct bf16 *q = (struct bf16 *)dynamic_shared(), *stages = q + tile_rows * (D + 8);
    int own = tile_end(&tile, tile.rows - 1, group), first[2] = {0, 0}, end[2];
    int first_step = window ? tile_first(&tile, 0, group) / key_block : 0;
    int steps = tile_steps_of(tile.prefix_len) + tile_steps_of(own) - first_step;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = warp * 16 + lane_id() / 4 + 8 * i;
        if (window) first[i] = tile_first(&tile, row, group);
        end[i] = row < tile.rows ? tile_end(&tile, row, group) : 0;
    }
    struct tile_step step = tile_step_of(&tile, first_step, own, 0);
    load_queries<D, tile_rows>(q, a.qkv, a.qkv_stride, a.qkv_aligned, &tile, 0, group, key_head);
    tile_step_load<D>(stages, keys, values, &step);
    float total[column_tiles<D>][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0},
                                     scale_log2 = mul_rn(a.scale, log2_e);
    struct chunk_sums<D> chunk;
    chunk_clear(&chunk);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) total[n][e] = 0;
    for (int block = 0; block < steps; block++) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the other stage any more
        const struct bf16 *stage = stages + block % 2 * 2 * key_block * (D + 8);
        struct tile_step next = tile_step_of(&tile, first_step, own, block + 1);
        if (block + 1 < steps)
            tile_step_load<D>(stages + (block + 1) % 2 * 2 * key_block * (D + 8), keys, values, &next);
        int seen[2], hidden[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            seen[i] = (step.is_prefix ? tile.prefix_len : end[i]) - step.index * key_block;
            hidden[i] = (step.is_prefix ? 0 : first[i]) - step.index * key_block;
        }
        chunk_add<D, window>(&chunk, q + warp * 16 * (D + 8), stage, stage + key_block * (D + 8), hidden, seen,
                             scale_log2);
        if (step.ends_chunk) {
            float keep[2], take[2];
            chunk_finish<D>(&chunk);
#pragma unroll
            for (int i = 0; i < 2; i++)
                chunk_merge_sums(&max[i], &sum[i], chunk.max[i], chunk.sum[i], &keep[i], &take[i]);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    total[n][e] = chunk_merge(total[n][e], chunk.out[n][e], keep[e / 2], take[e / 2]);
            chunk_clear(&chunk);
        }
        step = next;
    }
    tile_store<D>(&a, &tile, key_head, total, max, sum);
}

template <int D>
static status attention_packed(struct cuda_backend *cuda, const struct attention_plan *plan,
                               const struct attention_args *args) {
    size_t shared = (size_t)(tile_rows + 4 * key_block) * (D + 8) * sizeof(struct bf16);
    dim3 grid((unsigned)plan->tile_count, (unsigned)args->key_heads);
    if (plan->has_window)
        LAUNCH((attention_kernel<D, true>), grid, tensor_threads, shared, cuda->stream, *args);
    else
        LAUNCH((attention_kernel<D, false>), grid, tensor_threads, shared, cuda->stream, *args);
    return cuda_launched("attention");
}

void attention_args_init(struct attention_args *args, struct tensor out, struct tensor qkv, float scale,
                         const struct kv_cache *cache, int layer, const struct attention_plan *plan,
                         struct tensor lse) {
    *args = {};
    args->qkv = tensor_row(qkv, 0);
    args->out = tensor_row(out, 0);
    args->lse = (float *)tensor_row(lse, 0);
    args->qkv_stride = qkv.stride;
    args->out_stride = out.stride;
    args->lse_stride = lse.stride;
    args->keys = kv_cache_layer(cache, cache->keys, layer);
    args->values = kv_cache_layer(cache, cache->values, layer);
    args->cache_rows = cache->rows;
    args->heads = plan->heads.query;
    args->key_heads = plan->heads.key;
    args->size = plan->heads.size;
    args->scale = scale;
    args->qkv_aligned = tensor_aligned16(qkv);
    args->out_paired = tensor_aligned16(out);
    args->tiles = plan->tiles;
    args->tile_count = plan->tile_count;
}

status cuda_attention(struct backend *backend, struct tensor out, struct tensor qkv, float scale,
                      struct kv_cache *cache, int layer, const struct attention_plan *plan, struct tensor lse) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct heads heads = plan->heads;
    CHECK(kv_cache_fits(cache, layer, heads, qkv.type) && plan->kv_end <= cache->rows && plan->rows == out.rows);
    CHECK(tensor_is(qkv, -1, out.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(out, (int)qkv.type, out.rows, heads.query * heads.size));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, out.rows, heads.query));
    if (out.rows == 0) return OK;
    struct attention_args args;
    attention_args_init(&args, out, qkv, scale, cache, layer, plan, lse);
    if (!attention_on_tensor_cores(heads, qkv.type)) return attention_plain(cuda, plan, &args, qkv.type);
    if (plan->decode) return attention_decode(cuda, plan, &args);
    switch (heads.size) {
    case 64:
        return attention_packed<64>(cuda, plan, &args);
    case 80:
        return attention_packed<80>(cuda, plan, &args);
    default:
        return attention_packed<128>(cuda, plan, &args);
    }
}
