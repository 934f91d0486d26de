// Making an attention plan: it checks the spans, cuts their rows into tiles and, for the gradient, the cache rows that
// they name into blocks. The arrays are made on the host and copied to the device once. See attention.h.
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "shared/base/memory.h"

// Cache rows [begin, end).
struct plan_interval {
    int64_t begin, end;
};

// A plan's arrays on the host.
struct plan_arrays {
    struct attention_tile *tiles;
    struct grad_block *blocks;
    struct grad_part *parts;
};

// ---- tiles ----

// Cuts the spans into tiles.
static void attention_plan_cut_tiles(struct plan_arrays *arrays, struct attention_plan *plan,
                                     const struct attention_span *spans, size_t count) {
    for (const struct attention_span *span = spans; span < spans + count; span++) {
        int64_t rows = span->q_len * (plan->heads.query / plan->heads.key), most = plan->max_rows;
        for (int64_t first = 0; first < rows; first += most) {
            GROW(&arrays->tiles, (size_t)plan->tile_count);
            arrays->tiles[plan->tile_count++] = (struct attention_tile){
                .q_begin = (int32_t)span->q_begin,
                .first = (int32_t)first,
                .rows = (int32_t)(rows - first < most ? rows - first : most),
                .prefix_begin = (int32_t)span->prefix_begin,
                .prefix_len = (int32_t)span->prefix_len,
                .kv_begin = (int32_t)span->kv_begin,
                .visible = (int32_t)attention_span_end(span, span->causal ? 0 : span->q_len - 1),
                .causal = span->causal,
                .window = (int32_t)(span->window < INT32_MAX ? span->window : INT32_MAX)};
        }
    }
}

// ---- blocks of cache rows ----

