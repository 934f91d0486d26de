// The generator's computations: the prefill of a prompt, one token for each batch row, and sampling.
#include <assert.h>

#include "shared/base/rng.h"
#include "shared/model/generator.h"
#include "shared/model/text_model.h"

// Whether a completion needs no more tokens.
static bool generator_complete(const struct request *request, int completion) {
    const struct generated *result = &request->results[completion];
    return result->ended || result->count == (size_t)request->max_new_tokens;
}

// Samples a token for each row of `normed` [B,C], keyed by (request, completion, position), and appends it to the
// completion that rows[b] names.
static status generator_sample(struct generator *generator, struct arena *arena, struct tensor normed,
                               const struct batch_row *rows) {
    struct model *model = generator->model;
    const struct operations *ops = model->backend->ops;
    size_t count = (size_t)normed.rows;
    struct sampling *settings = arena_alloc(arena, count * sizeof *settings);
    double *uniform = arena_alloc(arena, count * sizeof *uniform);
    int32_t *tokens = arena_alloc(arena, count * sizeof *tokens);
    float *logprobs = arena_alloc(arena, count * sizeof *logprobs);
    if (!settings || !uniform || !tokens || !logprobs) return fail_oom();
    for (size_t i = 0; i < count; i++) {
        const struct request *request = rows[i].request;
        size_t position = request->results[rows[i].completion].count;
        settings[i] = request->sampling;
        uniform[i] = rng_uniform(request->key, (uint64_t)rows[i].completion, position);
    }
    struct tensor device_tokens, device_logprobs;
    TRY(workspace_alloc(&model->workspace, ELEMENT_I32, normed.rows, 1, &device_tokens));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, normed.rows, 1, &device_logprobs));
    TRY(ops->sample(model->backend, device_tokens, device_logprobs, normed, model->weights->lm_head, settings,
                    uniform));
    TRY(ops->download(model->backend, tokens, ELEMENT_I32, device_tokens));
    TRY(ops->download(model->backend, logprobs, ELEMENT_F32, device_logprobs));
    for (size_t i = 0; i < count; i++) {
        struct request *request = rows[i].request;
        struct generated *result = &request->results[rows[i].completion];
        assert(result->count < (size_t)request->max_new_tokens);
        result->tokens[result->count] = tokens[i];
        result->logprobs[result->count] = logprobs[i];
        result->versions[result->count++] = model->version;
        for (size_t k = 0; k < model->info.eos_count; k++)
            if (model->info.eos_ids[k] == tokens[i]) result->ended = true;
        if (generator_complete(request, rows[i].completion)) request->finished++;
    }
    return OK;
}

// Computes the prompt, then samples from its last row, once for each completion.
status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt) {
    struct model *model = generator->model;
    struct workspace *workspace = &model->workspace;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size;
    size_t count = (size_t)request->count;
    struct arena arena = {0};
    struct sequence sequence;
    struct text_state text = {0};
    status result = OK;
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, prompt, NULL, 0));
    assert(sequence.span_count == 1 && sequence.cache_rows == request->cache_rows);
    for (int64_t i = 0; i < sequence.rows; i++) sequence.cache_slots[i] += (int32_t)request->cache_begin;
    sequence.spans[0].kv_begin = request->cache_begin;
    request->next_position = sequence.next_position;
    TRY_TO(result, done, text_forward(&text, model, &arena, prompt, &sequence, generator->cache, false));

    int32_t *zeros = arena_alloc(&arena, count * sizeof *zeros); // the only row of last_normed
    struct batch_row *rows = arena_alloc(&arena, count * sizeof *rows);
    if (!zeros || !rows) TRY_TO(result, done, fail_oom());
    for (int i = 0; i < request->count; i++) rows[i] = (struct batch_row){request, i};
    struct tensor index, last_normed, normed;
    TRY_TO(result, done, workspace_upload(workspace, ELEMENT_I32, request->count, 1, zeros, &index));
    TRY_TO(result, done, workspace_alloc(workspace, type, 1, hidden_size, &last_normed));
    TRY_TO(result, done, workspace_alloc(workspace, type, request->count, hidden_size, &normed));
    struct forward_state last = text.fwd;
    last.x = tensor_rows(text.fwd.x, text.fwd.rows - 1, 1);
    last.delta = tensor_rows(text.fwd.delta, text.fwd.rows - 1, 1);
    TRY_TO(result, done, forward_norm(&last, last_normed, model->weights->norm, (struct tensor){0}));
    TRY_TO(result, done, model->backend->ops->gather(model->backend, normed, last_normed, index));
    TRY_TO(result, done, generator_sample(generator, &arena, normed, rows));
