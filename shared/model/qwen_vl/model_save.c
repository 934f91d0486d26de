// What a model in training writes for other programs: a model directory like the one that it was opened from, its
// gradients, and published or lent weights.
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/model/qwen_vl/trainer.h"
#include "shared/model/weights_hash.h"

static const char *model_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// One file of the directory: the tensors [first, end) of the opened store, with their present values. A stored head of
// a tied model is the embedding.
static status model_save_tensors(struct model *model, const struct stored_tensor **found, const char *path,
                                 size_t first, size_t end) {
    const struct parameter_table *table = model->table;
    struct safetensors_writer *writer = NULL;
    status result = OK;
    assert(first < end && end <= safetensors_count(model->store));
    TRY_TO(result, failed, safetensors_create(&writer, path, safetensors_at(model->store, first), end - first, true));
    for (size_t i = first; i < end; i++) {
        const struct stored_tensor *stored = safetensors_at(model->store, i);
        size_t index = 0;
        while (index < table->count && found[index] != stored) index++;
        if (index == table->count) {
            if (strcmp(stored->name, "lm_head.weight") != 0)
                TRY_TO(result, failed, fail(BUG, "%s belongs to no parameter", stored->name));
            index = model->params->embedding.first;
        }
        TRY_TO(result, failed,
               parameter_download(model->backend, &model->weights->values, &model->weights->remainders,
                                  &table->list[index], stored->type, safetensors_sink, writer));
    }
    return safetensors_finish(&writer);
failed:
    safetensors_abort(&writer);
    return result;
}

status model_save(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    DIR *entries = NULL;
    status result = OK;
    const struct stored_tensor **found = arena_alloc(&arena, model->table->count * sizeof *found);
    if (!found) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, parameter_table_match(model->table, model->store, found));
    size_t count = safetensors_count(model->store);
    for (size_t first = 0, end; first < count; first = end) {
        const char *file = safetensors_at(model->store, first)->file;
        for (end = first + 1; end < count && strcmp(safetensors_at(model->store, end)->file, file) == 0;) end++;
        char *path = path_join(&arena, dir, model_base_name(file));
        if (!path) TRY_TO(result, done, fail_oom());
        TRY_TO(result, done, model_save_tensors(model, found, path, first, end));
    }
    entries = opendir(model->dir);
    if (!entries) TRY_TO(result, done, fail(DATAERR, "%s: %s", model->dir, strerror(errno)));
    for (;;) { // copies what is neither weights nor training state
        errno = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno) TRY_TO(result, done, fail(DATAERR, "%s: %s", model->dir, strerror(errno)));
        if (!entry) break;
        const char *name = entry->d_name;
        if (name[0] == '.' || strcmp(name, TRAINING_TENSORS) == 0 || strcmp(name, TRAINING_COUNTERS) == 0) continue;
        size_t i = 0;
        while (i < count && strcmp(model_base_name(safetensors_at(model->store, i)->file), name) != 0) i++;
        if (i < count) continue;
        char *source = path_join(&arena, model->dir, name), *target = path_join(&arena, dir, name);
        if (!source || !target) TRY_TO(result, done, fail_oom());
        struct stat info;
        if (stat(source, &info)) TRY_TO(result, done, fail(DATAERR, "%s: %s", source, strerror(errno)));
        if (!S_ISREG(info.st_mode)) continue;
        struct file_map map;
        TRY_TO(result, done, file_map_open(&map, source));
        result = file_write_atomic(target, map.data, map.size);
        file_map_release(&map);
        if (result != OK) goto done;
    }
    TRY_TO(result, done, dir_sync(dir));
done:
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}

status model_save_grads(struct model *model, const char *path) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct parameter_table *table = model->table;
    const struct param_array none = {0};
    struct arena arena = {0};
    struct safetensors_writer *writer = NULL;
    status result = OK;
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct stored_tensor *tensors = arena_alloc(&arena, table->count * sizeof *tensors);
    if (!found || !tensors) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, parameter_table_match(table, model->store, found));
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        if (parameter->offset >= model->trainer->elements) continue;
        tensors[count++] = parameter_stored(parameter, found[i]->name, ELEMENT_F32);
    }
    TRY_TO(result, done, safetensors_create(&writer, path, tensors, count, true));
    for (size_t i = 0; i < table->count; i++) {
        if (table->list[i].offset >= model->trainer->elements) continue;
        TRY_TO(result, done,
               parameter_download(model->backend, &model->trainer->grads, &none, &table->list[i], ELEMENT_F32,
                                  safetensors_sink, writer));
    }
    result = safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    arena_release(&arena);
    return result;
}

// *values = what is published, *hash = its hash.
static status model_published(struct model *model, bool reference, const struct param_array **values, uint64_t *hash) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    *values = reference ? &model->trainer->reference : &model->weights->values;
    if (!(*values)->buffer) return fail(BUG, "the model was opened without a reference");
    return reference ? weights_hash_array(model->backend, *values, hash) : model_hash(model, hash);
}

status model_publish(struct model *model, bool reference, const char *path, uint64_t *hash) {
    const struct param_array none = {0}, *values;
    TRY(model_published(model, reference, &values, hash));
    const struct parameter_table *table = model->table;
    enum element type = model->weights->type;
    struct safetensors_writer *writer = NULL;
    struct stored_tensor *tensors = NULL;
    status result = OK;
    TRY_TO(result, done, NEW(&tensors, table->count));
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        tensors[i] = parameter_stored(parameter, parameter->name, type);
    }
    TRY_TO(result, done, safetensors_create(&writer, path, tensors, table->count, false));
    for (size_t i = 0; i < table->count; i++)
        TRY_TO(result, done,
               parameter_download(model->backend, values, &none, &table->list[i], type, safetensors_sink, writer));
    result = safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    free(tensors);
    return result;
}

bool model_can_lend(const struct model *model) {
    return model->backend->ops->buffer_export != NULL;
}

status model_lend(struct model *model, bool reference, bool copied, const char *path, uint64_t *hash) {
    const struct param_array *values;
    TRY(model_published(model, reference, &values, hash));
    struct shared_weights *lent = &model->trainer->lent[reference];
    enum element type = model->weights->type;
    if (!lent->page) {
        uint64_t layout;
        TRY(weights_hash_finish(model->table, type, 0, &layout));
        TRY(shared_weights_lend(lent, model->backend, values->buffer,
                                param_array_bytes(model->table, model->table->range_count, type, type), layout, copied,
                                path));
    }
    assert(strcmp(lent->path, path) == 0);
    shared_weights_end_change(lent, *hash);
    return OK;
}
