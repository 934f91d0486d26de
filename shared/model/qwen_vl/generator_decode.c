// The generator's computations: the prefill of a prompt, and one token for each slot.
#include <assert.h>

#include "shared/model/qwen_vl/generator.h"
#include "shared/model/qwen_vl/text_model.h"

// Appends a token that was drawn with the weights of `version` to a completion.
static status generator_append_token(struct generator *generator, struct request *request, int completion,
                                     int32_t token, float logprob, int64_t version) {
    struct generated *result = &request->results[completion];
    assert(token >= 0 && !request_is_complete(request, completion));
    result->tokens[result->count] = token;
    result->logprobs[result->count] = logprob;
    result->versions[result->count++] = version;
    for (size_t i = 0; i < generator->model->info.eos_count; i++)
        if (generator->eos_ids[i] == token) result->ended = true;
    if (request->stop && !result->ended) TRY(request->stop(request->tag, completion, token, &result->stopped));
    if (request_is_complete(request, completion)) request->finished++;
    return OK;
}

// Samples the first token of each completion from the prompt's last row, last_normed [1,C].
static status generator_sample_first(struct generator *generator, struct arena *arena, struct request *request,
                                     struct tensor last_normed) {
    struct model *model = generator->model;
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    size_t count = (size_t)request->count;
    struct decode_batch *batch = NULL;
    struct tensor index, normed;
    status result = OK;
    int32_t *zeros = arena_alloc(arena, count * sizeof *zeros); // the only row of last_normed
    int32_t *tokens = arena_alloc(arena, count * sizeof *tokens);
    float *logprobs = arena_alloc(arena, count * sizeof *logprobs);
    TRY_TO(result, done,
           ops->decode_batch_new(backend, &batch, request->count, model->weights->text.heads, generator->eos_ids,
                                 model->info.eos_count));
    for (int i = 0; i < request->count; i++) {
        const struct decode_row row = {
            .max_len = 1, .sampling = request->sampling, .key = request->key, .completion = (uint64_t)i};
        TRY_TO(result, done, ops->decode_batch_set(backend, batch, i, &row));
    }
    assert(batch->rows == request->count);
    TRY_TO(result, done, workspace_upload(&model->workspace, ELEMENT_I32, request->count, 1, zeros, &index));
    TRY_TO(result, done,
           workspace_alloc(&model->workspace, last_normed.type, request->count, last_normed.columns, &normed));
    TRY_TO(result, done, ops->gather(backend, normed, last_normed, index));
    TRY_TO(result, done, ops->sample(backend, batch, normed, model->weights->lm_head));
    TRY_TO(result, done, ops->decode_batch_read(backend, batch, 0, tokens, logprobs));
    for (int i = 0; i < request->count; i++)
        TRY_TO(result, done, generator_append_token(generator, request, i, tokens[i], logprobs[i], model->version));
done:
    ops->decode_batch_free(backend, &batch);
    return result;
}

status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt) {
    struct model *model = generator->model;
    struct workspace *workspace = &model->workspace;
    struct arena arena = {0};
    struct sequence sequence;
    struct text_state text = {0};
    status result = OK;
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, prompt, NULL, 0));
    assert(sequence.span_count == 1 && sequence.cache_rows == request->cache_rows);
    for (int64_t i = 0; i < sequence.rows; i++) sequence.cache_slots[i] += (int32_t)request->cache_begin;
    sequence.spans[0].kv_begin = request->cache_begin;
    request->next_position = sequence.next_position;
    // Also for the steps, whose position ids the backend counts.
    TRY_TO(result, done,
           rope_angles_reserve(&model->text_rope, model->backend,
                               (int64_t)sequence.next_position + request->max_new_tokens));
    TRY_TO(result, done, text_forward(&text, model, &arena, prompt, &sequence, generator->cache, false));

    struct tensor last_normed;
    TRY_TO(result, done,
           workspace_alloc(workspace, model->weights->base.type, 1, model->config.text.hidden_size, &last_normed));
    struct forward_state last = text.fwd;
    last.x = tensor_rows(text.fwd.x, text.fwd.rows - 1, 1);
    last.delta = tensor_rows(text.fwd.delta, text.fwd.rows - 1, 1);
    TRY_TO(result, done,
           forward_norm(&last, last_normed, model->weights->norm, (struct tensor){0}, (struct tensor){0}));
    TRY_TO(result, done, generator_sample_first(generator, &arena, request, last_normed));
