#include "shared/model/parameters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum { PARAM_ALIGNMENT = 64 }; // elements: a fused parameter starts at a multiple

static void parameter_align(struct parameter_table *table) {
    table->elements = (table->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
}

void parameter_table_init(struct parameter_table *table, size_t capacity) {
    *table = (struct parameter_table){0};
    table->list = arena_alloc(&table->arena, capacity * sizeof *table->list);
    table->fused = arena_alloc(&table->arena, capacity * sizeof *table->fused);
}

void parameter_table_release(struct parameter_table *table) {
    arena_release(&table->arena);
    *table = (struct parameter_table){0};
}

void parameter_table_start(struct parameter_table *table, struct fused_param *fused, int64_t rows, int64_t columns) {
    parameter_align(table);
    *fused = (struct fused_param){.first = table->count, .offset = table->elements, .rows = rows, .columns = columns};
    table->fused[table->fused_count++] = fused;
}

status parameter_table_append(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                              int64_t rows, int64_t columns, const char *name) {
    struct parameter *entry = &table->list[table->count];
    assert(rows > 0 && columns > 0);
    *entry = (struct parameter){.name = name, .kind = kind, .offset = table->elements};
    if (kind == PARAMETER_MATRIX) {
        entry->rank = 2;
        entry->shape[0] = rows;
        entry->shape[1] = columns;
    } else {
        assert(rows == 1);
        entry->rank = 1;
        entry->shape[0] = columns;
    }
    if (__builtin_mul_overflow(rows, columns, &entry->count) ||
        __builtin_add_overflow(table->elements, entry->count, &table->elements) || table->elements > INT64_MAX / 16)
        return fail(DATAERR, "the model that the configuration describes is too large");
    table->parameter_count += (uint64_t)entry->count;
    table->count++;
    fused->count++;
    return OK;
}

status parameter_table_single(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                              int64_t rows, int64_t columns, const char *name) {
    parameter_table_start(table, fused, rows, columns);
    return parameter_table_append(table, fused, kind, rows, columns, name);
}

void parameter_table_close_range(struct parameter_table *table, bool decay, int group) {
    assert(table->range_count < MAX_PARAM_RANGES && group >= 0 && group < MAX_PARAM_GROUPS);
    parameter_align(table);
    int64_t start = 0;
    for (int i = 0; i < table->range_count; i++) start += table->ranges[i].count;
    table->ranges[table->range_count++] = (struct parameter_range){start, table->elements - start, decay, group};
    for (size_t i = table->count; i > 0 && table->list[i - 1].offset >= start; i--) {
        assert((table->list[i - 1].kind == PARAMETER_MATRIX) == decay);
        table->list[i - 1].group = group;
    }
}

struct stored_tensor parameter_stored(const struct parameter *parameter, const char *name, enum element type) {
    struct stored_tensor tensor = {.name = name, .type = type, .rank = parameter->rank};
    static_assert(sizeof parameter->shape <= sizeof tensor.shape, "a parameter's shape can be stored");
    memcpy(tensor.shape, parameter->shape, sizeof parameter->shape);
    return tensor;
}

static bool parameter_ignored(const struct parameter_table *table, const char *name) {
    for (const char *const *ignored = table->ignored; ignored && *ignored; ignored++)
        if (strcmp(*ignored, name) == 0) return true;
    return false;
}

status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found) {
    bool *used = NULL;
    status result = OK;
    const char *file = safetensors_count(store) ? safetensors_at(store, 0)->file : "model.safetensors";
    NEW(&used, safetensors_count(store));
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        found[i] = NULL;
        if (parameter_ignored(table, parameter->name)) continue;
        found[i] = safetensors_find(store, parameter->name);
        if (!found[i] && parameter->alias) found[i] = safetensors_find(store, parameter->alias);
        if (!found[i] && parameter->optional) continue;
        if (!found[i]) TRY_TO(result, done, fail(DATAERR, "%s: tensor %s is missing", file, parameter->name));
        struct stored_tensor expected = parameter_stored(parameter, parameter->name, found[i]->type);
        if (found[i]->rank != expected.rank ||
            memcmp(found[i]->shape, expected.shape, (size_t)expected.rank * sizeof *expected.shape) != 0) {
            char has[200], wants[200];
            TRY_TO(result, done,
                   fail(DATAERR, "%s: tensor %s has shape %s, the configuration asks for %s", found[i]->file,
                        found[i]->name, stored_tensor_shape(found[i], has, sizeof has),
                        stored_tensor_shape(&expected, wants, sizeof wants)));
        }
        used[found[i] - safetensors_at(store, 0)] = true;
    }
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *stored = safetensors_at(store, i);
        if (used[i] || parameter_ignored(table, stored->name)) continue;
        TRY_TO(result, done,
               fail(DATAERR, "%s: tensor %s is not a parameter of the model", stored->file, stored->name));
    }
