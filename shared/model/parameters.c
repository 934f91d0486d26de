#include "shared/model/parameters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
