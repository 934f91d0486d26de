// Generation: which request waits, which completion has a slot, what is finished; the prefill of a prompt, and one
// token for each slot at a time.
//
// One cache with all layers holds first the cache rows of every slot, for generated tokens, and then the prompt area,
// where each running request has a region for its prompt. Every region starts at a multiple of BRANCH_ALIGNMENT. A
// generator that continues completions has no cache rows for slots: its request's region is the packed sequence of the
// prompt and the completions, with room behind each branch.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/model/qwen_vl/model_internal.h"

static_assert((int)MAX_GENERATOR_ROWS <= (int)MAX_DECODE_ROWS, "every backend has room for the rows");

// A completion that is continued.
struct branch {
    int64_t cache_begin;
    size_t prefix_count;   // tokens of its prefix
    const int64_t *inputs; // the last tokens of the prefix, whose keys and values are not in the cache yet
    size_t input_count;    // 0: the completion is not continued
    size_t computed;       // of these
};

struct request {
    struct request *next;
    struct arena arena;              // results, and the prompt's copy while the request waits
    struct generate_request given;   // its prompt: while the request waits
    struct branch *branches;         // [count]; NULL: the completions begin behind the prompt
    int64_t cache_begin, cache_rows; // the prompt's region
    int64_t prompt_rows;
    int32_t next_position; // of the first token of a completion
    struct generated *results;
    int scheduled, finished; // completions that have or had a slot; completions that are complete
};

struct generator_slot {
    struct request *request; // NULL: free
    int completion;
    bool set;           // the decode batch has the completion
    int64_t first_step; // of the batch that counts for the slot
};

// A step as a graph, on a backend that records. It refers to the weights, the cache and the angles by their place.
struct step_graph {
    struct graph *graph;      // NULL: not recorded yet
    bool computed;            // a step has been computed with these:
    int64_t weights_replaced; // of the model, then
    int64_t positions;        // of the table of angles, which grows, then
};

struct generator {
    struct arena arena; // the arrays below
    struct model *model;
    struct generator_options options;
    struct kv_cache *cache;
    int64_t cache_rows_per_slot; // for its generated tokens
    int64_t prompt_area_rows;
    int32_t *eos_ids; // [model->info.eos_count]
    struct decode_batch *batch;
    int64_t asked, read;          // steps of the batch that were asked for, and of these those that were read
    int64_t versions[2];          // the weights of the last two steps; of step i: versions[i % 2]
    struct generator_slot *slots; // [options.rows]
    int32_t *tokens;              // [options.rows]: what a step drew
    float *logprobs;              // [options.rows]
    struct workspace workspace;   // of a step
    struct step_graph graph;
    struct request *running;  // prefilled and not finished, the oldest first
    struct request *waiting;  // not prefilled; one at most
    struct request *finished; // not returned yet
    struct request *returned; // by the last generator_pop
};

// Frees the graph of a step, if there is one. The next step is computed.
static void generator_drop_graph(struct generator *generator) {
    struct backend *backend = generator->model->backend;
    if (generator->graph.graph) backend->ops->graph_free(backend, &generator->graph.graph);
    generator->graph = (struct step_graph){0};
}

// Frees a list of requests and sets it to NULL.
static void generator_free_requests(struct request **list) {
    while (*list) {
        struct request *next = (*list)->next;
        arena_release(&(*list)->arena);
        free(*list);
        *list = next;
    }
}

status generator_new(struct generator **out, struct model *model, const struct generator_options *options) {
    *out = NULL;
    if (options->max_new_tokens < 1) return fail(USAGE, "max_new_tokens is %d, not 1 or more", options->max_new_tokens);
    if (options->rows > MAX_GENERATOR_ROWS)
        return fail(USAGE, "rows is %d, above %d", options->rows, MAX_GENERATOR_ROWS);
    NEW(out, 1);
    struct generator *generator = *out;
    struct backend *backend = model->backend;
    generator->model = model;
    generator->options = *options;
    if (generator->options.rows < 1) generator->options.rows = GENERATOR_ROWS;
    generator->cache_rows_per_slot = options->continues ? 0 : cache_round_up(options->max_new_tokens);
    generator->workspace.backend = backend;
    size_t slots = (size_t)generator->options.rows, eos_count = model->info.eos_count;
    generator->slots = arena_alloc(&generator->arena, slots * sizeof *generator->slots);
    generator->tokens = arena_alloc(&generator->arena, slots * sizeof *generator->tokens);
    generator->logprobs = arena_alloc(&generator->arena, slots * sizeof *generator->logprobs);
    generator->eos_ids = arena_alloc(&generator->arena, eos_count * sizeof *generator->eos_ids);
    for (size_t i = 0; i < eos_count; i++) generator->eos_ids[i] = (int32_t)model->info.eos_ids[i];
    status result = backend->ops->decode_batch_new(backend, &generator->batch, generator->options.rows,
                                                   model->weights->text.heads, generator->eos_ids, eos_count);
    if (result != OK) generator_free(out);
    return result;
}

