// The optimizer's step over all accumulated gradients, the reference, and what a model in training writes: a model
// directory like the one that it was opened from, its training state, its gradients, and published or lent weights.

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/training_state.h"
#include "shared/model/weights.h"

status trainer_new(struct model *model, enum element grads, enum element moments) {
    const struct parameter_table *table = model->table;
    const struct param_array *weights = &model->weights->base.values;
    struct backend *backend = model->backend;
    NEW(&model->trainer, 1);
    struct param_array *reference = &model->trainer->reference;
    int ranges = model->options.train_vision ? table->range_count : TEXT_RANGES;
    TRY(optimizer_init(&model->trainer->optimizer, backend, table, ranges, grads, moments));
    if (!model->options.ema) return OK;
    TRY(param_array_init(reference, backend, table, table->range_count, weights->types[0], weights->types[0]));
    if (weights->remainders) TRY(param_array_add_remainders(reference, backend));
    for (int i = 0; i < table->range_count; i++) {
        struct tensor to = param_range(reference, i), from = param_range(weights, i);
        TRY(backend->ops->copy(backend, to, from));
        if (weights->remainders)
            TRY(backend->ops->copy(backend, param_remainders(reference, to), param_remainders(weights, from)));
    }
    return OK;
}

void trainer_free(struct trainer **trainer, struct backend *backend) {
    if (!*trainer) return;
    for (int i = 0; i < 2; i++) shared_weights_release(&(*trainer)->lent[i], backend);
    optimizer_release(&(*trainer)->optimizer);
    param_array_release(&(*trainer)->reference, backend);
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
    TRY(optimizer_step(optimizer, &model->weights->base.values, vision ? GROUP_VISION + 1 : GROUP_TEXT + 1, options,
                       *norm));
    trainer->vision_has_grad = false;
    model->version++;
    model->weights->base.hash_known = false;
    return OK;
}

status model_update_ema(struct model *model, double decay) {
    struct trainer *trainer = model->trainer;
    const struct param_array *weights = &model->weights->base.values;
    if (!trainer || !trainer->reference.buffer) return fail(BUG, "the model was opened without a reference");
    shared_weights_begin_change(&trainer->lent[1]);
    for (int i = 0; i < trainer->optimizer.grads.ranges; i++) {
        struct tensor to = param_range(&trainer->reference, i), from = param_range(weights, i);
        TRY(model->backend->ops->ema(model->backend, to, param_remainders(&trainer->reference, to), from,
                                     param_remainders(weights, from), decay));
    }
    return OK;
}

// ---- model ----

status model_save(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct parameter_table *table = model->table;
    const struct safetensors *store = model->store;
    const size_t count = safetensors_count(store);
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    status result = dir_make(dir);
    if (result == OK) result = parameter_table_match(table, store, found);
    for (size_t i = 0; result == OK && i < count;) { // one file after another
        const char *file = safetensors_at(store, i)->file;
        struct tensor_list list = tensor_list_make(&arena, count - i);
        for (; i < count && strcmp(safetensors_at(store, i)->file, file) == 0; i++) {
            const struct stored_tensor *stored = safetensors_at(store, i);
            const struct parameter *parameter = parameter_of_stored(table, found, stored);
            if (!parameter) parameter = &table->list[model->params->embedding.first]; // the stored head of a tied model
            tensor_list_add(&list, &model->weights->base.values, parameter, stored->name, stored->type);
        }
        result = tensor_list_write(&list, model->backend, path_join(&arena, dir, path_base_name(file)), true);
    }
    if (result == OK) result = checkpoint_copy_files(model->dir, dir, store, NULL);
    if (result == OK) result = dir_sync(dir);
    arena_release(&arena);
    return result;
}

static struct training_state model_state(struct model *model) {
    struct trainer *trainer = model->trainer;
    return (struct training_state){.backend = model->backend,
                                   .table = model->table,
                                   .arrays = {{"master", &model->weights->base.values},
                                              {"first", &trainer->optimizer.exp_avg},
                                              {"second", &trainer->optimizer.exp_avg_sq},
                                              {"reference", &trainer->reference}},
                                   .counters = {{"step", &trainer->optimizer.steps[GROUP_TEXT]},
                                                {"tower_step", &trainer->optimizer.steps[GROUP_VISION]},
                                                {"version", &model->version}}};
}

status model_save_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct training_state state = model_state(model);
    return training_state_save(&state, dir);
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct training_state state = model_state(model);
    for (int i = 0; i < 2; i++) shared_weights_begin_change(&model->trainer->lent[i]);
    TRY(training_state_load(&state, dir));
    model->weights->base.hash_known = false;
    return OK;
}

uint64_t model_saved_bytes(struct model *model, bool whole) {
    const struct training_state state = model_state(model);
    uint64_t bytes = training_state_bytes(&state);
    for (size_t i = 0; whole && i < safetensors_count(model->store); i++) {
        const struct stored_tensor *tensor = safetensors_at(model->store, i);
        bytes += (uint64_t)stored_tensor_count(tensor) * element_size(tensor->type);
    }
    return bytes;
}

status model_save_grads(struct model *model, const char *path) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct parameter_table *table = model->table;
    const struct param_array *grads = &model->trainer->optimizer.grads;
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct tensor_list list = tensor_list_make(&arena, table->count);
    status result = parameter_table_match(table, model->store, found);
    for (size_t i = 0; result == OK && i < table->count; i++)
        if (param_array_has(grads, &table->list[i]))
            tensor_list_add(&list, grads, &table->list[i], found[i]->name, ELEMENT_F32);
    if (result == OK) result = tensor_list_write(&list, model->backend, path, true);
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
    const struct parameter_table *table = model->table;
    const struct param_array *values;
    struct arena arena = {0};
    TRY(model_published(model, reference, &values, hash));
    struct tensor_list list = tensor_list_make(&arena, table->count);
    for (size_t i = 0; i < table->count; i++)
        tensor_list_add(&list, values, &table->list[i], table->list[i].name, model->weights->base.type);
    status result = tensor_list_write(&list, model->backend, path, false);
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
        const uint64_t layout = weights_hash_finish(model->table, type, 0);
        TRY(shared_weights_lend(lent, model->backend, values->buffer,
                                param_array_bytes(model->table, model->table->range_count, type, type), layout, copied,
                                path));
    }
    assert(strcmp(lent->path, path) == 0);
    shared_weights_end_change(lent, *hash);
    return OK;
}
