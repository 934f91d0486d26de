// The generator's arithmetic: a prompt's prefill, one token for each place, drawing tokens.
#include <stdlib.h>

#include "shared/base/rng.h"
#include "shared/model/generator.h"
#include "shared/model/text_model.h"

// Appends a drawn token to a completion; `ended` says whether it was the last.
static bool append(struct generator *generator, struct request *request, int completion, int32_t token, float logprob) {
    struct generated *result = &request->results[completion];
    result->tokens[result->count] = token;
    result->logprobs[result->count] = logprob;
    result->versions[result->count++] = generator->model->version;
    const struct model_info *facts = &generator->model->facts;
    for (size_t i = 0; i < facts->eos_count; i++)
        if (facts->eos_ids[i] == token) result->ended = true;
    if (!result->ended && result->count < (size_t)request->max_new_tokens) return false;
    request->finished++;
    return true;
}

// Rows to draw from: which completion each belongs to, and what was drawn.
struct draw {
    int count;
    const struct place *places;
    int32_t *tokens;
    float *logprobs;
};

// Draws a token from each row of `normed`, keyed by (request, completion, position).
static status draw_tokens(struct model *model, struct tensor normed, struct draw *draw) {
    const struct operations *ops = model->backend->ops;
    size_t count = (size_t)draw->count;
    struct sampling *settings = NULL;
    double *chance = NULL;
    struct tensor tokens, logprobs;
    status result = OK;
    TRY_TO(result, done, NEW(&settings, count));
    TRY_TO(result, done, NEW(&chance, count));
    for (size_t i = 0; i < count; i++) {
        const struct request *request = draw->places[i].request;
        int completion = draw->places[i].completion;
        settings[i] = request->sampling;
        chance[i] = rng_uniform(request->key, (uint64_t)completion, request->results[completion].count);
    }
    TRY_TO(result, done, workspace_alloc(&model->workspace, ELEMENT_I32, draw->count, 1, &tokens));
    TRY_TO(result, done, workspace_alloc(&model->workspace, ELEMENT_F32, draw->count, 1, &logprobs));
    TRY_TO(result, done, ops->sample(model->backend, tokens, logprobs, normed, model->weights->head, settings, chance));
    TRY_TO(result, done, ops->download(model->backend, draw->tokens, ELEMENT_I32, tokens));
    TRY_TO(result, done, ops->download(model->backend, draw->logprobs, ELEMENT_F32, logprobs));
done:
    free(settings);
    free(chance);
    return result;
}

// normed [count, C]: the prompt's last row, normed, once for each completion.
static status last_row(struct model *model, struct forward_state *fwd, int count, struct tensor *normed) {
    const struct operations *ops = model->backend->ops;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size;
    int32_t *zeros = NULL;
    struct tensor one, index;
    TRY(NEW(&zeros, (size_t)count));
    status result = workspace_upload(&model->workspace, ELEMENT_I32, count, 1, zeros, &index);
    free(zeros);
    TRY(result);
    TRY(workspace_alloc(&model->workspace, type, 1, hidden_size, &one));
    TRY(workspace_alloc(&model->workspace, type, count, hidden_size, normed));
    struct forward_state last = *fwd;
    last.x = tensor_rows(fwd->x, fwd->rows - 1, 1);
    last.delta = tensor_rows(fwd->delta, fwd->rows - 1, 1);
    TRY(forward_norm(&last, one, model->weights->norm, (struct tensor){0}));
    return ops->gather(model->backend, *normed, one, index);
}

static status draw_first(struct generator *generator, struct request *request, struct arena *arena,
                         struct tensor normed) {
    size_t count = (size_t)request->count;
    struct place *places = arena_alloc(arena, count * sizeof *places);
    int32_t *tokens = arena_alloc(arena, count * sizeof *tokens);
    float *logprobs = arena_alloc(arena, count * sizeof *logprobs);
    if (!places || !tokens || !logprobs) return fail_oom();
    for (int i = 0; i < request->count; i++) places[i] = (struct place){request, i};
    struct draw draw = {request->count, places, tokens, logprobs};
    TRY(draw_tokens(generator->model, normed, &draw));
    for (int i = 0; i < request->count; i++) append(generator, request, i, tokens[i], logprobs[i]);
    return OK;
}

