#include "shared/model/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { elements_at_a_time = 1 << 20 };

status trainer_new(struct trainer **out, struct model *model) {
    *out = NULL;
    struct trainer *trainer = NULL;
    const struct operations *ops = model->backend->ops;
    TRY(NEW(&trainer, 1));
    trainer->reference = -1;
    trainer->range_count = model->options.train_vision ? 4 : 2;
    const struct parameter_range *last = &model->table->ranges[trainer->range_count - 1];
    trainer->elements = last->place + last->count;
    status result = OK;
    size_t bytes = (size_t)trainer->elements * 4;
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->gradients));
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->first));
    TRY_TO(result, broken, ops->buffer_new(model->backend, bytes, &trainer->second));
    *out = trainer;
    return OK;
broken:
    trainer_free(&trainer, model->backend);
    return result;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    backend->ops->buffer_free(backend, &(*trainer)->gradients);
    backend->ops->buffer_free(backend, &(*trainer)->first);
    backend->ops->buffer_free(backend, &(*trainer)->second);
    if ((*trainer)->reference >= 0) close((*trainer)->reference);
    free(*trainer);
    *trainer = NULL;
}

status reference_read(const struct trainer *trainer, int64_t place, int64_t count, float *out) {
    char *at = (char *)out;
    size_t left = (size_t)count * sizeof *out;
    off_t offset = (off_t)place * (off_t)sizeof *out;
    while (left) {
        ssize_t got = pread(trainer->reference, at, left, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return fail(UNAVAILABLE, "%s: the reference's file: cannot read: %s", trainer->scratch,
                        got ? strerror(errno) : "too short");
        at += got;
        left -= (size_t)got;
        offset += got;
    }
    return OK;
}

status reference_write(const struct trainer *trainer, int64_t place, int64_t count, const float *values) {
    const char *at = (const char *)values;
    size_t left = (size_t)count * sizeof *values;
    off_t offset = (off_t)place * (off_t)sizeof *values;
    while (left) {
        ssize_t put = pwrite(trainer->reference, at, left, offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0)
            return fail(UNAVAILABLE, "%s: the reference's file: cannot write: %s", trainer->scratch, strerror(errno));
        at += put;
        left -= (size_t)put;
        offset += put;
    }
    return OK;
}

static status open_scratch(const char *folder, int *file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/caravan-reference-XXXXXX", folder);
    *file = mkostemp(path, O_CLOEXEC);
    if (*file < 0) return fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    unlink(path); // its space comes back with the process
    return OK;
}

static status fill_reference(struct model *model, float *values) {
    const struct trainer *trainer = model->trainer;
    int64_t elements = model->table->elements;
    for (int64_t place = 0; place < elements; place += elements_at_a_time) {
        int64_t count = elements - place < elements_at_a_time ? elements - place : elements_at_a_time;
        TRY(model->backend->ops->download(model->backend, values, ELEMENT_F32,
                                          range_tensor(model->weights->master, place, count)));
        TRY(reference_write(trainer, place, count, values));
    }
    return OK;
}

status reference_make(struct model *model) {
    struct trainer *trainer = model->trainer;
    if (trainer->reference >= 0) return OK;
    float *values = NULL;
    TRY(NEW(&values, elements_at_a_time));
    trainer->scratch = model->options.scratch ? model->options.scratch : "/tmp";
    status result = open_scratch(trainer->scratch, &trainer->reference);
    if (result == OK) result = fill_reference(model, values);
    if (result != OK && trainer->reference >= 0) {
        close(trainer->reference);
        trainer->reference = -1;
    }
    free(values);
    return result;
}

// One stretch of the average: from the file to the backend and back.
static status average_some(struct model *model, double decay, int64_t place, int64_t count, float *values) {
    const struct operations *ops = model->backend->ops;
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor average;
    TRY(reference_read(model->trainer, place, count, values));
    TRY(desk_put(&model->desk, ELEMENT_F32, 1, count, values, &average));
    TRY(ops->average(model->backend, average, range_tensor(model->weights->master, place, count), decay));
    TRY(ops->download(model->backend, values, ELEMENT_F32, average));
    desk_back(&model->desk, mark);
    return reference_write(model->trainer, place, count, values);
}

status model_average(struct model *model, double decay) {
    if (!model->trainer || model->trainer->reference < 0) return fail(BUG, "the model was opened without a reference");
    float *values = NULL;
    TRY(NEW(&values, elements_at_a_time));
    status result = OK;
    int64_t elements = model->trainer->elements;
    for (int64_t place = 0; place < elements && result == OK; place += elements_at_a_time) {
        int64_t count = elements - place < elements_at_a_time ? elements - place : elements_at_a_time;
        result = average_some(model, decay, place, count, values);
    }
    free(values);
    return result;
}
