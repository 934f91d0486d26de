// The optimizer's step over all accumulated gradients, the reference, and what a model in training writes: a model
// directory like the one that it was opened from, its training state, its gradients, and published or lent weights.

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/training_state.h"
#include "shared/model/weights.h"

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

// ---- model ----

// The parameter whose values a tensor of the opened store gets. A stored head of a tied model is the embedding.
static const struct parameter *model_stored_parameter(const struct model *model, const struct stored_tensor **found,
                                                      const struct stored_tensor *stored) {
    const struct parameter_table *table = model->table;
    size_t index = 0;
    while (index < table->count && found[index] != stored) index++;
    return &table->list[index < table->count ? index : model->params->embedding.first];
}

status model_save(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    size_t count = safetensors_count(model->store);
    status result = OK;
    const struct stored_tensor **found = arena_alloc(&arena, model->table->count * sizeof *found);
    const struct parameter **params = arena_alloc(&arena, count * sizeof *params);
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, parameter_table_match(model->table, model->store, found));
    for (size_t i = 0; i < count; i++)
        params[i] = model_stored_parameter(model, found, safetensors_at(model->store, i));
    for (size_t first = 0, end; first < count; first = end) { // one file after another
        const struct stored_tensor *tensors = safetensors_at(model->store, first);
        for (end = first + 1; end < count && strcmp(safetensors_at(model->store, end)->file, tensors->file) == 0;)
            end++;
        char *path = path_join(&arena, dir, path_base_name(tensors->file));
        TRY_TO(result, done,
               checkpoint_write_tensors(model->backend, &model->weights->base.values, &model->weights->base.remainders,
                                        path, tensors, params + first, end - first, true));
    }
    TRY_TO(result, done, checkpoint_copy_files(model->dir, dir, model->store, NULL));
    TRY_TO(result, done, dir_sync(dir));
done:
    arena_release(&arena);
    return result;
}

// Everything that a training state consists of.
struct model_state {
    struct state_array arrays[4];
    struct state_counter counters[3];
};

static struct training_state model_get_state(struct model *model, struct model_state *it) {
    static const struct param_array none;
    struct trainer *trainer = model->trainer;
    *it = (struct model_state){
        .arrays = {{"master", &model->weights->base.values, &model->weights->base.remainders},
                   {"first", &trainer->optimizer.exp_avg, &none},
                   {"second", &trainer->optimizer.exp_avg_sq, &none},
                   {"reference", &trainer->reference, &trainer->reference_remainders}},
        .counters = {{"step", &trainer->optimizer.steps[GROUP_TEXT]},
                     {"tower_step", &trainer->optimizer.steps[GROUP_VISION]},
                     {"version", &model->version}},
    };
    return (struct training_state){model->backend, model->table,
                                   it->arrays,     sizeof it->arrays / sizeof *it->arrays,
                                   it->counters,   sizeof it->counters / sizeof *it->counters};
}

status model_save_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct model_state it;
    const struct training_state state = model_get_state(model, &it);
    return training_state_save(&state, dir);
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct model_state it;
    const struct training_state state = model_get_state(model, &it);
    for (int i = 0; i < 2; i++) shared_weights_begin_change(&model->trainer->lent[i]);
    TRY(training_state_load(&state, dir));
    model->weights->base.hash_known = false;
    return OK;
}

uint64_t model_saved_bytes(struct model *model, bool whole) {
    uint64_t bytes = 0;
    for (size_t i = 0; whole && i < safetensors_count(model->store); i++) {
        const struct stored_tensor *tensor = safetensors_at(model->store, i);
        bytes += (uint64_t)stored_tensor_count(tensor) * element_size(tensor->type);
    }
    struct model_state it;
    const struct training_state state = model_get_state(model, &it);
    return bytes + training_state_bytes(&state);
}

status model_save_grads(struct model *model, const char *path) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct parameter_table *table = model->table;
    const struct param_array none = {0}, *grads = &model->trainer->optimizer.grads;
    struct arena arena = {0};
    status result = OK;
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct stored_tensor *tensors = arena_alloc(&arena, table->count * sizeof *tensors);
    const struct parameter **params = arena_alloc(&arena, table->count * sizeof *params);
    TRY_TO(result, done, parameter_table_match(table, model->store, found));
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (!param_array_has(grads, &table->list[i])) continue;
        params[count] = &table->list[i];
        tensors[count++] = parameter_stored(&table->list[i], found[i]->name, ELEMENT_F32);
    }
    result = checkpoint_write_tensors(model->backend, grads, &none, path, tensors, params, count, true);
done:
    arena_release(&arena);
    return result;
}

// *values = what is published, *hash = its hash.
static status model_published(struct model *model, bool reference, const struct param_array **values, uint64_t *hash) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    *values = reference ? &model->trainer->reference : &model->weights->base.values;
    if (!(*values)->buffer) return fail(BUG, "the model was opened without a reference");
    return reference ? weights_hash_array(model->backend, *values, hash) : model_hash(model, hash);
}

status model_publish(struct model *model, bool reference, const char *path, uint64_t *hash) {
    const struct param_array none = {0}, *values;
    TRY(model_published(model, reference, &values, hash));
    const struct parameter_table *table = model->table;
    enum element type = model->weights->base.type;
    struct arena arena = {0};
    status result = OK;
    struct stored_tensor *tensors = arena_alloc(&arena, table->count * sizeof *tensors);
    const struct parameter **params = arena_alloc(&arena, table->count * sizeof *params);
    for (size_t i = 0; i < table->count; i++) {
        params[i] = &table->list[i];
        tensors[i] = parameter_stored(&table->list[i], table->list[i].name, type);
    }
    result = checkpoint_write_tensors(model->backend, values, &none, path, tensors, params, table->count, false);
    arena_release(&arena);
    return result;
}

status model_can_lend(const struct model *model, bool *has_means) {
    const struct operations *ops = model->backend->ops;
    unsigned char handle[IPC_HANDLE_BYTES];
    *has_means = ops->buffer_export != NULL;
    if (!*has_means) return fail(UNAVAILABLE, "device %s cannot share memory", model->backend_info.device);
    return ops->buffer_export(model->backend, model->weights->base.values.buffer, handle);
}

status model_lend(struct model *model, bool reference, bool copied, const char *path, uint64_t *hash) {
    const struct param_array *values;
    TRY(model_published(model, reference, &values, hash));
    struct shared_weights *lent = &model->trainer->lent[reference];
    enum element type = model->weights->base.type;
    if (!lent->page) {
        uint64_t layout;
        weights_hash_finish(model->table, type, 0, &layout);
        TRY(shared_weights_lend(lent, model->backend, values->buffer,
                                param_array_bytes(model->table, model->table->range_count, type, type), layout, copied,
                                path));
    }
    assert(strcmp(lent->path, path) == 0);
    shared_weights_end_change(lent, *hash);
    return OK;
}
