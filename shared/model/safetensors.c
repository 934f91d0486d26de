// Reading: files are mapped, their headers checked, their tensors put into one table sorted by name.
#include "shared/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/json.h"

enum { most_header = 100 << 20, most_shards = 100000 };

struct safetensors {
    struct arena arena;
    struct file_map *maps;
    size_t map_count;
    struct stored_tensor *tensors; // in the order of files and data
    size_t count;
    size_t *by_name;
};

static const struct {
    const char *name;
    enum element type;
    size_t size;
} types[] = {{"F32", ELEMENT_F32, 4}, {"F16", ELEMENT_F16, 2}, {"BF16", ELEMENT_BF16, 2}};

int64_t stored_tensor_count(const struct stored_tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

const char *stored_tensor_shape(const struct stored_tensor *tensor, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

// A whole number >= 0 that JSON wrote as one.
static bool whole_number(json_object *value, int64_t *out) {
    if (!json_object_is_type(value, json_type_int)) return false;
    *out = json_object_get_int64(value);
    return *out >= 0;
}

static status read_type(struct stored_tensor *tensor, json_object *entry, size_t *size) {
    json_object *type = json_object_object_get(entry, "dtype");
    if (!json_object_is_type(type, json_type_string)) return fail(DATAERR, "dtype is missing");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(json_object_get_string(type), types[i].name) != 0) continue;
        tensor->type = types[i].type;
        *size = types[i].size;
        return OK;
    }
    return fail(DATAERR, "dtype %.20s is none of F32, F16, BF16", json_object_get_string(type));
}

static status read_shape(struct stored_tensor *tensor, json_object *entry, size_t *bytes) {
    json_object *shape = json_object_object_get(entry, "shape");
    if (!json_object_is_type(shape, json_type_array)) return fail(DATAERR, "shape is missing");
    size_t rank = json_object_array_length(shape);
    if (rank > MAX_RANK) return fail(DATAERR, "shape has %zu dimensions, %d at most", rank, MAX_RANK);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        if (!whole_number(json_object_array_get_idx(shape, i), &tensor->shape[i]))
            return fail(DATAERR, "shape[%zu] is not a whole number", i);
        if (__builtin_mul_overflow(*bytes, (size_t)tensor->shape[i], bytes) || *bytes > INT64_MAX)
            return fail(DATAERR, "shape is too large");
    }
    return OK;
}

// Reads one entry of the header; `room` bytes of data follow the header.
static status read_entry(struct stored_tensor *tensor, json_object *entry, const char *data, size_t room) {
    if (!json_object_is_type(entry, json_type_object)) return fail(DATAERR, "its entry is not an object");
    size_t wanted = 0;
    TRY(read_type(tensor, entry, &wanted));
    TRY(read_shape(tensor, entry, &wanted));
    json_object *offsets = json_object_object_get(entry, "data_offsets");
    int64_t first = 0, end = 0;
    if (!json_object_is_type(offsets, json_type_array) || json_object_array_length(offsets) != 2 ||
        !whole_number(json_object_array_get_idx(offsets, 0), &first) ||
        !whole_number(json_object_array_get_idx(offsets, 1), &end))
        return fail(DATAERR, "data_offsets is not a pair of whole numbers");
    if (first > end || (uint64_t)end > room)
        return fail(DATAERR, "data_offsets [%lld, %lld] lie outside the file, whose data are %zu bytes",
                    (long long)first, (long long)end, room);
    if ((size_t)(end - first) != wanted)
        return fail(DATAERR, "data_offsets hold %lld bytes, shape and dtype ask for %zu", (long long)(end - first),
                    wanted);
    tensor->data = data + first;
    tensor->size = wanted;
    return OK;
}

static int by_place(const void *left, const void *right) {
    const struct stored_tensor *a = left, *b = right;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a->size < b->size ? -1 : a->size > b->size;
}

