// The optimizer's step over all accumulated gradients, and the reference.
#include "shared/model/qwen_vl/trainer.h"

#include <stdlib.h>

status trainer_new(struct trainer **out, struct model *model, enum element grads, enum element moments) {
    *out = NULL;
    struct trainer *trainer = NULL;
    NEW(&trainer, 1);
    int ranges = model->options.train_vision ? model->table->range_count : TEXT_RANGES;
    status result = optimizer_init(&trainer->optimizer, model->backend, model->table, ranges, grads, moments);
    if (result != OK) trainer_free(&trainer, model->backend);
    *out = trainer;
    return result;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    for (int i = 0; i < 2; i++) shared_weights_release(&(*trainer)->lent[i], backend);
    optimizer_release(&(*trainer)->optimizer);
    param_array_release(&(*trainer)->reference, backend);
    param_array_release(&(*trainer)->reference_remainders, backend);
    free(*trainer);
    *trainer = NULL;
}

// A step without any medium leaves the vision tower and its moments as they are.
status model_step(struct model *model, const struct optimizer_options *options, double *norm) {
    struct trainer *trainer = model->trainer;
    if (!trainer) return fail(BUG, "the model was not opened for training");
    struct optimizer *optimizer = &trainer->optimizer;
    TRY(optimizer_norm(optimizer, norm));
    bool vision = trainer->vision_has_grad && optimizer->grads.ranges > TEXT_RANGES;
    shared_weights_begin_change(&trainer->lent[0]);
    TRY(optimizer_step(optimizer, &model->weights->base.values, &model->weights->base.remainders,
                       vision ? GROUP_VISION + 1 : GROUP_TEXT + 1, options, *norm));
    trainer->vision_has_grad = false;
    model->version++;
    model->weights->base.hash_known = false;
    return OK;
}

status ema_new(struct model *model) {
    struct trainer *trainer = model->trainer;
    const struct qwen_weights *weights = model->weights;
    struct backend *backend = model->backend;
    TRY(param_array_init(&trainer->reference, backend, model->table, model->table->range_count, weights->base.type,
                         weights->base.type));
    if (weights->base.remainders.buffer)
        TRY(param_array_init(&trainer->reference_remainders, backend, model->table, model->table->range_count,
                             ELEMENT_U16, ELEMENT_U16));
    for (int i = 0; i < model->table->range_count; i++) {
        TRY(backend->ops->copy(backend, param_range(&trainer->reference, i), param_range(&weights->base.values, i)));
        if (weights->base.remainders.buffer)
            TRY(backend->ops->copy(backend, param_range(&trainer->reference_remainders, i),
                                   param_range(&weights->base.remainders, i)));
    }
    return OK;
}

status model_update_ema(struct model *model, double decay) {
    struct trainer *trainer = model->trainer;
    const struct qwen_weights *weights = model->weights;
    if (!trainer || !trainer->reference.buffer) return fail(BUG, "the model was opened without a reference");
    shared_weights_begin_change(&trainer->lent[1]);
    for (int i = 0; i < trainer->optimizer.grads.ranges; i++)
        TRY(model->backend->ops->ema(
            model->backend, param_range(&trainer->reference, i), param_range(&trainer->reference_remainders, i),
            param_range(&weights->base.values, i), param_range(&weights->base.remainders, i), decay));
    return OK;
}
