// Reading: files are mapped, their headers are checked, and their tensors go into one table sorted by name.
#include "shared/model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"

enum { MAX_HEADER = 100 << 20, MAX_SHARDS = 100000, PREFIX_SIZE = 8 };

struct safetensors {
    struct arena arena; // names and paths
    struct file_map *maps;
    size_t map_count;
    struct stored_tensor *tensors; // in the order of files and data
    size_t count;
    size_t *by_name; // indexes into tensors
};

static const char *const safetensors_types[] = {[ELEMENT_F32] = "F32", [ELEMENT_BF16] = "BF16", [ELEMENT_F16] = "F16"};
enum { SAFETENSORS_TYPES = sizeof safetensors_types / sizeof *safetensors_types };

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

// A non-negative integer that JSON wrote as one.
static bool safetensors_integer(struct json *value, int64_t *out) {
    return json_int(value, out) && *out >= 0;
}

// Reads one entry of the header; `size` bytes of data follow the header.
static status safetensors_read_entry(struct stored_tensor *tensor, struct json *entry, const char *data, size_t size) {
    if (!json_is(entry, JSON_OBJECT)) return fail(DATAERR, "its entry is not an object");
    struct json *dtype = json_at(entry, "dtype");
    if (!json_is(dtype, JSON_STRING)) return fail(DATAERR, "dtype is missing");
    int type = 0;
    while (type < SAFETENSORS_TYPES && strcmp(json_text(dtype), safetensors_types[type]) != 0) type++;
    if (type == SAFETENSORS_TYPES) return fail(DATAERR, "dtype %.20s is not F32, F16 or BF16", json_text(dtype));
    tensor->type = (enum element)type;
    size_t bytes = element_size(tensor->type);

    struct json *shape = json_at(entry, "shape");
    if (!json_is(shape, JSON_ARRAY)) return fail(DATAERR, "shape is missing");
    size_t rank = json_count(shape);
    if (rank > MAX_RANK) return fail(DATAERR, "shape has %zu dimensions, more than %d", rank, MAX_RANK);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        if (!safetensors_integer(json_item(shape, i), &tensor->shape[i]))
            return fail(DATAERR, "shape[%zu] is not a non-negative integer", i);
        if (__builtin_mul_overflow(bytes, (size_t)tensor->shape[i], &bytes) || bytes > INT64_MAX)
            return fail(DATAERR, "shape is too large");
    }

    struct json *offsets = json_at(entry, "data_offsets");
    int64_t first = 0, end = 0;
    if (!json_is(offsets, JSON_ARRAY) || json_count(offsets) != 2 ||
        !safetensors_integer(json_item(offsets, 0), &first) || !safetensors_integer(json_item(offsets, 1), &end))
        return fail(DATAERR, "data_offsets is not an array of two non-negative integers");
    if (first > end || (uint64_t)end > size)
        return fail(DATAERR, "data_offsets [%lld, %lld] lie outside the file, whose data are %zu bytes",
                    (long long)first, (long long)end, size);
    if ((size_t)(end - first) != bytes)
        return fail(DATAERR, "data_offsets hold %lld bytes, but shape and dtype need %zu", (long long)(end - first),
                    bytes);
    tensor->data = data + first;
    tensor->size = bytes;
    return OK;
}

static int safetensors_compare_data(const void *left, const void *right) {
    const struct stored_tensor *a = left, *b = right;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a->size < b->size ? -1 : a->size > b->size;
}

