// Attention on tensor cores, of packed sequences and of one token for each sequence; and the operation, which chooses a
// version.
//
// In a packed pass a block computes a tile of 64 query rows of one key head. It goes through the keys of the prefix and
// then of the own rows in blocks of 64; each chunk of 512 keys has its own softmax, and chunks are merged in order. So
// the bits of a row depend on its own keys and values alone: decoding computes the same chunks apart and merges them
// with the same instructions.
#include "kernels/cuda/attention_device.h"

enum {
    DIVIDE_THREADS = MAX_DECODE_ROWS,
    MERGE_THREADS = 64,
    BLOCKS_PER_PROCESSOR = 4,
};

// The shared memory of a block: the query rows of a tile, and two blocks of keys and of values.
template <int D>
constexpr size_t attention_shared = (size_t)(TILE_ROWS + 4 * KEY_BLOCK) * (D + 8) * sizeof(struct bf16);

// ---- packed ----

// Starts the copy of the block-th 64 of `count` keys and values, from the cache row `begin` on, to to[0..64) and
// to[64..128).
template <int D>
DEVICE void load_step(struct bf16 *to, const struct bf16 *keys, const struct bf16 *values, int64_t begin, int count,
                      int block) {
    int left = count - block * KEY_BLOCK;
    load_rows<D, KEY_BLOCK>(to, keys + (begin + block * KEY_BLOCK) * D, left);
    load_rows<D, KEY_BLOCK>(to + KEY_BLOCK * (D + 8), values + (begin + block * KEY_BLOCK) * D, left);
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
__global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_kernel(struct attention_args a) {
    struct attention_tile tile = a.tiles[a.tile_count - 1 - (int)blockIdx.x];
    int key_head = (int)blockIdx.y, group = a.heads / a.key_heads, warp = (int)threadIdx.x / 32;
    const struct bf16 *keys = (const struct bf16 *)a.keys + key_head * a.cache_rows * D;
    const struct bf16 *values = (const struct bf16 *)a.values + key_head * a.cache_rows * D;
    struct bf16 *q = (struct bf16 *)dynamic_shared(), *stages = q + TILE_ROWS * (D + 8);
    int own = tile_end(&tile, tile.rows - 1, group), first[2] = {0, 0}, end[2];
    int first_step = window ? tile_first(&tile, 0, group) / KEY_BLOCK : 0;
    int steps = tile_steps_of(tile.prefix_len) + tile_steps_of(own) - first_step;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = warp * 16 + lane_id() / 4 + 8 * i;
        if (window) first[i] = tile_first(&tile, row, group);
        end[i] = row < tile.rows ? tile_end(&tile, row, group) : 0;
    }
    struct tile_step step = tile_step_of(&tile, first_step, own, 0);
    load_queries<D, TILE_ROWS>(q, a.qkv, a.qkv_stride, a.qkv_aligned, &tile, 0, group, key_head);
    load_step<D>(stages, keys, values, step.begin, step.count, 0);
    float total[column_tiles<D>][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0},
                                     scale_log2 = mul_rn(a.scale, log2_e);
    struct chunk_sums<D> chunk;
    chunk_clear(&chunk);
    tile_clear<D>(total);
    for (int block = 0; block < steps; block++) {
        cp_async_wait<0>();
        __syncthreads(); // the step is there, and nobody reads the other stage any more
        const struct bf16 *stage = stages + block % 2 * 2 * KEY_BLOCK * (D + 8);
        struct tile_step next = tile_step_of(&tile, first_step, own, block + 1);
        if (block + 1 < steps)
            load_step<D>(stages + (block + 1) % 2 * 2 * KEY_BLOCK * (D + 8), keys, values, next.begin, next.count, 0);
        int seen[2], hidden[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            seen[i] = (step.is_prefix ? tile.prefix_len : end[i]) - step.first;
            hidden[i] = (step.is_prefix ? 0 : first[i]) - step.first;
        }
        chunk_add<D, window>(&chunk, q + warp * 16 * (D + 8), stage, stage + KEY_BLOCK * (D + 8), hidden, seen,
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
    dim3 grid((unsigned)plan->tile_count, (unsigned)args->key_heads);
    if (plan->has_window)
        LAUNCH((attention_kernel<D, true>), grid, TENSOR_THREADS, attention_shared<D>, cuda->stream, *args);
    else
        LAUNCH((attention_kernel<D, false>), grid, TENSOR_THREADS, attention_shared<D>, cuda->stream, *args);
    return cuda_launched("attention");
}

// ---- decode ----
//
// A block computes one chunk of 512 keys for all tokens that see it whole: the rows of all branches after a prefix, or
// the own rows of one token. The largest scores, sums and outputs of chunks are written in float32, and a second kernel
// merges the chunks of each row in order.
//
// What the blocks do is divided on the device, because a decode batch's spans change there.

// The sums of one chunk for one query row: D outputs, then these two.
enum { MAX_PARTIAL, PARTIAL_SUM, PARTIAL_EXTRA };

DEVICE int decode_chunks_of(int keys) {
    return (keys + CHUNK_KEYS - 1) / CHUNK_KEYS;
}

// For each tile, in shared memory.
struct decode_sharing {
    int first; // the first tile with the same prefix
    int rank;  // how many of the tiles before it have the same prefix
    int begin; // of the tiles with its prefix, in decode_work's order; set for their first tile
};

DEVICE bool decode_same_prefix(const struct attention_tile *a, const struct attention_tile *b) {
    return a->prefix_begin == b->prefix_begin && a->prefix_len == b->prefix_len;
}

DEVICE void decode_add_region(struct decode_work *work, int begin, int len, int first_token, int tokens,
                              int is_prefix) {
    if (len == 0) return;
    struct decode_region region = {begin, len, first_token, tokens, is_prefix, work->chunks};
    work->region[work->regions++] = region;
    work->chunks += decode_chunks_of(len);
}

// Lists the prefixes, each for up to `tokens` tokens at a time, and then the own rows.
DEVICE void decode_list_regions(struct decode_work *work, struct decode_sharing *sharing,
                                const struct attention_tile *tiles, int count, int tokens) {
    work->regions = work->chunks = 0;
    for (int i = 0, begin = 0; i < count; i++) {
        if (sharing[i].rank > 0) continue;
        int same = 0;
        for (int j = i; j < count; j++) same += sharing[j].first == i;
        sharing[i].begin = begin;
        for (int first = 0; first < same; first += tokens)
            decode_add_region(work, tiles[i].prefix_begin, tiles[i].prefix_len, begin + first,
                              same - first < tokens ? same - first : tokens, 1);
        begin += same;
    }
    for (int i = 0; i < count; i++)
        decode_add_region(work, tiles[i].kv_begin, tiles[i].visible, MAX_DECODE_ROWS + i, 1, 0);
}

// Makes a tile idle that sees more chunks than there is room for.
DEVICE void decode_check_room(const struct decode_work *work, struct attention_tile *tile, uint32_t *reports) {
    int chunks = decode_chunks_of(tile->prefix_len) + decode_chunks_of(tile->visible);
    if (chunks <= work->sums.max_chunks) return;
    report_error(reports, CUDA_REPORT_SLOT);
    tile->prefix_len = tile->visible = 0;
}

// One block. `tokens` is how many tokens a region of a prefix may have.
__global__ void attention_decode_divide_kernel(struct decode_work *work, struct attention_tile *tiles, int count,
                                               int tokens, uint32_t *reports) {
    struct decode_sharing *sharing = (struct decode_sharing *)dynamic_shared();
    int self = (int)threadIdx.x;
    if (self < count) decode_check_room(work, &tiles[self], reports);
    __syncthreads();
    if (self < count) {
        int first = 0, rank = 0;
        while (!decode_same_prefix(&tiles[first], &tiles[self])) first++;
        for (int j = first; j < self; j++) rank += decode_same_prefix(&tiles[j], &tiles[self]);
        sharing[self].first = first;
        sharing[self].rank = rank;
    }
    __syncthreads();
    if (self == 0) decode_list_regions(work, sharing, tiles, count, tokens);
    __syncthreads();
    if (self < count) {
        work->order[sharing[sharing[self].first].begin + sharing[self].rank] = self;
        work->order[MAX_DECODE_ROWS + self] = self;
    }
}

status attention_plan_divide(struct cuda_backend *cuda, const struct attention_plan *plan) {
    CHECK(plan->decode && plan->tile_count <= MAX_DECODE_ROWS);
    int group = plan->heads.query / plan->heads.key, tokens = group < TILE_ROWS ? TILE_ROWS / group : 1;
    LAUNCH(attention_decode_divide_kernel, 1, DIVIDE_THREADS, MAX_DECODE_ROWS * sizeof(struct decode_sharing),
           cuda->stream, plan->decode, plan->tiles, plan->tile_count, tokens, cuda->reports);
    return cuda_launched("attention_plan_divide");
}

struct decode_args {
    struct attention_args layer;
    const struct decode_work *work;
};

// The sums of a query row in its chunk-th chunk; own chunks come after those of the prefix.
DEVICE float *decode_partial(const struct decode_args *g, int64_t tile, int head, int chunk) {
    const struct attention_args *a = &g->layer;
    const struct decode_sums *sums = &g->work->sums;
    return sums->data + ((tile * a->heads + head) * sums->max_chunks + chunk) * (a->size + PARTIAL_EXTRA);
}

// The region of a chunk: the last one that begins at it or before. The lanes of a warp look at a region each.
DEVICE struct decode_region decode_region_of(const struct decode_work *work, int chunk) {
    int count = 0, regions = work->regions;
#pragma unroll 4
    for (int i = lane_id(); i < regions; i += 32) count += work->region[i].first_chunk <= chunk;
    for (int lanes = 16; lanes > 0; lanes /= 2) count += shuffle_xor(count, lanes);
    return work->region[count - 1];
}

// Where a query row of the region's tokens is, of which each has H / K; the first row's place after the last one.
template <int D>
DEVICE const struct bf16 *decode_row_of(const struct decode_args *g, const struct decode_region *region, int row,
                                        int key_head) {
    const struct attention_args *a = &g->layer;
    int group = a->heads / a->key_heads, there = row < region->tokens * group ? row : 0, token = there / group;
    int64_t query = a->tiles[g->work->order[region->first_token + token]].q_begin;
    return (const struct bf16 *)a->qkv + query * a->qkv_stride + (key_head * group + there - token * group) * D;
}

// to[row] = the query rows of the region's tokens; zeros after the last.
template <int D>
DEVICE void decode_load_queries(struct bf16 *to, const struct decode_args *g, const struct decode_region *region,
                                int key_head) {
    int rows = region->tokens * (g->layer.heads / g->layer.key_heads);
    if (!g->layer.qkv_aligned) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < TILE_ROWS * (D / 8); i += TENSOR_THREADS) {
            int row = i / (D / 8), column = i % (D / 8) * 8;
            const struct bf16 *from = decode_row_of<D>(g, region, row, key_head) + column;
            load_eight(to + row * (D + 8) + column, row < rows ? from : NULL, false);
        }
        return;
    }
    const struct bf16 *from[(size_t)pieces_of<D, TILE_ROWS>]; // all known before the first copy, which no load passes
#pragma unroll
    for (int n = 0; n < pieces_of<D, TILE_ROWS>; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        from[n] = decode_row_of<D>(g, region, row, key_head) + column;
    }
#pragma unroll
    for (int n = 0; n < pieces_of<D, TILE_ROWS>; n++) {
        int row, column;
        piece_of<D>(n, &row, &column);
        cp_async16(to + row * (D + 8) + column, from[n], row < rows ? 16 : 0);
    }
}