static int attention_plan_compare_intervals(const void *a, const void *b) {
    const struct plan_interval *left = a, *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

// Cuts the cache rows that the spans name, without repetition, into blocks. Ranges that only touch stay apart: blocks
// then begin where the prompt and the branches begin.
static void attention_plan_cut_blocks(struct plan_arrays *arrays, struct attention_plan *plan,
                                      const struct attention_span *spans, size_t count) {
    struct plan_interval *intervals;
    size_t found = 0;
    NEW(&intervals, 2 * count);
    for (const struct attention_span *span = spans; span < spans + count; span++) {
        struct plan_interval own = {span->kv_begin, span->kv_begin + attention_span_kv_len(span)};
        struct plan_interval prefix = {span->prefix_begin, span->prefix_begin + span->prefix_len};
        if (span->q_len > 0 && own.end > own.begin) intervals[found++] = own;
        if (span->q_len > 0 && prefix.end > prefix.begin) intervals[found++] = prefix;
    }
    if (found) qsort(intervals, found, sizeof *intervals, attention_plan_compare_intervals);
    for (size_t i = 0; i < found;) {
        int64_t begin = intervals[i].begin, end = intervals[i].end;
        for (i++; i < found && intervals[i].begin < end; i++)
            if (intervals[i].end > end) end = intervals[i].end;
        for (; begin < end; begin += KEY_BLOCK) {
            int64_t rows = end - begin < KEY_BLOCK ? end - begin : KEY_BLOCK;
            GROW(&arrays->blocks, (size_t)plan->block_count);
            arrays->blocks[plan->block_count++] = (struct grad_block){.begin = (int32_t)begin, .rows = (int32_t)rows};
        }
    }
    free(intervals);
}

// Whether a row of the tile sees a cache row of the block in its prefix or in its own rows.
static bool attention_plan_tile_sees(const struct attention_tile *tile, const struct grad_block *block, int group,
                                     bool is_prefix) {
    int64_t first = 0, end = tile->prefix_len, begin = is_prefix ? tile->prefix_begin : tile->kv_begin;
    if (!is_prefix) {
        struct attention_span span = {.visible = tile->visible, .causal = tile->causal, .window = tile->window};
        first = attention_span_first(&span, tile->first / group);
        end = attention_span_end(&span, (tile->first + tile->rows - 1) / group);
    }
    return block->begin < begin + end && begin + first < block->begin + block->rows;
}

// Lists, for each block, the tiles that see it: first in their own rows, then in their prefix. Sets the blocks' parts.
static void attention_plan_list_parts(struct plan_arrays *arrays, struct attention_plan *plan) {
    int group = plan->heads.query / plan->heads.key;
    assert(!plan->block_count || arrays->blocks);
    for (int i = 0; i < plan->block_count; i++) {
        struct grad_block *block = &arrays->blocks[i];
        block->first_part = plan->part_count;
        for (int is_prefix = 0; is_prefix < 2; is_prefix++) {
            struct grad_part part = {.begin = block->begin, .rows = block->rows, .is_prefix = is_prefix};
            for (int tile = 0; tile <= plan->tile_count; tile++) {
                bool sees =
                    tile < plan->tile_count && attention_plan_tile_sees(&arrays->tiles[tile], block, group, is_prefix);
                if (part.tiles > 0 && (!sees || part.tiles == PART_TILES)) {
                    GROW(&arrays->parts, (size_t)plan->part_count);
                    arrays->parts[plan->part_count++] = part;
                    part.tiles = 0;
                }
                if (!sees) continue;
                if (part.tiles++ == 0) part.first_tile = tile;
            }
        }
        block->parts = plan->part_count - block->first_part;
    }
}

// ---- on the device ----

// Allocates the plan's memory and copies the arrays to it.
static status attention_plan_store(struct cuda_backend *cuda, struct attention_plan *plan,
                                   const struct plan_arrays *arrays, bool decoding) {
    struct backend *backend = &cuda->base;
    size_t bytes = 0, tile_bytes = (size_t)plan->tile_count * sizeof *plan->tiles;
    size_t block_bytes = (size_t)plan->block_count * sizeof *plan->blocks;
    size_t part_bytes = (size_t)plan->part_count * sizeof *plan->parts;
    size_t tiles = cuda_place(&bytes, tile_bytes), blocks = cuda_place(&bytes, block_bytes);
    size_t parts = cuda_place(&bytes, part_bytes), uploaded = bytes;
    size_t decode = cuda_place(&bytes, decoding ? sizeof *plan->decode : 0);
    if (bytes == 0) return OK;
    TRY(cuda_buffer_new(backend, bytes, &plan->memory));
    plan->tiles = (struct attention_tile *)(void *)(plan->memory->data + tiles);
    plan->blocks = (struct grad_block *)(void *)(plan->memory->data + blocks);
    plan->parts = (struct grad_part *)(void *)(plan->memory->data + parts);
    if (decoding) plan->decode = (struct decode_work *)(void *)(plan->memory->data + decode);

    unsigned char *host;
    NEW(&host, uploaded);
    if (arrays->tiles) memcpy(host + tiles, arrays->tiles, tile_bytes);
    if (arrays->blocks) memcpy(host + blocks, arrays->blocks, block_bytes);
    if (arrays->parts) memcpy(host + parts, arrays->parts, part_bytes);
    struct tensor all = {plan->memory, 0, ELEMENT_U8, 1, (int64_t)uploaded, (int64_t)uploaded};
    status result = cuda_upload(backend, all, host, ELEMENT_U8);
    free(host);
    return result;
}

status cuda_attention_plan_new(struct backend *backend, struct attention_plan **out, struct heads heads,
                               const struct attention_span *spans, size_t count, struct tensor cache_slots) {
    struct cuda_backend *cuda = cuda_of(backend);
    *out = NULL;
    CHECK(heads.key > 0 && heads.query > 0 && heads.query % heads.key == 0);
    int64_t rows = 0, kv_end = 0;
    for (size_t i = 0; i < count; i++) rows += spans[i].q_len;
    for (size_t i = 0; i < count; i++) {
        CHECK(attention_span_valid(&spans[i], rows));
        int64_t own_end = spans[i].kv_begin + attention_span_kv_len(&spans[i]);
        int64_t prefix_end = spans[i].prefix_len > 0 ? spans[i].prefix_begin + spans[i].prefix_len : 0;
        if (own_end > kv_end) kv_end = own_end;
        if (prefix_end > kv_end) kv_end = prefix_end;
    }
    CHECK(kv_end <= INT32_MAX && rows <= INT32_MAX / (heads.query / heads.key));
    CHECK(tensor_none(cache_slots) || tensor_is(cache_slots, ELEMENT_I32, rows, 1));
    struct attention_plan *plan;
    NEW(&plan, 1);
    plan->heads = heads;
    plan->rows = rows;
    plan->kv_end = kv_end;
    plan->cache_slots = cache_slots;
    // Decoding's kernels apply where each span is one token.
    bool decoding = tensor_none(cache_slots) && count > 0 && count <= MAX_DECODE_ROWS;
    for (size_t i = 0; i < count; i++) {
        decoding = decoding && spans[i].q_len == 1;
        plan->has_window = plan->has_window || spans[i].window > 0;
    }
    plan->max_rows = decoding ? heads.query / heads.key : TILE_ROWS;

    struct plan_arrays arrays = {0};
    attention_plan_cut_tiles(&arrays, plan, spans, count);
    if (!tensor_none(cache_slots)) {
        attention_plan_cut_blocks(&arrays, plan, spans, count);
        attention_plan_list_parts(&arrays, plan);
    }
    status result = attention_plan_store(cuda, plan, &arrays, decoding);
    for (size_t i = 0; decoding && result == OK && i < count; i++)
        result = attention_plan_reserve(cuda, plan, spans[i].prefix_len, attention_span_kv_len(&spans[i]));
    if (decoding && result == OK) result = attention_plan_divide(cuda, plan);
    free(arrays.tiles);
    free(arrays.blocks);
    free(arrays.parts);
    if (result != OK) cuda_attention_plan_free(backend, &plan);
    *out = plan;
    return result;
}

void cuda_attention_plan_free(struct backend *backend, struct attention_plan **plan) {
    if (!*plan) return;
    cuda_buffer_free(backend, &(*plan)->memory);
    cuda_buffer_free(backend, &(*plan)->sums_memory);
    free(*plan);
    *plan = NULL;
}

status attention_plan_reserve(struct cuda_backend *cuda, struct attention_plan *plan, int64_t prefix_len,
                              int64_t kv_len) {
    struct backend *backend = &cuda->base;
    int64_t chunks = (prefix_len + CHUNK_KEYS - 1) / CHUNK_KEYS + (kv_len + CHUNK_KEYS - 1) / CHUNK_KEYS;
    if (chunks <= plan->sums.max_chunks) return OK;
    size_t row = (size_t)chunks * (size_t)(plan->heads.size + 2) * sizeof(float);
    struct buffer *memory;
    TRY(cuda_buffer_new(backend, (size_t)plan->rows * (size_t)plan->heads.query * row, &memory));
    struct decode_sums sums = {(float *)(void *)memory->data, (int32_t)chunks};
    struct tensor stored = {.buffer = plan->memory, .type = ELEMENT_U8, .rows = 1};
    stored.offset = (size_t)((unsigned char *)plan->decode - plan->memory->data) + offsetof(struct decode_work, sums);
    stored.columns = stored.stride = (int64_t)sizeof sums;
    status result = cuda_upload(backend, stored, &sums, ELEMENT_U8);
    if (result == OK) {
        struct buffer *before = plan->sums_memory;
        plan->sums_memory = memory;
        plan->sums = sums;
        memory = before;
    }
    cuda_buffer_free(backend, &memory);
    return result;
}

status attention_plan_for_decoding(struct cuda_backend *cuda, struct attention_plan **out, struct heads heads,
                                   int rows) {
    *out = NULL;
    CHECK(heads.key > 0 && heads.query > 0 && heads.query % heads.key == 0);
    CHECK(rows > 0 && rows <= MAX_DECODE_ROWS);
    struct attention_plan *plan;
    NEW(&plan, 1);
    int group = heads.query / heads.key;
    *plan = (struct attention_plan){.heads = heads, .rows = rows, .tile_count = rows, .max_rows = group};
    struct attention_tile tiles[MAX_DECODE_ROWS];
    for (int i = 0; i < rows; i++) tiles[i] = (struct attention_tile){.q_begin = i, .rows = group};
    struct plan_arrays arrays = {.tiles = tiles};
    status result = attention_plan_store(cuda, plan, &arrays, true);
    if (result == OK) result = attention_plan_divide(cuda, plan);
    if (result != OK) cuda_attention_plan_free(&cuda->base, &plan);
    *out = plan;
    return result;
}
