// Recorded operations: a decoding step of a transformer block, recorded once, against the same step computed anew each
// time. Completions join, end and leave, prompts get longer and scratch memory grows, all without a new recording.
#include "tests/ops/harness.h"

#include <math.h>

enum {
    slots = 5,
    hidden = 16,
    inner = 24,
    vocabulary = 24,
    prompt_rows = 560, // of the cache, which prompts share
    own_rows = 16,     // of each slot
    cache_rows = prompt_rows + slots * own_rows,
    steps = 11,
    growing_step = 7, // before it the scratch memory grows
};

static const int32_t eos_ids[] = {3, 7};

// The block's parameters.
struct graph_block {
    struct heads heads;
    enum element type;
    struct tensor embedding, scale;
    struct weight *qkv, *out, *gate_up, *down, *head;
    struct rope_table table;
};

// A batch, and what its steps compute.
struct graph_decoder {
    struct decode_batch *batch;
    struct kv_cache *cache;
    struct tensor x, normed, qkv, attended, delta, gate_up, gated;
};

static struct weight *graph_weight(struct harness *h, enum element type, int64_t rows, int64_t columns) {
    struct weight *weight = NULL;
    struct tensor plain = harness_dense(h, type, rows, columns, FILL_NORMAL, 1.5 / sqrt((double)columns));
    harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, true));
    return weight;
}

static void graph_block_init(struct harness *h, struct graph_block *it, struct heads heads, enum element type) {
    int64_t query = heads.query * heads.size, qkv = query + 2 * heads.key * heads.size;
    *it = (struct graph_block){.heads = heads, .type = type};
    it->embedding = harness_dense(h, type, vocabulary, hidden, FILL_NORMAL, 1);
    it->scale = harness_dense(h, type, 1, hidden, FILL_NORMAL, 1);
    it->qkv = graph_weight(h, type, qkv, hidden);
    it->out = graph_weight(h, type, hidden, query);
    it->gate_up = graph_weight(h, type, (int64_t)2 * inner, hidden);
    it->down = graph_weight(h, type, hidden, inner);
    it->head = graph_weight(h, type, vocabulary, hidden);
    it->table = (struct rope_table){harness_dense(h, ELEMENT_F32, 100, heads.size / 2, FILL_NORMAL, 1),
                                    harness_dense(h, ELEMENT_F32, 100, heads.size / 2, FILL_NORMAL, 1),
                                    {heads.size / 2, 0}};
}

static void graph_block_release(struct harness *h, struct graph_block *it) {
    struct weight **weights[] = {&it->qkv, &it->out, &it->gate_up, &it->down, &it->head};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) h->ops->weight_free(h->backend, weights[i]);
}

// All cache rows hold what `filling` and `cache_slots` put there.
static void graph_decoder_init(struct harness *h, struct graph_decoder *it, const struct graph_block *block,
                               struct tensor filling, struct tensor cache_slots) {
    struct heads heads = block->heads;
    enum element type = block->type;
    *it = (struct graph_decoder){
        .x = harness_dense(h, type, slots, hidden, FILL_ZERO, 0),
        .normed = harness_dense(h, type, slots, hidden, FILL_ZERO, 0),
        .qkv = harness_dense(h, type, slots, (heads.query + 2 * heads.key) * heads.size, FILL_ZERO, 0),
        .attended = harness_dense(h, type, slots, heads.query * heads.size, FILL_ZERO, 0),
        .delta = harness_dense(h, type, slots, hidden, FILL_ZERO, 0),
        .gate_up = harness_dense(h, type, slots, (int64_t)2 * inner, FILL_ZERO, 0),
        .gated = harness_dense(h, type, slots, inner, FILL_ZERO, 0)};
    harness_ok(h, h->ops->decode_batch_new(h->backend, &it->batch, slots, heads, eos_ids, 2));
    harness_ok(h, h->ops->kv_cache_new(h->backend, &it->cache, type, 1, cache_rows, heads));
    harness_ok(h, h->ops->kv_cache_write(h->backend, filling, heads, it->cache, 0, cache_slots));
}

static void graph_decoder_release(struct harness *h, struct graph_decoder *it) {
    h->ops->decode_batch_free(h->backend, &it->batch);
    h->ops->kv_cache_free(h->backend, &it->cache);
}

