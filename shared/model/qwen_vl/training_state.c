// The training state's files beside a checkpoint: tensors, each under its parameter's flat name with a prefix
// ("master.model.norm.weight"), and the counters in JSON. Weights and reference are stored in float32, moments in the
// type in which they are kept, so that nothing is lost.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/model/qwen_vl/trainer.h"

// What is stored for each parameter.
enum training_state_kind { MASTER, EXP_AVG, EXP_AVG_SQ, EMA, STATE_KINDS };

static const char *const training_state_prefixes[] = {"master", "first", "second", "reference"}; // as on disk
static_assert(sizeof training_state_prefixes / sizeof *training_state_prefixes == STATE_KINDS,
              "one prefix for each kind");

// The array of a kind, and its remainders, if its numbers are pairs.
struct training_state_array {
    const struct param_array *values, *remainders;
};

static struct training_state_array training_state_array(const struct model *model, enum training_state_kind kind) {
    static const struct param_array none;
    const struct trainer *trainer = model->trainer;
    const struct training_state_array arrays[] = {
        [MASTER] = {&model->weights->values, &model->weights->remainders},
        [EXP_AVG] = {&trainer->exp_avg, &none},
        [EXP_AVG_SQ] = {&trainer->exp_avg_sq, &none},
        [EMA] = {&trainer->reference, &trainer->reference_remainders},
    };
    return arrays[kind];
}

// The type in which a parameter's tensor is stored.
static enum element training_state_type(const struct model *model, enum training_state_kind kind,
                                        const struct parameter *parameter) {
    if (kind == MASTER || kind == EMA) return ELEMENT_F32;
    return param_type(training_state_array(model, kind).values, parameter);
}

// Whether a state has this kind for a parameter: only trained parameters have moments.
static bool training_state_has(const struct model *model, enum training_state_kind kind,
                               const struct parameter *parameter) {
    if (kind == EMA) return model->trainer->reference.buffer;
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
            *tensor = parameter_stored(parameter, training_state_name(&arena, kind, parameter),
                                       training_state_type(model, kind, parameter));
            if (!tensor->name) TRY_TO(result, done, fail_oom());
        }
    }
    TRY_TO(result, done, safetensors_create(&writer, tensors_path, tensors, count, true));
    for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!training_state_has(model, kind, parameter)) continue;
            struct training_state_array array = training_state_array(model, kind);
            TRY_TO(result, done,
                   parameter_download(model->backend, array.values, array.remainders, parameter,
                                      training_state_type(model, kind, parameter), safetensors_sink, writer));
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

uint64_t model_saved_bytes(const struct model *model, bool whole) {
    uint64_t bytes = 0;
    for (size_t i = 0; whole && i < safetensors_count(model->store); i++) {
        const struct stored_tensor *tensor = safetensors_at(model->store, i);
        bytes += (uint64_t)stored_tensor_count(tensor) * element_size(tensor->type);
    }
    for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++)
        for (size_t i = 0; i < model->table->count; i++) {
            const struct parameter *parameter = &model->table->list[i];
            if (!training_state_has(model, kind, parameter)) continue;
            bytes += (uint64_t)parameter->count * element_size(training_state_type(model, kind, parameter));
        }
    return bytes;
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    struct arena arena = {0};
    json_object *counters = NULL;
    struct safetensors *store = NULL;
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
    TRY_TO(result, done, safetensors_open(&store, path));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; pass == 1 && i < 2; i++) shared_weights_begin_change(&model->trainer->lent[i]);
        for (enum training_state_kind kind = 0; kind < STATE_KINDS; kind++) {
            for (size_t i = 0; i < model->table->count; i++) {
                const struct parameter *parameter = &model->table->list[i];
                if (!training_state_has(model, kind, parameter)) continue;
                const char *name = training_state_name(&arena, kind, parameter);
                if (!name) TRY_TO(result, done, fail_oom());
                const struct stored_tensor *stored = safetensors_find(store, name);
                if (!stored) TRY_TO(result, done, fail(DATAERR, "%s: tensor %s is missing", path, name));
                enum element type = training_state_type(model, kind, parameter);
                if (stored->type != type || stored_tensor_count(stored) != parameter->count)
                    TRY_TO(result, done,
                           fail(DATAERR, "%s: tensor %s is not %lld %s numbers", path, name,
                                (long long)parameter->count, type == ELEMENT_F32 ? "float32" : "bfloat16"));
                if (pass == 0) continue;
                struct training_state_array array = training_state_array(model, kind);
                TRY_TO(result, done,
                       parameter_upload(model->backend, array.values, array.remainders, parameter, stored->data, type));
                safetensors_release_pages(stored);
            }
        }
    }
    model->trainer->step = step;
    model->trainer->vision_step = vision_step;
    model->version = version;
    model->weights->hash_known = false;
done:
    safetensors_close(&store);
    json_object_put(counters);
    arena_release(&arena);
    return result;
}
