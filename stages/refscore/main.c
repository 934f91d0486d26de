// caravan-refscore: computes how likely the answer of each completion is under the reference model, given the prompt
// and the completion's own reasoning before the answer. A completion without an answer has NaN (JSON null). If asked
// to, it also lets the reference write an answer of its own after that reasoning.
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/reward/python_text.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_model.h"
#include "stages/refscore/answer_span.h"

struct refscore {
    struct stage_model model;
    const struct refscore_options *options;
    struct buf *texts; // what each completion of the present group has been given
};
static_assert(offsetof(struct refscore, model) == 0, "as the functions of stage_model.h need");

static status refscore_open(void **state, struct stage_context *context) {
    struct refscore *self;
    const struct refscore_options *options = stage_options(context);
    NEW(&self, 1);
    *state = self;
    self->options = options;
    TRY(stage_model_open(&self->model, context));
    if (options->generate == REFSCORE_GENERATE_OFF) return OK;
    // Of answers behind what each completion has up to its last <answer>.
    const struct generator_options generator = {.max_new_tokens = (int)options->generate_tokens, .continues = true};
    return generator_new(&self->model.generator, self->model.model, &generator);
}

// ---- the reference's own answers ----

// An answer ends where its text has the closing tag.
static status refscore_stop(void *tag, int completion, int64_t token, bool *stop) {
    struct refscore *self = tag;
    answer_append(self->model.input.tokenizer, token, &self->texts[completion], stop);
    return OK;
}

// Computes the logprobs of model_score, and sets the group's reference.generated: each answer's text before its closing
// tag without white space at both ends, null for a completion without <answer>. ended[i]: the last token of completion
// i is an end-of-sequence token. BAD_SAMPLE as in model_check.
static status refscore_generate(struct refscore *self, struct group *group, const struct model_prompt *prompt,
                                const struct model_completion *completions, const bool *ended,
                                const struct token_range *wanted, float *const *logprobs) {
    const struct refscore_options *options = self->options;
    const struct tokenizer *tokenizer = self->model.input.tokenizer;
    const size_t count = group->completion_count;
    struct string *answers = arena_alloc(&group->arena, count * sizeof *answers);
    struct answer_prefix *prefixes;
    struct completion_prefix *behind;
    void *tag;
    int popped;
    status result = OK;
    NEW(&prefixes, count);
    NEW(&behind, count);
    NEW(&self->texts, count);
    for (size_t i = 0; i < count; i++) {
        TRY_TO(result, done,
               answer_prefix_find(tokenizer, completions[i].tokens, completions[i].count, ended[i], &prefixes[i]));
        behind[i] = (struct completion_prefix){prefixes[i].kept, prefixes[i].cut.data, prefixes[i].cut.count};
    }
    const struct generate_request request = {
        .prompt = *prompt,
        .count = (int)count,
        .temperature = (float)options->generate_temperature,
        .top_p = (float)options->generate_top_p,
        .max_new_tokens = (int)options->generate_tokens,
        // Not rollout's key: with that a reference that is equal to the policy would repeat each completion's own
        // answer.
        .key = rng_bits(rng_key((uint64_t)options->seed, group->id.data), UINT64_MAX, 0),
        .tag = self,
        .stop = refscore_stop,
    };
    TRY_TO(result, done, generator_continue(self->model.generator, &request, completions, behind, wanted, logprobs));
    while (!generator_pop(self->model.generator, &tag, &popped))
        TRY_TO(result, done, generator_step(self->model.generator));
    for (size_t i = 0; i < count; i++) {
        const struct buf *text = &self->texts[i];
        struct string answer;
        if (!prefixes[i].found) continue;
        group_string(group, &answer, text->data, answer_size(text->data, text->size));
        answer = python_strip(answer);
        group_string(group, &answers[i], answer.data, answer.size);
    }
    group->reference.generated = (struct string_array){answers, count};
done:
    for (size_t i = 0; i < count; i++) {
        answer_prefix_release(&prefixes[i]);
        buf_release(&self->texts[i]);
    }
    free(prefixes);
    free(behind);
    free(self->texts);
    self->texts = NULL;
    return result;
}

// ---- scoring ----

