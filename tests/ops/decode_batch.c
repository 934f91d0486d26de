// Decode batches over many steps, in which completions join, end and leave, against the same rules on the host. Each
// row draws what it draws alone in a batch of its own.
#include "tests/ops/harness.h"

#include <string.h>

#include "tests/ops/sampling.h"

enum { max_slots = 9, channels = 5, vocabulary = 12, steps = 30 };

static const int32_t eos_ids[] = {3, 7};
static const struct heads batch_heads = {2, 1, 4};

// What the test knows of a batch.
struct batch_case {
    struct decode_batch *batch;
    struct weight *head;
    int capacity;
    bool at_work[max_slots];
    struct decode_row rows[max_slots];
    int32_t tokens[2][max_slots]; // of the last two steps
    float logprobs[2][max_slots];
};

static struct decode_row batch_random_row(struct harness *h) {
    int32_t len = (int32_t)harness_range(h, 0, 6);
    return (struct decode_row){.token = (int32_t)harness_range(h, 0, vocabulary - 1),
                               .position = (int32_t)harness_range(h, 0, 1000),
                               .prefix_len = (int32_t)harness_range(h, 0, 40),
                               .kv_begin = (int32_t)harness_range(h, 0, 100),
                               .len = len,
                               .max_len = len + (int32_t)harness_range(h, 1, 9),
                               .sampling = {(float)harness_range(h, 0, 1), 0.9f, 0},
                               .key = (uint64_t)(harness_unit(h) * 0x1p53),
                               .completion = (uint64_t)harness_range(h, 0, 3)};
}

// Sets some idle slots, and makes one of those at work idle.
static void batch_change_slots(struct harness *h, struct batch_case *it) {
    for (int slot = 0; slot < it->capacity; slot++) {
        double change = harness_unit(h);
        if (it->at_work[slot] ? change > 0.05 : change > 0.3) continue;
        it->at_work[slot] = !it->at_work[slot];
        if (it->at_work[slot]) it->rows[slot] = batch_random_row(h);
        const struct decode_row *row = it->at_work[slot] ? &it->rows[slot] : NULL;
        harness_ok(h, h->ops->decode_batch_set(h->backend, it->batch, slot, row));
    }
}

// The row of a slot. On the CPU only the slots at work have rows, on other devices all slots have.
static int batch_row(const struct harness *h, const struct batch_case *it, int slot) {
    int row = 0;
    for (int i = 0; i < slot; i++) row += !h->cpu || it->at_work[i];
    return row;
}

static void batch_expect_inputs(struct harness *h, const struct batch_case *it) {
    const struct decode_batch *batch = it->batch;
    int rows = batch_row(h, it, it->capacity);
    harness_hold(h,
                 batch->rows == rows && batch->tokens.rows == rows && batch->position_ids.rows == rows &&
                     batch->cache_slots.rows == rows,
                 "%d rows, not %d", batch->rows, rows);
    if (rows == 0 || batch->rows != rows) return;
    int32_t *tokens = harness_numbers(h, batch->tokens), *position_ids = harness_numbers(h, batch->position_ids),
            *cache_slots = harness_numbers(h, batch->cache_slots);
    for (int slot = 0; slot < it->capacity; slot++) {
        const struct decode_row *row = &it->rows[slot];
        int at = batch_row(h, it, slot);
        if (!it->at_work[slot]) {
            harness_hold(h, h->cpu || cache_slots[at] == -1, "slot %d is idle and writes cache row %d", slot,
                         h->cpu ? 0 : cache_slots[at]);
            continue;
        }
        const int32_t *position = position_ids + 3 * at;
        harness_hold(h, row->len == 0 || (tokens[at] == row->token && cache_slots[at] == row->kv_begin + row->len - 1),
                     "slot %d: token %d in cache row %d", slot, tokens[at], cache_slots[at]);
        harness_hold(h, position[0] == row->position && position[1] == row->position && position[2] == row->position,
                     "slot %d: position %d, not %d", slot, position[0], row->position);
    }
}