void generator_free(struct generator **freed) {
    struct generator *generator = *freed;
    if (!generator) return;
    struct backend *backend = generator->model->backend;
    generator_free_requests(&generator->running);
    generator_free_requests(&generator->waiting);
    generator_free_requests(&generator->finished);
    generator_free_requests(&generator->returned);
    generator_drop_graph(generator);
    backend->ops->decode_batch_free(backend, &generator->batch);
    workspace_release(&generator->workspace);
    backend->ops->kv_cache_free(backend, &generator->cache);
    arena_release(&generator->arena);
    free(generator);
    *freed = NULL;
}

bool generator_can_add(const struct generator *generator) {
    if (generator->waiting) return false;
    for (const struct request *request = generator->running; request; request = request->next)
        if (request->scheduled < request->given.count) return false;
    return true;
}

bool generator_busy(const struct generator *generator) {
    return generator->running || generator->waiting;
}

// ---- requests ----

// Whether a completion needs no more tokens.
static bool request_is_complete(const struct request *request, int completion) {
    const struct generated *result = &request->results[completion];
    bool continued = !request->branches || request->branches[completion].input_count;
    return !continued || result->ended || result->stopped || result->count == (size_t)request->given.max_new_tokens;
}

// The first gap of the prompt area that holds `rows` rows; -1 if there is none now.
static int64_t generator_find_gap(const struct generator *generator, int64_t rows) {
    int64_t begin = generator->options.rows * generator->cache_rows_per_slot, at = begin;
    for (const struct request *request = generator->running; request;) {
        if (at + rows <= request->cache_begin || request->cache_begin + request->cache_rows <= at) {
            request = request->next;
        } else {
            at = request->cache_begin + request->cache_rows;
            request = generator->running; // compare with all requests again
        }
    }
    return at + rows <= begin + generator->prompt_area_rows ? at : -1;
}

int64_t generator_cache_rows(int64_t slots, int64_t rows_per_slot, int64_t count, int64_t prompt_rows,
                             int64_t *prompt_area_rows) {
    *prompt_area_rows = (slots / count + 2) * prompt_rows * 5 / 4;
    return slots * rows_per_slot + cache_round_up(*prompt_area_rows);
}

// *cache_begin = the first of the cache rows in which a request's prompt can be computed now; -1: there are none. If
// nothing is running, a new cache is made if the request does not fit: with room for as many requests like this one as
// can be decoded side by side, or for the one that is continued.
static status generator_find_cache_rows(struct generator *generator, const struct request *request,
                                        int64_t *cache_begin) {
    struct model *model = generator->model;
    const struct operations *ops = model->backend->ops;
    *cache_begin = generator->cache ? generator_find_gap(generator, request->cache_rows) : -1;
    if (*cache_begin >= 0 || generator->running) return OK;
    int64_t cache_rows = generator->prompt_area_rows = request->cache_rows;
    if (!generator->options.continues)
        cache_rows = generator_cache_rows(generator->options.rows, generator->cache_rows_per_slot, request->given.count,
                                          request->cache_rows, &generator->prompt_area_rows);
    generator_drop_graph(generator);
    ops->kv_cache_free(model->backend, &generator->cache);
    TRY(ops->kv_cache_new(model->backend, &generator->cache, model->weights->base.type,
                          model->config.text.num_hidden_layers, cache_rows, model->weights->text.heads));
    *cache_begin = generator_find_gap(generator, request->cache_rows);
    assert(*cache_begin >= 0 && *cache_begin % BRANCH_ALIGNMENT == 0);
    return OK;
}

static void generator_append(struct request **list, struct request *request) {
    while (*list) list = &(*list)->next;
    request->next = NULL;
    *list = request;
}

