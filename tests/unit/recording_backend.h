// A backend that is asynchronous and records graphs, made of the CPU's operations, to test what the model does with
// one. A decode batch has a row for each slot, and its fields stay the same. A graph is computed when it is launched;
// while one is recorded, operations that cannot be recorded are refused.
#pragma once

#include "shared/model/qwen_vl/model_internal.h"

enum { MAX_SLOTS = MAX_DECODE_ROWS };

// One recorded operation with its arguments.
struct recorded_call {
    status (*run)(struct backend *, const struct recorded_call *);
    struct tensor tensors[5];
    struct weight *weight;
    struct heads heads;
    const struct rope_table *table;
    struct kv_cache *cache;
    const struct attention_plan *plan;
    struct decode_batch *batch;
    int layer;
    float number; // epsilon, scale
    enum activation kind;
    bool add;
};

struct graph {
    struct recorded_call *calls;
    size_t count;
    bool stale; // a cache that it was recorded with is gone
};

// What the model gets instead of the CPU's plan. A batch puts another plan into the same box after each step.
struct boxed_plan {
    struct attention_plan *plan;
};

struct recording_batch {
    struct decode_batch base;
    struct decode_batch *inner; // the CPU's, with the rows at work only
    int capacity;
    struct heads heads;
    int32_t eos_ids[8];
    size_t eos_count;
    bool at_work[MAX_SLOTS];
    struct decode_row rows[MAX_SLOTS];
    int64_t steps;
    struct boxed_plan plan;
    struct buffer *inputs;
};

static struct {
    const struct operations *cpu;
    struct operations table;
    struct graph *recording; // NULL: operations are computed
    struct graph *graph;     // the last one, until it is freed
    int recorded, launched;  // graphs
    int early_reads;         // of the last of several steps
} recorder;

static inline status recorder_call(struct backend *backend, struct recorded_call call) {
    struct graph *graph = recorder.recording;
    if (!graph) return call.run(backend, &call);
    RESIZE(&graph->calls, graph->count + 1);
    graph->calls[graph->count++] = call;
    return OK;
}

// ---- operations that can be recorded ----

static inline status run_gather(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->gather(backend, call->tensors[0], call->tensors[1], call->tensors[2]);
}

static inline status recording_gather(struct backend *backend, struct tensor out, struct tensor table,
                                      struct tensor index) {
    return recorder_call(backend, (struct recorded_call){.run = run_gather, .tensors = {out, table, index}});
}

static inline status run_linear(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->linear(backend, call->tensors[0], call->tensors[1], call->weight, call->tensors[2], call->add);
}

static inline status recording_linear(struct backend *backend, struct tensor out, struct tensor in,
                                      struct weight *weight, struct tensor bias, bool add) {
    return recorder_call(
        backend, (struct recorded_call){.run = run_linear, .tensors = {out, in, bias}, .weight = weight, .add = add});
}

static inline status run_scale(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->scale(backend, call->tensors[0], call->tensors[1], call->number);
}

static inline status recording_scale(struct backend *backend, struct tensor out, struct tensor in, float factor) {
    return recorder_call(backend, (struct recorded_call){.run = run_scale, .tensors = {out, in}, .number = factor});
}

static inline status run_rmsnorm(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->rmsnorm(backend, call->tensors[0], call->tensors[1], call->tensors[2], call->tensors[3],
                                 call->number, call->tensors[4]);
}

static inline status recording_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                                       struct tensor scale, float epsilon, struct tensor rstd) {
    return recorder_call(backend, (struct recorded_call){
                                      .run = run_rmsnorm, .tensors = {out, x, delta, scale, rstd}, .number = epsilon});
}

static inline status run_activation(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->activation(backend, call->kind, call->tensors[0], call->tensors[1]);
}

static inline status recording_activation(struct backend *backend, enum activation kind, struct tensor out,
                                          struct tensor in) {
    return recorder_call(backend, (struct recorded_call){.run = run_activation, .tensors = {out, in}, .kind = kind});
}

static inline status run_rope(struct backend *backend, const struct recorded_call *call) {
    return recorder.cpu->rope(backend, call->tensors[0], call->table, call->tensors[1], call->heads, call->cache,
                              call->layer, call->tensors[2]);
}