// What the rows draw, each alone in a batch; then the rows move on.
static void batch_expected_step(struct harness *h, struct batch_case *it, struct tensor in, int step) {
    int32_t *tokens = it->tokens[step % 2];
    float *logprobs = it->logprobs[step % 2];
    struct batch_case before = *it; // the rows of this step
    for (int slot = 0; slot < it->capacity; slot++) {
        struct decode_row *row = &it->rows[slot];
        tokens[slot] = -1;
        logprobs[slot] = 0;
        if (!it->at_work[slot]) continue;
        sampling_step(h, tensor_rows(in, batch_row(h, &before, slot), 1), it->head, row, &tokens[slot],
                      &logprobs[slot]);
        row->token = tokens[slot];
        row->position++;
        row->len++;
        it->at_work[slot] = row->len < row->max_len && row->token != eos_ids[0] && row->token != eos_ids[1];
    }
}

static void batch_expect_draws(struct harness *h, const struct batch_case *it, int step) {
    int32_t tokens[max_slots];
    float logprobs[max_slots];
    harness_ok(h, h->ops->decode_batch_read(h->backend, it->batch, step, tokens, logprobs));
    for (int slot = 0; slot < it->capacity; slot++)
        harness_hold(h, tokens[slot] == it->tokens[step % 2][slot], "step %d, slot %d: token %d, not %d", step, slot,
                     tokens[slot], it->tokens[step % 2][slot]);
    harness_hold(h, memcmp(logprobs, it->logprobs[step % 2], (size_t)it->capacity * sizeof *logprobs) == 0,
                 "step %d: other log-probabilities than those of the rows alone", step);
}

static void batch_check_steps(struct harness *h) {
    struct batch_case it = {.capacity = (int)harness_range(h, 1, max_slots)};
    harness_case(h, "%d slots", it.capacity);
    struct tensor plain = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_NORMAL, 0.7);
    struct tensor in = harness_dense(h, ELEMENT_F32, max_slots + steps, channels, FILL_NORMAL, 1);
    harness_ok(h, h->ops->weight_new(h->backend, &it.head, plain, true));
    harness_ok(h, h->ops->decode_batch_new(h->backend, &it.batch, it.capacity, batch_heads, eos_ids, 2));
    for (int step = 0; step < steps; step++) {
        batch_change_slots(h, &it);
        batch_expect_inputs(h, &it);
        struct tensor rows = tensor_rows(in, step, it.batch->rows);
        harness_ok(h, h->ops->sample(h->backend, it.batch, rows, it.head));
        if (step) batch_expect_draws(h, &it, step - 1);
        batch_expected_step(h, &it, rows, step);
        batch_expect_draws(h, &it, step);
    }
    h->ops->decode_batch_free(h->backend, &it.batch);
    h->ops->weight_free(h->backend, &it.head);
}

// Rotates random rows, which sets the cache rows `slots`.
static void batch_rotate(struct harness *h, struct kv_cache *cache, int64_t rows, const int32_t *slots) {
    int64_t columns = (batch_heads.query + 2 * batch_heads.key) * batch_heads.size, pairs = batch_heads.size / 2;
    struct tensor qkv = harness_dense(h, ELEMENT_F32, rows, columns, FILL_NORMAL, 1);
    struct tensor cache_slots = harness_index(h, rows, 1), position_ids = harness_dense(h, ELEMENT_I32, rows, 3, 0, 0);
    struct rope_table table = {.cos = harness_dense(h, ELEMENT_F32, 1, pairs, FILL_NORMAL, 1),
                               .sin = harness_dense(h, ELEMENT_F32, 1, pairs, FILL_NORMAL, 1)};
    harness_set(h, position_ids, harness_memory(h, (size_t)rows * 3 * sizeof(int32_t)));
    harness_set(h, cache_slots, slots);
    harness_ok(h, h->ops->rope(h->backend, qkv, &table, position_ids, batch_heads, cache, 0, cache_slots));
}

