// Log-probabilities of given completions: one forward pass over the packed sequence.
#include <string.h>

#include "shared/model/text.h"

status model_check(const struct model *model, const struct model_prompt *prompt,
                   const struct model_completion *completions, size_t count) {
    struct arena arena = {0};
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &model->config, prompt, completions, count);
    arena_release(&arena);
    return result;
}

// probabilities[0..targets) on the host.
static status score_all(struct model *model, struct reading *reading, float *probabilities) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = reading->sequence;
    enum element type = model->weights->type;
    int64_t hidden = model->config.text.hidden;
    struct tensor normed, head_rows, sources, targets, logprobs;
    TRY(desk_take(&model->desk, type, sequence->rows, hidden, &normed));
    TRY(desk_take(&model->desk, type, sequence->targets, hidden, &head_rows));
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->targets, 1, sequence->sources, &sources));
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->targets, 1, sequence->target, &targets));
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->targets, 1, &logprobs));
    TRY(pass_norm(&reading->pass, normed, model->weights->norm, (struct tensor){0}));
    TRY(ops->gather(model->backend, head_rows, normed, sources));
    TRY(ops->logprob(model->backend, logprobs, (struct tensor){0}, head_rows, model->weights->head, targets));
    return ops->download(model->backend, probabilities, ELEMENT_F32, logprobs);
}

static status score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                    const struct model_completion *completions, size_t count, float *const *logprobs) {
    struct sequence sequence;
    TRY(sequence_make(&sequence, arena, &model->config, prompt, completions, count));
    float *all = arena_alloc(arena, (size_t)sequence.targets * sizeof *all);
    if (!all) return fail(UNAVAILABLE, "out of memory");
    struct reading reading;
    TRY(text_forward(&reading, model, arena, prompt, &sequence, NULL, false));
    TRY(score_all(model, &reading, all));
    for (size_t i = 0; i < count; i++) {
        memcpy(logprobs[i], all, completions[i].count * sizeof *all);
        all += completions[i].count;
    }
    return OK;
}

status model_score(struct model *model, const struct model_prompt *prompt, const struct model_completion *completions,
                   size_t count, float *const *logprobs) {
    if (count == 0) return OK;
    struct arena arena = {0};
    status result = score(model, &arena, prompt, completions, count, logprobs);
    desk_back(&model->desk, (struct desk_mark){0});
    arena_release(&arena);
    return result;
}