static inline status recording_rope(struct backend *backend, struct tensor qkv, const struct rope_table *table,
                                    struct tensor position_ids, struct heads heads, struct kv_cache *cache, int layer,
                                    struct tensor cache_slots) {
    return recorder_call(backend, (struct recorded_call){.run = run_rope,
                                                         .tensors = {qkv, position_ids, cache_slots},
                                                         .table = table,
                                                         .heads = heads,
                                                         .cache = cache,
                                                         .layer = layer});
}

static inline status run_attention(struct backend *backend, const struct recorded_call *call) {
    const struct boxed_plan *box = (const void *)call->plan;
    return recorder.cpu->attention(backend, call->tensors[0], call->tensors[1], call->number, call->cache, call->layer,
                                   box->plan, call->tensors[2]);
}

static inline status recording_attention(struct backend *backend, struct tensor out, struct tensor qkv, float scale,
                                         struct kv_cache *cache, int layer, const struct attention_plan *plan,
                                         struct tensor lse) {
    return recorder_call(backend, (struct recorded_call){.run = run_attention,
                                                         .tensors = {out, qkv, lse},
                                                         .number = scale,
                                                         .cache = cache,
                                                         .layer = layer,
                                                         .plan = plan});
}

// ---- decode batches ----

// Writes the inputs of all slots, and makes a plan for them.
static inline status recording_batch_refresh(struct backend *backend, struct recording_batch *it) {
    int32_t tokens[MAX_SLOTS], position_ids[MAX_SLOTS][3], cache_slots[MAX_SLOTS];
    struct attention_span spans[MAX_SLOTS];
    for (int slot = 0; slot < it->capacity; slot++) {
        const struct decode_row *row = &it->rows[slot];
        bool computed = it->at_work[slot] && row->len > 0;
        tokens[slot] = computed ? row->token : 1;
        for (int axis = 0; axis < 3; axis++) position_ids[slot][axis] = computed ? row->position : 0;
        cache_slots[slot] = computed ? row->kv_begin + row->len - 1 : -1;
        spans[slot] = (struct attention_span){.q_begin = slot, .q_len = 1, .visible = 1};
        if (!computed) continue;
        spans[slot].prefix_begin = row->prefix_begin;
        spans[slot].prefix_len = row->prefix_len;
        spans[slot].kv_begin = row->kv_begin;
        spans[slot].visible = row->len;
    }
    TRY(recorder.cpu->upload(backend, it->base.tokens, tokens, ELEMENT_I32));
    TRY(recorder.cpu->upload(backend, it->base.position_ids, position_ids, ELEMENT_I32));
    TRY(recorder.cpu->upload(backend, it->base.cache_slots, cache_slots, ELEMENT_I32));
    recorder.cpu->attention_plan_free(backend, &it->plan.plan);
    return recorder.cpu->attention_plan_new(backend, &it->plan.plan, it->heads, spans, (size_t)it->capacity,
                                            (struct tensor){0});
}

static inline status recording_decode_batch_new(struct backend *backend, struct decode_batch **out, int capacity,
                                                struct heads heads, const int32_t *eos_ids, size_t eos_count) {
    struct recording_batch *it = NULL;
    *out = NULL;
    if (recorder.recording || capacity > MAX_SLOTS || eos_count > 8) return fail(BUG, "a batch of %d slots", capacity);
    NEW(&it, 1);
    it->capacity = it->base.rows = capacity;
    it->heads = heads;
    it->eos_count = eos_count;
    memcpy(it->eos_ids, eos_ids, eos_count * sizeof *eos_ids);
    TRY(recorder.cpu->decode_batch_new(backend, &it->inner, capacity, heads, eos_ids, eos_count));
    TRY(recorder.cpu->buffer_new(backend, (size_t)capacity * 5 * sizeof(int32_t), &it->inputs));
    struct tensor column = {it->inputs, 0, ELEMENT_I32, capacity, 1, 1};
    it->base.tokens = it->base.cache_slots = it->base.position_ids = column;
    it->base.cache_slots.offset = (size_t)capacity * sizeof(int32_t);
    it->base.position_ids = tensor_reshape(column, capacity, 3);
    it->base.position_ids.offset = 2 * (size_t)capacity * sizeof(int32_t);
    it->base.plan = (struct attention_plan *)&it->plan;
    *out = &it->base;
    return recording_batch_refresh(backend, it);
}