done:
    free(used);
    return result;
}

status parameter_table_check(const struct parameter_table *table, const struct safetensors *store) {
    const struct stored_tensor **found;
    NEW(&found, table->count);
    const status result = parameter_table_match(table, store, found);
    free(found);
    return result;
}

// ---- arrays ----

enum { CHUNK_ELEMENTS = 1 << 18 };

void param_array_view(struct param_array *array, struct buffer *buffer, const struct parameter_table *table, int ranges,
                      enum element matrices, enum element vectors) {
    size_t end = 0;
    assert(ranges > 0 && ranges <= table->range_count);
    *array = (struct param_array){.table = table, .buffer = buffer, .ranges = ranges};
    for (int i = 0; i < ranges; i++) {
        array->types[i] = table->ranges[i].decay ? matrices : vectors; // exactly matrices decay
        array->starts[i] = end;
        end += (size_t)table->ranges[i].count * element_size(array->types[i]);
    }
    assert(end == param_array_bytes(table, ranges, matrices, vectors));
}

status param_array_init(struct param_array *array, struct backend *backend, const struct parameter_table *table,
                        int ranges, enum element matrices, enum element vectors) {
    param_array_view(array, NULL, table, ranges, matrices, vectors);
    return backend->ops->buffer_new(backend, param_array_bytes(table, ranges, matrices, vectors), &array->buffer);
}

size_t param_array_bytes(const struct parameter_table *table, int ranges, enum element matrices, enum element vectors) {
    size_t bytes = 0;
    for (int i = 0; i < ranges; i++)
        bytes += (size_t)table->ranges[i].count * element_size(table->ranges[i].decay ? matrices : vectors);
    return bytes;
}

void param_array_release(struct param_array *array, struct backend *backend) {
    backend->ops->buffer_free(backend, &array->buffer);
    *array = (struct param_array){0};
}

// The range that an element belongs to.
static int param_array_range_of(const struct param_array *array, int64_t offset) {
    int range = array->ranges - 1;
    while (range > 0 && array->table->ranges[range].offset > offset) range--;
    return range;
}

struct tensor param_slice(const struct param_array *array, int64_t offset, int64_t count) {
    if (!array->buffer) return (struct tensor){0};
    int index = param_array_range_of(array, offset);
    const struct parameter_range *range = &array->table->ranges[index];
    assert(offset >= range->offset && offset + count <= range->offset + range->count);
    size_t begin = array->starts[index] + (size_t)(offset - range->offset) * element_size(array->types[index]);
    return (struct tensor){array->buffer, begin, array->types[index], 1, count, count};
}

struct tensor param_tensor(const struct param_array *array, const struct fused_param *param) {
    assert(param->count > 0);
    return tensor_reshape(param_slice(array, param->offset, param->rows * param->columns), param->rows, param->columns);
}

