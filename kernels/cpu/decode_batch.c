// Decode batches: slots, the inputs of the next step, and what the last two steps drew. `sample` itself is in
// lm_head.c.
#include "kernels/cpu/decode_batch.h"

#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/logits.h"
#include "shared/base/rng.h"

static_assert(offsetof(struct cpu_decode_batch, base) == 0, "a decode batch is found by its public part");

enum { input_columns = 5 }; // of a row: token, three position ids, cache slot

status cpu_decode_batch_new(struct backend *backend, struct decode_batch **out, int capacity, struct heads heads,
                            const int32_t *eos_ids, size_t eos_count) {
    *out = NULL;
    CHECK(capacity > 0 && heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    struct cpu_decode_batch *it = NULL;
    status result = OK;
    NEW(&it, 1);
    it->capacity = capacity;
    it->heads = heads;
    it->eos_count = eos_count;
    size_t slots = (size_t)capacity;
    int32_t *ids = arena_alloc(&it->arena, eos_count * sizeof *ids);
    it->slots = arena_alloc(&it->arena, slots * sizeof *it->slots);
    it->slot_of_row = arena_alloc(&it->arena, slots * sizeof *it->slot_of_row);
    it->spans = arena_alloc(&it->arena, slots * sizeof *it->spans);
    for (int i = 0; i < 2; i++) {
        it->draws[i].tokens = arena_alloc(&it->arena, slots * sizeof *it->draws[i].tokens);
        it->draws[i].logprobs = arena_alloc(&it->arena, slots * sizeof *it->draws[i].logprobs);
    }
    if (eos_count) memcpy(ids, eos_ids, eos_count * sizeof *ids);
    it->eos_ids = ids;
    TRY_TO(result, failed, cpu_buffer_new(backend, slots * input_columns * sizeof(int32_t), &it->inputs));
    struct tensor column = {.buffer = it->inputs, .type = ELEMENT_I32, .columns = 1, .stride = 1};
    it->base.tokens = it->base.cache_slots = column;
    it->base.cache_slots.offset = slots * sizeof(int32_t);
    it->base.position_ids = tensor_reshape(column, 0, 3);
    it->base.position_ids.offset = 2 * slots * sizeof(int32_t);
    *out = &it->base;
    return OK;
failed:
    *out = &it->base;
    cpu_decode_batch_free(backend, out);
    return result;
}

void cpu_decode_batch_free(struct backend *backend, struct decode_batch **batch) {
    if (!*batch) return;
    struct cpu_decode_batch *it = cpu_decode_batch_of(*batch);
    cpu_attention_plan_free(backend, &it->base.plan);
    cpu_buffer_free(backend, &it->inputs);
    arena_release(&it->arena);
    free(it);
    *batch = NULL;
}

// Writes the inputs of the next step. A row without a token gets some, so that the plan covers it.
static status decode_batch_refresh(struct backend *backend, struct cpu_decode_batch *it) {
    struct decode_batch *base = &it->base;
    base->rows = 0;
    for (int slot = 0; slot < it->capacity; slot++) {
        const struct decode_row *row = &it->slots[slot].row;
        if (!it->slots[slot].at_work) continue;
        int at = base->rows++, len = row->len > 0 ? row->len : 1;
        it->slot_of_row[at] = slot;
        it->spans[at] = (struct attention_span){.q_begin = at,
                                                .q_len = 1,
                                                .prefix_begin = row->prefix_begin,
                                                .prefix_len = row->prefix_len,
                                                .kv_begin = row->kv_begin,
                                                .visible = len};
        *tensor_i32(base->tokens, at) = row->token;
        *tensor_i32(base->cache_slots, at) = row->kv_begin + len - 1;
        for (int axis = 0; axis < 3; axis++) tensor_i32(base->position_ids, at)[axis] = row->position;
    }
    base->tokens.rows = base->position_ids.rows = base->cache_slots.rows = base->rows;
    cpu_attention_plan_free(backend, &base->plan);
    return cpu_attention_plan_new(backend, &base->plan, it->heads, it->spans, (size_t)base->rows, (struct tensor){0});
}

status cpu_decode_batch_set(struct backend *backend, struct decode_batch *batch, int slot,
                            const struct decode_row *row) {
    struct cpu_decode_batch *it = cpu_decode_batch_of(batch);
    CHECK(slot >= 0 && slot < it->capacity);
    CHECK(!row || (row->len >= 0 && row->len < row->max_len));
    CHECK(!row || (row->prefix_begin >= 0 && row->prefix_len >= 0 && row->kv_begin >= 0));
    it->slots[slot] = row ? (struct decode_slot){true, *row} : (struct decode_slot){0};
    return decode_batch_refresh(backend, it);
}

void decode_batch_begin(struct cpu_decode_batch *batch) {
    const struct decode_draws *draws = &batch->draws[batch->steps % 2];
    for (int slot = 0; slot < batch->capacity; slot++) {
        draws->tokens[slot] = -1;
        draws->logprobs[slot] = 0;
    }
}

void decode_batch_draw(const struct cpu_backend *cpu, struct cpu_decode_batch *batch, int64_t row, const float *logits,
                       int64_t vocabulary) {
    assert(row >= 0 && row < batch->base.rows);
    int slot = batch->slot_of_row[row];
    const struct decode_draws *draws = &batch->draws[batch->steps % 2];
    const struct decode_row *it = &batch->slots[slot].row;
    double uniform = rng_uniform(it->key, it->completion, (uint64_t)it->len);
    logits_sample(cpu, &draws->tokens[slot], &draws->logprobs[slot], logits, vocabulary, it->sampling, uniform);
}

status decode_batch_end(struct backend *backend, struct cpu_decode_batch *batch) {
    const int32_t *tokens = batch->draws[batch->steps++ % 2].tokens;
    for (int at = 0; at < batch->base.rows; at++) {
        struct decode_slot *slot = &batch->slots[batch->slot_of_row[at]];
        slot->row.token = tokens[batch->slot_of_row[at]];
        slot->row.position++;
        slot->row.len++;
        if (slot->row.len == slot->row.max_len) slot->at_work = false;
        for (size_t i = 0; i < batch->eos_count; i++)
            if (batch->eos_ids[i] == slot->row.token) slot->at_work = false;
    }
    return decode_batch_refresh(backend, batch);
}

status cpu_decode_batch_read(struct backend *backend, struct decode_batch *batch, int64_t step, int32_t *tokens,
                             float *logprobs) {
    const struct cpu_decode_batch *it = cpu_decode_batch_of(batch);
    (void)backend;
    CHECK(step >= 0 && step < it->steps && step >= it->steps - 2);
    memcpy(tokens, it->draws[step % 2].tokens, (size_t)it->capacity * sizeof *tokens);
    memcpy(logprobs, it->draws[step % 2].logprobs, (size_t)it->capacity * sizeof *logprobs);
    return OK;
}
