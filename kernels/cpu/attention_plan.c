// Making an attention plan: it checks the spans, finds the cache rows that they name and divides them into tiles. See
// attention_plan.h.
#include "kernels/cpu/attention_plan.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

enum {
    thread_scores = 160 << 10, // floats of scores that a thread should use at a time
    tasks_per_thread = 4,
};

// Finds the cache rows that the spans name.
static void attention_plan_find_extent(struct attention_plan *plan, size_t count) {
    int64_t begin = INT64_MAX, end = 0;
    for (const struct attention_span *span = plan->spans; span < plan->spans + count; span++) {
        int64_t own_end = span->kv_begin + attention_span_kv_len(span);
        int64_t prefix_end = span->prefix_begin + span->prefix_len;
        if (span->kv_begin < begin) begin = span->kv_begin;
        if (own_end > end) end = own_end;
        if (span->prefix_len > 0 && span->prefix_begin < begin) begin = span->prefix_begin;
        if (span->prefix_len > 0 && prefix_end > end) end = prefix_end;
    }
    plan->kv_begin = begin < end ? begin : end;
    plan->kv_end = end;
}

// Divides the spans into tiles whose rows are few enough that `arrays` arrays of their scores stay in the second-level
// cache, and that there are at least `wanted` tiles.
static status attention_plan_split(const struct attention_plan *plan, size_t count, int arrays, size_t wanted,
                                   struct q_tile_list *out) {
    static_assert(q_tile_max / q_panel == 4, "halving q_tile_max ends at one panel");
    out->max_rows = q_tile_max;
    while (out->max_rows > q_panel && (arrays * out->max_rows * plan->columns > thread_scores ||
                                       q_tiles_split(plan->spans, count, plan->heads, out->max_rows, NULL) < wanted))
        out->max_rows /= 2;
    size_t tiles = q_tiles_split(plan->spans, count, plan->heads, out->max_rows, NULL);
    assert(tiles <= INT_MAX);
    NEW(&out->starts, tiles);
    out->count = (int)q_tiles_split(plan->spans, count, plan->heads, out->max_rows, out->starts);
    return OK;
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
    status result;
    NEW(&plan->spans, count);
    if (count) memcpy(plan->spans, spans, count * sizeof *spans);
    plan->span_count = count;
    plan->texts = true;
    for (size_t i = 0; i < count; i++) plan->texts &= !spans[i].causal && spans[i].prefix_len == 0;
    plan->columns = q_tiles_score_columns(plan->spans, count);
    attention_plan_find_extent(plan, count);
    size_t wanted = (size_t)pool_threads(cpu_of(backend)->pool) * tasks_per_thread / (size_t)heads.key;
    TRY_TO(result, release, attention_plan_split(plan, count, 1, wanted, &plan->forward));
    if (!tensor_none(cache_slots)) // the gradient needs two arrays: p and the gradients of scores
        TRY_TO(result, release, attention_plan_split(plan, count, 2, 0, &plan->grad));
    *out = plan;
    return OK;
release:
    cpu_attention_plan_free(backend, &plan);
    return result;
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