// The tensors of one file must follow each other without a hole or an overlap and fill it.
static status check_cover(struct stored_tensor *tensors, size_t count, const char *data, size_t room) {
    qsort(tensors, count, sizeof *tensors, by_place);
    const char *at = data;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i].data != at)
            return fail(DATAERR, "tensor %s: its data %s", tensors[i].name,
                        (const char *)tensors[i].data < at ? "overlap another's" : "follow a hole");
        at += tensors[i].size;
    }
    if (at != data + room) return fail(DATAERR, "%zu bytes at its end belong to no tensor", (size_t)(data + room - at));
    return OK;
}

static status read_entries(struct safetensors *store, json_object *header, const char *file, const char *data,
                           size_t room) {
    size_t before = store->count;
    TRY(RESIZE(&store->tensors, before + (size_t)json_object_object_length(header) + 1));
    json_object_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct stored_tensor *tensor = &store->tensors[store->count];
        *tensor = (struct stored_tensor){.name = arena_strndup(&store->arena, name, strlen(name)), .file = file};
        if (!tensor->name) return fail_oom();
        status result = read_entry(tensor, entry, data, room);
        if (result != OK) return fail_prefix(result, "tensor %.200s", name);
        store->count++;
    }
    return check_cover(store->tensors + before, store->count - before, data, room);
}

