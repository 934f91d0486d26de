// The generator's bookkeeping: who waits, who has a place, who is done.
#include "shared/model/generator.h"

#include <stdlib.h>
#include <string.h>

static int64_t round_up(int64_t rows) {
    return (rows + BRANCH_ALIGNMENT - 1) / BRANCH_ALIGNMENT * BRANCH_ALIGNMENT;
}

status generator_new(struct generator **out, struct model *model, const struct generator_options *options) {
    *out = NULL;
    if (options->max_new_tokens < 1) return fail(USAGE, "max_new_tokens is %d, not 1 or more", options->max_new_tokens);
    struct generator *generator = NULL;
    TRY(NEW(&generator, 1));
    generator->model = model;
    generator->options = *options;
    if (generator->options.rows < 1) generator->options.rows = 64;
    generator->own_rows = round_up(options->max_new_tokens);
    status result = NEW(&generator->places, (size_t)generator->options.rows);
    if (result != OK) generator_free(&generator);
    *out = generator;
    return result;
}

static void free_requests(struct request **list) {
    while (*list) {
        struct request *next = (*list)->next;
        arena_release(&(*list)->memory);
        free(*list);
        *list = next;
    }
}

void generator_free(struct generator **generator) {
    struct generator *it = *generator;
    if (!it) return;
    free_requests(&it->working);
    free_requests(&it->waiting);
    free_requests(&it->done);
    free_requests(&it->handed);
    it->model->backend->ops->kv_cache_free(it->model->backend, &it->cache);
    free(it->places);
    free(it);
    *generator = NULL;
}

bool generator_can_add(const struct generator *generator) {
    if (generator->waiting) return false;
    for (const struct request *request = generator->working; request; request = request->next)
        if (request->placed < request->count) return false;
    return true;
}

bool generator_busy(const struct generator *generator) {
    return generator->working || generator->waiting;
}

// A cache whose area for prompts has room for as many requests like this one as can be decoded side by side.
static status make_cache(struct generator *generator, const struct request *request) {
    struct model *model = generator->model;
    int64_t rows = generator->options.rows, requests = rows / request->count + 2;
    generator->area_rows = requests * request->rows * 5 / 4;
    model->backend->ops->kv_cache_free(model->backend, &generator->cache);
    return model->backend->ops->kv_cache_new(model->backend, &generator->cache, model->config.text.num_hidden_layers,
                                             rows * generator->own_rows + round_up(generator->area_rows),
                                             model->weights->text.heads);
}

// The first gap of the area that holds `rows` rows; -1: there is none now.
static int64_t find_gap(const struct generator *generator, int64_t rows) {
    int64_t start = generator->options.rows * generator->own_rows, at = start;
    for (const struct request *request = generator->working; request;) {
        bool apart = at + rows <= request->first_row || request->first_row + request->rows <= at;
        if (apart) {
            request = request->next;
        } else {
            at = request->first_row + request->rows;
            request = generator->working; // look at all again from there
        }
    }
    return at + rows <= start + generator->area_rows ? at : -1;
}

// Whether the prompt can be computed now; *region is where it goes.
static status find_region(struct generator *generator, const struct request *request, int64_t *region) {
    *region = generator->cache ? find_gap(generator, request->rows) : -1;
    if (*region >= 0 || generator->working) return OK;
    TRY(make_cache(generator, request));
    *region = find_gap(generator, request->rows);
    return OK;
}

static void append_request(struct request **list, struct request *request) {
    while (*list) list = &(*list)->next;
    request->next = NULL;
    *list = request;
}

// Moves what is finished to the end of the list of done requests.
static void collect(struct generator *generator) {
    for (struct request **at = &generator->working; *at;) {
        struct request *request = *at;
        if (request->finished < request->count) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        append_request(&generator->done, request);
    }
}

// Gives free places to completions that have none, oldest request first.
static void fill_places(struct generator *generator) {
    int free_place = 0;
    for (struct request *request = generator->working; request; request = request->next) {
        while (request->placed < request->count) {
            const struct generated *result = &request->results[request->placed];
            if (result->ended || result->count == (size_t)request->max_new_tokens) {
                request->placed++;
                continue;
            }
            while (free_place < generator->options.rows && generator->places[free_place].request) free_place++;
            if (free_place == generator->options.rows) return;
            generator->places[free_place] = (struct place){request, request->placed++};
        }
    }
}

static status begin(struct generator *generator, struct request *request, int64_t region,
                    const struct model_prompt *prompt) {
    request->first_row = region;
    append_request(&generator->working, request);
    TRY(generator_prefill(generator, request, prompt));
    fill_places(generator);
    collect(generator);
    return OK;
}

