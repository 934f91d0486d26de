// Log-probabilities of given completions: one forward pass over the packed sequence.
#include <string.h>

#include "shared/model/text_model.h"

status model_check(const struct model *model, const struct model_prompt *prompt,
                   const struct model_completion *completions, size_t count) {
    struct arena arena = {0};
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &model->config, prompt, completions, count);
    arena_release(&arena);
    return result;
}

// probabilities[0..targets) on the host.
static status score_all(struct model *model, struct text_state *state, float *probabilities) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = state->sequence;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size;
    struct tensor normed, head_rows, logit_rows, targets, logprobs;
    TRY(workspace_alloc(&model->workspace, type, sequence->rows, hidden_size, &normed));
    TRY(workspace_alloc(&model->workspace, type, sequence->targets, hidden_size, &head_rows));
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, sequence->targets, 1, sequence->logit_rows, &logit_rows));
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, sequence->targets, 1, sequence->target, &targets));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, sequence->targets, 1, &logprobs));
    TRY(forward_norm(&state->fwd, normed, model->weights->norm, (struct tensor){0}));
    TRY(ops->gather(model->backend, head_rows, normed, logit_rows));
    TRY(ops->logprob(model->backend, logprobs, (struct tensor){0}, head_rows, model->weights->head, targets));
    return ops->download(model->backend, probabilities, ELEMENT_F32, logprobs);
}

static status score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                    const struct model_completion *completions, size_t count, float *const *logprobs) {
    struct sequence sequence;
    TRY(sequence_make(&sequence, arena, &model->config, prompt, completions, count));
    float *all = arena_alloc(arena, (size_t)sequence.targets * sizeof *all);
    if (!all) return fail_oom();
    struct text_state state;
    TRY(text_forward(&state, model, arena, prompt, &sequence, NULL, false));
    TRY(score_all(model, &state, all));
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
    workspace_restore(&model->workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}
