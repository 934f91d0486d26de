// A tile of query rows, the unit of work of attention: its rows use the keys and values of the same key/value head, so
// that these are loaded once for all of them.
//
// A row of a tile is one query head of one token. All rows of a tile attend to the same prefix. Consecutive rows with
// the same own cache rows form a range; a row attends to the cache rows first to end - 1 of its own range. With a
// window a range has only the cache rows that the tile's rows of its span see.
//
// A row of scores holds the scores of the prefix and then those of the own range. Each of the two begins at a multiple
// of sixteen columns, behind sixteen unused columns: keys are read in whole blocks, and where a range begins inside a
// block, the scores of the block's earlier keys are written to these columns.
#ifndef KERNELS_CPU_Q_TILE_H
#define KERNELS_CPU_Q_TILE_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/ops.h"

enum { q_tile_max = 48 }; // rows

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
    int64_t token[q_tile_max]; // row of qkv
    int head[q_tile_max];      // query head
    int64_t first[q_tile_max]; // cache rows of the own range that the row sees: [first, end)
    int64_t end[q_tile_max];
    struct kv_range range[q_tile_max + 1]; // the prefix first, if there is one
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

// Divides the spans into tiles of at most `max_rows` rows for one key/value head. Returns how many there are; writes
// them to `starts` unless it is NULL.
size_t q_tiles_split(const struct attention_span *spans, size_t count, struct heads heads, int max_rows,
                     struct q_tile_start *starts);

// Columns of a row of scores, enough for every tile of these spans.
int64_t q_tiles_score_columns(const struct attention_span *spans, size_t count);

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

// Packs rows into panels: panels[row / q_panel][d][row % q_panel] = rows[row][d].
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

#endif