// Adds the tensors of a file's image. They must fill the file's data without a hole or an overlap.
static status safetensors_add_image(struct safetensors *store, const char *image, size_t size, const char *file) {
    if (file_is_lfs_pointer(image, size))
        return fail(DATAERR, "a pointer of Git LFS, not the weights: type git lfs pull in its directory");
    if (size < PREFIX_SIZE) return fail(DATAERR, "truncated: %zu bytes", size);
    uint64_t length = 0;
    for (int i = PREFIX_SIZE - 1; i >= 0; i--) length = length << 8 | (unsigned char)image[i];
    if (length > MAX_HEADER) return fail(DATAERR, "its header claims %llu bytes", (unsigned long long)length);
    if (length > size - PREFIX_SIZE)
        return fail(DATAERR, "truncated: its header claims %llu bytes, the file has %zu", (unsigned long long)length,
                    size);
    const char *data = image + PREFIX_SIZE + length, *end = image + size;
    size_t before = store->count;
    struct arena arena = {0};
    struct json *header;
    status result;
    TRY_TO(result, done, json_parse_object(&header, &arena, image + PREFIX_SIZE, length, "header"));
    RESIZE(&store->tensors, before + (size_t)json_count(header) + 1);
    JSON_EACH(entry, header) {
        const char *name = entry->key.data;
        if (strcmp(name, "__metadata__") == 0) continue;
        struct stored_tensor *tensor = &store->tensors[store->count];
        *tensor = (struct stored_tensor){.name = arena_strndup(&store->arena, name, strlen(name)), .file = file};
        result = safetensors_read_entry(tensor, entry, data, (size_t)(end - data));
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "tensor %.200s", name));
        store->count++;
    }
    qsort(store->tensors + before, store->count - before, sizeof *store->tensors, safetensors_compare_data);
    const char *at = data;
    for (size_t i = before; i < store->count; i++) {
        const struct stored_tensor *tensor = &store->tensors[i];
        if (tensor->data != at)
            TRY_TO(result, done,
                   fail(DATAERR, "tensor %s: its data %s", tensor->name,
                        (const char *)tensor->data < at ? "overlap another tensor's" : "follow a hole"));
        at += tensor->size;
    }
    assert(at <= end); // each tensor's data end in the file
    if (at != end) result = fail(DATAERR, "%zu bytes at its end belong to no tensor", (size_t)(end - at));
done:
    arena_release(&arena);
    return result;
}

static status safetensors_add_file(struct safetensors *store, const char *path) {
    RESIZE(&store->maps, store->map_count + 1);
    TRY(file_map_open(&store->maps[store->map_count], path));
    const struct file_map *map = &store->maps[store->map_count++];
    const char *file = arena_strndup(&store->arena, path, strlen(path));
    status result = safetensors_add_image(store, map->data, map->size, file);
    return result == OK ? OK : fail_prefix(result, "%s", path);
}

static int safetensors_compare_names(const void *left, const void *right, void *tensors) {
    const struct stored_tensor *all = tensors;
    return strcmp(all[*(const size_t *)left].name, all[*(const size_t *)right].name);
}

static status safetensors_sort_names(struct safetensors *store) {
    NEW(&store->by_name, store->count);
    for (size_t i = 0; i < store->count; i++) store->by_name[i] = i;
    qsort_r(store->by_name, store->count, sizeof *store->by_name, safetensors_compare_names, store->tensors);
    for (size_t i = 1; i < store->count; i++) {
        const struct stored_tensor *a = &store->tensors[store->by_name[i - 1]], *b = &store->tensors[store->by_name[i]];
        assert(strcmp(a->name, b->name) <= 0);
        if (strcmp(a->name, b->name) == 0)
            return fail(DATAERR, "%s: tensor %s is also in %s", b->file, b->name, a->file);
    }
    return OK;
}

status safetensors_open_dir(struct safetensors **out, const char *dir) {
    struct arena arena = {0};
    const char *single = path_join(&arena, dir, "model.safetensors");
    const char *path = path_join(&arena, dir, "model.safetensors.index.json");
    struct json *index;
    size_t count = 0;
    status result;
    *out = NULL;
    if (path_exists(single) || !path_exists(path)) {
        result = safetensors_open(out, single);
        goto done;
    }

    // The shards that the index names, in alphabetical order.
    NEW(out, 1);
    TRY_TO(result, done, json_parse_file(&index, &arena, path));
    struct json *weight_map = json_at(index, "weight_map");
    if (!json_is(weight_map, JSON_OBJECT)) TRY_TO(result, done, fail(DATAERR, "%s: weight_map is missing", path));
    const char **files = arena_alloc(&arena, json_count(weight_map) * sizeof *files);
    JSON_EACH(file, weight_map) {
        if (!json_is(file, JSON_STRING) || strchr(file->text.data, '/'))
            TRY_TO(result, done,
                   fail(DATAERR, "%s: weight_map: %.200s is not mapped to a file name", path, file->key.data));
        files[count++] = json_text(file);
    }
    qsort(files, count, sizeof *files, path_compare);
    for (size_t i = 0; i < count; i++) {
        if (i && strcmp(files[i], files[i - 1]) == 0) continue;
        if ((*out)->map_count == MAX_SHARDS) TRY_TO(result, done, fail(DATAERR, "%s: too many files", dir));
        TRY_TO(result, done, safetensors_add_file(*out, path_join(&arena, dir, files[i])));
    }
    TRY_TO(result, done, safetensors_sort_names(*out));
    JSON_EACH(file, weight_map) { // each tensor must be in the file that the index says
        const struct stored_tensor *tensor = safetensors_find(*out, file->key.data);
        if (!tensor || strcmp(path_base_name(tensor->file), file->text.data) != 0)
            TRY_TO(result, done,
                   fail(DATAERR, "%s/%s: tensor %.200s is not in it, although the index says so", dir, file->text.data,
                        file->key.data));
    }
done:
    if (result != OK) safetensors_close(out);
    arena_release(&arena);
    return result;
}

