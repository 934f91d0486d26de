#include "shared/model/parameters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/model/shards.h"

enum { PARAM_ALIGNMENT = 64 }; // elements: a fused parameter starts at a multiple

static void parameter_align(struct parameter_table *table) {
    table->elements = (table->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
}

void parameter_table_init(struct parameter_table *table, size_t capacity) {
    *table = (struct parameter_table){0};
    table->list = arena_alloc(&table->arena, capacity * sizeof *table->list);
    table->fused = arena_alloc(&table->arena, capacity * sizeof *table->fused);
    table->buckets = arena_alloc(&table->arena, capacity * sizeof *table->buckets);
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

void parameter_table_append(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                            int64_t rows, int64_t columns, const char *name) {
    struct parameter *entry = &table->list[table->count++];
    const bool matrix = kind == PARAMETER_MATRIX;
    int64_t end;
    assert(rows > 0 && columns > 0 && (matrix || rows == 1));
    *entry = (struct parameter){.name = name,
                                .kind = kind,
                                .offset = table->elements,
                                .rank = matrix ? 2 : 1,
                                .shape = {matrix ? rows : columns, matrix ? columns : 0}};
    fused->count++;
    if (__builtin_mul_overflow(rows, columns, &entry->count) ||
        __builtin_add_overflow(table->elements, entry->count, &end) || end > INT64_MAX / 16) {
        table->too_large = true;
        return;
    }
    table->elements = end;
    table->parameter_count += (uint64_t)entry->count;
}

void parameter_table_single(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                            int64_t rows, int64_t columns, const char *name) {
    parameter_table_start(table, fused, rows, columns);
    parameter_table_append(table, fused, kind, rows, columns, name);
}

void parameter_table_close_bucket(struct parameter_table *table, enum bucket_use use) {
    int64_t start = 0;
    for (size_t i = 0; i < table->bucket_count; i++) start += table->buckets[i].count;
    parameter_align(table);
    if (table->elements > start)
        table->buckets[table->bucket_count++] =
            (struct parameter_bucket){start, table->elements - start, table->range_count, use};
}

void parameter_table_close_range(struct parameter_table *table, bool decay, int group) {
    assert(table->range_count < MAX_PARAM_RANGES && group >= 0 && group < MAX_PARAM_GROUPS);
    parameter_table_close_bucket(table, BUCKET_ANY_TIME);
    int64_t start = 0;
    for (int i = 0; i < table->range_count; i++) start += table->ranges[i].count;
    table->ranges[table->range_count++] = (struct parameter_range){start, table->elements - start, decay, group};
    for (size_t i = table->count; i > 0 && table->list[i - 1].offset >= start; i--) {
        assert((table->list[i - 1].kind == PARAMETER_MATRIX) == decay);
        table->list[i - 1].group = group;
    }
}

status parameter_table_finish(struct parameter_table *table, const double *numbers, size_t count, const bool *layers,
                              int layer_count) {
    if (table->too_large) {
        parameter_table_release(table);
        return fail(DATAERR, "the model that the configuration describes is too large");
    }
    table->setting_count = count + (size_t)layer_count;
    double *settings = arena_alloc(&table->arena, table->setting_count * sizeof *settings);
    for (size_t i = 0; i < count; i++) settings[i] = numbers[i];
    for (int i = 0; i < layer_count; i++) settings[count + (size_t)i] = layers[i];
    table->settings = settings;
    return OK;
}

size_t parameter_table_buckets(const struct parameter_table *table, int ranges) {
    size_t count = 0;
    while (count < table->bucket_count && table->buckets[count].range < ranges) count++;
    return count;
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
    const char *file = safetensors_count(store) ? safetensors_at(store, 0)->file : "model.safetensors";
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        found[i] = NULL;
        if (parameter_ignored(table, parameter->name)) continue;
        found[i] = safetensors_find(store, parameter->name);
        if (!found[i] && parameter->alias) found[i] = safetensors_find(store, parameter->alias);
        if (!found[i]) return fail(DATAERR, "%s: tensor %s is missing", file, parameter->name);
        struct stored_tensor expected = parameter_stored(parameter, parameter->name, found[i]->type);
        char has[200], wants[200];
        if (found[i]->rank != expected.rank ||
            memcmp(found[i]->shape, expected.shape, (size_t)expected.rank * sizeof *expected.shape) != 0)
            return fail(DATAERR, "%s: tensor %s has shape %s, the configuration asks for %s", found[i]->file,
                        found[i]->name, stored_tensor_shape(found[i], has, sizeof has),
                        stored_tensor_shape(&expected, wants, sizeof wants));
    }
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *stored = safetensors_at(store, i);
        if (!parameter_ignored(table, stored->name) && parameter_of_stored(table, found, stored) == NULL)
            return fail(DATAERR, "%s: tensor %s is not a parameter of the model", stored->file, stored->name);
    }
    return OK;
}