done:
    text_release(&text, model);
    workspace_restore(workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}

// The state of a slot's completion before its next step.
static struct decode_row generator_row(const struct generator *generator, int slot) {
    const struct request *request = generator->slots[slot].request;
    int completion = generator->slots[slot].completion;
    const struct generated *result = &request->results[completion];
    const struct branch *branch = request->branches ? &request->branches[completion] : NULL;
    size_t last = result->count - 1, prefix = branch ? branch->prefix_count : 0, len = prefix + result->count;
    const int64_t *tokens = result->tokens;
    int64_t kv_begin = slot * generator->cache_rows_per_slot;
    if (branch) kv_begin = branch->cache_begin;
    if (branch && !result->count) { // a token of the prefix
        last = branch->computed;
        len = branch->prefix_count - (branch->input_count - 1 - last);
        tokens = branch->inputs;
    }
    assert(len > 0 && !request_is_complete(request, completion));
    return (struct decode_row){.token = (int32_t)tokens[last],
                               .position = request->next_position + (int32_t)len - 1,
                               .prefix_begin = (int32_t)request->cache_begin,
                               .prefix_len = (int32_t)request->prompt_rows,
                               .kv_begin = (int32_t)kv_begin,
                               .len = (int32_t)len,
                               .max_len = (int32_t)prefix + request->max_new_tokens,
                               .sampling = request->sampling,
                               .key = request->key,
                               .completion = (uint64_t)completion};
}

// Gives the decode batch the completions that have got a slot. *busy = the slots with a completion.
static status generator_set_slots(struct generator *generator, int *busy) {
    struct backend *backend = generator->model->backend;
    *busy = 0;
    for (int i = 0; i < generator->options.rows; i++) {
        struct generator_slot *slot = &generator->slots[i];
        if (!slot->request) continue;
        ++*busy;
        if (slot->set) continue;
        const struct decode_row row = generator_row(generator, i);
        TRY(backend->ops->decode_batch_set(backend, generator->batch, i, &row));
        slot->set = true;
        slot->first_step = generator->asked;
    }
    return OK;
}

// Computes the rows of the batch and samples.
static status generator_compute_step(struct generator *generator) {
    struct model *model = generator->model;
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    struct workspace *workspace = &generator->workspace;
    const struct decode_batch *batch = generator->batch;
    enum element type = model->weights->base.type;
    int64_t hidden_size = model->config.text.hidden_size;
    struct forward_state fwd = {.backend = model->backend,
                                .type = type,
                                .transformer = &model->weights->text,
                                .workspace = workspace,
                                .rows = batch->rows,
                                .chunk_rows = model->backend_info.chunk_rows[type],
                                .rope = &model->text_rope.table,
                                .position_ids = batch->position_ids,
                                .cache_slots = batch->cache_slots,
                                .plan = batch->plan,
                                .cache = generator->cache,
                                .layered = true};
    struct tensor normed;
    status result = OK;
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &fwd.x));
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &fwd.delta));
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &normed));
    TRY_TO(result, done, ops->gather(backend, fwd.x, model->weights->embedding, batch->tokens));
    for (int i = 0; i < fwd.transformer->block_count; i++) TRY_TO(result, done, block_forward(&fwd, i));
    TRY_TO(result, done, forward_norm(&fwd, normed, model->weights->norm, (struct tensor){0}, (struct tensor){0}));
    TRY_TO(result, done, ops->sample(backend, generator->batch, normed, model->weights->lm_head));