status safetensors_open(struct safetensors **out, const char *path) {
    return safetensors_open_part(out, path, "");
}

status safetensors_open_part(struct safetensors **out, const char *path, const char *prefix) {
    const size_t length = strlen(prefix);
    NEW(out, 1);
    struct safetensors *store = *out;
    status result = safetensors_add_file(store, path);
    const size_t all = store->count;
    store->count = 0;
    for (size_t i = 0; result == OK && i < all; i++) {
        struct stored_tensor tensor = store->tensors[i];
        if (strncmp(tensor.name, prefix, length) != 0) continue;
        tensor.name += length;
        store->tensors[store->count++] = tensor;
    }
    if (result == OK) result = safetensors_sort_names(store);
    if (result != OK) safetensors_close(out);
    return result;
}

status safetensors_open_memory(struct safetensors **out, const void *data, size_t size, const char *name) {
    NEW(out, 1);
    status result = safetensors_add_image(*out, data, size, name);
    if (result == OK) result = safetensors_sort_names(*out);
    if (result == OK) return OK;
    safetensors_close(out);
    return fail_prefix(result, "%s", name);
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
    if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED); // a hint, which may be refused
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

// ---- writing ----

// Rank 0 makes the file in its full length with its header; then each rank writes its data where they belong. The file
// gets its name when all have.
//
// A durable file of one process is written past the page cache (O_DIRECT), where the file system allows it: gigabytes
// that no process reads soon would displace what is in use, and they are written several times faster this way. Not so
// with several ranks: one's data may begin in a page in which another's end, and a page that is cached must not be
// written directly at the same time.

enum { BLOCK_SIZE = 8 << 20, DIRECT_ALIGNMENT = 4096 };
#define RANK_FAILED UINT64_MAX // what a rank shows at a meeting instead of the bytes that it has written
static_assert(BLOCK_SIZE % DIRECT_ALIGNMENT == 0, "direct writes are whole pages");
static_assert(sizeof(float) == 4, "F32 data are the host's floats");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format's data are little-endian");

struct safetensors_writer {
    struct arena arena;
    char *path, *temporary;   // temporary: NULL when it is not to be removed
    struct file_ranks *ranks; // NULL: one process
    bool awaited;             // the other ranks wait for this one at the next meeting
    int fd;
    size_t count, *starts; // of tensors; where each one's data begin, and, behind the last one, the file's size
    uint64_t written;      // bytes of data, by this rank
    bool durable, direct;
    char *block;        // of a durable file of one process: BLOCK_SIZE bytes, aligned to pages; else NULL
    size_t block_start; // in the file
    size_t used;        // bytes of the block
};

static status safetensors_error(const struct safetensors_writer *writer) {
    return fail(UNAVAILABLE, "%s: cannot write: %s", writer->path, strerror(errno));
}

static void safetensors_set_direct(struct safetensors_writer *writer, bool direct) {
    int flags = fcntl(writer->fd, F_GETFL);
    writer->direct = !fcntl(writer->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) && direct;
}

// Writes to the file, from now on through the page cache if the file system refuses direct writes or this one is not
// aligned.
static status safetensors_send(struct safetensors_writer *writer, size_t start, const char *data, size_t size) {
    while (size) {
        if (writer->direct && ((uintptr_t)data | start | size) % DIRECT_ALIGNMENT)
            safetensors_set_direct(writer, false);
        ssize_t written = pwrite(writer->fd, data, size, (off_t)start);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EINVAL && writer->direct) {
            safetensors_set_direct(writer, false);
            continue;
        }
        if (written < 0) return safetensors_error(writer);
        data += written;
        start += (size_t)written;
        size -= (size_t)written;
    }
    return OK;
}

