// The generator's scheduling: which request waits, which completion has a slot, what is finished.
#include "shared/model/qwen_vl/generator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

status generator_new(struct generator **out, struct model *model, const struct generator_options *options) {
    *out = NULL;
    if (options->max_new_tokens < 1) return fail(USAGE, "max_new_tokens is %d, not 1 or more", options->max_new_tokens);
    struct generator *generator = NULL;
    NEW(&generator, 1);
    generator->model = model;
    generator->options = *options;
    if (generator->options.rows < 1) generator->options.rows = GENERATOR_ROWS;
    generator->cache_rows_per_slot = options->continues ? 0 : cache_round_up(options->max_new_tokens);
    struct backend *backend = model->backend;
    generator->workspace.backend = backend;
    size_t slots = (size_t)generator->options.rows, eos_count = model->info.eos_count;
    status result = OK;
    NEW(&generator->slots, slots);
    NEW(&generator->tokens, slots);
    NEW(&generator->logprobs, slots);
    NEW(&generator->eos_ids, eos_count);
    for (size_t i = 0; i < eos_count; i++) generator->eos_ids[i] = (int32_t)model->info.eos_ids[i];
    TRY_TO(result, failed,
           backend->ops->decode_batch_new(backend, &generator->batch, generator->options.rows,
                                          model->weights->text.heads, generator->eos_ids, eos_count));
    *out = generator;
    return OK;
failed:
    generator_free(&generator);
    return result;
}

void generator_free_requests(struct request **list) {
    while (*list) {
        struct request *next = (*list)->next;
        arena_release(&(*list)->arena);
        free(*list);
        *list = next;
    }
}

void generator_free(struct generator **generator) {
    struct generator *it = *generator;
    if (!it) return;
    generator_free_requests(&it->running);
    generator_free_requests(&it->waiting);
    generator_free_requests(&it->finished);
    generator_free_requests(&it->returned);
    struct backend *backend = it->model->backend;
    generator_drop_graph(it);
    backend->ops->decode_batch_free(backend, &it->batch);
    workspace_release(&it->workspace);
    backend->ops->kv_cache_free(backend, &it->cache);
    free(it->slots);
    free(it->tokens);
    free(it->logprobs);
    free(it->eos_ids);
    free(it);
    *generator = NULL;
}

bool generator_can_add(const struct generator *generator) {
    if (generator->waiting) return false;
    for (const struct request *request = generator->running; request; request = request->next)
        if (request->scheduled < request->count) return false;
    return true;
}

