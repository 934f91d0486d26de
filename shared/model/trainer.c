// The optimizer's step over all accumulated gradients, and the reference.
#include "shared/model/trainer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

enum { CHUNK_ELEMENTS = 1 << 20 };
// The parameter table's ranges: two of the language model, then two of the vision tower.
enum { TEXT_RANGES = 2, ALL_RANGES = 4 };
static_assert(sizeof(float) == 4, "the training state is float32");
static_assert(sizeof((struct parameter_table){0}.ranges) / sizeof(struct parameter_range) == ALL_RANGES,
              "the optimizer updates every range of the table");

status trainer_new(struct trainer **out, struct model *model) {
    *out = NULL;
    struct trainer *trainer = NULL;
    const struct operations *ops = model->backend->ops;
    TRY(NEW(&trainer, 1));
    trainer->ema_fd = -1;
    trainer->range_count = model->options.train_vision ? ALL_RANGES : TEXT_RANGES;
    const struct parameter_range *last = &model->table->ranges[trainer->range_count - 1];
    trainer->elements = last->offset + last->count;
    assert(trainer->elements <= model->table->elements);
    status result = OK;
    size_t bytes = (size_t)trainer->elements * sizeof(float);
    TRY_TO(result, failed, ops->buffer_new(model->backend, bytes, &trainer->grads));
    TRY_TO(result, failed, ops->buffer_new(model->backend, bytes, &trainer->exp_avg));
    TRY_TO(result, failed, ops->buffer_new(model->backend, bytes, &trainer->exp_avg_sq));
    *out = trainer;
    return OK;
failed:
    trainer_free(&trainer, model->backend);
    return result;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    backend->ops->buffer_free(backend, &(*trainer)->grads);
    backend->ops->buffer_free(backend, &(*trainer)->exp_avg);
    backend->ops->buffer_free(backend, &(*trainer)->exp_avg_sq);
    if ((*trainer)->ema_fd >= 0) close((*trainer)->ema_fd);
    free(*trainer);
    *trainer = NULL;
}

