// Attention plans: checking the spans, dividing them into tiles of query rows; and the products of a tile with keys and
// values.
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "kernels/cpu/attention.h"
#include "shared/base/memory.h"

enum {
    THREAD_SCORES = 160 << 10, // floats of scores that a thread should use at a time
    TASKS_PER_THREAD = 4,
    SCORE_SLACK = KV_BLOCK, // unused columns before each range of a row of scores
    GROUP_BLOCKS = 16,      // blocks of keys that all panels of a tile use while they are in the first-level cache
};

static_assert(MAX_Q_TILE % Q_PANEL == 0, "the panels of a full tile are full");
static_assert(Q_PANEL % 4 == 0, "a panel is packed four rows at a time");

// ---- spans ----

static int64_t attention_plan_span_rows(const struct attention_span *span, struct heads heads) {
    return span->q_len * (heads.query / heads.key);
}

// Divides the spans into tiles of at most `max_rows` rows for one key/value head. Returns how many there are; writes
// them to `starts` unless it is NULL.
static size_t attention_plan_cut(const struct attention_span *spans, size_t count, struct heads heads, int max_rows,
                                 struct q_tile_start *starts) {
    assert(max_rows > 0 && max_rows <= MAX_Q_TILE);
    size_t tiles = 0;
    int filled = 0; // rows of the last tile
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *span = &spans[i], *last = i > 0 ? span - 1 : span;
        bool same_prefix =
            span->prefix_len == last->prefix_len && (span->prefix_len == 0 || span->prefix_begin == last->prefix_begin);
        if (!same_prefix) filled = 0;
        int64_t rows = attention_plan_span_rows(span, heads);
        for (int64_t row = 0; row < rows;) {
            if (filled == 0 || filled == max_rows) {
                if (starts) starts[tiles] = (struct q_tile_start){i, row, 0};
                tiles++;
                filled = 0;
            }
            int added = rows - row < max_rows - filled ? (int)(rows - row) : max_rows - filled;
            if (starts) starts[tiles - 1].rows += added;
            filled += added;
            row += added;
        }
    }
    return tiles;
}

// ---- tiles ----

void q_tile_init(struct q_tile *tile, const struct attention_span *spans, struct heads heads, struct q_tile_start start,
                 int kv_head) {
    int group = heads.query / heads.key;
    const struct attention_span *span = &spans[start.span];
    tile->kv_head = kv_head;
    tile->rows = tile->ranges = 0;
    tile->prefix_len = span->prefix_len;
    int64_t own_column = SCORE_SLACK;
    if (span->prefix_len > 0) {
        tile->range[tile->ranges++] = (struct kv_range){
            .rows = start.rows, .kv_begin = span->prefix_begin, .column = SCORE_SLACK, .is_prefix = true};
        own_column += kv_block_align(span->prefix_len) + 2 * KV_BLOCK;
    }
    for (int64_t row = start.row; tile->rows < start.rows; span++, row = 0) {
        int64_t begin = attention_span_first(span, row / group); // no row of the tile sees an earlier one
        struct kv_range range = {.row_begin = tile->rows, .kv_begin = span->kv_begin + begin, .column = own_column};
        for (; row < attention_plan_span_rows(span, heads) && tile->rows < start.rows; row++, tile->rows++) {
            tile->token[tile->rows] = span->q_begin + row / group;
            tile->head[tile->rows] = kv_head * group + (int)(row % group);
            tile->first[tile->rows] = attention_span_first(span, row / group) - begin;
            tile->end[tile->rows] = attention_span_end(span, row / group) - begin;
        }
        range.rows = tile->rows - range.row_begin;
        if (range.rows > 0) tile->range[tile->ranges++] = range;
    }
    assert(tile->rows <= MAX_Q_TILE);
}

int q_tile_score_runs(const struct q_tile *tile, int row, struct score_run runs[2]) {
    int count = 0;
    for (const struct kv_range *range = tile->range; range < tile->range + tile->ranges; range++) {
        if (row < range->row_begin || row >= range->row_begin + range->rows) continue;
        assert(count < 2);
        int64_t first = kv_range_first(tile, range, row);
        runs[count++] = (struct score_run){.column = range->column + first,
                                           .hidden = first,
                                           .visible = kv_range_end(tile, range, row) - first,
                                           .len = kv_range_len(tile, range) - first};
    }
    return count;
}

