// Writing: the header first, then the data as they come; the file gets its name when it is complete.
//
// A durable file is written past the page cache (O_DIRECT), where the file system allows it: gigabytes that no process
// reads soon would displace what is in use, and they are written several times faster this way.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/model/safetensors.h"

enum { BLOCK_SIZE = 8 << 20, DIRECT_ALIGNMENT = 4096, PREFIX_SIZE = 8 };
static_assert(BLOCK_SIZE % DIRECT_ALIGNMENT == 0, "direct writes are whole pages");
static_assert(sizeof(float) == 4, "F32 data are the host's floats");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format's data are little-endian");

struct safetensors_writer {
    struct arena arena;
    char *path, *temporary;
    int fd;
    size_t remaining; // bytes of data still to come
    bool durable, direct;
    char *block; // of a durable file: BLOCK_SIZE bytes, aligned to pages
    size_t used; // of these
};

// Adds a value to an object, which owns it then, and returns it. NULL, and the value is freed, if either is NULL or
// memory is short.
static json_object *safetensors_header_add(json_object *object, const char *key, json_object *value) {
    if (object && value && json_object_object_add(object, key, value) == 0) return value;
    json_object_put(value);
    return NULL;
}

// Appends an integer to an array. False if the array is NULL or memory is short.
static bool safetensors_header_append(json_object *array, int64_t number) {
    json_object *value = array ? json_object_new_int64(number) : NULL;
    if (value && json_object_array_add(array, value) == 0) return true;
    json_object_put(value);
    return false;
}

// The header: its length, and its JSON, padded with blanks to a multiple of 8 bytes. *data_size = the bytes that
// follow.
static status safetensors_header(struct buf *header, const struct stored_tensor *tensors, size_t count,
                                 size_t *data_size) {
    static const char *const types[] = {[ELEMENT_F32] = "F32", [ELEMENT_BF16] = "BF16", [ELEMENT_F16] = "F16"};
    json_object *root = json_object_new_object();
    json_object *metadata = safetensors_header_add(root, "__metadata__", json_object_new_object());
    char prefix[PREFIX_SIZE] = {0};
    status result = OK;
    if (!safetensors_header_add(metadata, "format", json_object_new_string("pt"))) TRY_TO(result, done, fail_oom());
    *data_size = 0;
    for (size_t i = 0; i < count; i++) {
        const struct stored_tensor *tensor = &tensors[i];
        size_t end = *data_size + (size_t)stored_tensor_count(tensor) * element_size(tensor->type);
        assert((size_t)tensor->type < sizeof types / sizeof *types);
        json_object *entry = safetensors_header_add(root, tensor->name, json_object_new_object());
        bool complete = safetensors_header_add(entry, "dtype", json_object_new_string(types[tensor->type]));
        json_object *shape = safetensors_header_add(entry, "shape", json_object_new_array());
        for (int d = 0; d < tensor->rank; d++)
            complete = complete && safetensors_header_append(shape, tensor->shape[d]);
        json_object *offsets = safetensors_header_add(entry, "data_offsets", json_object_new_array());
        complete = complete && shape && safetensors_header_append(offsets, (int64_t)*data_size) &&
                   safetensors_header_append(offsets, (int64_t)end);
        if (!complete) TRY_TO(result, done, fail_oom());
        *data_size = end;
    }
    TRY_TO(result, done, buf_append(header, prefix, sizeof prefix));
    const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (!text) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, buf_puts(header, text));
    while (header->size % 8) TRY_TO(result, done, buf_append(header, " ", 1));
    size_t length = header->size - PREFIX_SIZE;
    for (int i = 0; i < PREFIX_SIZE; i++) header->data[i] = (char)(length >> 8 * i);
done:
    json_object_put(root);
    return result;
}

static status safetensors_error(const struct safetensors_writer *writer) {
    return fail(UNAVAILABLE, "%s: cannot write: %s", writer->path, strerror(errno));
}

static void safetensors_set_direct(struct safetensors_writer *writer, bool direct) {
    int flags = fcntl(writer->fd, F_GETFL);
    writer->direct = !fcntl(writer->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) && direct;
}

