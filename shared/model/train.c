// One group's gradient, and the optimizer's step over all that were accumulated.
#include <math.h>
#include <stdlib.h>

#include "shared/model/loss.h"
#include "shared/model/text.h"
#include "shared/model/trainer.h"

// The rows from which tokens are predicted, and what the head makes of them.
struct head_rows {
    struct tensor normed, inverse;        // [T,C], F32 [T,1]
    struct tensor rows, sources, targets; // [N,C], I32 [N,1]
    struct tensor logprobs, log_sums;     // F32 [N,1]
};

static status head_forward(struct head_rows *it, struct model *model, struct reading *reading) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = reading->sequence;
    enum element type = model->weights->type;
    int64_t hidden = model->config.text.hidden, targets = sequence->targets;
    struct desk *desk = &model->desk;
    TRY(desk_take(desk, type, sequence->rows, hidden, &it->normed));
    TRY(desk_take(desk, ELEMENT_F32, sequence->rows, 1, &it->inverse));
    TRY(desk_take(desk, type, targets, hidden, &it->rows));
    TRY(desk_put(desk, ELEMENT_I32, targets, 1, sequence->sources, &it->sources));
    TRY(desk_put(desk, ELEMENT_I32, targets, 1, sequence->target, &it->targets));
    TRY(desk_take(desk, ELEMENT_F32, targets, 1, &it->logprobs));
    TRY(desk_take(desk, ELEMENT_F32, targets, 1, &it->log_sums));
    TRY(pass_norm(&reading->pass, it->normed, model->weights->norm, it->inverse));
    TRY(ops->gather(model->backend, it->rows, it->normed, it->sources));
    return ops->logprob(model->backend, it->logprobs, it->log_sums, it->rows, model->weights->head, it->targets);
}

// pass.x_gradient = the gradient of the last block's output for these slopes.
static status head_gradient(const struct head_rows *it, struct model *model, struct reading *reading,
                            const float *slopes) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = reading->sequence;
    const struct parameter_table *table = model->table;
    struct buffer *gradients = model->trainer->gradients;
    int64_t hidden = model->config.text.hidden;
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor slope, rows_gradient, normed_gradient;
    struct tensor matrix = part_tensor(gradients, table->head.count ? &table->head : &table->embedding);
    TRY(desk_put(&model->desk, ELEMENT_F32, sequence->targets, 1, slopes, &slope));
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->targets, hidden, &rows_gradient));
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->rows, hidden, &normed_gradient));
    TRY(ops->logprob_gradient(model->backend, rows_gradient, matrix, it->rows, model->weights->head, it->targets,
                              it->log_sums, slope));
    TRY(ops->zero(model->backend, normed_gradient));
    TRY(ops->scatter_add(model->backend, normed_gradient, rows_gradient, it->sources));
    TRY(ops->zero(model->backend, reading->pass.x_gradient));
    TRY(ops->rmsnorm_gradient(model->backend, reading->pass.x_gradient, part_tensor(gradients, &table->norm),
                              normed_gradient, reading->pass.x, model->weights->norm, it->inverse));
    desk_back(&model->desk, mark);
    return OK;
}

// A group on its way: what the call was given.
struct lesson {
    const struct model_prompt *prompt;
    const struct train_completion *completions;
    size_t count;
    const struct train_loss *loss;
    double weight;
    struct train_result *result;
};

static bool all_zero(const float *slopes, int64_t count) {
    while (count && slopes[count - 1] == 0) count--;
    return count == 0;
}