// Moves complete requests to the end of the list of finished ones.
static void generator_collect(struct generator *generator) {
    for (struct request **at = &generator->running; *at;) {
        struct request *request = *at;
        if (request->finished < request->given.count) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        generator_append(&generator->finished, request);
    }
}

// Gives free slots to completions that have none, those of the oldest request first.
static void generator_schedule(struct generator *generator) {
    int slot = 0;
    for (struct request *request = generator->running; request; request = request->next) {
        while (request->scheduled < request->given.count) {
            if (request_is_complete(request, request->scheduled)) {
                request->scheduled++;
                continue;
            }
            while (slot < generator->options.rows && generator->slots[slot].request) slot++;
            if (slot == generator->options.rows) return;
            struct generator_slot *free_slot = &generator->slots[slot];
            free_slot->request = request;
            free_slot->completion = request->scheduled++;
            free_slot->set = false;
        }
    }
}

// Lets a computed request run: gives its completions slots.
static void generator_run(struct generator *generator, struct request *request) {
    generator_append(&generator->running, request);
    generator_schedule(generator);
    generator_collect(generator);
}

// *out = a request without a region. USAGE: a setting is out of range. The caller frees it.
static status generator_request_new(struct generator *generator, const struct generate_request *from,
                                    struct request **out) {
    int max_new_tokens = generator->options.max_new_tokens;
    if (from->count < 1) return fail(USAGE, "%d completions were requested", from->count);
    if (from->max_new_tokens < 1 || from->max_new_tokens > max_new_tokens)
        return fail(USAGE, "max_new_tokens is %d, not in 1..%d", from->max_new_tokens, max_new_tokens);
    if (!(from->temperature >= 0) || !(from->top_p > 0 && from->top_p <= 1) || from->top_k < 0)
        return fail(USAGE, "temperature %g, top_p %g, top_k %d", (double)from->temperature, (double)from->top_p,
                    from->top_k);
    struct request *request = NULL;
    NEW(&request, 1);
    request->given = *from;
    request->cache_rows = cache_round_up((int64_t)from->prompt.count);
    request->prompt_rows = (int64_t)from->prompt.count;
    request->results = arena_alloc(&request->arena, (size_t)request->given.count * sizeof *request->results);
    for (int i = 0; i < request->given.count; i++) {
        struct generated *generated = &request->results[i];
        size_t tokens = (size_t)request->given.max_new_tokens;
        generated->tokens = arena_alloc(&request->arena, tokens * sizeof *generated->tokens);
        generated->logprobs = arena_alloc(&request->arena, tokens * sizeof *generated->logprobs);
        generated->versions = arena_alloc(&request->arena, tokens * sizeof *generated->versions);
    }
    *out = request;
    return OK;
}

// A temperature whose inverse may be infinite is greedy.
static struct sampling request_sampling(const struct request *request) {
    const struct generate_request *given = &request->given;
    return (struct sampling){given->temperature < 1e-30f ? 0 : given->temperature, given->top_p, given->top_k};
}

// ---- prefill ----

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
    if (request->given.stop && !result->ended)
        TRY(request->given.stop(request->given.tag, completion, token, &result->stopped));
    if (request_is_complete(request, completion)) request->finished++;
    return OK;
}