done:
    workspace_restore(workspace, (struct workspace_mark){0});
    return result;
}

void generator_drop_graph(struct generator *generator) {
    struct backend *backend = generator->model->backend;
    if (generator->graph.graph) backend->ops->graph_free(backend, &generator->graph.graph);
    generator->graph = (struct step_graph){0};
}

static status generator_record_step(struct generator *generator) {
    struct backend *backend = generator->model->backend;
    TRY(workspace_reserve(&generator->workspace));
    TRY(backend->ops->graph_begin(backend));
    status result = generator_compute_step(generator);
    status ended = backend->ops->graph_end(backend, &generator->graph.graph);
    if (result == OK) result = ended;
    if (result != OK) generator_drop_graph(generator);
    return result;
}

// One step of the batch. Where steps are recorded, the first one with a cache and weights is computed, the second is
// recorded, and from then on the graph is launched.
static status generator_run_step(struct generator *generator) {
    struct model *model = generator->model;
    struct backend *backend = model->backend;
    struct step_graph *graph = &generator->graph;
    if (!backend->ops->graph_begin) return generator_compute_step(generator);
    if (graph->weights_replaced != model->weights_replaced || graph->positions != model->text_rope.table.cos.rows)
        generator_drop_graph(generator);
    if (!graph->computed) {
        TRY(generator_compute_step(generator));
        graph->computed = true;
        graph->weights_replaced = model->weights_replaced;
        graph->positions = model->text_rope.table.cos.rows;
        return OK;
    }
    if (!graph->graph) TRY(generator_record_step(generator));
    return backend->ops->graph_launch(backend, graph->graph);
}

// Appends what a step drew for a slot to its completion. Frees the slot if the completion is complete; if it was
// stopped, the batch does not know, and draws on in a step that was asked for already.
static status generator_read_slot(struct generator *generator, int64_t step, int i) {
    struct backend *backend = generator->model->backend;
    struct generator_slot *slot = &generator->slots[i];
    assert(slot->request && slot->set);
    struct request *request = slot->request;
    struct branch *branch = request->branches ? &request->branches[slot->completion] : NULL;
    if (branch && branch->computed + 1 < branch->input_count) { // the next token is known
        branch->computed++;
        slot->set = false;
        slot->first_step = generator->asked;
        return OK;
    }
    TRY(generator_append_token(generator, request, slot->completion, generator->tokens[i], generator->logprobs[i],
                               generator->versions[step % 2]));
    if (!request_is_complete(request, slot->completion)) return OK;
    if (request->results[slot->completion].stopped)
        TRY(backend->ops->decode_batch_set(backend, generator->batch, i, NULL));
    *slot = (struct generator_slot){.first_step = generator->asked};
    return OK;
}

// Reads the oldest step that has not been read. A slot that was given to another completion since then was idle in that
// step, and drew nothing, or what it drew does not count.
static status generator_read_step(struct generator *generator) {
    struct backend *backend = generator->model->backend;
    int64_t step = generator->read;
    TRY(backend->ops->decode_batch_read(backend, generator->batch, step, generator->tokens, generator->logprobs));
    generator->read++;
    for (int i = 0; i < generator->options.rows; i++)
        if (generator->tokens[i] >= 0 && step >= generator->slots[i].first_step)
            TRY(generator_read_slot(generator, step, i));
    return OK;
}

status generator_decode(struct generator *generator) {
    int busy, unread = 0;
    TRY(generator_set_slots(generator, &busy));
    if (busy && generator->batch->rows) {
        TRY(generator_run_step(generator));
        generator->versions[generator->asked++ % 2] = generator->model->version;
        unread = generator->model->backend_info.asynchronous; // the backend computes on while this is read
    }
    while (generator->asked - generator->read > unread) TRY(generator_read_step(generator));
    return OK;
}
