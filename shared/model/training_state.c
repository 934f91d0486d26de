#include "shared/model/training_state.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"

enum { elements_at_a_time = 1 << 18, KINDS = 4 };

// What is kept of each parameter. The reference stands in a file, the others in buffers.
enum kind { STATE_MASTER, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_EMA };

static const char *const words[KINDS] = {"master", "first", "second", "reference"};

static struct buffer *buffer_of(const struct model *model, enum kind kind) {
    const struct trainer *trainer = model->trainer;
    return kind == STATE_MASTER    ? model->weights->master
           : kind == STATE_EXP_AVG ? trainer->exp_avg
                                   : trainer->exp_avg_sq;
}

// Whether a state has this kind for a parameter: moments exist for what is trained alone.
static bool is_kept(const struct model *model, enum kind kind, const struct parameter *parameter) {
    if (kind == STATE_EMA) return model->trainer->ema_fd >= 0;
    return kind == STATE_MASTER || parameter->offset < model->trainer->elements;
}

status ema_download(struct model *model, const struct parameter *parameter, enum element type, element_sink *sink,
                    void *context) {
    float *values = NULL;
    char *converted = NULL;
    status result = OK;
    size_t size = element_size(type);
    TRY_TO(result, done, NEW(&values, elements_at_a_time));
    TRY_TO(result, done, mem_new(&converted, elements_at_a_time, size));
    for (int64_t first = 0; first < parameter->count; first += elements_at_a_time) {
        int64_t count = parameter->count - first < elements_at_a_time ? parameter->count - first : elements_at_a_time;
        struct workspace_mark mark = workspace_save(&model->workspace);
        struct tensor some;
        TRY_TO(result, done, ema_read(model->trainer, parameter->offset + first, count, values));
        TRY_TO(result, done, workspace_upload(&model->workspace, ELEMENT_F32, 1, count, values, &some));
        TRY_TO(result, done, model->backend->ops->download(model->backend, converted, type, some));
        workspace_restore(&model->workspace, mark);
        TRY_TO(result, done, sink(context, converted, (size_t)count * size));
    }
done:
    free(values);
    free(converted);
    return result;
}

static status sink_file(void *writer, const void *elements, size_t bytes) {
    return safetensors_write(writer, elements, bytes);
}

static const char *state_name(struct arena *arena, enum kind kind, const struct parameter *parameter) {
    return arena_printf(arena, "%s.%s", words[kind], parameter->name);
}

static status list_tensors(struct model *model, struct arena *arena, struct stored_tensor **out, size_t *count) {
    const struct parameter_table *table = model->table;
    *out = arena_alloc(arena, KINDS * table->count * sizeof **out);
    if (!*out) return fail_oom();
    *count = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!is_kept(model, kind, parameter)) continue;
            struct stored_tensor *tensor = &(*out)[(*count)++];
            *tensor = (struct stored_tensor){.type = ELEMENT_F32, .rank = parameter->rank};
            tensor->name = state_name(arena, kind, parameter);
            if (!tensor->name) return fail_oom();
            memcpy(tensor->shape, parameter->shape, sizeof parameter->shape);
        }
    }
    return OK;
}

static status write_kind(struct model *model, enum kind kind, struct safetensors_writer *writer) {
    for (size_t i = 0; i < model->table->count; i++) {
        const struct parameter *parameter = &model->table->list[i];
        if (!is_kept(model, kind, parameter)) continue;
        if (kind == STATE_EMA)
            TRY(ema_download(model, parameter, ELEMENT_F32, sink_file, writer));
        else
            TRY(parameter_download(model->backend, buffer_of(model, kind), parameter, ELEMENT_F32, sink_file, writer));
    }
    return OK;
}

static status write_tensors(struct model *model, struct arena *arena, const char *dir) {
    struct stored_tensor *tensors = NULL;
    size_t count = 0;
    struct safetensors_writer *writer = NULL;
    char *path = path_join(arena, dir, STATE_TENSORS);
    TRY(path ? list_tensors(model, arena, &tensors, &count) : fail_oom());
    TRY(safetensors_create(&writer, path, tensors, count, true));
    status result = OK;
    for (int kind = 0; kind < KINDS && result == OK; kind++) result = write_kind(model, kind, writer);
    if (result == OK) return safetensors_finish(&writer);
    safetensors_abort(&writer);
    return result;
}

