// The optimizer's step over all accumulated gradients, and the reference.
#include "shared/model/qwen_vl/trainer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

status trainer_new(struct trainer **out, struct model *model, enum element grads, enum element moments) {
    *out = NULL;
    struct trainer *trainer = NULL;
    TRY(NEW(&trainer, 1));
    trainer->range_count = model->options.train_vision ? model->table->range_count : TEXT_RANGES;
    const struct parameter_range *last = &model->table->ranges[trainer->range_count - 1];
    trainer->elements = last->offset + last->count;
    assert(trainer->elements <= model->table->elements);
    status result = OK;
    struct param_array *arrays[] = {&trainer->grads, &trainer->exp_avg, &trainer->exp_avg_sq};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        TRY_TO(result, failed,
               param_array_init(arrays[i], model->backend, model->table, trainer->range_count, i == 0 ? grads : moments,
                                ELEMENT_F32));
    *out = trainer;
    return OK;
failed:
    trainer_free(&trainer, model->backend);
    return result;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    for (int i = 0; i < 2; i++) shared_weights_release(&(*trainer)->lent[i], backend);
    param_array_release(&(*trainer)->grads, backend);
    param_array_release(&(*trainer)->exp_avg, backend);
    param_array_release(&(*trainer)->exp_avg_sq, backend);
    param_array_release(&(*trainer)->reference, backend);
    param_array_release(&(*trainer)->reference_remainders, backend);
    free(*trainer);
    *trainer = NULL;
}

static status trainer_adamw(struct model *model, int first, int end, const struct adamw_options *options) {
    const struct trainer *trainer = model->trainer;
    struct adamw_range ranges[MAX_PARAM_RANGES];
    assert(first >= 0 && first < end && end <= model->table->range_count);
    for (int i = first; i < end; i++) {
        const struct parameter_range *range = &model->table->ranges[i];
        ranges[i - first] = (struct adamw_range){
            .param = param_range(&model->weights->values, i),
            .remainder = param_range(&model->weights->remainders, i),
            .grad = param_range(&trainer->grads, i),
            .exp_avg = param_range(&trainer->exp_avg, i),
            .exp_avg_sq = param_range(&trainer->exp_avg_sq, i),
            .offset = range->offset,
            .decay = range->decay,
        };
    }
    return model->backend->ops->adamw(model->backend, ranges, (size_t)(end - first), options);
}

// A step without any medium leaves the vision tower and its moments as they are, as PyTorch does with parameters that
// have no gradient: no decay, and Adam's step count of the tower does not grow.
status model_step(struct model *model, const struct optimizer_options *options, double *norm) {
    struct trainer *trainer = model->trainer;
    if (!trainer) return fail(BUG, "the model was not opened for training");
    const struct operations *ops = model->backend->ops;
    double squares = 0;
    for (int i = 0; i < trainer->range_count; i++)
        TRY(ops->square_sum(model->backend, &squares, param_range(&trainer->grads, i)));
    *norm = sqrt(squares);
    if (!isfinite(*norm)) return fail(DATAERR, "the gradient of step %lld is not finite", (long long)trainer->step + 1);
    double scale = options->max_grad_norm > 0 ? options->max_grad_norm / (*norm + 1e-6) : 1;
    struct adamw_options adamw = {.lr = options->lr,
                                  .beta1 = options->beta1,
                                  .beta2 = options->beta2,
                                  .eps = options->eps,
                                  .weight_decay = options->weight_decay,
                                  .grad_scale = scale < 1 ? scale : 1,
                                  .step = trainer->step + 1};
    shared_weights_begin_change(&trainer->lent[0]);
    TRY(trainer_adamw(model, 0, TEXT_RANGES, &adamw));
    if (trainer->vision_has_grad && trainer->range_count > TEXT_RANGES) {
        adamw.step = ++trainer->vision_step;
        TRY(trainer_adamw(model, TEXT_RANGES, trainer->range_count, &adamw));
    }
    trainer->vision_has_grad = false;
    for (int i = 0; i < trainer->range_count; i++) TRY(ops->zero(model->backend, param_range(&trainer->grads, i)));
    trainer->step++;
    model->version++;
    model->weights->hash_known = false;
    return OK;
}

status ema_new(struct model *model) {
    struct trainer *trainer = model->trainer;
    const struct weights *weights = model->weights;
    struct backend *backend = model->backend;
    TRY(param_array_init(&trainer->reference, backend, model->table, model->table->range_count, weights->type,
                         weights->type));
    if (weights->remainders.buffer)
        TRY(param_array_init(&trainer->reference_remainders, backend, model->table, model->table->range_count,
                             ELEMENT_U16, ELEMENT_U16));
    for (int i = 0; i < model->table->range_count; i++) {
        TRY(backend->ops->copy(backend, param_range(&trainer->reference, i), param_range(&weights->values, i)));
        if (weights->remainders.buffer)
            TRY(backend->ops->copy(backend, param_range(&trainer->reference_remainders, i),
                                   param_range(&weights->remainders, i)));
    }
    return OK;
}

status model_update_ema(struct model *model, double decay) {
    struct trainer *trainer = model->trainer;
    const struct weights *weights = model->weights;
    if (!trainer || !trainer->reference.buffer) return fail(BUG, "the model was opened without a reference");
    shared_weights_begin_change(&trainer->lent[1]);
    for (int i = 0; i < trainer->range_count; i++)
        TRY(model->backend->ops->ema(model->backend, param_range(&trainer->reference, i),
                                     param_range(&trainer->reference_remainders, i), param_range(&weights->values, i),
                                     param_range(&weights->remainders, i), decay));
    return OK;
}