static inline void recording_decode_batch_free(struct backend *backend, struct decode_batch **batch) {
    struct recording_batch *it = (struct recording_batch *)*batch;
    if (!it) return;
    recorder.cpu->decode_batch_free(backend, &it->inner);
    recorder.cpu->attention_plan_free(backend, &it->plan.plan);
    recorder.cpu->buffer_free(backend, &it->inputs);
    free(it);
    *batch = NULL;
}

static inline status recording_decode_batch_set(struct backend *backend, struct decode_batch *batch, int slot,
                                                const struct decode_row *row) {
    struct recording_batch *it = (struct recording_batch *)batch;
    if (recorder.recording) return fail(BUG, "a slot is set while a graph is recorded");
    TRY(recorder.cpu->decode_batch_set(backend, it->inner, slot, row));
    it->at_work[slot] = row;
    if (row) it->rows[slot] = *row;
    return recording_batch_refresh(backend, it);
}

// Samples with the CPU's batch from the rows at work.
static inline status run_sample(struct backend *backend, const struct recorded_call *call) {
    struct recording_batch *it = (struct recording_batch *)call->batch;
    struct tensor in = call->tensors[0];
    int32_t slots[MAX_SLOTS], tokens[MAX_SLOTS];
    float logprobs[MAX_SLOTS];
    struct buffer *memory[2] = {0};
    int64_t count = 0;
    for (int slot = 0; slot < it->capacity; slot++)
        if (it->at_work[slot]) slots[count++] = slot;
    TRY(recorder.cpu->buffer_new(backend, (size_t)(in.rows * in.columns) * element_size(in.type), &memory[0]));
    TRY(recorder.cpu->buffer_new(backend, MAX_SLOTS * sizeof(int32_t), &memory[1]));
    struct tensor index = {memory[1], 0, ELEMENT_I32, count, 1, 1};
    struct tensor at_work = {memory[0], 0, in.type, count, in.columns, in.columns};
    TRY(recorder.cpu->upload(backend, index, slots, ELEMENT_I32));
    TRY(recorder.cpu->gather(backend, at_work, in, index));
    TRY(recorder.cpu->sample(backend, it->inner, at_work, call->weight));
    for (int i = 0; i < 2; i++) recorder.cpu->buffer_free(backend, &memory[i]);
    TRY(recorder.cpu->decode_batch_read(backend, it->inner, it->steps++, tokens, logprobs));
    for (int slot = 0; slot < it->capacity; slot++) {
        struct decode_row *row = &it->rows[slot];
        if (!it->at_work[slot]) continue;
        row->token = tokens[slot];
        row->position++;
        if (++row->len == row->max_len) it->at_work[slot] = false;
        for (size_t i = 0; i < it->eos_count; i++)
            if (it->eos_ids[i] == row->token) it->at_work[slot] = false;
    }
    return recording_batch_refresh(backend, it);
}

static inline status recording_sample(struct backend *backend, struct decode_batch *batch, struct tensor in,
                                      struct weight *lm_head) {
    return recorder_call(backend,
                         (struct recorded_call){.run = run_sample, .tensors = {in}, .weight = lm_head, .batch = batch});
}

static inline status recording_decode_batch_read(struct backend *backend, struct decode_batch *batch, int64_t step,
                                                 int32_t *tokens, float *logprobs) {
    struct recording_batch *it = (struct recording_batch *)batch;
    if (recorder.recording) return fail(BUG, "a step is read while a graph is recorded");
    if (it->steps > 1 && step == it->steps - 1) recorder.early_reads++;
    return recorder.cpu->decode_batch_read(backend, it->inner, step, tokens, logprobs);
}

// ---- operations that cannot be recorded ----