static status prefill(struct generator *generator, struct request *request, struct arena *arena,
                      const struct model_prompt *prompt) {
    struct model *model = generator->model;
    struct sequence sequence;
    TRY(sequence_make(&sequence, arena, &model->config, prompt, NULL, 0));
    for (int64_t i = 0; i < sequence.rows; i++) sequence.slots[i] += (int32_t)request->first_row;
    sequence.spans[0].kv_begin = request->first_row;
    request->position = sequence.next;
    struct text_state state;
    TRY(text_forward(&state, model, arena, prompt, &sequence, generator->cache, false));
    struct tensor normed;
    TRY(last_row(model, &state.fwd, request->count, &normed));
    return draw_first(generator, request, arena, normed);
}

status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt) {
    struct arena arena = {0};
    status result = prefill(generator, request, &arena, prompt);
    workspace_restore(&generator->model->workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}

// The rows of one decoding step, on the host.
struct step {
    int count;
    struct place *places;
    int32_t *inputs, *slots, *tokens;
    struct position_id *position_ids;
    struct attention_span *spans;
    float *logprobs;
};

static status step_make(struct step *step, struct arena *arena, struct generator *generator) {
    size_t most = (size_t)generator->options.rows;
    *step = (struct step){
        .places = arena_alloc(arena, most * sizeof *step->places),
        .inputs = arena_alloc(arena, most * sizeof *step->inputs),
        .slots = arena_alloc(arena, most * sizeof *step->slots),
        .tokens = arena_alloc(arena, most * sizeof *step->tokens),
        .position_ids = arena_alloc(arena, most * sizeof *step->position_ids),
        .spans = arena_alloc(arena, most * sizeof *step->spans),
        .logprobs = arena_alloc(arena, most * sizeof *step->logprobs),
    };
    if (!step->places || !step->inputs || !step->slots || !step->tokens || !step->position_ids || !step->spans ||
        !step->logprobs)
        return fail_oom();
    for (int i = 0; i < generator->options.rows; i++) {
        const struct place *place = &generator->places[i];
        if (!place->request) continue;
        const struct request *request = place->request;
        const struct generated *result = &request->results[place->completion];
        int64_t at = (int64_t)result->count - 1, own = i * generator->own_rows; // the last token is fed at `at`
        int32_t where = request->position + (int32_t)at;
        int row = step->count++;
        step->places[row] = *place;
        step->inputs[row] = (int32_t)result->tokens[at];
        step->slots[row] = (int32_t)(own + at);
        step->position_ids[row] = (struct position_id){{where, where, where}};
        step->spans[row] = (struct attention_span){.q_begin = row,
                                                   .q_len = 1,
                                                   .prefix_begin = request->first_row,
                                                   .prefix_len = request->prompt_rows,
                                                   .kv_begin = own,
                                                   .visible = at + 1,
                                                   .causal = false};
    }
    return OK;
}

static status run_step(struct generator *generator, const struct step *step) {
    struct model *model = generator->model;
    struct workspace *workspace = &model->workspace;
    int64_t hidden_size = model->config.text.hidden_size;
    struct forward_state fwd = {
        .weights = model->weights, .transformer = &model->weights->text, .workspace = workspace, .rows = step->count};
    fwd.cache = generator->cache;
    fwd.per_layer = true;
    struct tensor normed;
    TRY(workspace_upload(workspace, ELEMENT_I32, step->count, 1, step->slots, &fwd.slots));
    TRY(text_rope(model, &fwd, step->position_ids));
    TRY(workspace_alloc(workspace, model->weights->type, step->count, hidden_size, &fwd.x));
    TRY(workspace_alloc(workspace, model->weights->type, step->count, hidden_size, &fwd.delta));
    TRY(workspace_alloc(workspace, model->weights->type, step->count, hidden_size, &normed));
    TRY(text_embed(model, fwd.x, step->inputs, step->count));
    struct attention_spans spans = {step->spans, (size_t)step->count};
    for (int i = 0; i < fwd.transformer->count; i++) TRY(block_forward(&fwd, i, spans));
    TRY(forward_norm(&fwd, normed, model->weights->norm, (struct tensor){0}));
    struct draw draw = {step->count, step->places, step->tokens, step->logprobs};
    return draw_tokens(model, normed, &draw);
}

status generator_decode(struct generator *generator) {
    struct arena arena = {0};
    struct step step;
    status result = OK;
    TRY_TO(result, done, step_make(&step, &arena, generator));
    if (step.count == 0) goto done;
    TRY_TO(result, done, run_step(generator, &step));
    for (int row = 0, i = 0; i < generator->options.rows; i++) {
        struct place *place = &generator->places[i];
        if (!place->request) continue;
        if (append(generator, place->request, place->completion, step.tokens[row], step.logprobs[row]))
            place->request = NULL;
        row++;
    }
done:
    workspace_restore(&generator->model->workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}
