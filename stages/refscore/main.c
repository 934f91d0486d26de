// caravan-refscore: how likely each answer is under the reference, given the completion's own reasoning (section 1.4).
#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"
#include "shared/stage/stage_model.h"
#include "shared/stage/stage.h"
#include "shared/text/answer_span.h"

struct refscore {
    struct stage_model model;
    enum answer_span_rule rule;
    bool all; // every token's log-probability is wanted
};

static status refscore_open(void **state, struct stage_context *context) {
    struct refscore *self;
    const struct refscore_options *options = stage_options(context);
    TRY(NEW(&self, 1));
    *state = self;
    self->rule = options->span == REFSCORE_SPAN_RELEASED ? ANSWER_SPAN_RELEASED : ANSWER_SPAN_CONTENT;
    self->all = options->logprobs == REFSCORE_LOGPROBS_ALL;
    return stage_model_open(&self->model, context);
}

static status refscore_load_weights(void *state, const struct stage_weights *weights) {
    struct refscore *self = state;
    return stage_model_load(&self->model, weights);
}

static uint64_t refscore_fingerprint(void *state) {
    const struct refscore *self = state;
    return self->model.hash;
}

static bool ends(const struct model_info *facts, int64_t token) {
    for (size_t i = 0; i < facts->eos_count; i++)
        if (facts->eos_ids[i] == token) return true;
    return false;
}

// The mean log-probability over the answer and the mean of its probabilities; NaN without an answer.
static void summarize(const float *logprobs, const struct answer_span *span, double *logprob, double *probability) {
    *logprob = *probability = NAN;
    if (!span->found) return;
    size_t count = span->end - span->first;
    double sum = 0, probabilities = 0;
    for (size_t i = span->first; i < span->end; i++) {
        sum += logprobs[i];
        probabilities += exp((double)logprobs[i]);
    }
    *logprob = count ? sum / (double)count : 0;
    *probability = count ? probabilities / (double)count : 1;
}

static status describe(const struct refscore *self, struct group *group, size_t i, const struct int_array *tokens,
                       const float *logprobs) {
    struct answer_span span;
    struct reference *reference = &group->reference;
    bool ended = tokens->count && ends(model_get_info(self->model.model), tokens->data[tokens->count - 1]);
    TRY(answer_span_find(input_builder_tokenizer(self->model.input), self->rule, tokens->data, tokens->count, ended,
                         &span));
    reference->answer_span.data[i] = (struct span){span.found ? (int64_t)span.first : -1, (int64_t)span.end};
    summarize(logprobs, &span, &reference->answer_logprob.data[i], &reference->answer_probability.data[i]);
    return OK;
}

// Room for the section in the group's arena; the log-probabilities of completion i stand at reference.logprobs[i].
static status make_section(struct group *group, const struct stage_input *input) {
    struct reference *reference = &group->reference;
    size_t count = group->completion_count;
    *reference = (struct reference){.present = true};
    reference->answer_span.data = arena_alloc(&group->arena, count * sizeof *reference->answer_span.data);
    reference->logprobs = arena_alloc(&group->arena, count * sizeof *reference->logprobs);
    if (!reference->answer_span.data || !reference->logprobs) return fail_oom();
    reference->answer_span.count = reference->logprob_count = count;
    TRY(group_doubles(group, &reference->answer_logprob, count));
    TRY(group_doubles(group, &reference->answer_probability, count));
    for (size_t i = 0; i < count; i++) TRY(group_floats(group, &reference->logprobs[i], input->completions[i].count));
    return OK;
}

static status score(struct refscore *self, struct group *group, const struct stage_input *input) {
    size_t count = group->completion_count;
    struct model_completion *completions = arena_alloc(&group->arena, count * sizeof *completions);
    float **logprobs = arena_alloc(&group->arena, count * sizeof *logprobs);
    if (!completions || !logprobs) return fail_oom();
    for (size_t i = 0; i < count; i++) {
        completions[i] = (struct model_completion){input->completions[i].data, input->completions[i].count};
        logprobs[i] = group->reference.logprobs[i].data;
    }
    TRY(model_score(self->model.model, &input->prompt, completions, count, logprobs));
    for (size_t i = 0; i < count; i++) TRY(describe(self, group, i, &input->completions[i], logprobs[i]));
    group->reference.version = model_version(self->model.model);
    if (!self->all) {
        group->reference.logprobs = NULL;
        group->reference.logprob_count = 0;
    }
    return OK;
}

static status refscore_work(void *state, struct group *group) {
    struct refscore *self = state;
    struct stage_input input = {0};
    status result = stage_input_open(self->model.input, group, INPUT_COMPLETIONS, &input);
    if (result == OK) result = make_section(group, &input);
    if (result == OK) result = score(self, group, &input);
    stage_input_release(&input);
    return result;
}

static status refscore_close(void *state) {
    struct refscore *self = state;
    if (!self) return OK;
    stage_model_release(&self->model);
    free(self);
    return OK;
}

static const struct stage refscore_stage = {
    .name = "refscore",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_REFERENCE,
    .open = refscore_open,
    .fingerprint = refscore_fingerprint,
    .follows = FOLLOWS_REFERENCE,
    .load_weights = refscore_load_weights,
    .work = refscore_work,
    .close = refscore_close,
};

int main(int argc, char **argv) {
    return stage_main(&refscore_stage, argc, argv);
}
