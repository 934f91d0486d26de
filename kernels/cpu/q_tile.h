// Attention's unit of work: some query rows that share the loads of one key head's keys and values.
//
// A row is one head of one query. Rows of one strip see the same prefix; those of one part see the same own region, up
// to each row's own `seen`. In a row of scores the prefix stands first, then the own region, both begun at a multiple
// of sixteen columns behind sixteen columns of slack: a region that begins inside a block of keys writes its block's
// earlier columns there.
#ifndef KERNELS_CPU_Q_TILE_H
#define KERNELS_CPU_Q_TILE_H

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

enum { strip_most = 48 };

struct part {
    int first, rows; // rows of the strip
    int64_t own;     // first cache row of the own region
};

struct strip {
    int key_head;
    int rows, parts;
    int64_t prefix, prefixes;
    int64_t own_column;        // of the scores
    int64_t query[strip_most]; // row of qkv
    int head[strip_most];
    int64_t seen[strip_most]; // of the own region
    struct part part[strip_most];
};

// Where a strip begins among the spans.
struct strip_start {
    size_t span;
    int64_t row; // among the span's queries * (H / K)
    int rows;
};

enum { prefix_column = 16 };

// How many strips of up to `most` rows the spans make for one key head; writes them when `starts` is not NULL.
size_t strips_cut(const struct attention_span *spans, size_t count, struct heads heads, int most,
                  struct strip_start *starts);

// Spells a strip out.
void strip_open(struct strip *strip, const struct attention_span *spans, struct heads heads, struct strip_start start,
                int key_head);

// Columns in a row of scores that fit every strip of these spans.
int64_t strip_columns(const struct attention_span *spans, size_t count);

// A region of cache rows that some rows of a strip see: all of them the prefix, those of a part their own.
struct region {
    int first, rows; // rows of the strip
    int64_t begin;   // cache row
    int64_t column;  // of the scores
    bool own;
};

// Where an element stands.
static inline void *element_at(const struct tensor *t, int64_t row, int64_t column) {
    int64_t place = row * t->stride + column;
    return t->buffer->data + t->offset + (size_t)place * (t->type == ELEMENT_BF16 ? 2 : 4);
}

// How many regions a strip has; the prefix, if any, is the first.
int strip_regions(const struct strip *strip);

// Region `index` of a strip.
struct region strip_region(const struct strip *strip, int index);

// How many cache rows of a region strip row `row` sees.
int64_t region_seen(const struct strip *strip, const struct region *region, int row);

// The most that any of the region's rows [first, first + rows) sees of it: the last one does.
int64_t region_most(const struct strip *strip, const struct region *region, int first, int rows);

// Whether the spans stay within the cache and cover each of `rows` query rows once (their number is checked).
bool attention_spans_fit(const struct kv_cache *cache, const struct attention_span *spans, size_t count, int64_t rows);

// rows[row][0..width) = the strip rows' heads of `in` in float32, zeros behind the first `size`.
void strip_queries(const struct cpu_backend *cpu, const struct strip *strip, struct tensor in, int size, int width,
                   float *rows);

// Rows of a matrix as tiles of queries: tiles[row / 12][d][row % 12] = rows[row][d].
void strip_tiles(float *tiles, const float *rows, int count, int stride, int size);

// scores[row][region's column + i] = scale * tiles[row] . keys[region's begin + i], for all that a row sees and, in
// the slack around it, more. `keys` is [rows / 16][size][16] and begins at cache row `origin`, a multiple of 16.
void strip_scores(const struct simd *simd, const struct strip *strip, float *scores, int64_t columns,
                  const float *tiles, const float *keys, int64_t origin, int size, float scale);

// out[row] += sum of factors[row][region's column + i] values[region's begin + i]; region after region, row after row.
void strip_products(const struct simd *simd, const struct strip *strip, float *out, int width, const float *factors,
                    int64_t columns, const float *values, int64_t origin);

#endif