static status begin_waiting(struct generator *generator) {
    struct request *request = generator->waiting;
    if (!request) return OK;
    int64_t region = -1;
    TRY(find_region(generator, request, &region));
    if (region < 0) return OK;
    generator->waiting = NULL;
    return begin(generator, request, region, &request->prompt);
}

// A copy of the prompt that lives as long as the request.
static status keep_prompt(struct request *request, const struct model_prompt *prompt) {
    int64_t *tokens = arena_alloc(&request->memory, prompt->count * sizeof *tokens);
    struct model_medium *media = arena_alloc(&request->memory, prompt->media_count * sizeof *media);
    if (!tokens || !media) return fail_oom();
    memcpy(tokens, prompt->tokens, prompt->count * sizeof *tokens);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *from = &prompt->media[i];
        size_t size = (size_t)from->frames * (size_t)from->height * (size_t)from->width * 3;
        uint8_t *pixels = arena_alloc(&request->memory, size);
        if (!pixels) return fail_oom();
        memcpy(pixels, from->pixels, size);
        media[i] = *from;
        media[i].pixels = pixels;
    }
    request->prompt = (struct model_prompt){tokens, prompt->count, media, prompt->media_count};
    return OK;
}

static status make_results(struct request *request) {
    size_t most = (size_t)request->max_new_tokens;
    request->results = arena_alloc(&request->memory, (size_t)request->count * sizeof *request->results);
    if (!request->results) return fail_oom();
    for (int i = 0; i < request->count; i++) {
        struct generated *result = &request->results[i];
        result->tokens = arena_alloc(&request->memory, most * sizeof *result->tokens);
        result->logprobs = arena_alloc(&request->memory, most * sizeof *result->logprobs);
        result->versions = arena_alloc(&request->memory, most * sizeof *result->versions);
        if (!result->tokens || !result->logprobs || !result->versions) return fail_oom();
    }
    return OK;
}

static status check_request(const struct generator *generator, const struct generate_request *request) {
    if (request->count < 1) return fail(USAGE, "%d completions were asked for", request->count);
    if (request->max_new_tokens < 1 || request->max_new_tokens > generator->options.max_new_tokens)
        return fail(USAGE, "max_new_tokens is %d, not in 1..%d", request->max_new_tokens,
                    generator->options.max_new_tokens);
    if (!(request->temperature >= 0) || !(request->top_p > 0 && request->top_p <= 1) || request->top_k < 0)
        return fail(USAGE, "temperature %g, top_p %g, top_k %d", (double)request->temperature, (double)request->top_p,
                    request->top_k);
    struct arena arena = {0}; // a prompt that does not fit its media must be refused now, not when its turn comes
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &generator->model->config, &request->prompt, NULL, 0);
    arena_release(&arena);
    return result;
}

static status add(struct generator *generator, struct request *fresh, const struct generate_request *asked) {
    TRY(make_results(fresh));
    int64_t region = -1;
    TRY(begin_waiting(generator));
    if (!generator->waiting) TRY(find_region(generator, fresh, &region));
    if (region >= 0) return begin(generator, fresh, region, &asked->prompt);
    if (generator->waiting) return fail(BUG, "a request waits already");
    TRY(keep_prompt(fresh, &asked->prompt));
    generator->waiting = fresh;
    return OK;
}

// Takes a request whose prefill failed out of the list of those at work.
static void drop(struct generator *generator, struct request *request) {
    for (struct request **at = &generator->working; *at; at = &(*at)->next) {
        if (*at != request) continue;
        *at = request->next;
        break;
    }
    request->next = NULL;
    free_requests(&request);
}

status generator_add(struct generator *generator, const struct generate_request *asked) {
    TRY(check_request(generator, asked));
    struct request *fresh = NULL;
    TRY(NEW(&fresh, 1));
    *fresh = (struct request){.tag = asked->tag,
                              .count = asked->count,
                              .max_new_tokens = asked->max_new_tokens,
                              .sampling = {asked->temperature, asked->top_p, asked->top_k},
                              .key = asked->key,
                              .rows = round_up((int64_t)asked->prompt.count),
                              .prompt_rows = (int64_t)asked->prompt.count};
    status result = add(generator, fresh, asked);
    if (result != OK) drop(generator, fresh);
    return result;
}

status generator_step(struct generator *generator) {
    TRY(begin_waiting(generator));
    fill_places(generator);
    TRY(generator_decode(generator));
    collect(generator);
    fill_places(generator);
    return OK;
}

const struct generated *generator_pop(struct generator *generator, void **tag, int *count) {
    free_requests(&generator->handed);
    struct request *request = generator->done;
    if (!request) return NULL;
    generator->done = request->next;
    request->next = NULL;
    generator->handed = request;
    *tag = request->tag;
    *count = request->count;
    return request->results;
}