void q_tile_gather(const struct cpu_backend *cpu, const struct q_tile *tile, struct tensor in, int size, int width,
                   float *rows) {
    for (int row = 0; row < tile->rows; row++, rows += width) {
        cpu_convert(cpu, rows, ELEMENT_F32, q_tile_head(tile, row, in, size), in.type, (size_t)size);
        memset(rows + size, 0, (size_t)(width - size) * sizeof *rows);
    }
}

void q_tile_pack(float *panels, const float *rows, int count, int stride, int size) {
    for (int row = 0; row < count; row += 4) {
        float *column = panels + row / Q_PANEL * Q_PANEL * size + row % Q_PANEL;
        // Columns beyond `count` get the first row again; nobody reads them.
        const float *first = rows + row * stride, *second = row + 1 < count ? first + stride : first;
        const float *third = row + 2 < count ? second + stride : first;
        const float *fourth = row + 3 < count ? third + stride : first;
        for (int d = 0; d < size; d++, column += Q_PANEL) {
            column[0] = first[d];
            column[1] = second[d];
            column[2] = third[d];
            column[3] = fourth[d];
        }
    }
}

// ---- products ----

// The end of the panel that holds row `row`, or of the range if it ends earlier.
static int attention_panel_end(const struct kv_range *range, int row) {
    int panel_end = (row / Q_PANEL + 1) * Q_PANEL, range_end = range->row_begin + range->rows;
    return panel_end < range_end ? panel_end : range_end;
}

void q_tile_qk(const struct simd *simd, const struct q_tile *tile, float *scores, int64_t columns, const float *panels,
               const float *keys, int64_t kv_origin, int size, float scale) {
    for (const struct kv_range *range = tile->range; range < tile->range + tile->ranges; range++) {
        int64_t begin = range->kv_begin - kv_origin, shift = begin % KV_BLOCK; // the range begins within a block
        int64_t blocks = kv_block_align(shift + kv_range_len(tile, range)) / KV_BLOCK;
        const float *range_keys = keys + (begin - shift) * size;
        for (int64_t block = 0; block < blocks; block += GROUP_BLOCKS) {
            for (int row = range->row_begin, end; row < range->row_begin + range->rows; row = end) {
                end = attention_panel_end(range, row);
                int64_t first = (shift + kv_range_first(tile, range, row)) / KV_BLOCK;
                int64_t last = kv_block_align(shift + kv_range_end(tile, range, end - 1)) / KV_BLOCK;
                if (first < block) first = block;
                if (last > block + GROUP_BLOCKS) last = block + GROUP_BLOCKS;
                if (first >= last) continue;
                simd->qk_tile(scores + row * columns + range->column - shift + first * KV_BLOCK, columns,
                              panels + row / Q_PANEL * Q_PANEL * size + row % Q_PANEL, end - row,
                              range_keys + first * KV_BLOCK * size, last - first, size, scale);
            }
        }
    }
}

void q_tile_av(const struct simd *simd, const struct q_tile *tile, float *out, int width, const float *a,
               int64_t columns, const float *values, int64_t kv_origin) {
    const int64_t group = GROUP_BLOCKS * KV_BLOCK;
    for (const struct kv_range *range = tile->range; range < tile->range + tile->ranges; range++) {
        const float *range_values = values + (range->kv_begin - kv_origin) * width;
        for (int64_t i = 0; i < kv_range_len(tile, range); i += group) {
            for (int row = range->row_begin, end; row < range->row_begin + range->rows; row = end) {
                end = attention_panel_end(range, row);
                int64_t first = kv_range_first(tile, range, row), last = kv_range_end(tile, range, end - 1);
                if (first < i) first = i;
                if (last > i + group) last = i + group;
                if (first >= last) continue;
                simd->av_tile(out + row * width, width, a + row * columns + range->column + first, columns, 1,
                              end - row, range_values + first * width, width, last - first, width);
            }
        }
    }
}

