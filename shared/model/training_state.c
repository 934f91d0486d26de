// The training state's files beside a checkpoint: all tensors in float32, each under its parameter's flat name with a
// prefix ("master.model.norm.weight"), and the counters in JSON.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/model/trainer.h"

enum { CHUNK_ELEMENTS = 1 << 18 };

// What is stored for each parameter. The reference is in a file, the rest is in buffers.
enum training_state_kind { MASTER, EXP_AVG, EXP_AVG_SQ, EMA, STATE_KINDS };

static const char *const training_state_prefixes[] = {"master", "first", "second", "reference"}; // as on disk
static_assert(sizeof training_state_prefixes / sizeof *training_state_prefixes == STATE_KINDS,
              "one prefix for each kind");

static struct buffer *training_state_buffer(const struct model *model, enum training_state_kind kind) {
    assert(kind != EMA);
    const struct trainer *trainer = model->trainer;
    return kind == MASTER ? model->weights->master : kind == EXP_AVG ? trainer->exp_avg : trainer->exp_avg_sq;
}

// Whether a state has this kind for a parameter: only trained parameters have moments.
static bool training_state_has(const struct model *model, enum training_state_kind kind,
                               const struct parameter *parameter) {
    if (kind == EMA) return model->trainer->ema_fd >= 0;
    return kind == MASTER || parameter->offset < model->trainer->elements;
}

static const char *training_state_name(struct arena *arena, enum training_state_kind kind,
                                       const struct parameter *parameter) {
    return arena_printf(arena, "%s.%s", training_state_prefixes[kind], parameter->name);
}

status model_save_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    const struct parameter_table *table = model->table;
    struct arena arena = {0};
    struct buf counters = {0};
    struct safetensors_writer *writer = NULL;
    status result = OK;
    char *tensors_path = path_join(&arena, dir, TRAINING_TENSORS);
    char *counters_path = path_join(&arena, dir, TRAINING_COUNTERS);
    struct stored_tensor *tensors = arena_alloc(&arena, STATE_KINDS * table->count * sizeof *tensors);
    if (!tensors_path || !counters_path || !tensors) TRY_TO(result, done, fail_oom());
    size_t count = 0;
    for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!training_state_has(model, kind, parameter)) continue;
            struct stored_tensor *tensor = &tensors[count++];
            *tensor = (struct stored_tensor){.type = ELEMENT_F32, .rank = parameter->rank};
            tensor->name = training_state_name(&arena, kind, parameter);
            if (!tensor->name) TRY_TO(result, done, fail_oom());
            memcpy(tensor->shape, parameter->shape, sizeof parameter->shape);
        }
    }
    TRY_TO(result, done, safetensors_create(&writer, tensors_path, tensors, count, true));
    for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!training_state_has(model, kind, parameter)) continue;
            if (kind == EMA)
                TRY_TO(result, done, ema_download(model, parameter, ELEMENT_F32, safetensors_sink, writer));
            else
                TRY_TO(result, done,
                       parameter_download(model->backend, training_state_buffer(model, kind), parameter, ELEMENT_F32,
                                          safetensors_sink, writer));
        }
    }
    TRY_TO(result, done, safetensors_finish(&writer));
    TRY_TO(result, done,
           buf_printf(&counters, "{\"step\": %lld, \"tower_step\": %lld, \"version\": %lld}\n",
                      (long long)model->trainer->step, (long long)model->trainer->vision_step,
                      (long long)model->version));
    TRY_TO(result, done, file_write_atomic(counters_path, counters.data, counters.size));
done:
    safetensors_abort(&writer);
    buf_release(&counters);
    arena_release(&arena);
    return result;
}

// Copies a stored tensor to where it belongs; `values` holds CHUNK_ELEMENTS, since the stored data may be unaligned.
static status training_state_read_tensor(struct model *model, enum training_state_kind kind,
                                         const struct parameter *parameter, const struct stored_tensor *stored,
                                         float *values) {
    for (int64_t first = 0; first < parameter->count; first += CHUNK_ELEMENTS) {
        int64_t count = parameter->count - first < CHUNK_ELEMENTS ? parameter->count - first : CHUNK_ELEMENTS;
        int64_t offset = parameter->offset + first;
        memcpy(values, (const char *)stored->data + first * 4, (size_t)count * 4);
        if (kind == EMA)
            TRY(ema_write(model->trainer, offset, count, values));
        else
            TRY(model->backend->ops->upload(
                model->backend, range_tensor(training_state_buffer(model, kind), offset, count), values, ELEMENT_F32));
    }
    safetensors_release_pages(stored);
    return OK;
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    json_object *counters = NULL;
    struct safetensors *store = NULL;
    float *values = NULL;
    int64_t step = 0, vision_step = 0, version = 0;
    status result = OK;
    char *path = path_join(&arena, dir, TRAINING_TENSORS);
    char *counters_path = path_join(&arena, dir, TRAINING_COUNTERS);
    if (!path || !counters_path) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, json_parse_file(&counters, counters_path));
    if (!json_int(json_object_object_get(counters, "step"), &step) ||
        !json_int(json_object_object_get(counters, "tower_step"), &vision_step) ||
        !json_int(json_object_object_get(counters, "version"), &version) || step < 0 || vision_step < 0 || version < 0)
        TRY_TO(result, done,
               fail(DATAERR, "%s: step, tower_step and version are not three non-negative integers", counters_path));

    // Goes over the table twice, so that nothing is changed before every tensor was found.
    TRY_TO(result, done, NEW(&values, CHUNK_ELEMENTS));
    TRY_TO(result, done, safetensors_open(&store, path));
    for (int pass = 0; pass < 2; pass++) {
        for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++) {
            for (size_t i = 0; i < model->table->count; i++) {
                const struct parameter *parameter = &model->table->list[i];
                if (!training_state_has(model, kind, parameter)) continue;
                const char *name = training_state_name(&arena, kind, parameter);
                if (!name) TRY_TO(result, done, fail_oom());
                const struct stored_tensor *stored = safetensors_find(store, name);
                if (!stored) TRY_TO(result, done, fail(DATAERR, "%s: tensor %s is missing", path, name));
                if (stored->type != ELEMENT_F32 || stored_tensor_count(stored) != parameter->count)
                    TRY_TO(result, done,
                           fail(DATAERR, "%s: tensor %s is not %lld float32 numbers", path, name,
                                (long long)parameter->count));
                if (pass == 1) TRY_TO(result, done, training_state_read_tensor(model, kind, parameter, stored, values));
            }
        }
    }
    model->trainer->step = step;
    model->trainer->vision_step = vision_step;
    model->version = version;
    TRY_TO(result, done, weights_refresh(model->weights));
done:
    safetensors_close(&store);
    json_object_put(counters);
    free(values);
    arena_release(&arena);
    return result;
}