struct tensor param_range(const struct param_array *array, int range) {
    if (!array->buffer) return (struct tensor){0};
    return param_slice(array, array->table->ranges[range].offset, array->table->ranges[range].count);
}

bool param_array_has(const struct param_array *array, const struct parameter *parameter) {
    if (!array->buffer) return false;
    const struct parameter_range *last = &array->table->ranges[array->ranges - 1];
    return parameter->offset < last->offset + last->count;
}

enum element param_type(const struct param_array *array, const struct parameter *parameter) {
    return array->types[param_array_range_of(array, parameter->offset)];
}

status parameter_download(struct backend *backend, const struct param_array *values,
                          const struct param_array *remainders, const struct parameter *parameter, enum element type,
                          element_sink *sink, void *context) {
    const struct operations *ops = backend->ops;
    struct buffer *joined = NULL;
    char *host = NULL;
    size_t size = element_size(type);
    bool join = remainders->buffer && type != ELEMENT_BF16; // a pair's first half is the number in BF16
    int64_t chunk = parameter->count < CHUNK_ELEMENTS ? parameter->count : CHUNK_ELEMENTS;
    status result = OK;
    TRY_TO(result, done, mem_new_large(&host, (size_t)chunk, size));
    if (join) TRY_TO(result, done, ops->buffer_new(backend, (size_t)chunk * sizeof(float), &joined));
    for (int64_t first = 0; first < parameter->count; first += chunk) {
        int64_t count = parameter->count - first < chunk ? parameter->count - first : chunk;
        struct tensor row = param_slice(values, parameter->offset + first, count);
        if (join) {
            struct tensor remainder = param_slice(remainders, parameter->offset + first, count), halves = row;
            row = (struct tensor){joined, 0, ELEMENT_F32, 1, count, count};
            TRY_TO(result, done, ops->join_f32(backend, row, halves, remainder));
        }
        TRY_TO(result, done, ops->download(backend, host, type, row));
        TRY_TO(result, done, sink(context, host, (size_t)count * size));
    }
done:
    ops->buffer_free(backend, &joined);
    free(host);
    return result;
}

// One chunk, aligned. `wide`: an F32 tensor of its length where the values are pairs.
static status param_array_upload(struct backend *backend, struct tensor values, struct tensor remainders,
                                 struct tensor wide, const void *host, enum element type) {
    const struct operations *ops = backend->ops;
    if (!remainders.buffer) return ops->upload(backend, values, host, type);
    TRY(ops->upload(backend, wide, host, type));
    return ops->split_f32(backend, values, remainders, wide);
}

status parameter_upload(struct backend *backend, const struct param_array *values, const struct param_array *remainders,
                        const struct parameter *parameter, const void *host, enum element type) {
    struct buffer *wide = NULL;
    char *copy = NULL; // of unaligned data
    size_t size = element_size(type);
    int64_t chunk = parameter->count < CHUNK_ELEMENTS ? parameter->count : CHUNK_ELEMENTS;
    status result = OK;
    if ((uintptr_t)host % size) TRY_TO(result, done, mem_new_large(&copy, (size_t)chunk, size));
    if (remainders->buffer)
        TRY_TO(result, done, backend->ops->buffer_new(backend, (size_t)chunk * sizeof(float), &wide));
    for (int64_t first = 0; first < parameter->count; first += chunk) {
        int64_t count = parameter->count - first < chunk ? parameter->count - first : chunk;
        const char *data = (const char *)host + (size_t)first * size;
        if (copy) data = memcpy(copy, data, (size_t)count * size);
        TRY_TO(result, done,
               param_array_upload(backend, param_slice(values, parameter->offset + first, count),
                                  param_slice(remainders, parameter->offset + first, count),
                                  (struct tensor){wide, 0, ELEMENT_F32, 1, count, count}, data, type));
    }
done:
    backend->ops->buffer_free(backend, &wide);
    free(copy);
    return result;
}
