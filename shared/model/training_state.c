#include "shared/model/training_state.h"

#include <assert.h>
#include <stdlib.h>

#include "shared/base/file.h"
#include "shared/base/json.h"

// The type in which a parameter's tensor is stored.
static enum element training_state_type(const struct state_array *array, const struct parameter *parameter) {
    return array->remainders->buffer ? ELEMENT_F32 : param_type(array->values, parameter);
}

static const char *training_state_name(struct arena *arena, const struct state_array *array,
                                       const struct parameter *parameter) {
    return arena_printf(arena, "%s.%s", array->prefix, parameter->name);
}

// All arrays, one after the other.
static status training_state_write(const struct training_state *state, struct arena *arena, const char *path) {
    const struct parameter_table *table = state->table;
    struct safetensors_writer *writer = NULL;
    size_t count = 0;
    struct stored_tensor *tensors = arena_alloc(arena, state->array_count * table->count * sizeof *tensors);
    for (const struct state_array *array = state->arrays; array < state->arrays + state->array_count; array++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!param_array_has(array->values, parameter)) continue;
            const char *name = training_state_name(arena, array, parameter);
            tensors[count++] = parameter_stored(parameter, name, training_state_type(array, parameter));
        }
    }
    status result = OK;
    TRY_TO(result, failed, safetensors_create(&writer, path, tensors, count, true));
    for (const struct state_array *array = state->arrays; array < state->arrays + state->array_count; array++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!param_array_has(array->values, parameter)) continue;
            TRY_TO(result, failed,
                   parameter_download(state->backend, array->values, array->remainders, parameter,
                                      training_state_type(array, parameter), safetensors_sink, writer));
        }
    }
    return safetensors_finish(&writer);
failed:
    safetensors_abort(&writer);
    return result;
}

status training_state_save(const struct training_state *state, const char *dir) {
    struct arena arena = {0};
    struct buf counters = {0};
    status result = OK;
    char *tensors_path = path_join(&arena, dir, TRAINING_TENSORS);
    char *counters_path = path_join(&arena, dir, TRAINING_COUNTERS);
    TRY_TO(result, done, training_state_write(state, &arena, tensors_path));
    for (size_t i = 0; i < state->counter_count; i++)
        buf_printf(&counters, "%s\"%s\": %lld", i ? ", " : "{", state->counters[i].name,
                   (long long)*state->counters[i].value);
    buf_puts(&counters, "}\n");
    TRY_TO(result, done, file_write_atomic(counters_path, counters.data, counters.size));
done:
    buf_release(&counters);
    arena_release(&arena);
    return result;
}

uint64_t training_state_bytes(const struct training_state *state) {
    uint64_t bytes = 0;
    for (const struct state_array *array = state->arrays; array < state->arrays + state->array_count; array++) {
        for (size_t i = 0; i < state->table->count; i++) {
            const struct parameter *parameter = &state->table->list[i];
            if (param_array_has(array->values, parameter))
                bytes += (uint64_t)parameter->count * element_size(training_state_type(array, parameter));
        }
    }
    return bytes;
}

static status training_state_read_counters(const struct training_state *state, const char *path, int64_t *values) {
    struct arena arena = {0};
    struct json *counters;
    status result = json_parse_file(&counters, &arena, path);
    for (size_t i = 0; i < state->counter_count && result == OK; i++) {
        const char *name = state->counters[i].name;
        if (!json_int(json_at(counters, name), &values[i]) || values[i] < 0)
            result = fail(DATAERR, "%s: %s is not a non-negative integer", path, name);
    }
    arena_release(&arena);
    return result;
}

// Finds a parameter's tensor; with `upload`, sets the parameter's values to it.
static status training_state_read(const struct training_state *state, const struct state_array *array,
                                  const struct parameter *parameter, const struct safetensors *store, const char *path,
                                  bool upload) {
    struct arena arena = {0};
    status result = OK;
    const char *name = training_state_name(&arena, array, parameter);
    const struct stored_tensor *stored = safetensors_find(store, name);
    if (!stored) TRY_TO(result, done, fail(DATAERR, "%s: tensor %s is missing", path, name));
    enum element type = training_state_type(array, parameter);
    if (stored->type != type || stored_tensor_count(stored) != parameter->count)
        TRY_TO(result, done,
               fail(DATAERR, "%s: tensor %s is not %lld %s numbers", path, name, (long long)parameter->count,
                    type == ELEMENT_F32 ? "float32" : "bfloat16"));
    if (!upload) goto done;
    TRY_TO(result, done,
           parameter_upload(state->backend, array->values, array->remainders, parameter, stored->data, type));
    safetensors_release_pages(stored);
done:
    arena_release(&arena);
    return result;
}

status training_state_load(const struct training_state *state, const char *dir) {
    struct arena arena = {0};
    struct safetensors *store = NULL;
    int64_t values[MAX_STATE_COUNTERS];
    status result = OK;
    assert(state->counter_count <= MAX_STATE_COUNTERS);
    char *path = path_join(&arena, dir, TRAINING_TENSORS);
    char *counters_path = path_join(&arena, dir, TRAINING_COUNTERS);
    TRY_TO(result, done, training_state_read_counters(state, counters_path, values));
    TRY_TO(result, done, safetensors_open(&store, path));
    for (int pass = 0; pass < 2; pass++) { // twice, so that nothing is changed before every tensor was found
        for (size_t k = 0; k < state->array_count; k++)
            for (size_t i = 0; i < state->table->count; i++)
                if (param_array_has(state->arrays[k].values, &state->table->list[i]))
                    TRY_TO(
                        result, done,
                        training_state_read(state, &state->arrays[k], &state->table->list[i], store, path, pass == 1));
    }
    for (size_t i = 0; i < state->counter_count; i++) *state->counters[i].value = values[i];
done:
    safetensors_close(&store);
    arena_release(&arena);
    return result;
}
