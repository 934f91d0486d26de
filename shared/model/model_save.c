// What leaves a model that trains: a model folder like the one it came from, its gradients, published weights.
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/model/weights_hash.h"
#include "shared/model/training_state.h"
#include "shared/model/trainer.h"

static status sink_file(void *writer, const void *elements, size_t bytes) {
    return safetensors_write(writer, elements, bytes);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The parameter that is stored under this name; a tied model's head is the embedding.
static status parameter_of(struct model *model, const struct stored_tensor **found, const struct stored_tensor *stored,
                           const struct parameter **out) {
    const struct parameter_table *table = model->table;
    for (size_t i = 0; i < table->count; i++) {
        *out = &table->list[i];
        if (found[i] == stored) return OK;
    }
    *out = &table->list[table->embedding.first];
    return strcmp(stored->name, "lm_head.weight") == 0 ? OK : fail(BUG, "%s belongs to no parameter", stored->name);
}

// One file of the folder: the tensors [first, first + count) of the opened store, with their present values.
static status write_file(struct model *model, const struct stored_tensor **found, const char *path, size_t first,
                         size_t count) {
    struct safetensors_writer *writer = NULL;
    status result = OK;
    TRY_TO(result, done, safetensors_create(&writer, path, safetensors_at(model->store, first), count, true));
    for (size_t i = first; i < first + count; i++) {
        const struct stored_tensor *stored = safetensors_at(model->store, i);
        const struct parameter *parameter = NULL;
        TRY_TO(result, done, parameter_of(model, found, stored, &parameter));
        TRY_TO(result, done,
               parameter_download(model->backend, model->weights->master, parameter, stored->type, sink_file, writer));
    }
    return safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    return result;
}

static status write_weights(struct model *model, const struct stored_tensor **found, struct arena *arena,
                            const char *dir) {
    size_t total = safetensors_count(model->store);
    for (size_t first = 0, end; first < total; first = end) {
        const char *file = safetensors_at(model->store, first)->file;
        for (end = first + 1; end < total && strcmp(safetensors_at(model->store, end)->file, file) == 0;) end++;
        char *path = path_join(arena, dir, last_part(file));
        if (!path) return fail_oom();
        TRY(write_file(model, found, path, first, end - first));
    }
    return OK;
}

// Whether a file of the opened folder goes into a checkpoint as it is: everything but weights and training state.
static bool is_copied(const struct model *model, const char *name) {
    if (name[0] == '.' || strcmp(name, STATE_TENSORS) == 0 || strcmp(name, STATE_NUMBERS) == 0) return false;
    for (size_t i = 0; i < safetensors_count(model->store); i++)
        if (strcmp(last_part(safetensors_at(model->store, i)->file), name) == 0) return false;
    return true;
}

static status copy_file(struct arena *arena, const char *from, const char *to, const char *name) {
    char *source = path_join(arena, from, name), *target = path_join(arena, to, name);
    if (!source || !target) return fail_oom();
    struct stat facts;
    if (stat(source, &facts)) return fail(DATAERR, "%s: %s", source, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return OK;
    struct file_map map;
    TRY(file_map_open(&map, source));
    status result = file_write_atomic(target, map.data, map.size);
    file_map_release(&map);
    return result;
}

static status copy_rest(struct model *model, struct arena *arena, const char *dir) {
    DIR *entries = opendir(model->dir);
    if (!entries) return fail(DATAERR, "%s: %s", model->dir, strerror(errno));
    status result = OK;
    for (struct dirent *entry; result == OK && (entry = readdir(entries));)
        if (is_copied(model, entry->d_name)) result = copy_file(arena, model->dir, dir, entry->d_name);
    closedir(entries);
    return result;
}

status model_save(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    status result = OK;
    const struct stored_tensor **found = arena_alloc(&arena, model->table->count * sizeof *found);
    if (!found) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, parameter_table_match(model->table, model->store, found));
    TRY_TO(result, done, write_weights(model, found, &arena, dir));
    TRY_TO(result, done, copy_rest(model, &arena, dir));
    TRY_TO(result, done, dir_sync(dir));
done:
    arena_release(&arena);
    return result;
}

// The table's parameters (the vision tower's too, if asked for) as tensors to be written, under the names by which they
// were read.
static status list_parameters(struct model *model, struct arena *arena, enum element type, size_t *count,
                              struct stored_tensor **out) {
    const struct stored_tensor **found = arena_alloc(arena, model->table->count * sizeof *found);
    *out = arena_alloc(arena, model->table->count * sizeof **out);
    if (!found || !*out) return fail_oom();
    TRY(parameter_table_match(model->table, model->store, found));
    *count = 0;
    for (size_t i = 0; i < model->table->count; i++) {
        const struct parameter *parameter = &model->table->list[i];
        if (parameter->offset >= model->trainer->elements) continue;
        (*out)[*count] = (struct stored_tensor){.name = found[i]->name, .type = type, .rank = parameter->rank};
        memcpy((*out)[(*count)++].shape, parameter->shape, sizeof parameter->shape);
    }
    return OK;
}

status model_save_grads(struct model *model, const char *path) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    struct safetensors_writer *writer = NULL;
    struct stored_tensor *tensors = NULL;
    size_t count = 0;
    status result = OK;
    TRY_TO(result, done, list_parameters(model, &arena, ELEMENT_F32, &count, &tensors));
    TRY_TO(result, done, safetensors_create(&writer, path, tensors, count, true));
    for (size_t i = 0; i < model->table->count; i++) {
        if (model->table->list[i].offset >= model->trainer->elements) continue;
        TRY_TO(result, done,
               parameter_download(model->backend, model->trainer->gradients, &model->table->list[i], ELEMENT_F32,
                                  sink_file, writer));
    }
    result = safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    arena_release(&arena);
    return result;
}

