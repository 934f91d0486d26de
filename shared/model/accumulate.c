// One group's gradient, and the optimizer's step over all that were accumulated.
#include <math.h>
#include <stdlib.h>

#include "shared/model/loss.h"
#include "shared/model/text_model.h"
#include "shared/model/trainer.h"

// The rows from which tokens are predicted, and what the head makes of them.
struct head_rows {
    struct tensor normed, inverse;           // [T,C], F32 [T,1]
    struct tensor rows, logit_rows, targets; // [N,C], I32 [N,1]
    struct tensor logprobs, log_sums;        // F32 [N,1]
};

static status head_forward(struct head_rows *it, struct model *model, struct text_state *state) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = state->sequence;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size, targets = sequence->targets;
    struct workspace *workspace = &model->workspace;
    TRY(workspace_alloc(workspace, type, sequence->rows, hidden_size, &it->normed));
    TRY(workspace_alloc(workspace, ELEMENT_F32, sequence->rows, 1, &it->inverse));
    TRY(workspace_alloc(workspace, type, targets, hidden_size, &it->rows));
    TRY(workspace_upload(workspace, ELEMENT_I32, targets, 1, sequence->logit_rows, &it->logit_rows));
    TRY(workspace_upload(workspace, ELEMENT_I32, targets, 1, sequence->target, &it->targets));
    TRY(workspace_alloc(workspace, ELEMENT_F32, targets, 1, &it->logprobs));
    TRY(workspace_alloc(workspace, ELEMENT_F32, targets, 1, &it->log_sums));
    TRY(forward_norm(&state->fwd, it->normed, model->weights->norm, it->inverse));
    TRY(ops->gather(model->backend, it->rows, it->normed, it->logit_rows));
    return ops->logprob(model->backend, it->logprobs, it->log_sums, it->rows, model->weights->head, it->targets);
}

// pass.x_gradient = the gradient of the last block's output for these slopes.
static status head_gradient(const struct head_rows *it, struct model *model, struct text_state *state,
                            const float *slopes) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = state->sequence;
    const struct parameter_table *table = model->table;
    struct buffer *gradients = model->trainer->gradients;
    int64_t hidden_size = model->config.text.hidden_size;
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor slope, rows_gradient, normed_gradient;
    struct tensor matrix = param_tensor(gradients, table->head.count ? &table->head : &table->embedding);
    TRY(workspace_upload(&model->workspace, ELEMENT_F32, sequence->targets, 1, slopes, &slope));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, sequence->targets, hidden_size, &rows_gradient));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, sequence->rows, hidden_size, &normed_gradient));
    TRY(ops->logprob_grad(model->backend, rows_gradient, matrix, it->rows, model->weights->head, it->targets,
                          it->log_sums, slope));
    TRY(ops->zero(model->backend, normed_gradient));
    TRY(ops->scatter_add(model->backend, normed_gradient, rows_gradient, it->logit_rows));
    TRY(ops->zero(model->backend, state->fwd.x_grad));
    TRY(ops->rmsnorm_grad(model->backend, state->fwd.x_grad, param_tensor(gradients, &table->norm), normed_gradient,
                          state->fwd.x, model->weights->norm, it->inverse));
    workspace_restore(&model->workspace, mark);
    return OK;
}

// A group on its way: what the call was given.
struct train_args {
    const struct model_prompt *prompt;
    const struct train_completion *completions;
    size_t count;
    const struct loss_options *loss;
    double weight;
    struct train_result *result;
};

static bool all_zero(const float *slopes, int64_t count) {
    while (count && slopes[count - 1] == 0) count--;
    return count == 0;
}

// Forward, loss and the head's gradient. *flat: every slope is exactly 0 (all rewards of the group are equal, and there
// is no KL term), and so is the gradient: it need not be computed.
static status learn_head(struct model *model, struct arena *arena, const struct train_args *args,
                         struct text_state *state, bool *flat) {
    const struct sequence *sequence = state->sequence;
    float *logprobs = arena_alloc(arena, (size_t)sequence->targets * sizeof *logprobs);
    float *slopes = arena_alloc(arena, (size_t)sequence->targets * sizeof *slopes);
    if (!logprobs || !slopes) return fail_oom();
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, sequence->rows, model->config.text.hidden_size,
                        &state->fwd.x_grad));
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct head_rows head;
    TRY(head_forward(&head, model, state));
    TRY(model->backend->ops->download(model->backend, logprobs, ELEMENT_F32, head.logprobs));
    group_loss(args->completions, args->count, args->loss, args->weight, logprobs, slopes, args->result);
    args->result->prompt_tokens = sequence->prompt_rows;
    if (!isfinite(args->result->loss)) return fail(DATAERR, "the loss is not a finite number");
    *flat = all_zero(slopes, sequence->targets);
    if (!*flat) TRY(head_gradient(&head, model, state, slopes));
    workspace_restore(&model->workspace, mark);
    return OK;
}

