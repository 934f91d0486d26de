// Cutting spans into strips.
#include "kernels/cpu/q_tile.h"

#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/attention_tiles.h"

enum { share_blocks = 16 }; // blocks of keys that all tiles pass over while they are near

static int64_t rounded(int64_t count) {
    return (count + kv_block - 1) / kv_block * kv_block;
}

static int64_t span_rows(const struct attention_span *span, struct heads heads) {
    return span->q_len * (heads.query / heads.key);
}

static bool same_prefix(const struct attention_span *a, const struct attention_span *b) {
    return a->prefix_len == b->prefix_len && (a->prefix_len == 0 || a->prefix_begin == b->prefix_begin);
}

static int64_t span_visible(const struct attention_span *span, int64_t query) {
    return span->visible + (span->causal ? query : 0);
}

size_t strips_cut(const struct attention_span *spans, size_t count, struct heads heads, int most,
                  struct strip_start *starts) {
    size_t strips = 0;
    int open = 0; // rows of the last strip
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !same_prefix(&spans[i], &spans[i - 1])) open = 0;
        int64_t all = span_rows(&spans[i], heads);
        for (int64_t row = 0; row < all;) {
            if (open == 0 || open == most) {
                if (starts) starts[strips] = (struct strip_start){i, row, 0};
                strips++;
                open = 0;
            }
            int taken = all - row < most - open ? (int)(all - row) : most - open;
            if (starts) starts[strips - 1].rows += taken;
            open += taken;
            row += taken;
        }
    }
    return strips;
}

void strip_open(struct strip *strip, const struct attention_span *spans, struct heads heads, struct strip_start start,
                int key_head) {
    int group = heads.query / heads.key;
    const struct attention_span *span = &spans[start.span];
    strip->key_head = key_head;
    strip->rows = strip->parts = 0;
    strip->prefix = span->prefix_begin;
    strip->prefixes = span->prefix_len;
    strip->own_column = prefix_column + (span->prefix_len > 0 ? rounded(span->prefix_len) + 2 * kv_block : 0);
    for (int64_t row = start.row; strip->rows < start.rows; span++, row = 0) {
        struct part *part = &strip->part[strip->parts];
        *part = (struct part){.first = strip->rows, .own = span->kv_begin};
        for (; row < span_rows(span, heads) && strip->rows < start.rows; row++, strip->rows++) {
            strip->query[strip->rows] = span->q_begin + row / group;
            strip->head[strip->rows] = key_head * group + (int)(row % group);
            strip->seen[strip->rows] = span_visible(span, row / group);
        }
        part->rows = strip->rows - part->first;
        if (part->rows > 0) strip->parts++;
    }
}

int64_t strip_columns(const struct attention_span *spans, size_t count) {
    int64_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *span = &spans[i];
        int64_t columns = rounded(span->prefix_len) + rounded(span_visible(span, span->q_len - 1));
        if (columns > most) most = columns;
    }
    most += prefix_column + 3 * kv_block;
    return most % (8 * kv_block) ? most
                                 : most + kv_block; // rows a power of two apart would fall into the same cache sets
}

int strip_regions(const struct strip *strip) {
    return strip->parts + (strip->prefixes > 0);
}

struct region strip_region(const struct strip *strip, int index) {
    if (strip->prefixes > 0 && index == 0) return (struct region){0, strip->rows, strip->prefix, prefix_column, false};
    const struct part *part = &strip->part[index - (strip->prefixes > 0)];
    return (struct region){part->first, part->rows, part->own, strip->own_column, true};
}

int64_t region_seen(const struct strip *strip, const struct region *region, int row) {
    return region->own ? strip->seen[row] : strip->prefixes;
}

int64_t region_most(const struct strip *strip, const struct region *region, int first, int rows) {
    return region_seen(strip, region, first + rows - 1);
}

bool attention_spans_fit(const struct kv_cache *cache, const struct attention_span *spans, size_t count, int64_t rows) {
    int64_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *s = &spans[i];
        if (s->q_begin < 0 || s->q_len < 0 || s->q_begin + s->q_len > rows) return false;
        if (s->prefix_begin < 0 || s->prefix_len < 0 || s->prefix_begin + s->prefix_len > cache->rows) return false;
        int64_t most = s->visible + (s->causal && s->q_len > 0 ? s->q_len - 1 : 0);
        if (s->kv_begin < 0 || s->visible < 0 || s->kv_begin + most > cache->rows || s->prefix_len + s->visible < 1)
            return false;
        covered += s->q_len;
    }
    return covered == rows;
}