static status safetensors_flush(struct safetensors_writer *writer) {
    TRY(safetensors_send(writer, writer->block_start, writer->block, writer->used));
    writer->block_start += writer->used;
    writer->used = 0;
    return OK;
}

static status safetensors_put(struct safetensors_writer *writer, size_t start, const char *data, size_t size) {
    if (!writer->block) return safetensors_send(writer, start, data, size);
    if (start != writer->block_start + writer->used) {
        TRY(safetensors_flush(writer));
        writer->block_start = start;
    }
    while (size) {
        size_t part = BLOCK_SIZE - writer->used < size ? BLOCK_SIZE - writer->used : size;
        memcpy(writer->block + writer->used, data, part);
        writer->used += part;
        data += part;
        size -= part;
        assert(writer->used <= BLOCK_SIZE);
        if (writer->used == BLOCK_SIZE) TRY(safetensors_flush(writer));
    }
    return OK;
}

// Shows `own` to all ranks. *bytes = the sum of what they have shown. UNAVAILABLE when one has failed or is gone: then
// they meet no more.
static status safetensors_meet(struct safetensors_writer *writer, uint64_t own, uint64_t *bytes) {
    struct file_ranks *ranks = writer->ranks;
    *bytes = own;
    if (!ranks) return OK;
    uint64_t *all = arena_alloc(&writer->arena, (size_t)ranks->count * sizeof *all);
    all[ranks->own] = own;
    writer->awaited = false;
    const status result = ranks->meet(ranks, all);
    if (result != OK) return fail_prefix(result, "%s", writer->path);
    *bytes = 0;
    for (int r = 0; r < ranks->count; r++) {
        if (all[r] == RANK_FAILED) return fail(UNAVAILABLE, "%s: rank %d could not write it", writer->path, r);
        *bytes += all[r];
    }
    writer->awaited = true;
    return OK;
}

// The file's first bytes, and where each tensor's data begin and the last one's end: a function of the table alone.
static void safetensors_layout(struct buf *header, size_t *starts, const struct stored_tensor *tensors, size_t count) {
    static const char prefix[PREFIX_SIZE] = {0};
    starts[0] = 0; // of the data, until the header's size is known

    // The header: its length, and its JSON, padded with blanks to a multiple of 8 bytes.
    buf_append(header, prefix, sizeof prefix);
    buf_puts(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < count; i++) {
        const struct stored_tensor *tensor = &tensors[i];
        starts[i + 1] = starts[i] + (size_t)stored_tensor_count(tensor) * element_size(tensor->type);
        assert((int)tensor->type < SAFETENSORS_TYPES);
        buf_puts(header, ",");
        json_print_string(header, tensor->name, strlen(tensor->name));
        buf_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_types[tensor->type]);
        for (int d = 0; d < tensor->rank; d++) buf_printf(header, "%s%lld", d ? "," : "", (long long)tensor->shape[d]);
        buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", starts[i], starts[i + 1]);
    }
    buf_puts(header, "}");
    while (header->size % 8) buf_append(header, " ", 1);
    for (int i = 0; i < PREFIX_SIZE; i++) header->data[i] = (char)((header->size - PREFIX_SIZE) >> 8 * i);
    for (size_t i = 0; i <= count; i++) starts[i] += header->size;
}

