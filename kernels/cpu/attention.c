// Attention over the KV cache: softmax(q k^T * scale) v for the cache rows that each span names.
//
// A task computes one tile of query rows (q_tile.h): its scores for every visible key, their softmax, and the weighted
// sum of values. The scores of a tile fit into the second-level cache, so nothing is rescaled on the way, unlike in
// FlashAttention. Each score and each output is one chain of fused multiply-adds, in the order of d or of cache rows;
// softmax adds its exponentials in sixteen lanes, counted from the first cache row of the range that the row sees.
//
// The loops over elements are in attention_tiles.inc. The plain formula is the double-precision reference in
// tests/ops/attention.c.
#include <math.h>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/q_tile.h"

struct attention_job {
    const struct cpu_backend *cpu;
    struct tensor out, qkv, lse;
    float scale;
    const struct kv_cache *cache;
    int layer;
    const struct attention_plan *plan;
    float *scratch; // scratch_size floats for each thread
    size_t scratch_size;
};

static void attention_tile(void *context, int task, int thread) {
    const struct attention_job *job = context;
    const struct attention_plan *plan = job->plan;
    const struct simd *simd = &job->cpu->simd;
    struct q_tile tile;
    int tiles = plan->forward.count, size = plan->heads.size, width = job->cache->width;
    q_tile_init(&tile, plan->spans, plan->heads, plan->forward.starts[task % tiles], task / tiles);
    float *rows = job->scratch + (size_t)thread * job->scratch_size, *panels = rows + q_tile_max * width;
    float *scores = panels + q_tile_max * width, max[q_tile_max] = {0}, sum[q_tile_max] = {0};

    q_tile_gather(job->cpu, &tile, job->qkv, size, width, rows);
    q_tile_pack(panels, rows, tile.rows, width, size);
    q_tile_qk(simd, &tile, scores, plan->columns, panels, kv_cache_keys(job->cache, job->layer, tile.kv_head), 0, size,
              job->scale);
    for (int row = 0; row < tile.rows; row++) {
        struct score_run runs[2];
        int count = q_tile_score_runs(&tile, row, runs);
        float *row_scores = scores + row * plan->columns, sums[16] = {0};
        max[row] = -INFINITY;
        for (int i = 0; i < count; i++) {
            max[row] = simd->scores_max(row_scores + runs[i].column, runs[i].visible, max[row]);
        }
        for (int i = 0; i < count; i++) {
            simd->scores_exp(row_scores + runs[i].column, runs[i].visible, runs[i].len, max[row], sums);
            memset(row_scores + runs[i].column - runs[i].hidden, 0, (size_t)runs[i].hidden * sizeof *scores);
        }
        sum[row] = simd->sum_lanes(sums);
    }
    memset(rows, 0, (size_t)(tile.rows * width) * sizeof *rows);
    q_tile_av(simd, &tile, rows, width, scores, plan->columns, kv_cache_values(job->cache, job->layer, tile.kv_head),
              0);
    for (int row = 0; row < tile.rows; row++) {
        float *out = rows + row * width, factor = 1 / sum[row];
        for (int d = 0; d < width; d += kv_block) { // compilers make vectors of a constant number of steps
            for (int i = 0; i < kv_block; i++) out[d + i] *= factor;
        }
        cpu_convert(job->cpu, q_tile_head(&tile, row, job->out, size), job->out.type, out, ELEMENT_F32, (size_t)size);
        if (tensor_none(job->lse)) continue;
        tensor_f32(job->lse, tile.token[row])[tile.head[row]] = (float)((double)max[row] + log((double)sum[row]));
    }
}

status cpu_attention(struct backend *backend, struct tensor out, struct tensor qkv, float scale, struct kv_cache *cache,
                     int layer, const struct attention_plan *plan, struct tensor lse) {
    struct cpu_backend *cpu = cpu_of(backend);
    struct heads heads = plan->heads;
    CHECK(kv_cache_fits(cache, layer, heads) && plan->kv_end <= cache->rows && plan->rows == out.rows);
    CHECK(tensor_is(qkv, -1, out.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(out, -1, out.rows, heads.query * heads.size));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, out.rows, heads.query));
    if (cpu->f32_parts > 0 && plan->texts && scale > 0)
        return attention_amx(cpu, out, qkv, scale, cache, layer, plan, lse);
    struct attention_job job = {
        .cpu = cpu, .out = out, .qkv = qkv, .lse = lse, .scale = scale, .cache = cache, .layer = layer, .plan = plan};
    job.scratch_size = (size_t)(2 * q_tile_max * cache->width + plan->forward.max_rows * plan->columns);
    size_t floats = (size_t)pool_threads(cpu->pool) * job.scratch_size;
    TRY(cpu_scratch(cpu, SCRATCH_ATTENTION, floats * sizeof(float), &job.scratch));
    pool_run(cpu->pool, plan->forward.count * heads.key, attention_tile, &job);
    return OK;
}