static status refscore_work(void *state, struct group *group) {
    struct refscore *self = state;
    struct reference *reference = &group->reference;
    const struct reference given = *reference;
    const enum answer_span_rule rule =
        self->options->span == REFSCORE_SPAN_RELEASED ? ANSWER_SPAN_RELEASED : ANSWER_SPAN_CONTENT;
    const bool keep_logprobs = self->options->logprobs == REFSCORE_LOGPROBS_ALL; // in the group, for every token
    const size_t count = group->completion_count;
    const struct model_info *info = model_get_info(self->model.model);
    const struct tokenizer *tokenizer = self->model.input.tokenizer;
    struct stage_input input = {0};
    status result = OK;
    TRY_TO(result, done, stage_input_open(&self->model.input, group, INPUT_COMPLETIONS, &input));
    *reference = (struct reference){.present = true, .unknown = given.unknown};
    reference->answer_span.data = arena_alloc(&group->arena, count * sizeof *reference->answer_span.data);
    reference->logprobs = arena_alloc(&group->arena, count * sizeof *reference->logprobs);
    struct model_completion *completions = arena_alloc(&group->arena, count * sizeof *completions);
    float **logprobs = arena_alloc(&group->arena, count * sizeof *logprobs);
    struct answer_span *spans = arena_alloc(&group->arena, count * sizeof *spans);
    struct token_range *answers = arena_alloc(&group->arena, count * sizeof *answers);
    bool *ended = arena_alloc(&group->arena, count * sizeof *ended);
    reference->answer_span.count = reference->logprob_count = count;
    GROUP_ARRAY(group, &reference->answer_logprob, count);
    GROUP_ARRAY(group, &reference->answer_probability, count);
    for (size_t i = 0; i < count; i++) {
        const struct int_array *tokens = &input.completions[i];
        for (size_t k = 0; tokens->count && k < info->eos_count; k++)
            ended[i] |= info->eos_ids[k] == tokens->data[tokens->count - 1];
        answer_span_find(tokenizer, rule, tokens->data, tokens->count, ended[i], &spans[i]);
        assert(spans[i].first <= spans[i].end && spans[i].end <= tokens->count);
        if (spans[i].found) answers[i] = (struct token_range){spans[i].first, spans[i].end};
        GROUP_ARRAY(group, &reference->logprobs[i], tokens->count);
        completions[i] = (struct model_completion){tokens->data, tokens->count};
        logprobs[i] = reference->logprobs[i].data;
    }
    const struct token_range *wanted = keep_logprobs ? NULL : answers;
    if (self->model.generator)
        result = refscore_generate(self, group, &input.prompt, completions, ended, wanted, logprobs);
    else
        result = model_score(self->model.model, &input.prompt, completions, count, wanted, logprobs);
    TRY_TO(result, done, result);
    for (size_t i = 0; i < count; i++) { // the answer's span, its mean log-probability and its mean probability
        const struct answer_span *span = &spans[i];
        const double length = (double)(span->end - span->first);
        double logprob_sum = 0, probability_sum = 0;
        for (size_t t = span->first; t < span->end; t++) {
            logprob_sum += logprobs[i][t];
            probability_sum += exp((double)logprobs[i][t]);
        }
        reference->answer_span.data[i] = (struct span){span->found ? (int64_t)span->first : -1, (int64_t)span->end};
        reference->answer_logprob.data[i] = !span->found ? NAN : length > 0 ? logprob_sum / length : 0;
        reference->answer_probability.data[i] = !span->found ? NAN : length > 0 ? probability_sum / length : 1;
    }
    reference->version = model_version(self->model.model);
    if (!keep_logprobs) {
        reference->logprobs = NULL;
        reference->logprob_count = 0;
    }
done:
    if (result != OK) *reference = given; // a group that failed has no numbers that were never computed
    stage_input_release(&input);
    return result;
}

static const struct stage refscore_stage = {
    .name = "refscore",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_REFERENCE,
    .open = refscore_open,
    .fingerprint = stage_model_hash,
    .follows = FOLLOWS_REFERENCE,
    .load_weights = stage_model_load,
    .return_weights = stage_model_return,
    .weights_intact = stage_model_intact,
    .work = refscore_work,
    .close = stage_model_close,
};

int main(int argc, char **argv) {
    return stage_main(&refscore_stage, argc, argv);
}
