// What the files of attention share: the KV cache, tiles of query rows, and the plan of a pass.
#pragma once

#include "kernels/cpu/cpu.h"

// ---- the KV cache ----

// Keys and values of all layers in float32. Keys are stored in blocks of sixteen rows, [K][rows / 16][D][16], so that
// the scores of sixteen keys are computed at once. Values are stored row by row, [K][rows][width]; the columns after
// the first D are 0.
struct kv_cache {
    struct heads heads;
    int layers;
    int width;    // D rounded up to a multiple of KV_BLOCK
    int64_t rows; // a multiple of KV_BLOCK
    struct buffer *keys, *values;
};

// n rounded up to a multiple of KV_BLOCK.
static inline int64_t kv_block_align(int64_t n) {
    return (n + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
}

// The keys of one key/value head in one layer, [rows / 16][D][16]; valid as long as the cache.
static inline float *kv_cache_keys(const struct kv_cache *cache, int layer, int kv_head) {
    float *keys = (void *)cache->keys->data;
    return keys + (layer * cache->heads.key + kv_head) * cache->rows * cache->heads.size;
}

// The values of one key/value head in one layer, [rows][width]; valid as long as the cache.
static inline float *kv_cache_values(const struct kv_cache *cache, int layer, int kv_head) {
    float *values = (void *)cache->values->data;
    return values + (layer * cache->heads.key + kv_head) * cache->rows * cache->width;
}

// Whether `layer` exists and the cache was made for these heads.
bool kv_cache_fits(const struct kv_cache *cache, int layer, struct heads heads);

// ---- tiles of query rows ----

// A tile of query rows is the unit of work of attention: its rows use the keys and values of the same key/value head,
// so that these are loaded once for all of them.
//
// A row of a tile is one query head of one token. All rows of a tile attend to the same prefix. Consecutive rows with
// the same own cache rows form a range; a row attends to the cache rows first to end - 1 of its own range. With a
// window a range has only the cache rows that the tile's rows of its span see.
//
// A row of scores holds the scores of the prefix and then those of the own range. Each of the two begins at a multiple
// of sixteen columns, behind sixteen unused columns: keys are read in whole blocks, and where a range begins inside a
// block, the scores of the block's earlier keys are written to these columns.

enum { MAX_Q_TILE = 48 }; // rows

// Consecutive cache rows that consecutive rows of a tile attend to: the prefix, or the own rows of one span.
struct kv_range {
    int row_begin, rows; // rows of the tile
    int64_t kv_begin;    // first cache row
    int64_t column;      // of kv_begin in a row of scores
    bool is_prefix;      // every row sees the whole prefix
};

struct q_tile {
    int kv_head;
    int rows, ranges;
    int64_t prefix_len;
    int64_t token[MAX_Q_TILE]; // row of qkv
    int head[MAX_Q_TILE];      // query head
    int64_t first[MAX_Q_TILE]; // cache rows of the own range that the row sees: [first, end)
    int64_t end[MAX_Q_TILE];
    struct kv_range range[MAX_Q_TILE + 1]; // the prefix first, if there is one
};

// The first row of a tile, and how many rows it has. The rows of a span are its tokens, and for each of them the H / K
// query heads that use the tile's key/value head.
struct q_tile_start {
    size_t span;
    int64_t row; // of the span
    int rows;
};

// The scores of one row in one range.
struct score_run {
    int64_t column;  // the first that the row sees
    int64_t hidden;  // how many of the range are before it
    int64_t visible; // how many the row sees
    int64_t len;     // how many there are from `column` to the end of the range
};

// Fills a tile for one key/value head.
void q_tile_init(struct q_tile *tile, const struct attention_span *spans, struct heads heads, struct q_tile_start start,
                 int kv_head);

// The first cache row of a range that a row of the tile sees, and the end of those that it sees, counted from the
// range's kv_begin. Neither decreases from row to row.
static inline int64_t kv_range_first(const struct q_tile *tile, const struct kv_range *range, int row) {
    return range->is_prefix ? 0 : tile->first[row];
}

static inline int64_t kv_range_end(const struct q_tile *tile, const struct kv_range *range, int row) {
    return range->is_prefix ? tile->prefix_len : tile->end[row];
}

// How many cache rows a range has: those up to the last that its last row sees.
static inline int64_t kv_range_len(const struct q_tile *tile, const struct kv_range *range) {
    return kv_range_end(tile, range, range->row_begin + range->rows - 1);
}

// Writes where the scores of a row are: the prefix, if there is one, and its own range. Returns how many.
int q_tile_score_runs(const struct q_tile *tile, int row, struct score_run runs[2]);

// The query head of a tile's row in a tensor [T, heads * size], F32 or BF16.
static inline void *q_tile_head(const struct q_tile *tile, int row, struct tensor t, int size) {
    size_t element = t.type == ELEMENT_BF16 ? 2 : 4;
    return (unsigned char *)tensor_row(t, tile->token[row]) + (size_t)(tile->head[row] * size) * element;
}

// rows[row][0..width) = the query heads of the tile in `in`, in float32, with zeros after the first `size` columns.
void q_tile_gather(const struct cpu_backend *cpu, const struct q_tile *tile, struct tensor in, int size, int width,
                   float *rows);

// Packs rows into panels: panels[row / Q_PANEL][d][row % Q_PANEL] = rows[row][d].
void q_tile_pack(float *panels, const float *rows, int count, int stride, int size);

// scores[row][range's column + i] = scale * q[row] . keys[range's kv_begin + i], for every key that a row sees; columns
// around these are overwritten as well. `keys` is [rows / 16][size][16] and begins at cache row kv_origin, a multiple
// of 16.
void q_tile_qk(const struct simd *simd, const struct q_tile *tile, float *scores, int64_t columns, const float *panels,
               const float *keys, int64_t kv_origin, int size, float scale);

// out[row] += sum over i of a[row][range's column + i] values[range's kv_begin + i], range after range. `values` is
// [rows][width] and begins at cache row kv_origin.
void q_tile_av(const struct simd *simd, const struct q_tile *tile, float *out, int width, const float *a,
               int64_t columns, const float *values, int64_t kv_origin);

// ---- plans ----

// The tiles of one key/value head; the other heads have the same ones.
struct q_tile_list {
    struct q_tile_start *starts;
    int count;
    int max_rows; // of a tile; any number gives the same bits
};

// The spans of one pass, divided into tiles: what attention and its gradient know before they see a layer.
struct attention_plan {
    struct heads heads;
    struct attention_span *spans;
    size_t span_count;
    bool texts;                 // no span is causal or has a prefix
    int64_t rows;               // of the query
    int64_t kv_begin, kv_end;   // the cache rows that the spans name lie in between
    int64_t columns;            // that a row of scores needs in every tile
    struct tensor cache_slots;  // none: there is no gradient
    struct q_tile_list forward; // the tiles of attention
    struct q_tile_list grad;    // the tiles of attention_grad; empty if there is no gradient
};

// ---- calls ----

// The arguments of attention and its gradient.
struct attention_call {
    struct cpu_backend *cpu;
    struct tensor out, qkv, lse;
    float scale;
    const struct kv_cache *cache;
    int layer;
    const struct attention_plan *plan;
};

// `attention` of ops.h on the matrix unit (attention_amx.c), for a plan of texts and scale > 0, where cpu->f32_parts.
// UNAVAILABLE when memory is short.
status attention_amx(const struct attention_call *call);