// Writes to the file, from now on through the page cache if the file system refuses direct writes or this one is not
// aligned.
static status safetensors_send(struct safetensors_writer *writer, const char *data, size_t size) {
    while (size) {
        if (writer->direct && ((uintptr_t)data % DIRECT_ALIGNMENT || size % DIRECT_ALIGNMENT))
            safetensors_set_direct(writer, false);
        ssize_t written = write(writer->fd, data, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EINVAL && writer->direct) {
            safetensors_set_direct(writer, false);
            continue;
        }
        if (written < 0) return safetensors_error(writer);
        data += written;
        size -= (size_t)written;
    }
    return OK;
}

static status safetensors_flush(struct safetensors_writer *writer) {
    TRY(safetensors_send(writer, writer->block, writer->used));
    writer->used = 0;
    return OK;
}

static status safetensors_put(struct safetensors_writer *writer, const char *data, size_t size) {
    if (!writer->durable) return safetensors_send(writer, data, size);
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

status safetensors_create(struct safetensors_writer **out, const char *path, const struct stored_tensor *tensors,
                          size_t count, bool durable) {
    *out = NULL;
    struct safetensors_writer *writer = NULL;
    struct buf header = {0};
    status result = OK;
    TRY(NEW(&writer, 1));
    writer->fd = -1;
    writer->durable = durable;
    writer->path = arena_strndup(&writer->arena, path, strlen(path));
    writer->temporary = arena_printf(&writer->arena, "%s.tmp", path);
    if (!writer->path || !writer->temporary) TRY_TO(result, done, fail_oom());
    TRY_TO(result, done, safetensors_header(&header, tensors, count, &writer->remaining));
    TRY_TO(result, done, file_lock_exclusive(writer->temporary, &writer->fd));
    struct stat info; // a file that was there before is overwritten, and what lies behind the new end is cut off
    size_t size = header.size + writer->remaining;
    if ((fstat(writer->fd, &info) || (size_t)info.st_size > size) && ftruncate(writer->fd, (off_t)size))
        TRY_TO(result, done, safetensors_error(writer));
    if (durable) {
        writer->block = aligned_alloc(DIRECT_ALIGNMENT, BLOCK_SIZE);
        if (!writer->block) TRY_TO(result, done, fail_oom());
        safetensors_set_direct(writer, true);
    }
    TRY_TO(result, done, safetensors_put(writer, header.data, header.size));
done:
    buf_release(&header);
    if (result != OK) safetensors_abort(&writer);
    *out = writer;
    return result;
}

status safetensors_write(struct safetensors_writer *writer, const void *data, size_t size) {
    if (size > writer->remaining) return fail(BUG, "%s: more data than its tensors have", writer->path);
    TRY(safetensors_put(writer, data, size));
    writer->remaining -= size;
    return OK;
}

status safetensors_sink(void *writer, const void *data, size_t size) {
    return safetensors_write(writer, data, size);
}

status safetensors_finish(struct safetensors_writer **writer) {
    struct safetensors_writer *it = *writer;
    status result = OK;
    if (it->remaining) TRY_TO(result, done, fail(BUG, "%s: %zu bytes of data are missing", it->path, it->remaining));
    if (it->durable) {
        TRY_TO(result, done, safetensors_flush(it));
        if (fsync(it->fd)) TRY_TO(result, done, safetensors_error(it));
    }
    if (rename(it->temporary, it->path)) TRY_TO(result, done, safetensors_error(it));
    it->temporary = NULL;
    if (it->durable) {
        const char *slash = strrchr(it->path, '/');
        size_t length = slash ? (size_t)(slash - it->path) + 1 : 1;
        char *dir = arena_strndup(&it->arena, slash ? it->path : ".", length);
        if (!dir) TRY_TO(result, done, fail_oom());
        TRY_TO(result, done, dir_sync(dir));
    }
done:
    safetensors_abort(writer);
    return result;
}

void safetensors_abort(struct safetensors_writer **writer) {
    struct safetensors_writer *it = *writer;
    if (!it) return;
    if (it->fd >= 0) {
        close(it->fd);
        if (it->temporary) unlink(it->temporary);
    }
    arena_release(&it->arena);
    free(it->block);
    free(it);
    *writer = NULL;
}
