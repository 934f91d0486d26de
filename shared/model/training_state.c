#include "shared/model/training_state.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

// ---- optimizer ----

status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, enum element grads, enum element moments) {
    *optimizer = (struct optimizer){.backend = backend, .table = table};
    TRY(param_array_init(&optimizer->grads, backend, table, ranges, grads, ELEMENT_F32));
    TRY(param_array_init(&optimizer->exp_avg, backend, table, ranges, moments, ELEMENT_F32));
    return param_array_init(&optimizer->exp_avg_sq, backend, table, ranges, moments, ELEMENT_F32);
}

void optimizer_release(struct optimizer *optimizer) {
    if (!optimizer->backend) return;
    param_array_release(&optimizer->grads, optimizer->backend);
    param_array_release(&optimizer->exp_avg, optimizer->backend);
    param_array_release(&optimizer->exp_avg_sq, optimizer->backend);
    *optimizer = (struct optimizer){0};
}

status optimizer_norm(struct optimizer *optimizer, double *norm) {
    double squares = 0;
    for (int i = 0; i < optimizer->grads.ranges; i++)
        TRY(optimizer->backend->ops->square_sum(optimizer->backend, &squares, param_range(&optimizer->grads, i)));
    *norm = sqrt(squares);
    if (isfinite(*norm)) return OK;
    return fail(DATAERR, "the norm of the gradient is not finite");
}

// The ranges of one group.
static status optimizer_step_group(const struct optimizer *optimizer, const struct param_array *values,
                                   const struct param_array *remainders, int group,
                                   const struct adamw_options *options) {
    struct adamw_range ranges[MAX_PARAM_RANGES];
    size_t count = 0;
    for (int i = 0; i < optimizer->grads.ranges; i++) {
        const struct parameter_range *range = &optimizer->table->ranges[i];
        if (range->group != group) continue;
        ranges[count++] = (struct adamw_range){
            .param = param_range(values, i),
            .remainder = param_range(remainders, i),
            .grad = param_range(&optimizer->grads, i),
            .exp_avg = param_range(&optimizer->exp_avg, i),
            .exp_avg_sq = param_range(&optimizer->exp_avg_sq, i),
            .offset = range->offset,
            .decay = range->decay,
        };
    }
    assert(count > 0);
    return optimizer->backend->ops->adamw(optimizer->backend, ranges, count, options);
}

status optimizer_step(struct optimizer *optimizer, const struct param_array *values,
                      const struct param_array *remainders, int groups, const struct optimizer_options *options,
                      double norm) {
    const struct operations *ops = optimizer->backend->ops;
    double scale = options->max_grad_norm > 0 ? options->max_grad_norm / (norm + 1e-6) : 1;
    assert(groups > 0 && groups <= MAX_PARAM_GROUPS);
    for (int group = 0; group < groups; group++) {
        const struct adamw_options adamw = {.lr = options->lr,
                                            .beta1 = options->beta1,
                                            .beta2 = options->beta2,
                                            .eps = options->eps,
                                            .weight_decay = options->weight_decay,
                                            .grad_scale = scale < 1 ? scale : 1,
                                            .step = ++optimizer->steps[group]};
        TRY(optimizer_step_group(optimizer, values, remainders, group, &adamw));
    }
    for (int i = 0; i < optimizer->grads.ranges; i++)
        TRY(ops->zero(optimizer->backend, param_range(&optimizer->grads, i)));
    return OK;
}

// ---- checkpoint ----

status checkpoint_write_tensors(struct backend *backend, const struct param_array *values,
                                const struct param_array *remainders, const char *path,
                                const struct stored_tensor *tensors, const struct parameter *const *params,
                                size_t count, bool durable) {
    struct safetensors_writer *writer = NULL;
    status result = OK;
    TRY_TO(result, failed, safetensors_create(&writer, path, tensors, count, durable));
    for (size_t i = 0; i < count; i++)
        TRY_TO(result, failed,
               parameter_download(backend, values, remainders, params[i], tensors[i].type, safetensors_sink, writer));
    return safetensors_finish(&writer);
failed:
    safetensors_abort(&writer);
    return result;
}

static bool checkpoint_skips(const char *name, const struct safetensors *store, const char *const *except) {
    if (name[0] == '.' || strcmp(name, TRAINING_TENSORS) == 0 || strcmp(name, TRAINING_COUNTERS) == 0) return true;
    for (; except && *except; except++)
        if (strcmp(*except, name) == 0) return true;
    for (size_t i = 0; i < safetensors_count(store); i++)
        if (strcmp(path_base_name(safetensors_at(store, i)->file), name) == 0) return true;
    return false;
}

status checkpoint_copy_files(const char *from, const char *to, const struct safetensors *store,
                             const char *const *except) {
    struct arena arena = {0};
    status result = OK;
    DIR *entries = opendir(from);
    if (!entries) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
        if (!entry) break;
        if (checkpoint_skips(entry->d_name, store, except)) continue;
        char *source = path_join(&arena, from, entry->d_name), *target = path_join(&arena, to, entry->d_name);
        struct stat info;
        if (stat(source, &info)) TRY_TO(result, done, fail(DATAERR, "%s: %s", source, strerror(errno)));
        if (!S_ISREG(info.st_mode)) continue;
        struct file_map map;
        TRY_TO(result, done, file_map_open(&map, source));
        result = file_write_atomic(target, map.data, map.size);
        file_map_release(&map);
        if (result != OK) goto done;
    }
done:
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}