// Writes the sums of a thread's two rows.
template <int D>
DEVICE void decode_store(const struct decode_args *g, const struct decode_region *region, int key_head, int index,
                         const struct chunk_sums<D> *chunk) {
    int lane = lane_id(), group = g->layer.heads / g->layer.key_heads;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
        if (row >= region->tokens * group) continue;
        int tile = g->work->order[region->first_token + row / group];
        int before = region->is_prefix ? 0 : decode_chunks_of(g->layer.tiles[tile].prefix_len);
        float *to = decode_partial(g, tile, key_head * group + row % group, before + index);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            to[n * 8 + 2 * (lane % 4)] = chunk->out[n][2 * i];
            to[n * 8 + 2 * (lane % 4) + 1] = chunk->out[n][2 * i + 1];
        }
        if (lane % 4 == 0) {
            to[D + MAX_PARTIAL] = chunk->max[i];
            to[D + PARTIAL_SUM] = chunk->sum[i];
        }
    }
}

// The blocks of a key head share the chunks.
template <int D> __global__ void __launch_bounds__(TENSOR_THREADS, 2) attention_decode_kernel(struct decode_args g) {
    const struct attention_args a = g.layer;
    int key_head = (int)blockIdx.y, warp = (int)threadIdx.x / 32;
    const struct bf16 *keys = (const struct bf16 *)a.keys + key_head * a.cache_rows * D;
    const struct bf16 *values = (const struct bf16 *)a.values + key_head * a.cache_rows * D;
    struct bf16 *q = (struct bf16 *)dynamic_shared(), *stages = q + TILE_ROWS * (D + 8);
    float scale_log2 = mul_rn(a.scale, log2_e);
    for (int at = (int)blockIdx.x; at < g.work->chunks; at += (int)gridDim.x) {
        struct decode_region region = decode_region_of(g.work, at);
        int index = at - region.first_chunk, left = region.kv_len - index * CHUNK_KEYS;
        int count = left < CHUNK_KEYS ? left : CHUNK_KEYS, blocks = (count + KEY_BLOCK - 1) / KEY_BLOCK;
        int64_t begin = region.kv_begin + index * CHUNK_KEYS;
        bool has_rows = warp * 16 < region.tokens * (a.heads / a.key_heads);
        decode_load_queries<D>(q, &g, &region, key_head);
        load_step<D>(stages, keys, values, begin, count, 0);
        struct chunk_sums<D> chunk;
        chunk_clear(&chunk);
        for (int block = 0; block < blocks; block++) {
            cp_async_wait<0>();
            __syncthreads(); // the keys are there, and nobody reads the other stage any more
            const struct bf16 *stage = stages + block % 2 * 2 * KEY_BLOCK * (D + 8);
            if (block + 1 < blocks)
                load_step<D>(stages + (block + 1) % 2 * 2 * KEY_BLOCK * (D + 8), keys, values, begin, count, block + 1);
            int seen = count - block * KEY_BLOCK, both[2] = {seen, seen};
            if (has_rows)
                chunk_add<D, false>(&chunk, q + warp * 16 * (D + 8), stage, stage + KEY_BLOCK * (D + 8), NULL, both,
                                    scale_log2);
        }
        if (has_rows) {
            chunk_finish<D>(&chunk);
            decode_store<D>(&g, &region, key_head, index, &chunk);
        }
        __syncthreads(); // nobody reads the queries any more
    }
}