// Bits that go into a file and its hash alike.
struct publication {
    struct model *model;
    struct safetensors_writer *writer;
    struct weights_hasher *hasher;
};

static status publish_bits(void *context, const void *elements, size_t bytes) {
    struct publication *it = context;
    TRY(weights_hasher_update(it->hasher, elements, bytes));
    return safetensors_write(it->writer, elements, bytes);
}

static status publish_parameter(struct publication *it, bool reference, const struct parameter *parameter) {
    weights_hasher_parameter(it->hasher, parameter);
    enum element type = it->model->weights->type;
    if (reference) return ema_download(it->model, parameter, type, publish_bits, it);
    return parameter_download(it->model->backend, it->model->weights->master, parameter, type, publish_bits, it);
}

status model_publish(struct model *model, bool reference, const char *path, uint64_t *hash) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    if (reference && model->trainer->ema_fd < 0) return fail(BUG, "the model was opened without a reference");
    const struct parameter_table *table = model->table;
    struct publication it = {.model = model};
    struct stored_tensor *tensors = NULL;
    status result = OK;
    TRY_TO(result, done, NEW(&tensors, table->count));
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        tensors[i] =
            (struct stored_tensor){.name = parameter->name, .type = model->weights->type, .rank = parameter->rank};
        memcpy(tensors[i].shape, parameter->shape, sizeof parameter->shape);
    }
    TRY_TO(result, done, weights_hasher_new(&it.hasher, &model->config, model->weights->type));
    TRY_TO(result, done, safetensors_create(&it.writer, path, tensors, table->count, false));
    for (size_t i = 0; i < table->count; i++) TRY_TO(result, done, publish_parameter(&it, reference, &table->list[i]));
    *hash = weights_hasher_digest(it.hasher);
    result = safetensors_finish(&it.writer);
done:
    safetensors_abort(&it.writer);
    weights_hasher_free(&it.hasher);
    free(tensors);
    return result;
}