done:
    text_release(&text, model);
    workspace_restore(workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}

// The inputs of one decoding step, on the host: one row for each batch row with a request.
struct decode_inputs {
    int count;
    struct batch_row *rows;
    int32_t *tokens, *cache_slots;
    struct position_id *position_ids;
    struct attention_span *spans;
};

static status decode_inputs_make(struct decode_inputs *inputs, struct arena *arena, struct generator *generator) {
    size_t capacity = (size_t)generator->options.rows;
    *inputs = (struct decode_inputs){
        .rows = arena_alloc(arena, capacity * sizeof *inputs->rows),
        .tokens = arena_alloc(arena, capacity * sizeof *inputs->tokens),
        .cache_slots = arena_alloc(arena, capacity * sizeof *inputs->cache_slots),
        .position_ids = arena_alloc(arena, capacity * sizeof *inputs->position_ids),
        .spans = arena_alloc(arena, capacity * sizeof *inputs->spans),
    };
    if (!inputs->rows || !inputs->tokens || !inputs->cache_slots || !inputs->position_ids || !inputs->spans)
        return fail_oom();
    for (int i = 0; i < generator->options.rows; i++) {
        const struct request *request = generator->batch[i].request;
        if (!request) continue;
        const struct generated *result = &request->results[generator->batch[i].completion];
        int64_t at = (int64_t)result->count - 1; // the input is the completion's last token, at this position in it
        int64_t cache_begin = i * generator->cache_rows_per_row;
        int32_t position = request->next_position + (int32_t)at;
        assert(at >= 0 && at < generator->cache_rows_per_row);
        int row = inputs->count++;
        inputs->rows[row] = generator->batch[i];
        inputs->tokens[row] = (int32_t)result->tokens[at];
        inputs->cache_slots[row] = (int32_t)(cache_begin + at);
        inputs->position_ids[row] = (struct position_id){{position, position, position}};
        inputs->spans[row] = (struct attention_span){.q_begin = row,
                                                     .q_len = 1,
                                                     .prefix_begin = request->cache_begin,
                                                     .prefix_len = request->prompt_rows,
                                                     .kv_begin = cache_begin,
                                                     .visible = at + 1,
                                                     .causal = false};
    }
    return OK;
}

status generator_decode(struct generator *generator) {
    struct model *model = generator->model;
    struct workspace *workspace = &model->workspace;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size;
    struct arena arena = {0};
    struct decode_inputs inputs;
    struct attention_plan *plan = NULL;
    status result = OK;
    TRY_TO(result, done, decode_inputs_make(&inputs, &arena, generator));
    if (inputs.count == 0) goto done;
    struct forward_state fwd = {.weights = model->weights,
                                .transformer = &model->weights->text,
                                .workspace = workspace,
                                .rows = inputs.count,
                                .cache = generator->cache,
                                .layered = true};
    struct tensor normed;
    TRY_TO(result, done, workspace_upload(workspace, ELEMENT_I32, fwd.rows, 1, inputs.cache_slots, &fwd.cache_slots));
    TRY_TO(result, done,
           model->backend->ops->attention_plan_new(model->backend, &plan, fwd.transformer->heads, inputs.spans,
                                                   (size_t)inputs.count, (struct tensor){0}));
    fwd.plan = plan;
    TRY_TO(result, done, text_rope(model, &fwd, inputs.position_ids));
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &fwd.x));
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &fwd.delta));
    TRY_TO(result, done, workspace_alloc(workspace, type, fwd.rows, hidden_size, &normed));
    TRY_TO(result, done, text_embed(model, fwd.x, inputs.tokens, fwd.rows));
    for (int i = 0; i < fwd.transformer->block_count; i++) TRY_TO(result, done, block_forward(&fwd, i));
    TRY_TO(result, done, forward_norm(&fwd, normed, model->weights->norm, (struct tensor){0}));
    TRY_TO(result, done, generator_sample(generator, &arena, normed, inputs.rows));
    for (int i = 0; i < generator->options.rows; i++) {
        struct batch_row *row = &generator->batch[i];
        if (row->request && generator_complete(row->request, row->completion)) row->request = NULL;
    }
done:
    model->backend->ops->attention_plan_free(model->backend, &plan);
    workspace_restore(workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}
