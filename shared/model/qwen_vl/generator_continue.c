// Continuing completions that are given: the pass that scores them leaves the keys and values of the prompt and of
// every branch in the generator's cache. What a branch has behind its prefix is overwritten by the tokens that are
// decoded. The last token of a prefix is computed again, as the input of the first step.
#include <assert.h>
#include <string.h>

#include "shared/model/qwen_vl/generator.h"
#include "shared/model/qwen_vl/group_logprobs.h"

// Fills in the request's branches but their cache rows. *longest = the tokens of the longest prefix, *room = the cache
// rows that a branch needs at most beside those of its completion.
static status generator_make_branches(struct request *request, const struct model *model,
                                      const struct model_completion *completions,
                                      const struct completion_prefix *prefixes, int64_t *longest, int64_t *room) {
    size_t most = 0;
    request->branches = arena_alloc(&request->arena, (size_t)request->count * sizeof *request->branches);
    for (int i = 0; i < request->count; i++) {
        const struct completion_prefix *prefix = &prefixes[i];
        struct branch *branch = &request->branches[i];
        assert(prefix->kept <= completions[i].count);
        *branch = (struct branch){.prefix_count = prefix->kept + prefix->count};
        for (size_t k = 0; k < prefix->count; k++)
            if (prefix->tokens[k] < 0 || prefix->tokens[k] >= model->info.vocab_size)
                return fail(BAD_SAMPLE, "token %lld is outside the vocabulary of %lld", (long long)prefix->tokens[k],
                            (long long)model->info.vocab_size);
        const int64_t *inputs = prefix->tokens;
        branch->input_count = prefix->count;
        if (!prefix->count && prefix->kept) {
            inputs = completions[i].tokens + prefix->kept - 1;
            branch->input_count = 1;
        }
        int64_t *copy = arena_alloc(&request->arena, branch->input_count * sizeof *copy);
        if (branch->input_count) memcpy(copy, inputs, branch->input_count * sizeof *copy);
        branch->inputs = copy;
        if ((int64_t)branch->prefix_count > *longest) *longest = (int64_t)branch->prefix_count;
        if (prefix->count > most) most = prefix->count;
        if (!branch->input_count) request->finished++;
    }
    *room = (int64_t)most + request->max_new_tokens;
    return OK;
}

status generator_continue(struct generator *generator, const struct generate_request *from,
                          const struct model_completion *completions, const struct completion_prefix *prefixes,
                          const struct token_range *wanted, float *const *logprobs) {
    struct model *model = generator->model;
    struct arena arena = {0};
    struct sequence sequence;
    struct request *request = NULL;
    size_t count = (size_t)from->count;
    int64_t longest = 0, room = 0, cache_begin = 0;
    status result = OK;
    if (!generator->options.continues || generator->running)
        return fail(BUG, "the generator cannot continue completions now");
    TRY(generator_request_new(generator, from, &request));
    TRY_TO(result, done, generator_make_branches(request, model, completions, prefixes, &longest, &room));
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, &from->prompt, completions, count));
    int64_t *begins = arena_alloc(&arena, count * sizeof *begins);
    sequence_place_branches(&sequence, completions, count, room, begins);
    for (size_t i = 0; i < count; i++) request->branches[i].cache_begin = begins[i];
    request->cache_rows = sequence.cache_rows;
    request->next_position = sequence.next_position;
    int64_t end = (int64_t)sequence.next_position + longest + request->max_new_tokens;
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