// Prefills a request's prompt into its region, samples the first token of each completion from its last row, and lets
// the request run. Frees it if it cannot be computed. BAD_SAMPLE as in model_check.
static status generator_start(struct generator *generator, struct request *request, int64_t cache_begin,
                              const struct model_prompt *prompt) {
    struct model *model = generator->model;
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    const enum element type = model->weights->base.type;
    const int64_t hidden_size = model->config.text.hidden_size;
    const int count = request->given.count;
    const struct tensor none = {0};
    struct arena arena = {0};
    struct sequence sequence;
    struct text_state text = {0};
    struct decode_batch *batch = NULL;
    struct tensor last_normed, index, normed;
    status result;
    request->cache_begin = cache_begin;
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, prompt, NULL, 0));
    assert(sequence.span_count == 1 && sequence.cache_rows == request->cache_rows);
    for (int64_t i = 0; i < sequence.rows; i++) sequence.cache_slots[i] += (int32_t)cache_begin;
    sequence.spans[0].kv_begin = cache_begin;
    request->next_position = sequence.next_position;
    // Also for the steps, whose position ids the backend counts.
    int64_t positions = (int64_t)sequence.next_position + request->given.max_new_tokens;
    TRY_TO(result, done, rope_angles_reserve(&model->text_rope, backend, positions));
    TRY_TO(result, done, text_forward(&text, model, &arena, prompt, &sequence, generator->cache, false));
    TRY_TO(result, done, workspace_alloc(&model->workspace, type, 1, hidden_size, &last_normed));
    struct forward_state last = text.fwd;
    last.x = tensor_rows(text.fwd.x, text.fwd.rows - 1, 1);
    last.delta = tensor_rows(text.fwd.delta, text.fwd.rows - 1, 1);
    TRY_TO(result, done, forward_norm(&last, last_normed, &model->weights->norm, NULL, none));

    // The first tokens, of as many completions at a time as every backend has room for.
    const int most = count < MAX_DECODE_ROWS ? count : MAX_DECODE_ROWS;
    int32_t *zeros = arena_alloc(&arena, (size_t)most * sizeof *zeros); // the only row of last_normed
    int32_t *tokens = arena_alloc(&arena, (size_t)count * sizeof *tokens);
    float *logprobs = arena_alloc(&arena, (size_t)count * sizeof *logprobs);
    TRY_TO(result, done, workspace_upload(&model->workspace, ELEMENT_I32, most, 1, zeros, &index));
    TRY_TO(result, done, workspace_alloc(&model->workspace, type, most, hidden_size, &normed));
    TRY_TO(result, done, ops->gather(backend, normed, last_normed, index));
    for (int first = 0; first < count; first += most) {
        const int rows = count - first < most ? count - first : most;
        TRY_TO(result, done,
               ops->decode_batch_new(backend, &batch, rows, model->weights->text.heads, generator->eos_ids,
                                     model->info.eos_count));
        for (int i = 0; i < rows; i++) {
            const struct decode_row row = {.max_len = 1,
                                           .sampling = request_sampling(request),
                                           .key = request->given.key,
                                           .completion = (uint64_t)(first + i)};
            TRY_TO(result, done, ops->decode_batch_set(backend, batch, i, &row));
        }
        assert(batch->rows == rows);
        TRY_TO(result, done, ops->sample(backend, batch, tensor_rows(normed, 0, rows), model->weights->lm_head.weight));
        TRY_TO(result, done, ops->decode_batch_read(backend, batch, 0, tokens + first, logprobs + first));
        ops->decode_batch_free(backend, &batch);
    }
    for (int i = 0; i < count; i++)
        TRY_TO(result, done, generator_append_token(generator, request, i, tokens[i], logprobs[i], model->version));
    generator_run(generator, request);
    request = NULL;
done:
    ops->decode_batch_free(backend, &batch);
    text_release(&text, model);
    arena_release(&arena);
    generator_free_requests(&request);
    return result;
}

static status generator_start_waiting(struct generator *generator) {
    struct request *request = generator->waiting;
    if (!request) return OK;
    int64_t cache_begin = -1;
    TRY(generator_find_cache_rows(generator, request, &cache_begin));
    if (cache_begin < 0) return OK;
    generator->waiting = NULL;
    return generator_start(generator, request, cache_begin, &request->given.prompt);
}

status generator_add(struct generator *generator, const struct generate_request *from) {
    const struct model_prompt *prompt = &from->prompt;
    struct request *request = NULL;
    struct arena arena = {0};
    struct sequence sequence;
    int64_t cache_begin = -1;
    status result;
    if (generator->options.continues) return fail(BUG, "the generator continues completions");
    TRY(generator_request_new(generator, from, &request));
    // Whether the prompt can be computed is checked now, and not when it is. A completion's last token is not computed.
    TRY_TO(result, done, sequence_make(&sequence, &arena, &generator->model->config, prompt, NULL, 0));
    TRY_TO(result, done, sequence_check_position((int64_t)sequence.next_position + from->max_new_tokens - 2));
    TRY_TO(result, done, generator_start_waiting(generator));
    if (generator->waiting) TRY_TO(result, done, fail(BUG, "another request is waiting already"));
    TRY_TO(result, done, generator_find_cache_rows(generator, request, &cache_begin));
    if (cache_begin >= 0) {
        result = generator_start(generator, request, cache_begin, prompt);
        request = NULL; // it runs, or is freed
        goto done;
    }

    // The request has to wait, with a copy of its prompt.
    int64_t *tokens = arena_alloc(&request->arena, prompt->count * sizeof *tokens);
    struct model_medium *media = arena_alloc(&request->arena, prompt->media_count * sizeof *media);
    memcpy(tokens, prompt->tokens, prompt->count * sizeof *tokens);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *medium = &prompt->media[i];
        size_t size = (size_t)medium->frames * (size_t)medium->height * (size_t)medium->width * 3;
        uint8_t *pixels;
        TRY_TO(result, done, arena_alloc_large(&request->arena, &pixels, size));
        memcpy(pixels, medium->pixels, size);
        media[i] = *medium;
        media[i].pixels = pixels;
    }
    request->given.prompt = (struct model_prompt){tokens, prompt->count, media, prompt->media_count};
    generator->waiting = request;
    request = NULL;