static inline status recording_buffer_new(struct backend *backend, size_t bytes, struct buffer **out) {
    if (recorder.recording) return fail(BUG, "memory is allocated while a graph is recorded");
    return recorder.cpu->buffer_new(backend, bytes, out);
}

static inline status recording_upload(struct backend *backend, struct tensor out, const void *host, enum element type) {
    if (recorder.recording) return fail(BUG, "an upload while a graph is recorded");
    return recorder.cpu->upload(backend, out, host, type);
}

static inline status recording_download(struct backend *backend, void *host, enum element type, struct tensor in) {
    if (recorder.recording) return fail(BUG, "a download while a graph is recorded");
    return recorder.cpu->download(backend, host, type, in);
}

static inline status recording_attention_plan_new(struct backend *backend, struct attention_plan **out,
                                                  struct heads heads, const struct attention_span *spans, size_t count,
                                                  struct tensor cache_slots) {
    struct boxed_plan *box = NULL;
    if (recorder.recording) return fail(BUG, "a plan is made while a graph is recorded");
    NEW(&box, 1);
    *out = (struct attention_plan *)box;
    return recorder.cpu->attention_plan_new(backend, &box->plan, heads, spans, count, cache_slots);
}

static inline void recording_attention_plan_free(struct backend *backend, struct attention_plan **plan) {
    struct boxed_plan *box = (struct boxed_plan *)*plan;
    if (!box) return;
    recorder.cpu->attention_plan_free(backend, &box->plan);
    free(box);
    *plan = NULL;
}

// ---- graphs ----

static inline void recording_kv_cache_free(struct backend *backend, struct kv_cache **cache) {
    struct graph *graph = recorder.graph;
    for (size_t i = 0; graph && i < graph->count; i++)
        if (*cache && graph->calls[i].cache == *cache) graph->stale = true;
    recorder.cpu->kv_cache_free(backend, cache);
}

static inline status recording_graph_begin(struct backend *backend) {
    (void)backend;
    if (recorder.recording) return fail(BUG, "a graph is recorded already");
    NEW(&recorder.recording, 1);
    return OK;
}

static inline status recording_graph_end(struct backend *backend, struct graph **out) {
    (void)backend;
    *out = recorder.graph = recorder.recording;
    recorder.recording = NULL;
    recorder.recorded++;
    return OK;
}

static inline status recording_graph_launch(struct backend *backend, const struct graph *graph) {
    if (graph->stale) return fail(BUG, "a graph is launched whose cache is gone");
    recorder.launched++;
    for (size_t i = 0; i < graph->count; i++) TRY(graph->calls[i].run(backend, &graph->calls[i]));
    return OK;
}

static inline void recording_graph_free(struct backend *backend, struct graph **graph) {
    (void)backend;
    if (!*graph) return;
    if (*graph == recorder.graph) recorder.graph = NULL;
    free((*graph)->calls);
    free(*graph);
    *graph = NULL;
}

// Makes a model on the CPU, opened for sampling, use the recording backend; one model at a time.
static inline void recording_backend_enter(struct model *model) {
    recorder.cpu = model->backend->ops;
    recorder.table = *recorder.cpu;
    struct operations *table = &recorder.table;
#define RECORDING(name) table->name = recording_##name
    RECORDING(buffer_new);
    RECORDING(upload);
    RECORDING(download);
    RECORDING(gather);
    RECORDING(linear);
    RECORDING(scale);
    RECORDING(rmsnorm);
    RECORDING(activation);
    RECORDING(rope);
    RECORDING(attention);
    RECORDING(kv_cache_free);
    RECORDING(attention_plan_new);
    RECORDING(attention_plan_free);
    RECORDING(decode_batch_new);
    RECORDING(decode_batch_free);
    RECORDING(decode_batch_set);
    RECORDING(sample);
    RECORDING(decode_batch_read);
    RECORDING(graph_begin);
    RECORDING(graph_end);
    RECORDING(graph_launch);
    RECORDING(graph_free);
#undef RECORDING
    model->backend->ops = table;
    model->backend_info.asynchronous = true;
    recorder.recorded = recorder.launched = recorder.early_reads = 0;
}