status safetensors_create(struct safetensors_writer **out, const char *path, const struct stored_tensor *tensors,
                          size_t count, bool durable, struct file_ranks *ranks) {
    *out = NULL;
    struct safetensors_writer *writer = NULL;
    struct buf header = {0};
    struct stat info;
    uint64_t bytes;
    status result = OK;
    NEW(&writer, 1);
    writer->fd = -1;
    writer->durable = durable;
    if (ranks && ranks->count == 1) ranks = NULL;
    writer->ranks = ranks;
    writer->awaited = ranks;
    writer->path = arena_strndup(&writer->arena, path, strlen(path));
    writer->temporary = arena_printf(&writer->arena, "%s.tmp", path);
    writer->count = count;
    writer->starts = arena_alloc(&writer->arena, (count + 1) * sizeof *writer->starts);
    safetensors_layout(&header, writer->starts, tensors, count);
    const size_t size = writer->starts[count];

    const bool leader = !ranks || ranks->own == 0;
    if (leader) {
        // A device or a pipe, such as /dev/null, would be replaced by the file.
        if (!stat(path, &info) && !S_ISREG(info.st_mode))
            TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot write: it exists and is not a file", path));
        // A file that was there before is overwritten, but not where a rank that failed may still write into it.
        if (ranks) (void)unlink(writer->temporary);
        TRY_TO(result, done, file_lock_exclusive(writer->temporary, &writer->fd));
        if ((fstat(writer->fd, &info) || (size_t)info.st_size != size) && ftruncate(writer->fd, (off_t)size))
            TRY_TO(result, done, safetensors_error(writer));
        if (durable && !ranks) {
            writer->block = mem_checked(aligned_alloc(DIRECT_ALIGNMENT, BLOCK_SIZE));
            safetensors_set_direct(writer, true);
        }
        TRY_TO(result, done, safetensors_put(writer, 0, header.data, header.size));
    }
    TRY_TO(result, done, safetensors_meet(writer, 0, &bytes));
    if (!leader && !ranks->away) writer->fd = open(writer->temporary, O_WRONLY | O_CLOEXEC);
    if (!leader) writer->temporary = NULL; // rank 0's
    if (!leader && !ranks->away) {
        if (writer->fd < 0 || fstat(writer->fd, &info)) TRY_TO(result, done, safetensors_error(writer));
        if ((size_t)info.st_size != size)
            TRY_TO(result, done,
                   fail(UNAVAILABLE, "%s: cannot write: it has %lld bytes, but rank %d writes %zu", path,
                        (long long)info.st_size, ranks->own, size));
    }
    TRY_TO(result, done, safetensors_meet(writer, 0, &bytes));
done:
    buf_release(&header);
    if (result != OK) safetensors_abort(&writer);
    *out = writer;
    return result;
}

status safetensors_write(struct safetensors_writer *writer, size_t tensor, size_t at, const void *data, size_t size) {
    const size_t *starts = writer->starts;
    if (tensor >= writer->count || at > starts[tensor + 1] - starts[tensor] ||
        size > starts[tensor + 1] - starts[tensor] - at)
        return fail(BUG, "%s: more data than its tensors have", writer->path);
    TRY(safetensors_put(writer, starts[tensor] + at, data, size));
    writer->written += size;
    return OK;
}

status safetensors_finish(struct safetensors_writer **finished) {
    struct safetensors_writer *writer = *finished;
    const uint64_t size = writer->starts[writer->count] - writer->starts[0];
    const char *slash = strrchr(writer->path, '/');
    uint64_t bytes;
    status result = OK;
    if (writer->block) TRY_TO(result, done, safetensors_flush(writer));
    if (writer->durable && writer->fd >= 0 && fdatasync(writer->fd)) TRY_TO(result, done, safetensors_error(writer));
    TRY_TO(result, done, safetensors_meet(writer, writer->written, &bytes));
    writer->awaited = false;
    if (bytes != size)
        TRY_TO(result, done,
               fail(BUG, "%s: %llu bytes of data were written instead of %llu", writer->path, (unsigned long long)bytes,
                    (unsigned long long)size));
    if (!writer->temporary) goto done; // rank 0 names it
    if (rename(writer->temporary, writer->path)) TRY_TO(result, done, safetensors_error(writer));
    writer->temporary = NULL;
    const size_t length = slash ? (size_t)(slash - writer->path) + 1 : 1;
    if (writer->durable) result = dir_sync(arena_strndup(&writer->arena, slash ? writer->path : ".", length));
done:
    safetensors_abort(finished);
    return result;
}

void safetensors_abort(struct safetensors_writer **aborted) {
    struct safetensors_writer *writer = *aborted;
    if (!writer) return;
    if (writer->awaited) {
        uint64_t bytes;
        char *reason = arena_strndup(&writer->arena, fail_text(), strlen(fail_text()));
        (void)safetensors_meet(writer, RANK_FAILED, &bytes);
        (void)fail(UNAVAILABLE, "%s", reason);
    }
    if (writer->fd >= 0) {
        close(writer->fd);
        if (writer->temporary) unlink(writer->temporary);
    }
    arena_release(&writer->arena);
    free(writer->block);
    free(writer);
    *aborted = NULL;
}