// Adds the tensors of one file's image.
static status add_image(struct safetensors *store, const char *image, size_t size, const char *file) {
    if (size < 8) return fail(DATAERR, "truncated: %zu bytes", size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | (unsigned char)image[i];
    if (length > most_header) return fail(DATAERR, "its header claims %llu bytes", (unsigned long long)length);
    if (length > size - 8)
        return fail(DATAERR, "truncated: its header claims %llu bytes, the file has %zu", (unsigned long long)length,
                    size);
    json_object *header = NULL;
    TRY(json_parse_object(&header, image + 8, length, "header"));
    status result = read_entries(store, header, file, image + 8 + length, size - 8 - length);
    json_object_put(header);
    return result;
}

static status add_file(struct safetensors *store, const char *path) {
    TRY(RESIZE(&store->maps, store->map_count + 1));
    TRY(file_map_open(&store->maps[store->map_count], path));
    const struct file_map *map = &store->maps[store->map_count++];
    const char *kept = arena_strndup(&store->arena, path, strlen(path));
    if (!kept) return fail_oom();
    status result = add_image(store, map->data, map->size, kept);
    return result == OK ? OK : fail_prefix(result, "%s", path);
}

static int by_text(const void *left, const void *right, void *tensors) {
    const struct stored_tensor *all = tensors;
    return strcmp(all[*(const size_t *)left].name, all[*(const size_t *)right].name);
}

static status sort_names(struct safetensors *store) {
    TRY(NEW(&store->by_name, store->count));
    for (size_t i = 0; i < store->count; i++) store->by_name[i] = i;
    qsort_r(store->by_name, store->count, sizeof *store->by_name, by_text, store->tensors);
    for (size_t i = 1; i < store->count; i++) {
        const struct stored_tensor *a = &store->tensors[store->by_name[i - 1]], *b = &store->tensors[store->by_name[i]];
        if (strcmp(a->name, b->name) == 0)
            return fail(DATAERR, "%s: tensor %s stands in %s too", b->file, b->name, a->file);
    }
    return OK;
}

static int by_string(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static status add_shard(struct safetensors *store, const char *dir, const char *name) {
    char *path = path_join(&store->arena, dir, name);
    if (!path) return fail_oom();
    return add_file(store, path);
}

// Opens each file that the index's weight_map names, in alphabetical order.
static status add_shards(struct safetensors *store, const char *dir, json_object *map) {
    size_t count = (size_t)json_object_object_length(map);
    const char **names = NULL;
    TRY(NEW(&names, count));
    size_t used = 0;
    status result = OK;
    json_object_object_foreach(map, tensor, file) {
        if (!json_object_is_type(file, json_type_string) || strchr(json_object_get_string(file), '/'))
            TRY_TO(result, done, fail(DATAERR, "%s: weight_map: %.200s: not a file's name", dir, tensor));
        names[used++] = json_object_get_string(file);
    }
    qsort(names, used, sizeof *names, by_string);
    for (size_t i = 0; i < used; i++) {
        if (i && strcmp(names[i], names[i - 1]) == 0) continue;
        if (store->map_count == most_shards) TRY_TO(result, done, fail(DATAERR, "%s: too many files", dir));
        TRY_TO(result, done, add_shard(store, dir, names[i]));
    }
done:
    free(names);
    return result;
}

// Each tensor of the index stands in the file that the index says.
static status check_index(const struct safetensors *store, const char *dir, json_object *map) {
    json_object_object_foreach(map, name, file) {
        const struct stored_tensor *tensor = safetensors_find(store, name);
        const char *slash = tensor ? strrchr(tensor->file, '/') : NULL;
        if (!tensor || strcmp(slash ? slash + 1 : tensor->file, json_object_get_string(file)) != 0)
            return fail(DATAERR, "%s/%s: tensor %.200s is not in it, as the index says", dir,
                        json_object_get_string(file), name);
    }
    return OK;
}

static status open_index(struct safetensors *store, const char *dir, const char *path) {
    json_object *index = NULL;
    TRY(json_parse_file(&index, path));
    status result = OK;
    json_object *map = json_object_object_get(index, "weight_map");
    if (!json_object_is_type(map, json_type_object))
        TRY_TO(result, done, fail(DATAERR, "%s: weight_map is missing", path));
    TRY_TO(result, done, add_shards(store, dir, map));
    TRY_TO(result, done, sort_names(store));
    TRY_TO(result, done, check_index(store, dir, map));
done:
    json_object_put(index);
    return result;
}

static status open_folder(struct safetensors *store, const char *dir) {
    char *single = path_join(&store->arena, dir, "model.safetensors");
    char *index = path_join(&store->arena, dir, "model.safetensors.index.json");
    if (!single || !index) return fail_oom();
    if (!path_exists(single) && path_exists(index)) return open_index(store, dir, index);
    TRY(add_file(store, single));
    return sort_names(store);
}

status safetensors_open_dir(struct safetensors **out, const char *dir) {
    *out = NULL;
    struct safetensors *store = NULL;
    TRY(NEW(&store, 1));
    status result = open_folder(store, dir);
    if (result != OK) safetensors_close(&store);
    *out = store;
    return result;
}

status safetensors_open(struct safetensors **out, const char *path) {
    *out = NULL;
    struct safetensors *store = NULL;
    TRY(NEW(&store, 1));
    status result = add_file(store, path);
    if (result == OK) result = sort_names(store);
    if (result != OK) safetensors_close(&store);
    *out = store;
    return result;
}

status safetensors_open_memory(struct safetensors **out, const void *data, size_t size, const char *name) {
    *out = NULL;
    struct safetensors *store = NULL;
    TRY(NEW(&store, 1));
    status result = add_image(store, data, size, name);
    if (result == OK) result = sort_names(store);
    if (result != OK) {
        safetensors_close(&store);
        fail_prefix(result, "%s", name);
    }
    *out = store;
    return result;
}

void safetensors_close(struct safetensors **store) {
    if (!*store) return;
    for (size_t i = 0; i < (*store)->map_count; i++) file_map_release(&(*store)->maps[i]);
    free((*store)->maps);
    free((*store)->tensors);
    free((*store)->by_name);
    arena_release(&(*store)->arena);
    free(*store);
    *store = NULL;
}

void safetensors_release_pages(const struct stored_tensor *tensor) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)tensor->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)tensor->data + tensor->size) / page * page;
    if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED); // a hint: it may be refused
}

size_t safetensors_count(const struct safetensors *store) {
    return store->count;
}

const struct stored_tensor *safetensors_at(const struct safetensors *store, size_t index) {
    return &store->tensors[index];
}

const struct stored_tensor *safetensors_find(const struct safetensors *store, const char *name) {
    size_t low = 0, high = store->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct stored_tensor *tensor = &store->tensors[store->by_name[middle]];
        int order = strcmp(name, tensor->name);
        if (order == 0) return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
