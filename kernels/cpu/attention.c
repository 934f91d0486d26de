// Attention over the cache.
//
// A strip of query rows takes its scores against every key that it sees, then their softmax, then the sum of values:
// the scores of a strip fit the second-level cache, so nothing has to be rescaled on the way. Each score and each
// output is one chain in the order of d and of keys; the softmax sums in sixteen lanes by place in the region.
#include <math.h>

#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/q_tile.h"
#include "kernels/cpu/attention_tiles.h"

enum { scores_most = 160 << 10, tasks_a_thread = 4 }; // floats of scores a thread should hold

struct attending {
    const struct cpu_backend *cpu;
    struct tensor out, qkv, lse;
    struct heads heads;
    float scale;
    const struct kv_cache *cache;
    int layer;
    const struct attention_span *spans;
    const struct strip_start *starts;
    int strips; // of one key head
    int64_t columns;
    float *rooms;
    size_t room; // floats for a thread
};

// Turns the scores of one row into exponentials; returns their sum.
static float soften_row(const struct attending *a, const struct strip *strip, int row, float *scores, float *highest) {
    float sums[kv_block] = {0}, high = -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int index = 0; index < strip_regions(strip); index++) {
            struct region region = strip_region(strip, index);
            if (row < region.first || row >= region.first + region.rows) continue;
            int64_t seen = region_seen(strip, &region, row);
            int64_t most = region_most(strip, &region, region.first, region.rows);
            if (pass == 0) {
                high = a->cpu->simd.scores_max(scores + region.column, seen, high);
            } else {
                a->cpu->simd.scores_exp(scores + region.column, seen, most, high, sums);
            }
        }
    }
    *highest = high;
    return a->cpu->simd.sum_lanes(sums);
}

static void write_row(const struct attending *a, const struct strip *strip, int row, float *values, float highest,
                      float sum) {
    int64_t query = strip->query[row];
    int size = a->heads.size, head = strip->head[row];
    float factor = 1 / sum;
    for (int d = 0; d < size; d++) values[d] *= factor;
    cpu_convert(a->cpu, element_at(&a->out, query, head * size), a->out.type, values, ELEMENT_F32, (size_t)size);
    if (!tensor_none(a->lse)) {
        float *lse = element_at(&a->lse, query, head);
        *lse = (float)((double)highest + log((double)sum));
    }
}

static void attend(void *context, int task, int thread) {
    const struct attending *a = context;
    struct strip strip;
    strip_open(&strip, a->spans, a->heads, a->starts[task % a->strips], task / a->strips);
    int size = a->heads.size, width = a->cache->width;
    float *rows = a->rooms + (size_t)thread * a->room, *tiles = rows + strip_most * width;
    float *scores = tiles + strip_most * width, highest[strip_most] = {0}, sums[strip_most] = {0};
    strip_queries(a->cpu, &strip, a->qkv, size, width, rows);
    strip_tiles(tiles, rows, strip.rows, width, size);
    strip_scores(&a->cpu->simd, &strip, scores, a->columns, tiles, kv_cache_keys(a->cache, a->layer, strip.key_head), 0,
                 size, a->scale);
    for (int row = 0; row < strip.rows; row++) {
        sums[row] = soften_row(a, &strip, row, scores + row * a->columns, &highest[row]);
    }
    memset(rows, 0, (size_t)(strip.rows * width) * sizeof *rows);
    strip_products(&a->cpu->simd, &strip, rows, width, scores, a->columns,
                   kv_cache_values(a->cache, a->layer, strip.key_head), 0);
    for (int row = 0; row < strip.rows; row++) {
        write_row(a, &strip, row, rows + row * width, highest[row], sums[row]);
    }
}

// Rows a strip: as many as keep the scores near, yet strips enough for the threads. It leaves no trace in the bits.
static int strip_height(const struct attending *a, size_t count, size_t threads) {
    int most = strip_most;
    while (most > q_panel && most * a->columns > scores_most) most /= 2;
    size_t few = threads * tasks_a_thread / (size_t)a->heads.key;
    while (most > q_panel && strips_cut(a->spans, count, a->heads, most, NULL) < few) most /= 2;
    return most;
}

static status plan(struct cpu_backend *cpu, struct attending *a, size_t count) {
    size_t threads = (size_t)pool_threads(cpu->pool);
    a->columns = strip_columns(a->spans, count);
    int most = strip_height(a, count, threads);
    size_t strips = strips_cut(a->spans, count, a->heads, most, NULL);
    size_t starts = (strips * sizeof(struct strip_start) + 63) / 64 * 64;
    a->room = (size_t)(2 * strip_most * a->cache->width + most * a->columns);
    unsigned char *scratch;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, starts + threads * a->room * sizeof(float), &scratch));
    strips_cut(a->spans, count, a->heads, most, (struct strip_start *)scratch);
    a->starts = (struct strip_start *)scratch;
    a->strips = (int)strips;
    a->rooms = (float *)(scratch + starts);
    return OK;
}

status cpu_attention(struct backend *backend, struct tensor out, struct tensor qkv, struct heads heads, float scale,
                     struct kv_cache *cache, int layer, const struct attention_span *spans, size_t count,
                     struct tensor lse) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(kv_cache_fits(cache, layer, heads));
    CHECK(tensor_is(qkv, -1, out.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(out, -1, out.rows, heads.query * heads.size));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, out.rows, heads.query));
    CHECK(attention_spans_fit(cache, spans, count, out.rows));
    struct attending attending = {.cpu = cpu,
                                  .out = out,
                                  .qkv = qkv,
                                  .lse = lse,
                                  .heads = heads,
                                  .scale = scale,
                                  .cache = cache,
                                  .layer = layer,
                                  .spans = spans};
    TRY(plan(cpu, &attending, count));
    pool_run(cpu->pool, attending.strips * heads.key, attend, &attending);
    return OK;
}