// Forward, loss and the head's gradient. *flat: every slope is exactly 0 (all rewards of the group are equal, and there
// is no KL term), and so is the gradient: it need not be computed.
static status learn_head(struct model *model, struct arena *arena, const struct lesson *lesson, struct reading *reading,
                         bool *flat) {
    const struct sequence *sequence = reading->sequence;
    float *logprobs = arena_alloc(arena, (size_t)sequence->targets * sizeof *logprobs);
    float *slopes = arena_alloc(arena, (size_t)sequence->targets * sizeof *slopes);
    if (!logprobs || !slopes) return fail(UNAVAILABLE, "out of memory");
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->rows, model->config.text.hidden, &reading->pass.x_gradient));
    struct desk_mark mark = desk_here(&model->desk);
    struct head_rows head;
    TRY(head_forward(&head, model, reading));
    TRY(model->backend->ops->download(model->backend, logprobs, ELEMENT_F32, head.logprobs));
    group_loss(lesson->completions, lesson->count, lesson->loss, lesson->weight, logprobs, slopes, lesson->result);
    lesson->result->prompt_tokens = sequence->prompt_rows;
    if (!isfinite(lesson->result->loss)) return fail(DATAERR, "the loss is not a finite number");
    *flat = all_zero(slopes, sequence->targets);
    if (!*flat) TRY(head_gradient(&head, model, reading, slopes));
    desk_back(&model->desk, mark);
    return OK;
}

static status learn(struct model *model, struct arena *arena, const struct lesson *lesson) {
    struct model_completion *completions = arena_alloc(arena, lesson->count * sizeof *completions);
    if (!completions) return fail(UNAVAILABLE, "out of memory");
    for (size_t i = 0; i < lesson->count; i++) completions[i] = lesson->completions[i].completion;
    struct sequence sequence;
    TRY(sequence_make(&sequence, arena, &model->config, lesson->prompt, completions, lesson->count));
    struct reading reading;
    TRY(text_forward(&reading, model, arena, lesson->prompt, &sequence, NULL, true));
    bool flat = false;
    TRY(learn_head(model, arena, lesson, &reading, &flat));
    if (lesson->prompt->media_count) model->trainer->tower_seen = true;
    return flat ? OK : text_gradient(&reading, model, arena, model->trainer->gradients);
}

status model_accumulate(struct model *model, const struct model_prompt *prompt,
                        const struct train_completion *completions, size_t count, const struct train_loss *loss,
                        double weight, struct train_result *result) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    if (count == 0) return fail(BAD_SAMPLE, "a group without completions");
    struct arena arena = {0};
    struct lesson lesson = {prompt, completions, count, loss, weight, result};
    status answer = learn(model, &arena, &lesson);
    desk_back(&model->desk, (struct desk_mark){0});
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

static status step_ranges(struct model *model, int first, int end, const struct adamw_rates *rates) {
    const struct trainer *trainer = model->trainer;
    struct adamw_range ranges[4];
    for (int i = first; i < end; i++) {
        const struct parameter_range *range = &model->table->ranges[i];
        ranges[i - first] =
            (struct adamw_range){range_tensor(model->weights->master, range->place, range->count),
                                 range_tensor(trainer->gradients, range->place, range->count),
                                 range_tensor(trainer->first, range->place, range->count),
                                 range_tensor(trainer->second, range->place, range->count), range->decay};
    }
    return model->backend->ops->adamw(model->backend, ranges, (size_t)(end - first), rates);
}

// A step without any medium leaves the vision tower and its moments alone, as torch does with parameters that have no
// gradient: no decay, and Adam's count of steps stands still.
status model_step(struct model *model, const struct train_rates *rates, double *norm) {
    struct trainer *trainer = model->trainer;
    if (!trainer) return fail(BUG, "the model was not opened for training");
    TRY(gradient_norm(model, norm));
    double scale = rates->clip_norm > 0 ? rates->clip_norm / (*norm + 1e-6) : 1;
    struct adamw_rates adamw = {rates->rate,         rates->beta1,          rates->beta2,     rates->epsilon,
                                rates->weight_decay, scale < 1 ? scale : 1, trainer->step + 1};
    TRY(step_ranges(model, 0, text_ranges, &adamw));
    if (trainer->tower_seen && trainer->range_count > text_ranges) {
        adamw.step = ++trainer->tower_step;
        TRY(step_ranges(model, text_ranges, trainer->range_count, &adamw));
    }
    trainer->tower_seen = false;
    TRY(model->backend->ops->zero(model->backend, range_tensor(trainer->gradients, 0, trainer->elements)));
    trainer->step++;
    model->version++;
    return weights_refresh(model->weights);
}
