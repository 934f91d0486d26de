// caravan-judge: says of each completion whether its thinking supports its answer. The judge `concludes` is in
// shared/reward/verdict.h.
//
// The judge `likelihood` says whether a completion answers with the option that a model finds most likely given the
// question without its media, the completion's thinking, and the beginning of an answer. An option's letter is scored
// by the tokens that it makes at the end of the whole text. A letter may be one token with the '>' before it, so what
// the texts of all letters have in common is the prompt, and the rest of each is a branch.
#include <assert.h>
#include <math.h>

#include "shared/base/memory.h"
#include "shared/reward/verdict.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_model.h"
#include "shared/text/chat_template.h"

// ---- likelihood ----

enum { LETTERS = 'Z' - 'A' + 1 };

// Sets scores[i] to the log-probability of option i's letter at the end of an assistant's message with the thinking,
// which answers the question. BAD_SAMPLE when a text contains what stands for a medium, DATAERR when one is not UTF-8.
static status likelihood_score(struct stage_model *model, struct string question, struct string thinking, size_t count,
                               double *scores) {
    struct part part = {.kind = PART_TEXT, .text = question};
    const struct message message = {.role = string_of("user"), .parts = &part, .part_count = 1};
    struct token_list lists[LETTERS] = {0};
    struct model_completion letters[LETTERS];
    float *logprobs[LETTERS];
    struct arena arena = {0};
    struct buf text = {0};
    status result = OK;
    assert(count > 0 && count <= LETTERS);
    for (size_t i = 0; i < count; i++) {
        buf_clear(&text);
        chat_template_render(&message, 1, &text);
        buf_puts(&text, "<think>");
        buf_append(&text, thinking.data, thinking.size);
        buf_printf(&text, "</think>\n<answer>%c", (char)('A' + i));
        TRY_TO(result, done, tokenizer_encode(model->input.tokenizer, text.data, text.size, &lists[i]));
    }
    size_t common = lists[0].count - 1; // tokens that all lists begin with; each has at least one more
    for (size_t i = 1; i < count; i++) {
        size_t same = 0;
        while (same < common && same + 1 < lists[i].count && lists[i].data[same] == lists[0].data[same]) same++;
        common = same;
    }
    for (size_t i = 0; i < count; i++) {
        letters[i] = (struct model_completion){lists[i].data + common, lists[i].count - common};
        logprobs[i] = arena_alloc(&arena, letters[i].count * sizeof *logprobs[i]);
    }
    const struct model_prompt prompt = {.tokens = lists[0].data, .count = common};
    TRY_TO(result, done, model_score(model->model, &prompt, letters, count, NULL, logprobs));
    for (size_t i = 0; i < count; i++) {
        scores[i] = 0;
        for (size_t t = 0; t < letters[i].count; t++) scores[i] += logprobs[i][t];
    }
done:
    for (size_t i = 0; i < count; i++) token_list_release(&lists[i]);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

// ---- judge ----

// The state is a model, which is open for `likelihood` alone.
static status judge_open(void **state, struct stage_context *context) {
    struct stage_model *model;
    const struct judge_options *options = stage_options(context);
    NEW(&model, 1);
    *state = model;
    return options->judge == JUDGE_LIKELIHOOD ? stage_model_open(model, context) : OK;
}

// Writes the verdicts into the group. A completion whose thinking the model cannot be asked about is not judged.
static status judge_work(void *state, struct group *group) {
    struct stage_model *model = state;
    const struct prompt *prompt = &group->prompt;
    const size_t count = prompt->options.count < LETTERS ? prompt->options.count : LETTERS;
    if (!model->model) return concludes_group(group);
    TRY(verdict_init(group, "likelihood"));
    for (size_t i = 0; i < group->completion_count; i++) {
        struct string thinking;
        char answer; // the letter of the option that the completion answers with
        double scores[LETTERS], sum = 0;
        size_t best = 0;
        const char *obstacle = verdict_obstacle(group, i, &thinking, &answer);
        if (!obstacle && !prompt->question.data) obstacle = "the prompt has no question apart from its messages";
        if (!obstacle) {
            const status result = likelihood_score(model, prompt->question, thinking, count, scores);
            if (result != BAD_SAMPLE && result != DATAERR) TRY(result);
            if (result != OK) obstacle = fail_text();
        }
        if (obstacle) {
            verdict_set(group, i, NAN, "%s", obstacle);
            continue;
        }
        for (size_t k = 1; k < count; k++)
            if (scores[k] > scores[best]) best = k;
        for (size_t k = 0; k < count; k++) sum += exp(scores[k] - scores[best]);
        const char letter = (char)('A' + best);
        verdict_set(group, i, letter == answer, "the thinking makes %c most likely (%.3f), the answer is %c", letter,
                    1 / sum, answer);
    }
    return OK;
}

static const struct stage judge_stage = {
    .name = "judge",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_CONSISTENCY,
    .open = judge_open,
    .fingerprint = stage_model_hash,
    .work = judge_work,
    .close = stage_model_close,
};

int main(int argc, char **argv) {
    return stage_main(&judge_stage, argc, argv);
}