// A batch's plan is that of its rows; what a row without a cache row rotates is not kept.
static void batch_check_attention(struct harness *h) {
    enum { cache_rows = 160 };
    struct attention_span spans[max_slots];
    struct decode_batch *batch = NULL;
    struct attention_plan *plan = NULL;
    struct kv_cache *cache = NULL;
    struct tensor none = {0};
    int32_t slots[cache_rows];
    int count = (int)harness_range(h, 1, max_slots);
    harness_case(h, "attention of %d slots", count);
    for (int i = 0; i < cache_rows; i++) slots[i] = i;
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, ELEMENT_F32, 1, cache_rows, batch_heads));
    batch_rotate(h, cache, cache_rows, slots);
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, count, batch_heads, NULL, 0));
    for (int slot = 0; slot < count; slot++) {
        struct decode_row row = batch_random_row(h);
        row.len++; // it has an input
        row.max_len++;
        spans[slot] =
            (struct attention_span){slot, 1, row.prefix_begin, row.prefix_len, row.kv_begin, row.len, false, 0};
        harness_ok(h, h->ops->decode_batch_set(h->backend, batch, slot, &row));
    }
    harness_ok(h, h->ops->attention_plan_new(h->backend, &plan, batch_heads, spans, (size_t)count, none));
    struct tensor qkv = harness_dense(h, ELEMENT_F32, count, 16, FILL_NORMAL, 1);
    struct tensor out = harness_dense(h, ELEMENT_F32, count, 8, FILL_ZERO, 0),
                  want = harness_dense(h, ELEMENT_F32, count, 8, FILL_ZERO, 0);
    harness_ok(h, h->ops->attention(h->backend, want, qkv, 0.5f, cache, 0, plan, none));
    slots[0] = slots[1] = slots[2] = -1;
    batch_rotate(h, cache, 3, slots);
    harness_ok(h, h->ops->attention(h->backend, out, qkv, 0.5f, cache, 0, batch->plan, none));
    harness_same(h, "attended", out);
    harness_equal(h, "attended by the batch's plan", out, want);
    h->ops->attention_plan_free(h->backend, &plan);
    h->ops->decode_batch_free(h->backend, &batch);
    h->ops->kv_cache_free(h->backend, &cache);
}

static void batch_check_refusals(struct harness *h) {
    const struct operations *ops = h->ops;
    struct decode_batch *batch = NULL;
    struct weight *head = NULL;
    int32_t tokens[2];
    float logprobs[2];
    harness_case(h, "refusals");
    harness_hold(h, ops->decode_batch_new(h->backend, &batch, 0, batch_heads, NULL, 0) == BUG && !batch, "no slots");
    struct tensor in = harness_dense(h, ELEMENT_F32, 2, channels, FILL_NORMAL, 1),
                  plain = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_NORMAL, 1);
    harness_ok(h, ops->weight_new(h->backend, &head, plain, true));
    harness_ok(h, ops->decode_batch_new(h->backend, &batch, 2, batch_heads, NULL, 0));
    struct decode_row row = {.max_len = 9};
    for (int slot = 0; slot < 2; slot++) harness_ok(h, ops->decode_batch_set(h->backend, batch, slot, &row));
    harness_hold(h, ops->decode_batch_set(h->backend, batch, 2, &row) == BUG, "a slot beyond the capacity");
    row.len = 9;
    harness_hold(h, ops->decode_batch_set(h->backend, batch, 0, &row) == BUG, "a completion with all its tokens");
    harness_hold(h, ops->sample(h->backend, batch, tensor_rows(in, 0, 1), head) == BUG, "fewer rows than the batch's");
    harness_hold(h, ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs) == BUG, "a step that is to come");
    for (int step = 0; step < 3; step++) harness_ok(h, ops->sample(h->backend, batch, in, head));
    harness_ok(h, ops->decode_batch_read(h->backend, batch, 1, tokens, logprobs));
    harness_hold(h, ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs) == BUG, "a step too long ago");
    ops->decode_batch_free(h->backend, &batch);
    ops->decode_batch_free(h->backend, &batch); // NULL
    ops->weight_free(h->backend, &head);
}

static void batch_check(struct harness *h) {
    for (int i = 0; i < harness_repeats(h, 10); i++) {
        batch_check_steps(h);
        batch_check_attention(h);
    }
    batch_check_refusals(h);
}

const struct suite suite_decode_batch = {"decode_batch", batch_check, NULL};