const struct parameter *parameter_of_stored(const struct parameter_table *table, const struct stored_tensor **found,
                                            const struct stored_tensor *stored) {
    for (size_t i = 0; i < table->count; i++)
        if (found[i] == stored) return &table->list[i];
    return NULL;
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

const struct param_piece param_whole = {0, INT64_MAX};

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

// *out = zeros, whole or divided.
static status param_array_new_buffer(const struct param_array *array, struct backend *backend,
                                     const struct ranks *divided, enum element matrices, enum element vectors,
                                     struct buffer **out) {
    const int own = divided ? divided->own : 0, count = divided ? divided->count : 1;
    const size_t bytes = param_array_divided_bytes(array->table, array->ranges, matrices, vectors, own, count);
    return backend->ops->buffer_new(backend, bytes, out);
}

status param_array_init(struct param_array *array, struct backend *backend, const struct parameter_table *table,
                        int ranges, enum element matrices, enum element vectors, const struct ranks *divided) {
    param_array_view(array, NULL, table, ranges, matrices, vectors);
    array->divided = divided;
    return param_array_new_buffer(array, backend, divided, matrices, vectors, &array->buffer);
}

size_t param_array_bytes(const struct parameter_table *table, int ranges, enum element matrices, enum element vectors) {
    size_t bytes = 0;
    for (int i = 0; i < ranges; i++)
        bytes += (size_t)table->ranges[i].count * element_size(table->ranges[i].decay ? matrices : vectors);
    return bytes;
}

size_t param_array_divided_bytes(const struct parameter_table *table, int ranges, enum element matrices,
                                 enum element vectors, int rank, int count) {
    size_t bytes = 0;
    for (size_t i = 0; i < parameter_table_buckets(table, ranges); i++) {
        const struct param_piece piece = shard_piece(&table->buckets[i], rank, count);
        const bool matrix = table->ranges[table->buckets[i].range].decay; // exactly matrices decay
        bytes += (size_t)(piece.end - piece.first) * element_size(matrix ? matrices : vectors);
    }
    return bytes;
}

status param_array_add_remainders(struct param_array *array, struct backend *backend, const struct ranks *divided) {
    assert(array->types[0] == ELEMENT_BF16 && array->types[array->ranges - 1] == ELEMENT_BF16 && !array->divided);
    array->remainders_divided = divided;
    return param_array_new_buffer(array, backend, divided, ELEMENT_U16, ELEMENT_U16, &array->remainders);
}

void param_array_release(struct param_array *array, struct backend *backend) {
    backend->ops->buffer_free(backend, &array->buffer);
    backend->ops->buffer_free(backend, &array->remainders);
    *array = (struct param_array){0};
}

// The range that an element belongs to.
static int param_array_range_of(const struct param_array *array, int64_t offset) {
    int range = array->ranges - 1;
    while (range > 0 && array->table->ranges[range].offset > offset) range--;
    return range;
}

// Where the values from `offset` on begin if each of these ranks has what it owns.
static size_t param_array_divided_at(const struct param_array *array, const struct ranks *ranks, int64_t offset) {
    const struct parameter_table *table = array->table;
    size_t begin = 0, i = 0;
    for (; offset >= table->buckets[i].offset + table->buckets[i].count; i++) {
        const struct param_piece before = shard_own(&table->buckets[i], ranks);
        begin += (size_t)(before.end - before.first) * element_size(array->types[table->buckets[i].range]);
    }
    const struct param_piece own = shard_own(&table->buckets[i], ranks);
    assert(offset >= own.first && offset < own.end);
    return begin + (size_t)(offset - own.first) * element_size(array->types[table->buckets[i].range]);
}

// The values [offset, offset + count), all of one range, as one row; none if there is no array.
static struct tensor param_array_slice(const struct param_array *array, int64_t offset, int64_t count) {
    if (!array->buffer) return (struct tensor){0};
    int index = param_array_range_of(array, offset);
    const struct parameter_range *range = &array->table->ranges[index];
    assert(offset >= range->offset && offset + count <= range->offset + range->count);
    size_t begin = array->starts[index] + (size_t)(offset - range->offset) * element_size(array->types[index]);
    if (array->divided) begin = param_array_divided_at(array, array->divided, offset);
    return (struct tensor){array->buffer, begin, array->types[index], 1, count, count};
}

struct tensor param_tensor(const struct param_array *array, const struct fused_param *param) {
    assert(param->count > 0);
    struct tensor values = param_array_slice(array, param->offset, param->rows * param->columns);
    return tensor_reshape(values, param->rows, param->columns);
}

struct tensor param_range(const struct param_array *array, int range) {
    if (!array->buffer) return (struct tensor){0};
    return param_array_slice(array, array->table->ranges[range].offset, array->table->ranges[range].count);
}

struct tensor param_slice(const struct param_array *array, struct param_piece piece) {
    return param_array_slice(array, piece.first, piece.end - piece.first);
}

struct tensor param_remainders(const struct param_array *array, struct tensor values) {
    if (!array->remainders) return (struct tensor){0};
    if (array->remainders_divided)
        values.offset = param_array_divided_at(array, array->remainders_divided,
                                               (int64_t)(values.offset / element_size(ELEMENT_BF16)));
    values.buffer = array->remainders;
    values.type = ELEMENT_U16; // as long as the values in BF16
    return values;
}

bool param_array_has(const struct param_array *array, const struct parameter *parameter) {
    if (!array->buffer) return false;
    const struct parameter_range *last = &array->table->ranges[array->ranges - 1];
    return parameter->offset < last->offset + last->count;
}

enum element param_type(const struct param_array *array, const struct parameter *parameter) {
    return array->remainders ? ELEMENT_F32 : array->types[param_array_range_of(array, parameter->offset)];
}

// What a parameter has in the piece, its own first element being 0.
static struct param_piece parameter_piece(const struct parameter *parameter, struct param_piece piece) {
    const int64_t first = piece.first - parameter->offset, end = piece.end - parameter->offset;
    return (struct param_piece){first > 0 ? first : 0, end < parameter->count ? end : parameter->count};
}

status parameter_download(struct backend *backend, const struct param_array *array, const struct parameter *parameter,
                          struct param_piece piece, enum element type, struct safetensors_writer *writer, size_t tensor,
                          void *memory) {
    const struct operations *ops = backend->ops;
    struct buffer *joined = NULL;
    char *host = NULL;
    size_t size = element_size(type);
    bool join = array->remainders && type != ELEMENT_BF16; // a pair's first half is the number in BF16
    const struct param_piece own = parameter_piece(parameter, piece);
    if (own.first >= own.end) return OK;
    int64_t chunk = own.end - own.first < CHUNK_ELEMENTS ? own.end - own.first : CHUNK_ELEMENTS;
    status result = writer ? mem_new_large(&host, (size_t)chunk, size) : OK;
    if (result == OK && join) result = ops->buffer_new(backend, (size_t)chunk * sizeof(float), &joined);
    for (int64_t first = own.first; result == OK && first < own.end; first += chunk) {
        int64_t count = own.end - first < chunk ? own.end - first : chunk;
        struct tensor values = param_array_slice(array, parameter->offset + first, count);
        struct tensor row = join ? (struct tensor){joined, 0, ELEMENT_F32, 1, count, count} : values;
        if (join) result = ops->join_f32(backend, row, values, param_remainders(array, values));
        char *to = writer ? host : (char *)memory + (size_t)(first - own.first) * size;
        if (result == OK) result = ops->download(backend, to, type, row);
        if (result == OK && writer)
            result = safetensors_write(writer, tensor, (size_t)first * size, host, (size_t)count * size);
    }
    ops->buffer_free(backend, &joined);
    free(host);
    return result;
}

status parameter_upload(struct backend *backend, const struct param_array *array, const struct parameter *parameter,
                        struct param_piece piece, const void *host, int64_t start, enum element type) {
    const struct operations *ops = backend->ops;
    struct buffer *wide = NULL; // F32, to be split into pairs
    char *copy = NULL;          // of unaligned data
    size_t size = element_size(type);
    const struct param_piece own = parameter_piece(parameter, piece);
    if (own.first >= own.end) return OK;
    int64_t chunk = own.end - own.first < CHUNK_ELEMENTS ? own.end - own.first : CHUNK_ELEMENTS;
    status result = OK;
    if ((uintptr_t)host % size) result = mem_new_large(&copy, (size_t)chunk, size);
    if (result == OK && array->remainders) result = ops->buffer_new(backend, (size_t)chunk * sizeof(float), &wide);
    for (int64_t first = own.first; result == OK && first < own.end; first += chunk) {
        int64_t count = own.end - first < chunk ? own.end - first : chunk;
        const char *data = (const char *)host + (size_t)(first - start) * size;
        if (copy) data = memcpy(copy, data, (size_t)count * size);
        struct tensor values = param_array_slice(array, parameter->offset + first, count);
        struct tensor row = wide ? (struct tensor){wide, 0, ELEMENT_F32, 1, count, count} : values;
        result = ops->upload(backend, row, data, type);
        if (result == OK && wide) result = ops->split_f32(backend, values, param_remainders(array, values), row);
    }
    ops->buffer_free(backend, &wide);
    free(copy);
    return result;
}
