// Attention over the KV cache: softmax(q k^T * scale) v for the cache rows that each span names.
//
// A task computes one tile of query rows (q_tile.h): its scores for every visible key, their softmax, and the weighted
// sum of values. The scores of a tile fit into the second-level cache, so nothing is rescaled on the way, unlike in
// FlashAttention. Each score and each output is one chain of fused multiply-adds, in the order of d or of cache rows;
// softmax adds its exponentials in sixteen lanes by index within the range.
//
// The loops over elements are in attention_tiles.inc. The plain formula is the double-precision reference in
// tests/ops/attention.c.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/q_tile.h"

enum {
    thread_scores = 160 << 10, // floats of scores that a thread should use at a time
    tasks_per_thread = 4,
    start_align = 64, // bytes
};

struct attention_job {
    const struct cpu_backend *cpu;
    struct tensor out, qkv, lse;
    struct heads heads;
    float scale;
    const struct kv_cache *cache;
    int layer;
    const struct attention_span *spans;
    const struct q_tile_start *starts;
    int tiles;       // per key/value head
    int64_t columns; // of a row of scores
    float *scratch;  // scratch_size floats for each thread
    size_t scratch_size;
};

static void attention_tile(void *context, int task, int thread) {
    const struct attention_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    struct q_tile tile;
    q_tile_init(&tile, job->spans, job->heads, job->starts[task % job->tiles], task / job->tiles);
    int size = job->heads.size, width = job->cache->width;
    float *rows = job->scratch + (size_t)thread * job->scratch_size, *panels = rows + q_tile_max * width;
    float *scores = panels + q_tile_max * width, max[q_tile_max] = {0}, sum[q_tile_max] = {0};

    q_tile_gather(job->cpu, &tile, job->qkv, size, width, rows);
    q_tile_pack(panels, rows, tile.rows, width, size);
    q_tile_qk(simd, &tile, scores, job->columns, panels, kv_cache_keys(job->cache, job->layer, tile.kv_head), 0, size,
              job->scale);
    for (int row = 0; row < tile.rows; row++) {
        struct score_run runs[2];
        int count = q_tile_score_runs(&tile, row, runs);
        float *row_scores = scores + row * job->columns, sums[16] = {0};
        max[row] = -INFINITY;
        for (int i = 0; i < count; i++) {
            max[row] = simd->scores_max(row_scores + runs[i].column, runs[i].visible, max[row]);
        }
        for (int i = 0; i < count; i++) {
            simd->scores_exp(row_scores + runs[i].column, runs[i].visible, runs[i].len, max[row], sums);
        }
        sum[row] = simd->sum_lanes(sums);
    }
    memset(rows, 0, (size_t)(tile.rows * width) * sizeof *rows);
    q_tile_av(simd, &tile, rows, width, scores, job->columns, kv_cache_values(job->cache, job->layer, tile.kv_head), 0);
    for (int row = 0; row < tile.rows; row++) {
        float *out = rows + row * width, factor = 1 / sum[row];
        for (int d = 0; d < size; d++) out[d] *= factor;
        cpu_convert(job->cpu, q_tile_head(&tile, row, job->out, size), job->out.type, out, ELEMENT_F32, (size_t)size);
        if (tensor_none(job->lse)) continue;
        tensor_f32(job->lse, tile.token[row])[tile.head[row]] = (float)((double)max[row] + log((double)sum[row]));
    }
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
    struct attention_job job = {.cpu = cpu,
                                .out = out,
                                .qkv = qkv,
                                .lse = lse,
                                .heads = heads,
                                .scale = scale,
                                .cache = cache,
                                .layer = layer,
                                .spans = spans,
                                .columns = q_tiles_score_columns(spans, count)};

    // Rows per tile: few enough that the scores stay in the cache and that every thread has work. Any number gives the
    // same bits.
    static_assert(q_tile_max / q_panel == 4, "halving q_tile_max ends at one panel");
    size_t threads = (size_t)pool_threads(cpu->pool), wanted = threads * tasks_per_thread / (size_t)heads.key;
    int max_rows = q_tile_max;
    while (max_rows > q_panel && max_rows * job.columns > thread_scores) max_rows /= 2;
    while (max_rows > q_panel && q_tiles_split(spans, count, heads, max_rows, NULL) < wanted) max_rows /= 2;

    size_t tiles = q_tiles_split(spans, count, heads, max_rows, NULL);
    size_t starts_bytes = (tiles * sizeof(struct q_tile_start) + start_align - 1) / start_align * start_align;
    job.scratch_size = (size_t)(2 * q_tile_max * cache->width + max_rows * job.columns);
    void *scratch;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, starts_bytes + threads * job.scratch_size * sizeof(float), &scratch));
    struct q_tile_start *starts = scratch;
    q_tiles_split(spans, count, heads, max_rows, starts);
    job.starts = starts;
    job.tiles = (int)tiles;
    job.scratch = (void *)((char *)scratch + starts_bytes);
    pool_run(cpu->pool, job.tiles * heads.key, attention_tile, &job);
    return OK;
}