done:
    arena_release(&arena);
    generator_free_requests(&request);
    return result;
}

// ---- decode ----

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
                               .max_len = (int32_t)prefix + request->given.max_new_tokens,
                               .sampling = request_sampling(request),
                               .key = request->given.key,
                               .completion = (uint64_t)completion};
}

// Computes the rows of the batch and samples.
static status generator_compute_step(struct generator *generator) {
    struct model *model = generator->model;
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    const struct decode_batch *batch = generator->batch;
    const struct tensor none = {0};
    enum element type = model->weights->base.type;
    struct tensor normed = {0};
    struct forward_state fwd =
        forward_start(&model->weights->text, &generator->workspace, &model->backend_info, type, batch->rows);
    fwd.rope = &model->text_rope.table;
    fwd.position_ids = batch->position_ids;
    fwd.cache_slots = batch->cache_slots;
    fwd.plan = batch->plan;
    fwd.cache = generator->cache;
    fwd.layered = true;
    status result = forward_alloc(&fwd);
    if (result == OK) result = workspace_alloc(fwd.workspace, type, fwd.rows, fwd.x.columns, &normed);
    if (result == OK) result = ops->gather(backend, fwd.x, model->weights->embedding.values, batch->tokens);
    for (int i = 0; result == OK && i < fwd.transformer->block_count; i++) result = block_forward(&fwd, i);
    if (result == OK) result = forward_norm(&fwd, normed, &model->weights->norm, NULL, none);
    if (result == OK) result = ops->sample(backend, generator->batch, normed, model->weights->lm_head.weight);
    workspace_restore(fwd.workspace, (struct workspace_mark){0});
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
    if (!graph->graph) {
        TRY(workspace_reserve(&generator->workspace));
        TRY(backend->ops->graph_begin(backend));
        status result = generator_compute_step(generator), ended = backend->ops->graph_end(backend, &graph->graph);
        if (result == OK) result = ended;
        if (result != OK) generator_drop_graph(generator);
        TRY(result);
    }
    return backend->ops->graph_launch(backend, graph->graph);
}

status generator_step(struct generator *generator) {
    struct backend *backend = generator->model->backend;
    int busy = 0, unread = 0;
    TRY(generator_start_waiting(generator));
    generator_schedule(generator);
    for (int i = 0; i < generator->options.rows; i++) {
        struct generator_slot *slot = &generator->slots[i];
        busy += slot->request != NULL;
        if (!slot->request || slot->set) continue;
        const struct decode_row row = generator_row(generator, i);
        TRY(backend->ops->decode_batch_set(backend, generator->batch, i, &row));
        slot->set = true;
        slot->first_step = generator->asked;
    }
    if (busy && generator->batch->rows) {
        TRY(generator_run_step(generator));
        generator->versions[generator->asked++ % 2] = generator->model->version;
        unread = generator->model->backend_info.asynchronous; // the backend computes on while this is read
    }
    while (generator->asked - generator->read > unread) {
        // What the oldest step that has not been read drew for a slot is appended to its completion. If that is
        // complete, the slot is freed; if it was stopped, the batch does not know, and draws on in a step that was
        // asked for already.
        int64_t step = generator->read;
        TRY(backend->ops->decode_batch_read(backend, generator->batch, step, generator->tokens, generator->logprobs));
        generator->read++;
        for (int i = 0; i < generator->options.rows; i++) {
            struct generator_slot *slot = &generator->slots[i];
            // A slot that was given to another completion since then was idle in that step, and drew nothing, or what
            // it drew does not count.
            if (generator->tokens[i] < 0 || step < slot->first_step) continue;
            assert(slot->request && slot->set);
            struct request *request = slot->request;
            struct branch *branch = request->branches ? &request->branches[slot->completion] : NULL;
            if (branch && branch->computed + 1 < branch->input_count) { // the next token is known
                branch->computed++;
                slot->set = false;
                slot->first_step = generator->asked;
                continue;
            }
            TRY(generator_append_token(generator, request, slot->completion, generator->tokens[i],
                                       generator->logprobs[i], generator->versions[step % 2]));
            if (!request_is_complete(request, slot->completion)) continue;
            if (request->results[slot->completion].stopped)
                TRY(backend->ops->decode_batch_set(backend, generator->batch, i, NULL));
            *slot = (struct generator_slot){.first_step = generator->asked};
        }
    }
    generator_collect(generator);
    generator_schedule(generator);
    return OK;
}