static status trainer_adamw(struct model *model, int first, int end, const struct adamw_options *options) {
    const struct trainer *trainer = model->trainer;
    struct adamw_range ranges[ALL_RANGES];
    assert(first >= 0 && first < end && end <= ALL_RANGES);
    for (int i = first; i < end; i++) {
        const struct parameter_range *range = &model->table->ranges[i];
        ranges[i - first] = (struct adamw_range){
            .param = range_tensor(model->weights->master, range->offset, range->count),
            .grad = range_tensor(trainer->grads, range->offset, range->count),
            .exp_avg = range_tensor(trainer->exp_avg, range->offset, range->count),
            .exp_avg_sq = range_tensor(trainer->exp_avg_sq, range->offset, range->count),
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
    TRY(ops->square_sum(model->backend, &squares, range_tensor(trainer->grads, 0, trainer->elements)));
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
    TRY(trainer_adamw(model, 0, TEXT_RANGES, &adamw));
    if (trainer->vision_has_grad && trainer->range_count > TEXT_RANGES) {
        adamw.step = ++trainer->vision_step;
        TRY(trainer_adamw(model, TEXT_RANGES, trainer->range_count, &adamw));
    }
    trainer->vision_has_grad = false;
    TRY(ops->zero(model->backend, range_tensor(trainer->grads, 0, trainer->elements)));
    trainer->step++;
    model->version++;
    return weights_refresh(model->weights);
}

status ema_read(const struct trainer *trainer, int64_t offset, int64_t count, float *out) {
    if (fd_pread_all(trainer->ema_fd, out, (size_t)count * sizeof *out, (off_t)offset * (off_t)sizeof *out)) return OK;
    return fail(UNAVAILABLE, "%s: cannot read the reference's file: %s", trainer->ema_dir, strerror(errno));
}

status ema_write(const struct trainer *trainer, int64_t offset, int64_t count, const float *values) {
    if (fd_pwrite_all(trainer->ema_fd, values, (size_t)count * sizeof *values, (off_t)offset * (off_t)sizeof *values))
        return OK;
    return fail(UNAVAILABLE, "%s: cannot write the reference's file: %s", trainer->ema_dir, strerror(errno));
}

status ema_open(struct model *model) {
    struct trainer *trainer = model->trainer;
    if (trainer->ema_fd >= 0) return OK;
    float *values = NULL;
    status result = OK;
    char path[4096];
    trainer->ema_dir = model->options.scratch ? model->options.scratch : "/tmp";
    snprintf(path, sizeof path, "%s/caravan-reference-XXXXXX", trainer->ema_dir);
    trainer->ema_fd = mkostemp(path, O_CLOEXEC);
    if (trainer->ema_fd < 0) return fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    unlink(path); // the disk space is freed when the process ends
    TRY_TO(result, failed, NEW(&values, CHUNK_ELEMENTS));
    int64_t elements = model->table->elements;
    for (int64_t offset = 0; offset < elements; offset += CHUNK_ELEMENTS) {
        int64_t count = elements - offset < CHUNK_ELEMENTS ? elements - offset : CHUNK_ELEMENTS;
        TRY_TO(result, failed,
               model->backend->ops->download(model->backend, values, ELEMENT_F32,
                                             range_tensor(model->weights->master, offset, count)));
        TRY_TO(result, failed, ema_write(trainer, offset, count, values));
    }
    free(values);
    return OK;
failed:
    free(values);
    close(trainer->ema_fd);
    trainer->ema_fd = -1;
    return result;
}

status model_update_ema(struct model *model, double decay) {
    struct trainer *trainer = model->trainer;
    if (!trainer || trainer->ema_fd < 0) return fail(BUG, "the model was opened without a reference");
    const struct operations *ops = model->backend->ops;
    float *values = NULL;
    TRY(NEW(&values, CHUNK_ELEMENTS));
    status result = OK;
    struct workspace_mark mark = workspace_save(&model->workspace);
    for (int64_t offset = 0; offset < trainer->elements; offset += CHUNK_ELEMENTS) {
        int64_t count = trainer->elements - offset < CHUNK_ELEMENTS ? trainer->elements - offset : CHUNK_ELEMENTS;
        struct tensor ema, master = range_tensor(model->weights->master, offset, count);
        TRY_TO(result, done, ema_read(trainer, offset, count, values));
        TRY_TO(result, done, workspace_upload(&model->workspace, ELEMENT_F32, 1, count, values, &ema));
        TRY_TO(result, done, ops->ema(model->backend, ema, (struct tensor){0}, master, (struct tensor){0}, decay));
        TRY_TO(result, done, ops->download(model->backend, values, ELEMENT_F32, ema));
        workspace_restore(&model->workspace, mark);
        TRY_TO(result, done, ema_write(trainer, offset, count, values));
    }
done:
    workspace_restore(&model->workspace, mark);
    free(values);
    return result;
}

status ema_download(struct model *model, const struct parameter *parameter, enum element type, element_sink *sink,
                    void *context) {
    float *values = NULL;
    char *converted = NULL;
    status result = OK;
    size_t size = element_size(type);
    struct workspace_mark mark = workspace_save(&model->workspace);
    TRY_TO(result, done, NEW(&values, CHUNK_ELEMENTS));
    TRY_TO(result, done, mem_new(&converted, CHUNK_ELEMENTS, size));
    for (int64_t first = 0; first < parameter->count; first += CHUNK_ELEMENTS) {
        int64_t count = parameter->count - first < CHUNK_ELEMENTS ? parameter->count - first : CHUNK_ELEMENTS;
        struct tensor tensor;
        TRY_TO(result, done, ema_read(model->trainer, parameter->offset + first, count, values));
        TRY_TO(result, done, workspace_upload(&model->workspace, ELEMENT_F32, 1, count, values, &tensor));
        TRY_TO(result, done, model->backend->ops->download(model->backend, converted, type, tensor));
        workspace_restore(&model->workspace, mark);
        TRY_TO(result, done, sink(context, converted, (size_t)count * size));
    }
done:
    workspace_restore(&model->workspace, mark);
    free(values);
    free(converted);
    return result;
}
