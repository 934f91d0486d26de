#include "stages/refscore/generate.h"

#include <stdlib.h>

#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/reward/python_text.h"
#include "stages/refscore/answer_span.h"

struct answer_generator {
    const struct refscore_options *options;
    const struct tokenizer *tokenizer;
    struct generator *generator;
    struct buf *texts; // what each completion of the present group has been given
};

status answer_generator_new(struct answer_generator **out, const struct stage_model *model,
                            const struct refscore_options *options) {
    struct answer_generator *it;
    NEW(&it, 1);
    *out = it;
    it->options = options;
    it->tokenizer = input_builder_tokenizer(model->input);
    const struct generator_options generator = {.max_new_tokens = (int)options->generate_tokens, .continues = true};
    return generator_new(&it->generator, model->model, &generator);
}

void answer_generator_free(struct answer_generator **generator) {
    if (!*generator) return;
    generator_free(&(*generator)->generator);
    free(*generator);
    *generator = NULL;
}

// An answer ends where its text has the closing tag.
static status answer_generator_stop(void *tag, int completion, int64_t token, bool *stop) {
    struct answer_generator *it = tag;
    answer_append(it->tokenizer, token, &it->texts[completion], stop);
    return OK;
}

// Returns the key of the group's answers. It differs from rollout's: with that one a reference that is equal to the
// policy would repeat each completion's own answer.
static uint64_t answer_generator_key(const struct answer_generator *it, const struct group *group) {
    return rng_bits(rng_key((uint64_t)it->options->seed, group->id.data), UINT64_MAX, 0);
}

// Decodes all answers of a group, side by side.
static status answer_generator_decode(struct answer_generator *it, const struct generate_request *request,
                                      const struct model_completion *completions, const struct answer_prefix *prefixes,
                                      const struct token_range *wanted, float *const *logprobs) {
    struct completion_prefix *behind;
    void *tag;
    int count;
    NEW(&behind, (size_t)request->count);
    for (int i = 0; i < request->count; i++)
        behind[i] = (struct completion_prefix){prefixes[i].kept, prefixes[i].cut.data, prefixes[i].cut.count};
    status result = generator_continue(it->generator, request, completions, behind, wanted, logprobs);
    while (result == OK && !generator_pop(it->generator, &tag, &count)) result = generator_step(it->generator);
    free(behind);
    return result;
}

status answer_generator_run(struct answer_generator *it, struct group *group, const struct model_prompt *prompt,
                            const struct model_completion *completions, const bool *ended,
                            const struct token_range *wanted, float *const *logprobs) {
    const struct refscore_options *options = it->options;
    const size_t count = group->completion_count;
    struct answer_prefix *prefixes = NULL;
    struct string *answers = arena_alloc(&group->arena, count * sizeof *answers);
    status result = OK;
    NEW(&prefixes, count);
    NEW(&it->texts, count);
    for (size_t i = 0; i < count; i++)
        TRY_TO(result, done,
               answer_prefix_find(it->tokenizer, completions[i].tokens, completions[i].count, ended[i], &prefixes[i]));
    const struct generate_request request = {
        .prompt = *prompt,
        .count = (int)count,
        .temperature = (float)options->generate_temperature,
        .top_p = (float)options->generate_top_p,
        .max_new_tokens = (int)options->generate_tokens,
        .key = answer_generator_key(it, group),
        .tag = it,
        .stop = answer_generator_stop,
    };
    TRY_TO(result, done, answer_generator_decode(it, &request, completions, prefixes, wanted, logprobs));
    for (size_t i = 0; i < count; i++) {
        const struct buf *text = &it->texts[i];
        struct string answer;
        if (!prefixes[i].found) continue;
        group_string(group, &answer, text->data, answer_size(text->data, text->size));
        answer = python_strip(answer);
        group_string(group, &answers[i], answer.data, answer.size);
    }
    group->reference.generated = (struct string_array){answers, count};
done:
    for (size_t i = 0; i < count; i++) {
        if (prefixes) answer_prefix_release(&prefixes[i]);
        if (it->texts) buf_release(&it->texts[i]);
    }
    free(prefixes);
    free(it->texts);
    it->texts = NULL;
    return result;
}