bool generator_busy(const struct generator *generator) {
    return generator->running || generator->waiting;
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

status generator_find_cache_rows(struct generator *generator, const struct request *request, int64_t *cache_begin) {
    struct model *model = generator->model;
    const struct operations *ops = model->backend->ops;
    *cache_begin = generator->cache ? generator_find_gap(generator, request->cache_rows) : -1;
    if (*cache_begin >= 0 || generator->running) return OK;
    int64_t cache_rows = generator->prompt_area_rows = request->cache_rows;
    if (!generator->options.continues)
        cache_rows = generator_cache_rows(generator->options.rows, generator->cache_rows_per_slot, request->count,
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
        if (request->finished < request->count) {
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
        while (request->scheduled < request->count) {
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

void generator_run(struct generator *generator, struct request *request) {
    generator_append(&generator->running, request);
    generator_schedule(generator);
    generator_collect(generator);
}

// Frees the request if it cannot be computed.
static status generator_start(struct generator *generator, struct request *request, int64_t cache_begin,
                              const struct model_prompt *prompt) {
    request->cache_begin = cache_begin;
    status result = generator_prefill(generator, request, prompt);
    if (result == OK)
        generator_run(generator, request);
    else
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
    return generator_start(generator, request, cache_begin, &request->prompt);
}

// Copies the prompt into the request, which has to wait.
static status generator_copy_prompt(struct request *request, const struct model_prompt *prompt) {
    int64_t *tokens = arena_alloc(&request->arena, prompt->count * sizeof *tokens);
    struct model_medium *media = arena_alloc(&request->arena, prompt->media_count * sizeof *media);
    memcpy(tokens, prompt->tokens, prompt->count * sizeof *tokens);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *from = &prompt->media[i];
        size_t size = (size_t)from->frames * (size_t)from->height * (size_t)from->width * 3;
        uint8_t *pixels;
        TRY(arena_alloc_large(&request->arena, &pixels, size));
        memcpy(pixels, from->pixels, size);
        media[i] = *from;
        media[i].pixels = pixels;
    }
    request->prompt = (struct model_prompt){tokens, prompt->count, media, prompt->media_count};
    return OK;
}

// Checks now, and not when it is prefilled, that a request can be computed. BAD_SAMPLE as in model_check.
static status generator_check(const struct generator *generator, const struct generate_request *request) {
    struct arena arena = {0};
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &generator->model->config, &request->prompt, NULL, 0);
    // The last token of a completion is not computed.
    if (result == OK) result = sequence_check_position((int64_t)sequence.next_position + request->max_new_tokens - 2);
    arena_release(&arena);
    return result;
}

bool request_is_complete(const struct request *request, int completion) {
    const struct generated *result = &request->results[completion];
    bool continued = !request->branches || request->branches[completion].input_count;
    return !continued || result->ended || result->stopped || result->count == (size_t)request->max_new_tokens;
}

status generator_request_new(struct generator *generator, const struct generate_request *from, struct request **out) {
    int max_new_tokens = generator->options.max_new_tokens;
    if (from->count < 1) return fail(USAGE, "%d completions were requested", from->count);
    if (from->max_new_tokens < 1 || from->max_new_tokens > max_new_tokens)
        return fail(USAGE, "max_new_tokens is %d, not in 1..%d", from->max_new_tokens, max_new_tokens);
    if (!(from->temperature >= 0) || !(from->top_p > 0 && from->top_p <= 1) || from->top_k < 0)
        return fail(USAGE, "temperature %g, top_p %g, top_k %d", (double)from->temperature, (double)from->top_p,
                    from->top_k);
    struct request *request = NULL;
    NEW(&request, 1);
    *request = (struct request){.tag = from->tag,
                                .count = from->count,
                                .max_new_tokens = from->max_new_tokens,
                                .sampling = {from->temperature, from->top_p, from->top_k},
                                .key = from->key,
                                .stop = from->stop,
                                .cache_rows = cache_round_up((int64_t)from->prompt.count),
                                .prompt_rows = (int64_t)from->prompt.count};
    request->results = arena_alloc(&request->arena, (size_t)request->count * sizeof *request->results);
    for (int i = 0; i < request->count; i++) {
        struct generated *generated = &request->results[i];
        size_t tokens = (size_t)request->max_new_tokens;
        generated->tokens = arena_alloc(&request->arena, tokens * sizeof *generated->tokens);
        generated->logprobs = arena_alloc(&request->arena, tokens * sizeof *generated->logprobs);
        generated->versions = arena_alloc(&request->arena, tokens * sizeof *generated->versions);
    }
    *out = request;
    return OK;
}

status generator_add(struct generator *generator, const struct generate_request *from) {
    struct request *request = NULL;
    status result = OK;
    int64_t cache_begin = -1;
    if (generator->options.continues) return fail(BUG, "the generator continues completions");
    TRY(generator_request_new(generator, from, &request));
    TRY_TO(result, failed, generator_check(generator, from));
    TRY_TO(result, failed, generator_start_waiting(generator));
    if (!generator->waiting) TRY_TO(result, failed, generator_find_cache_rows(generator, request, &cache_begin));
    if (cache_begin >= 0) return generator_start(generator, request, cache_begin, &from->prompt);
    if (generator->waiting) TRY_TO(result, failed, fail(BUG, "another request is waiting already"));
    TRY_TO(result, failed, generator_copy_prompt(request, &from->prompt));
    generator->waiting = request;
    return OK;
failed:
    generator_free_requests(&request);
    return result;
}

status generator_step(struct generator *generator) {
    TRY(generator_start_waiting(generator));
    generator_schedule(generator);
    TRY(generator_decode(generator));
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
    *tag = request->tag;
    *count = request->count;
    return request->results;
}