const struct generated *generator_pop(struct generator *generator, void **tag, int *count) {
    generator_free_requests(&generator->returned);
    struct request *request = generator->finished;
    if (!request) return NULL;
    generator->finished = request->next;
    request->next = NULL;
    generator->returned = request;
    *tag = request->given.tag;
    *count = request->given.count;
    return request->results;
}

// ---- continue ----

// The pass that scores completions leaves the keys and values of the prompt and of every branch in the generator's
// cache. What a branch has behind its prefix is overwritten by the tokens that are decoded. The last token of a prefix
// is computed again, as the input of the first step.

status generator_continue(struct generator *generator, const struct generate_request *from,
                          const struct model_completion *completions, const struct completion_prefix *prefixes,
                          const struct token_range *wanted, float *const *logprobs) {
    struct model *model = generator->model;
    struct arena arena = {0};
    struct sequence sequence;
    struct request *request = NULL;
    size_t count = (size_t)from->count, longest = 0, most = 0; // tokens: of the longest prefix; behind what is kept
    int64_t cache_begin = 0;
    status result = OK;
    if (!generator->options.continues || generator->running)
        return fail(BUG, "the generator cannot continue completions now");
    TRY(generator_request_new(generator, from, &request));
    request->branches = arena_alloc(&request->arena, count * sizeof *request->branches);
    for (size_t i = 0; i < count; i++) {
        const struct completion_prefix *prefix = &prefixes[i];
        struct branch *branch = &request->branches[i];
        assert(prefix->kept <= completions[i].count);
        *branch = (struct branch){.prefix_count = prefix->kept + prefix->count, .input_count = prefix->count};
        TRY_TO(result, done, sequence_check_tokens(&model->config, prefix->tokens, prefix->count));
        const int64_t *inputs = prefix->tokens;
        if (!prefix->count && prefix->kept) {
            inputs = completions[i].tokens + prefix->kept - 1;
            branch->input_count = 1;
        }
        int64_t *copy = arena_alloc(&request->arena, branch->input_count * sizeof *copy);
        if (branch->input_count) memcpy(copy, inputs, branch->input_count * sizeof *copy);
        branch->inputs = copy;
        if (branch->prefix_count > longest) longest = branch->prefix_count;
        if (prefix->count > most) most = prefix->count;
        if (!branch->input_count) request->finished++;
    }

    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, &from->prompt, completions, count));
    int64_t *begins = arena_alloc(&arena, count * sizeof *begins);
    sequence_place_branches(&sequence, completions, count, (int64_t)most + from->max_new_tokens, begins);
    for (size_t i = 0; i < count; i++) request->branches[i].cache_begin = begins[i];
    request->cache_rows = sequence.cache_rows;
    request->next_position = sequence.next_position;
    int64_t end = (int64_t)sequence.next_position + (int64_t)longest + from->max_new_tokens;
    if (longest) TRY_TO(result, done, sequence_check_position(end - 2)); // the last token is not computed
    TRY_TO(result, done, rope_angles_reserve(&model->text_rope, model->backend, end));
    if (longest) TRY_TO(result, done, generator_find_cache_rows(generator, request, &cache_begin));
    struct kv_cache *cache = longest ? generator->cache : NULL;
    assert(!longest || cache_begin == 0);
    TRY_TO(result, done,
           group_score(model, &arena, &from->prompt, &sequence, completions, count, wanted, cache, logprobs));
    generator_run(generator, request);
    request = NULL;
done:
    generator_free_requests(&request);
    arena_release(&arena);
    return result;
}