// ---- plans ----

// Divides the spans into tiles whose rows are few enough that `arrays` arrays of their scores stay in the second-level
// cache, and that there are at least `wanted` tiles.
static void attention_plan_split(const struct attention_plan *plan, size_t count, int arrays, size_t wanted,
                                 struct q_tile_list *out) {
    static_assert(MAX_Q_TILE / Q_PANEL == 4, "halving MAX_Q_TILE ends at one panel");
    out->max_rows = MAX_Q_TILE;
    while (out->max_rows > Q_PANEL &&
           (arrays * out->max_rows * plan->columns > THREAD_SCORES ||
            attention_plan_cut(plan->spans, count, plan->heads, out->max_rows, NULL) < wanted))
        out->max_rows /= 2;
    size_t tiles = attention_plan_cut(plan->spans, count, plan->heads, out->max_rows, NULL);
    assert(tiles <= INT_MAX);
    NEW(&out->starts, tiles);
    out->count = (int)attention_plan_cut(plan->spans, count, plan->heads, out->max_rows, out->starts);
}

status cpu_attention_plan_new(struct backend *backend, struct attention_plan **out, struct heads heads,
                              const struct attention_span *spans, size_t count, struct tensor cache_slots) {
    *out = NULL;
    CHECK(heads.key > 0 && heads.query % heads.key == 0);
    int64_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += spans[i].q_len;
    for (size_t i = 0; i < count; i++) CHECK(attention_span_valid(&spans[i], rows));
    CHECK(tensor_none(cache_slots) || tensor_is(cache_slots, ELEMENT_I32, rows, 1));
    struct attention_plan *plan;
    NEW(&plan, 1);
    plan->heads = heads;
    plan->rows = rows;
    plan->cache_slots = cache_slots;
    NEW(&plan->spans, count);
    if (count) memcpy(plan->spans, spans, count * sizeof *spans);
    plan->span_count = count;

    // The cache rows that the spans name, and how many columns a row of scores needs in every tile.
    plan->texts = true;
    plan->kv_begin = count > 0 ? INT64_MAX : 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *span = &spans[i];
        int64_t own = attention_span_kv_len(span), prefix_end = span->prefix_begin + span->prefix_len;
        plan->texts &= !span->causal && span->prefix_len == 0;
        if (span->kv_begin < plan->kv_begin) plan->kv_begin = span->kv_begin;
        if (span->kv_begin + own > plan->kv_end) plan->kv_end = span->kv_begin + own;
        if (span->prefix_len > 0 && span->prefix_begin < plan->kv_begin) plan->kv_begin = span->prefix_begin;
        if (span->prefix_len > 0 && prefix_end > plan->kv_end) plan->kv_end = prefix_end;
        if (span->window > 0 && span->window < own && MAX_Q_TILE + 2 * span->window < own)
            own = MAX_Q_TILE + 2 * span->window;
        int64_t columns = kv_block_align(span->prefix_len) + kv_block_align(own);
        if (columns > plan->columns) plan->columns = columns;
    }
    plan->columns += SCORE_SLACK + 3 * KV_BLOCK;
    // Rows a power of two apart would fall into the same cache sets.
    if (plan->columns % (8 * KV_BLOCK) == 0) plan->columns += KV_BLOCK;
    size_t wanted = (size_t)pool_threads(cpu_of(backend)->pool) * TASKS_PER_THREAD / (size_t)heads.key;
    attention_plan_split(plan, count, 1, wanted, &plan->forward);
    if (!tensor_none(cache_slots)) // the gradient needs two arrays: p and the gradients of scores
        attention_plan_split(plan, count, 2, 0, &plan->grad);
    *out = plan;
    return OK;
}

void cpu_attention_plan_free(struct backend *backend, struct attention_plan **plan) {
    (void)backend;
    if (!*plan) return;
    free((*plan)->spans);
    free((*plan)->forward.starts);
    free((*plan)->grad.starts);
    free(*plan);
    *plan = NULL;
}