static status graph_compute_step(struct harness *h, const struct graph_decoder *it, const struct graph_block *block) {
    const struct operations *ops = h->ops;
    struct backend *backend = h->backend;
    const struct decode_batch *batch = it->batch;
    struct tensor none = {0};
    TRY(ops->gather(backend, it->x, block->embedding, batch->tokens));
    TRY(ops->rmsnorm(backend, it->normed, it->x, none, block->scale, 1e-6f, none));
    TRY(ops->linear(backend, it->qkv, it->normed, block->qkv, none, false));
    TRY(ops->rope(backend, it->qkv, &block->table, batch->position_ids, block->heads, it->cache, 0,
                  batch->cache_slots));
    TRY(ops->attention(backend, it->attended, it->qkv, 0.125f, it->cache, 0, batch->plan, none));
    TRY(ops->linear(backend, it->delta, it->attended, block->out, none, false));
    TRY(ops->rmsnorm(backend, it->normed, it->x, it->delta, block->scale, 1e-6f, none));
    TRY(ops->linear(backend, it->gate_up, it->normed, block->gate_up, none, false));
    TRY(ops->activation(backend, ACTIVATION_SWIGLU, it->gated, it->gate_up));
    TRY(ops->linear(backend, it->delta, it->gated, block->down, none, false));
    TRY(ops->rmsnorm(backend, it->normed, it->x, it->delta, block->scale, 1e-6f, none));
    return ops->sample(backend, it->batch, it->normed, block->head);
}

static void graph_record_step(struct harness *h, const struct graph_decoder *it, const struct graph_block *block,
                              struct graph **out) {
    harness_ok(h, h->ops->graph_begin(h->backend));
    harness_ok(h, graph_compute_step(h, it, block));
    harness_ok(h, h->ops->graph_end(h->backend, out));
}

// Every seventh step a slot is given to another completion, of at most 1 + 2 slot tokens: some have ended by then,
// others are replaced. A slot is made idle at step 6, and some steps follow each other without a change. Later prompts
// have two chunks of keys, the first ones have one.
static void graph_change_slots(struct harness *h, struct graph_decoder decoders[2], int step) {
    for (int slot = 0; slot < slots; slot++) {
        if (step > 0 && (step + slot) % 7 != 0) continue;
        int32_t len = (int32_t)harness_range(h, 1, 6);
        int32_t prefix_len = (int32_t)(step < 5 ? harness_range(h, 1, 90) : harness_range(h, 513, prompt_rows));
        const struct decode_row row = {.token = (int32_t)harness_range(h, 0, vocabulary - 1),
                                       .position = (int32_t)harness_range(h, 0, 60),
                                       .prefix_begin = (int32_t)harness_range(h, 0, prompt_rows - prefix_len),
                                       .prefix_len = prefix_len,
                                       .kv_begin = prompt_rows + slot * own_rows,
                                       .len = len,
                                       .max_len = len + 1 + 2 * slot,
                                       .sampling = {(float)harness_range(h, 0, 1), 0.9f, 0},
                                       .key = (uint64_t)(harness_unit(h) * 0x1p53),
                                       .completion = (uint64_t)slot};
        for (int i = 0; i < 2; i++)
            harness_ok(h, h->ops->decode_batch_set(h->backend, decoders[i].batch, slot, step == 6 ? NULL : &row));
    }
}

// What both batches drew is the same. *idle += the slots that drew nothing.
static void graph_expect_draws(struct harness *h, struct graph_decoder decoders[2], int step, int *idle) {
    int32_t tokens[2][slots];
    float logprobs[2][slots];
    for (int i = 0; i < 2; i++)
        harness_ok(h, h->ops->decode_batch_read(h->backend, decoders[i].batch, step, tokens[i], logprobs[i]));
    for (int slot = 0; slot < slots; slot++) {
        harness_hold(h, tokens[0][slot] == tokens[1][slot] && logprobs[0][slot] == logprobs[1][slot],
                     "step %d, slot %d: the graph drew token %d at %g, not %d at %g", step, slot, tokens[1][slot],
                     (double)logprobs[1][slot], tokens[0][slot], (double)logprobs[0][slot]);
        *idle += tokens[0][slot] < 0;
    }
}

// Samples from more rows than a step has, once.
static void graph_grow_scratch(struct harness *h, const struct graph_block *block) {
    enum { rows = 40 };
    struct decode_batch *batch = NULL;
    struct tensor in = harness_dense(h, block->type, rows, hidden, FILL_NORMAL, 1);
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, rows, block->heads, eos_ids, 2));
    harness_ok(h, h->ops->sample(h->backend, batch, in, block->head));
    h->ops->decode_batch_free(h->backend, &batch);
}