void strip_queries(const struct cpu_backend *cpu, const struct strip *strip, struct tensor in, int size, int width,
                   float *rows) {
    for (int row = 0; row < strip->rows; row++, rows += width) {
        const void *head = element_at(&in, strip->query[row], strip->head[row] * size);
        cpu_convert(cpu, rows, ELEMENT_F32, head, in.type, (size_t)size);
        memset(rows + size, 0, (size_t)(width - size) * sizeof *rows);
    }
}

void strip_tiles(float *tiles, const float *rows, int count, int stride, int size) {
    for (int row = 0; row < count; row++) {
        float *tile = tiles + row / q_panel * q_panel * size + row % q_panel;
        for (int d = 0; d < size; d++) tile[d * q_panel] = rows[row * stride + d];
    }
}

// The end of the tile that strip row `row` lies in, within the region.
static int tile_end(const struct region *region, int row) {
    int end = (row / q_panel + 1) * q_panel;
    return end < region->first + region->rows ? end : region->first + region->rows;
}

struct operands {
    const struct simd *simd;
    const struct strip *strip;
    float *out;
    int64_t stride;
    const float *left;  // tiles of queries, or factors
    const float *right; // blocks of keys, or rows of values
    int64_t origin;
    int size;
    float scale;
};

static void region_scores(const struct operands *o, const struct region *region) {
    int64_t from = region->begin - o->origin, shift = from % kv_block, end = region->first + region->rows;
    int64_t blocks = (shift + region_most(o->strip, region, region->first, region->rows) + kv_block - 1) / kv_block;
    const float *keys = o->right + (from - shift) * o->size;
    for (int64_t block = 0; block < blocks; block += share_blocks) {
        for (int row = region->first; row < end; row = tile_end(region, row)) {
            int rows = tile_end(region, row) - row;
            int64_t some = (shift + region_most(o->strip, region, row, rows) + kv_block - 1) / kv_block - block;
            if (some <= 0) continue;
            if (some > share_blocks) some = share_blocks;
            const float *tile = o->left + row / q_panel * q_panel * o->size + row % q_panel;
            o->simd->qk_tile(o->out + row * o->stride + region->column - shift + block * kv_block, o->stride, tile,
                             rows, keys + block * kv_block * o->size, some, o->size, o->scale);
        }
    }
}

void strip_scores(const struct simd *simd, const struct strip *strip, float *scores, int64_t columns,
                  const float *tiles, const float *keys, int64_t origin, int size, float scale) {
    struct operands operands = {simd, strip, scores, columns, tiles, keys, origin, size, scale};
    for (int index = 0; index < strip_regions(strip); index++) {
        struct region region = strip_region(strip, index);
        region_scores(&operands, &region);
    }
}

static void region_products(const struct operands *o, const struct region *region, int64_t columns) {
    int64_t most = region_most(o->strip, region, region->first, region->rows), end = region->first + region->rows;
    const float *values = o->right + (region->begin - o->origin) * o->stride;
    for (int64_t key = 0; key < most; key += share_blocks * kv_block) {
        for (int row = region->first; row < end; row = tile_end(region, row)) {
            int rows = tile_end(region, row) - row;
            int64_t some = region_most(o->strip, region, row, rows) - key;
            if (some <= 0) continue;
            if (some > share_blocks * kv_block) some = share_blocks * kv_block;
            o->simd->av_tile(o->out + row * o->stride, o->stride, o->left + row * columns + region->column + key,
                             columns, 1, rows, values + key * o->stride, o->stride, some, (int)o->stride);
        }
    }
}

void strip_products(const struct simd *simd, const struct strip *strip, float *out, int width, const float *factors,
                    int64_t columns, const float *values, int64_t origin) {
    struct operands operands = {simd, strip, out, width, factors, values, origin, width, 1};
    for (int index = 0; index < strip_regions(strip); index++) {
        struct region region = strip_region(strip, index);
        region_products(&operands, &region, columns);
    }
}