// A block for each tile and query head. The row of an idle tile becomes 0.
__global__ void attention_decode_merge_kernel(struct decode_args g) {
    const struct attention_args a = g.layer;
    struct attention_tile tile = a.tiles[blockIdx.x];
    int head = (int)blockIdx.y;
    int chunks = decode_chunks_of(tile.prefix_len) + decode_chunks_of(tile.visible);
    struct bf16 *out = (struct bf16 *)a.out + tile.q_begin * a.out_stride + head * a.size;
    for (int d = (int)threadIdx.x; d < a.size; d += MERGE_THREADS) {
        float max = -INFINITY, sum = 0, total = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
            const float *from = decode_partial(&g, blockIdx.x, head, chunk);
            float keep, take;
            chunk_merge_sums(&max, &sum, from[a.size + MAX_PARTIAL], from[a.size + PARTIAL_SUM], &keep, &take);
            total = chunk_merge(total, from[d], keep, take);
        }
        out[d] = bf16_from_f32(chunks > 0 ? mul_rn(total, div_rn(1.0f, sum)) : 0.0f);
        if (a.lse && d == 0) a.lse[tile.q_begin * a.lse_stride + head] = lse_of(max, sum);
    }
}

template <int D>
static void attention_decode_launch(struct cuda_backend *cuda, const struct attention_plan *plan,
                                    const struct decode_args *args) {
    // How many chunks there are is known on the host only if the spans came from there.
    int key_heads = args->layer.key_heads, blocks = cuda->processors * BLOCKS_PER_PROCESSOR / key_heads;
    int most = plan->kv_end > 0 ? 2 * plan->tile_count * plan->sums.max_chunks : blocks;
    if (blocks > most) blocks = most;
    if (blocks < 1) blocks = 1;
    LAUNCH(attention_decode_kernel<D>, dim3((unsigned)blocks, (unsigned)key_heads), TENSOR_THREADS, attention_shared<D>,
           cuda->stream, *args);
}

// ---- the operation ----

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
    if (!plan->decode) return ATTENTION_OF_SIZE(heads.size, attention_packed)(cuda, plan, &args);
    struct decode_args decode = {args, plan->decode};
    ATTENTION_OF_SIZE(heads.size, attention_decode_launch)(cuda, plan, &decode);
    LAUNCH(attention_decode_merge_kernel, dim3((unsigned)plan->tile_count, (unsigned)heads.query), MERGE_THREADS, 0,
           cuda->stream, decode);
    return cuda_launched("attention");
}
