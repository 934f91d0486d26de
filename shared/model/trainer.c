#include "shared/model/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

enum { elements_at_a_time = 1 << 20 };

status trainer_new(struct trainer **out, struct model *model) {
    *out = NULL;
    struct trainer *trainer = NULL;
    const struct operations *ops = model->backend->ops;
    TRY(NEW(&trainer, 1));
    trainer->ema_fd = -1;
    trainer->range_count = model->options.train_vision ? 4 : 2;
    const struct parameter_range *last = &model->table->ranges[trainer->range_count - 1];
    trainer->elements = last->offset + last->count;
    status result = OK;
    size_t bytes = (size_t)trainer->elements * 4;
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->gradients));
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->exp_avg));
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->exp_avg_sq));
    *out = trainer;
    return OK;
broken:
    trainer_free(&trainer, model->backend);
    return result;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    backend->ops->buffer_free(backend, &(*trainer)->gradients);
    backend->ops->buffer_free(backend, &(*trainer)->exp_avg);
    backend->ops->buffer_free(backend, &(*trainer)->exp_avg_sq);
    if ((*trainer)->ema_fd >= 0) close((*trainer)->ema_fd);
    free(*trainer);
    *trainer = NULL;
}

status ema_read(const struct trainer *trainer, int64_t offset, int64_t count, float *out) {
    if (fd_pread_all(trainer->ema_fd, out, (size_t)count * sizeof *out, (off_t)offset * (off_t)sizeof *out)) return OK;
    return fail(UNAVAILABLE, "%s: the reference's file: cannot read: %s", trainer->scratch, strerror(errno));
}

status ema_write(const struct trainer *trainer, int64_t offset, int64_t count, const float *values) {
    if (fd_pwrite_all(trainer->ema_fd, values, (size_t)count * sizeof *values, (off_t)offset * (off_t)sizeof *values))
        return OK;
    return fail(UNAVAILABLE, "%s: the reference's file: cannot write: %s", trainer->scratch, strerror(errno));
}

static status open_scratch(const char *dir, int *file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/caravan-reference-XXXXXX", dir);
    *file = mkostemp(path, O_CLOEXEC);
    if (*file < 0) return fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    unlink(path); // its space comes back with the process
    return OK;
}

static status fill_reference(struct model *model, float *values) {
    const struct trainer *trainer = model->trainer;
    int64_t elements = model->table->elements;
    for (int64_t offset = 0; offset < elements; offset += elements_at_a_time) {
        int64_t count = elements - offset < elements_at_a_time ? elements - offset : elements_at_a_time;
        TRY(model->backend->ops->download(model->backend, values, ELEMENT_F32,
                                          range_tensor(model->weights->master, offset, count)));
        TRY(ema_write(trainer, offset, count, values));
    }
    return OK;
}

status ema_open(struct model *model) {
    struct trainer *trainer = model->trainer;
    if (trainer->ema_fd >= 0) return OK;
    float *values = NULL;
    TRY(NEW(&values, elements_at_a_time));
    trainer->scratch = model->options.scratch ? model->options.scratch : "/tmp";
    status result = open_scratch(trainer->scratch, &trainer->ema_fd);
    if (result == OK) result = fill_reference(model, values);
    if (result != OK && trainer->ema_fd >= 0) {
        close(trainer->ema_fd);
        trainer->ema_fd = -1;
    }
    free(values);
    return result;
}

// One stretch of the average: from the file to the backend and back.
static status average_some(struct model *model, double decay, int64_t offset, int64_t count, float *values) {
    const struct operations *ops = model->backend->ops;
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor average;
    TRY(ema_read(model->trainer, offset, count, values));
    TRY(workspace_upload(&model->workspace, ELEMENT_F32, 1, count, values, &average));
    TRY(ops->ema(model->backend, average, range_tensor(model->weights->master, offset, count), decay));
    TRY(ops->download(model->backend, values, ELEMENT_F32, average));
    workspace_restore(&model->workspace, mark);
    return ema_write(model->trainer, offset, count, values);
}

status model_update_ema(struct model *model, double decay) {
    if (!model->trainer || model->trainer->ema_fd < 0) return fail(BUG, "the model was opened without a reference");
    float *values = NULL;
    TRY(NEW(&values, elements_at_a_time));
    status result = OK;
    int64_t elements = model->trainer->elements;
    for (int64_t offset = 0; offset < elements && result == OK; offset += elements_at_a_time) {
        int64_t count = elements - offset < elements_at_a_time ? elements - offset : elements_at_a_time;
        result = average_some(model, decay, offset, count, values);
    }
    free(values);
    return result;
}