// Each step is computed with the first decoder. With the second one step 0 is computed, and then the recording is
// launched. A step is read when the next one has been asked for.
static void graph_check_steps(struct harness *h, struct heads heads, enum element type) {
    struct graph_block block;
    struct graph_decoder decoders[2];
    struct graph *graph = NULL;
    int idle = 0;
    harness_case(h, "recorded steps, %d/%d heads of %d in %s", heads.query, heads.key, heads.size,
                 type == ELEMENT_F32 ? "F32" : "BF16");
    graph_block_init(h, &block, heads, type);
    struct tensor cache_slots = harness_dense(h, ELEMENT_I32, cache_rows, 1, FILL_ZERO, 0);
    struct tensor filling =
        harness_dense(h, type, cache_rows, (heads.query + 2 * heads.key) * heads.size, FILL_NORMAL, 1);
    int32_t *numbers = harness_memory(h, cache_rows * sizeof *numbers);
    for (int i = 0; i < cache_rows; i++) numbers[i] = i;
    harness_set(h, cache_slots, numbers);
    for (int i = 0; i < 2; i++) graph_decoder_init(h, &decoders[i], &block, filling, cache_slots);
    for (int step = 0; step < steps; step++) {
        graph_change_slots(h, decoders, step);
        if (step == growing_step) graph_grow_scratch(h, &block);
        if (step == 1) graph_record_step(h, &decoders[1], &block, &graph);
        harness_ok(h, graph_compute_step(h, &decoders[0], &block));
        harness_ok(h, step ? h->ops->graph_launch(h->backend, graph) : graph_compute_step(h, &decoders[1], &block));
        if (step) graph_expect_draws(h, decoders, step - 1, &idle);
    }
    graph_expect_draws(h, decoders, steps - 1, &idle);
    harness_hold(h, idle > 0, "no completion ended");
    harness_same(h, "normed", decoders[1].normed);
    h->ops->graph_free(h->backend, &graph);
    for (int i = 0; i < 2; i++) graph_decoder_release(h, &decoders[i]);
    graph_block_release(h, &block);
}

// What waits or reads the host's memory is refused while operations are recorded, without harm to the recording. After
// what allocates there is no graph.
static void graph_check_refusals(struct harness *h) {
    const struct operations *ops = h->ops;
    struct backend *backend = h->backend;
    struct graph *graph = NULL;
    struct buffer *buffer = NULL;
    struct decode_batch *batch = NULL;
    int32_t tokens[1];
    float values[hidden] = {0};
    harness_case(h, "refusals");
    struct tensor t = harness_dense(h, ELEMENT_F32, 1, hidden, FILL_NORMAL, 1),
                  sum = harness_dense(h, ELEMENT_F32, 1, hidden, FILL_ZERO, 0);
    struct weight *head = graph_weight(h, ELEMENT_F32, vocabulary, hidden),
                  *large = graph_weight(h, ELEMENT_F32, 60 * vocabulary, hidden);
    const struct decode_row row = {.max_len = 3};
    harness_ok(h, ops->decode_batch_new(backend, &batch, 1, (struct heads){2, 1, 4}, NULL, 0));
    harness_ok(h, ops->sample(backend, batch, t, head));
    harness_ok(h, ops->add(backend, sum, t));
    harness_ok(h, ops->zero(backend, sum));
    harness_hold(h, ops->graph_end(backend, &graph) == BUG && !graph, "a recording ends that has not begun");
    harness_ok(h, ops->graph_begin(backend));
    harness_hold(h, ops->graph_begin(backend) == BUG, "a recording begins in another one");
    harness_ok(h, ops->add(backend, sum, t));
    harness_hold(h, ops->upload(backend, t, values, ELEMENT_F32) == BUG, "an upload was recorded");
    harness_hold(h, ops->download(backend, values, ELEMENT_F32, t) == BUG, "a download was recorded");
    harness_hold(h, ops->wait(backend) == BUG, "a wait was recorded");
    harness_hold(h, ops->decode_batch_set(backend, batch, 0, &row) == BUG, "a slot was set in a recording");
    harness_hold(h, ops->decode_batch_read(backend, batch, 0, tokens, values) == BUG, "a step was read in a recording");
    harness_hold(h, ops->sample(backend, batch, t, large) == BUG, "scratch memory grew in a recording");
    harness_ok(h, ops->graph_end(backend, &graph));
    harness_ok(h, ops->graph_launch(backend, graph));
    harness_equal(h, "a sum", sum, t);
    ops->graph_free(backend, &graph);
    harness_hold(h, !graph, "a graph that was freed is not NULL");

    harness_ok(h, ops->graph_begin(backend));
    harness_hold(h, ops->buffer_new(backend, 64, &buffer) == BUG && !buffer, "memory was allocated in a recording");
    harness_hold(h, ops->graph_end(backend, &graph) == BUG && !graph, "a recording ended well after a failure");
    ops->graph_free(backend, &graph); // NULL
    harness_ok(h, ops->sample(backend, batch, t, large));
    harness_ok(h, ops->wait(backend));
    ops->decode_batch_free(backend, &batch);
    ops->weight_free(backend, &large);
    ops->weight_free(backend, &head);
}

static void graph_check(struct harness *h) {
    const struct operations *ops = h->ops;
    if (!ops->graph_begin) {
        harness_case(h, "no graphs");
        harness_hold(h, !ops->graph_end && !ops->graph_launch && !ops->graph_free, "some of the four operations exist");
        return;
    }
    graph_check_steps(h, (struct heads){2, 1, 6}, ELEMENT_F32);
    graph_check_steps(h, (struct heads){2, 1, 64}, ELEMENT_BF16);
    graph_check_refusals(h);
}

const struct suite suite_graph = {"graph", graph_check, NULL};
