#include "shared/model/model_optimizer.h"

#include <assert.h>
#include <math.h>

status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, enum element grads, enum element moments) {
    *optimizer = (struct optimizer){.backend = backend, .table = table};
    TRY(param_array_init(&optimizer->grads, backend, table, ranges, grads, ELEMENT_F32));
    TRY(param_array_init(&optimizer->exp_avg, backend, table, ranges, moments, ELEMENT_F32));
    return param_array_init(&optimizer->exp_avg_sq, backend, table, ranges, moments, ELEMENT_F32);
}

void optimizer_release(struct optimizer *optimizer) {
    if (!optimizer->backend) return;
    param_array_release(&optimizer->grads, optimizer->backend);
    param_array_release(&optimizer->exp_avg, optimizer->backend);
    param_array_release(&optimizer->exp_avg_sq, optimizer->backend);
    *optimizer = (struct optimizer){0};
}

status optimizer_norm(struct optimizer *optimizer, double *norm) {
    double squares = 0;
    for (int i = 0; i < optimizer->grads.ranges; i++)
        TRY(optimizer->backend->ops->square_sum(optimizer->backend, &squares, param_range(&optimizer->grads, i)));
    *norm = sqrt(squares);
    if (isfinite(*norm)) return OK;
    return fail(DATAERR, "the norm of the gradient is not finite");
}

// The ranges of one group.
static status optimizer_step_group(const struct optimizer *optimizer, const struct param_array *values,
                                   const struct param_array *remainders, int group,
                                   const struct adamw_options *options) {
    struct adamw_range ranges[MAX_PARAM_RANGES];
    size_t count = 0;
    for (int i = 0; i < optimizer->grads.ranges; i++) {
        const struct parameter_range *range = &optimizer->table->ranges[i];
        if (range->group != group) continue;
        ranges[count++] = (struct adamw_range){
            .param = param_range(values, i),
            .remainder = param_range(remainders, i),
            .grad = param_range(&optimizer->grads, i),
            .exp_avg = param_range(&optimizer->exp_avg, i),
            .exp_avg_sq = param_range(&optimizer->exp_avg_sq, i),
            .offset = range->offset,
            .decay = range->decay,
        };
    }
    assert(count > 0);
    return optimizer->backend->ops->adamw(optimizer->backend, ranges, count, options);
}

status optimizer_step(struct optimizer *optimizer, const struct param_array *values,
                      const struct param_array *remainders, int groups, const struct optimizer_options *options,
                      double norm) {
    const struct operations *ops = optimizer->backend->ops;
    double scale = options->max_grad_norm > 0 ? options->max_grad_norm / (norm + 1e-6) : 1;
    assert(groups > 0 && groups <= MAX_PARAM_GROUPS);
    for (int group = 0; group < groups; group++) {
        const struct adamw_options adamw = {.lr = options->lr,
                                            .beta1 = options->beta1,
                                            .beta2 = options->beta2,
                                            .eps = options->eps,
                                            .weight_decay = options->weight_decay,
                                            .grad_scale = scale < 1 ? scale : 1,
                                            .step = ++optimizer->steps[group]};
        TRY(optimizer_step_group(optimizer, values, remainders, group, &adamw));
    }
    for (int i = 0; i < optimizer->grads.ranges; i++)
        TRY(ops->zero(optimizer->backend, param_range(&optimizer->grads, i)));
    return OK;
}
