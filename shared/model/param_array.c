#include "shared/model/param_array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

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
static int param_range_of(const struct param_array *array, int64_t offset) {
    int range = array->ranges - 1;
    while (range > 0 && array->table->ranges[range].offset > offset) range--;
    return range;
}

struct tensor param_slice(const struct param_array *array, int64_t offset, int64_t count) {
    if (!array->buffer) return (struct tensor){0};
    int index = param_range_of(array, offset);
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
    return array->types[param_range_of(array, parameter->offset)];
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