status model_save_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    struct buf numbers = {0};
    status result = OK;
    TRY_TO(result, done, write_tensors(model, &arena, dir));
    TRY_TO(result, done,
           buf_printf(&numbers, "{\"step\": %lld, \"tower_step\": %lld, \"version\": %lld}\n",
                      (long long)model->trainer->step, (long long)model->trainer->vision_step,
                      (long long)model->version));
    char *path = path_join(&arena, dir, STATE_NUMBERS);
    TRY_TO(result, done, path ? file_write_atomic(path, numbers.data, numbers.size) : fail_oom());
done:
    buf_release(&numbers);
    arena_release(&arena);
    return result;
}

// Puts stored float32 values where they belong; the data may lie at any address.
static status read_tensor(struct model *model, enum kind kind, const struct parameter *parameter,
                          const struct stored_tensor *stored, float *values) {
    for (int64_t first = 0; first < parameter->count; first += elements_at_a_time) {
        int64_t count = parameter->count - first < elements_at_a_time ? parameter->count - first : elements_at_a_time;
        memcpy(values, (const char *)stored->data + first * 4, (size_t)count * 4);
        int64_t offset = parameter->offset + first;
        if (kind == STATE_EMA)
            TRY(ema_write(model->trainer, offset, count, values));
        else
            TRY(model->backend->ops->upload(model->backend, range_tensor(buffer_of(model, kind), offset, count), values,
                                            ELEMENT_F32));
    }
    safetensors_release_pages(stored);
    return OK;
}

static status find_tensor(struct model *model, struct arena *arena, enum kind kind, const struct parameter *parameter,
                          const struct safetensors *store, const char *path, const struct stored_tensor **out) {
    (void)model;
    const char *name = state_name(arena, kind, parameter);
    if (!name) return fail_oom();
    *out = safetensors_find(store, name);
    if (!*out) return fail(DATAERR, "%s: tensor %s is missing", path, name);
    if ((*out)->type != ELEMENT_F32 || stored_tensor_count(*out) != parameter->count)
        return fail(DATAERR, "%s: tensor %s is not %lld float32 numbers", path, name, (long long)parameter->count);
    return OK;
}

// Twice over the table: nothing is changed before everything has been found.
static status read_tensors(struct model *model, struct arena *arena, const struct safetensors *store,
                           const char *path) {
    float *values = NULL;
    TRY(NEW(&values, elements_at_a_time));
    status result = OK;
    for (int turn = 0; turn < 2; turn++) {
        for (int kind = 0; kind < KINDS; kind++) {
            for (size_t i = 0; i < model->table->count; i++) {
                const struct parameter *parameter = &model->table->list[i];
                const struct stored_tensor *stored = NULL;
                if (!is_kept(model, kind, parameter)) continue;
                TRY_TO(result, done, find_tensor(model, arena, kind, parameter, store, path, &stored));
                if (turn == 1) TRY_TO(result, done, read_tensor(model, kind, parameter, stored, values));
            }
        }
    }
done:
    free(values);
    return result;
}

static status read_numbers(struct arena *arena, const char *dir, int64_t *step, int64_t *vision_step,
                           int64_t *version) {
    char *path = path_join(arena, dir, STATE_NUMBERS);
    if (!path) return fail_oom();
    json_object *numbers = NULL;
    TRY(json_parse_file(&numbers, path));
    bool all = json_int(json_object_object_get(numbers, "step"), step) &&
               json_int(json_object_object_get(numbers, "tower_step"), vision_step) && *vision_step >= 0 &&
               json_int(json_object_object_get(numbers, "version"), version) && *step >= 0 && *version >= 0;
    json_object_put(numbers);
    return all ? OK : fail(DATAERR, "%s: step, tower_step and version are not three whole numbers", path);
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    struct safetensors *store = NULL;
    int64_t step = 0, vision_step = 0, version = 0;
    status result = OK;
    char *path = path_join(&arena, dir, STATE_TENSORS);
    if (!path) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, read_numbers(&arena, dir, &step, &vision_step, &version));
    TRY_TO(result, done, safetensors_open(&store, path));
    TRY_TO(result, done, read_tensors(model, &arena, store, path));
    model->trainer->step = step;
    model->trainer->vision_step = vision_step;
    model->version = version;
    TRY_TO(result, done, weights_refresh(model->weights));
done:
    safetensors_close(&store);
    arena_release(&arena);
    return result;
}