static status learn(struct model *model, struct arena *arena, const struct train_args *args) {
    struct model_completion *completions = arena_alloc(arena, args->count * sizeof *completions);
    if (!completions) return fail_oom();
    for (size_t i = 0; i < args->count; i++) completions[i] = args->completions[i].completion;
    struct sequence sequence;
    TRY(sequence_make(&sequence, arena, &model->config, args->prompt, completions, args->count));
    struct text_state state;
    TRY(text_forward(&state, model, arena, args->prompt, &sequence, NULL, true));
    bool flat = false;
    TRY(learn_head(model, arena, args, &state, &flat));
    if (args->prompt->media_count) model->trainer->vision_has_grad = true;
    return flat ? OK : text_backward(&state, model, arena, model->trainer->gradients);
}

status model_accumulate(struct model *model, const struct model_prompt *prompt,
                        const struct train_completion *completions, size_t count, const struct loss_options *loss,
                        double weight, struct train_result *result) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    if (count == 0) return fail(BAD_SAMPLE, "a group without completions");
    struct arena arena = {0};
    struct train_args args = {prompt, completions, count, loss, weight, result};
    status answer = learn(model, &arena, &args);
    workspace_restore(&model->workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return answer;
}

static status gradient_norm(struct model *model, double *norm) {
    const struct trainer *trainer = model->trainer;
    double sum = 0;
    TRY(model->backend->ops->square_sum(model->backend, &sum, range_tensor(trainer->gradients, 0, trainer->elements)));
    *norm = sqrt(sum);
    if (!isfinite(*norm)) return fail(DATAERR, "the gradient of step %lld is not finite", (long long)trainer->step + 1);
    return OK;
}

enum { text_ranges = 2 }; // the table's ranges of the language model; those of the vision tower follow

static status step_ranges(struct model *model, int first, int end, const struct adamw_options *rates) {
    const struct trainer *trainer = model->trainer;
    struct adamw_range ranges[4];
    for (int i = first; i < end; i++) {
        const struct parameter_range *range = &model->table->ranges[i];
        ranges[i - first] =
            (struct adamw_range){range_tensor(model->weights->master, range->offset, range->count),
                                 range_tensor(trainer->gradients, range->offset, range->count),
                                 range_tensor(trainer->exp_avg, range->offset, range->count),
                                 range_tensor(trainer->exp_avg_sq, range->offset, range->count), range->decay};
    }
    return model->backend->ops->adamw(model->backend, ranges, (size_t)(end - first), rates);
}

// A step without any medium leaves the vision tower and its moments alone, as torch does with parameters that have no
// gradient: no decay, and Adam's count of steps stands still.
status model_step(struct model *model, const struct optimizer_options *rates, double *norm) {
    struct trainer *trainer = model->trainer;
    if (!trainer) return fail(BUG, "the model was not opened for training");
    TRY(gradient_norm(model, norm));
    double scale = rates->max_grad_norm > 0 ? rates->max_grad_norm / (*norm + 1e-6) : 1;
    struct adamw_options adamw = {rates->lr,           rates->beta1,          rates->beta2,     rates->eps,
                                  rates->weight_decay, scale < 1 ? scale : 1, trainer->step + 1};
    TRY(step_ranges(model, 0, text_ranges, &adamw));
    if (trainer->vision_has_grad && trainer->range_count > text_ranges) {
        adamw.step = ++trainer->vision_step;
        TRY(step_ranges(model, text_ranges, trainer->range_count, &adamw));
    }
    trainer->vision_has_grad = false;
    TRY(model->backend->ops->zero(model->backend, range_tensor(trainer->gradients, 0, trainer->elements)));
    trainer->step++;
    model->version++;
    return weights_refresh(model->weights);
}
