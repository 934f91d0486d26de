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

// The header: its length, and its JSON, padded with blanks to a multiple of 8 bytes. *data_size = the bytes that
// follow.
static void safetensors_header(struct buf *header, const struct stored_tensor *tensors, size_t count,
                               size_t *data_size) {
    static const char *const types[] = {[ELEMENT_F32] = "F32", [ELEMENT_BF16] = "BF16", [ELEMENT_F16] = "F16"};
    char prefix[PREFIX_SIZE] = {0};
    buf_append(header, prefix, sizeof prefix);
    buf_puts(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    *data_size = 0;
    for (size_t i = 0; i < count; i++) {
        const struct stored_tensor *tensor = &tensors[i];
        const size_t end = *data_size + (size_t)stored_tensor_count(tensor) * element_size(tensor->type);
        assert((size_t)tensor->type < sizeof types / sizeof *types);
        buf_puts(header, ",");
        json_print_string(header, tensor->name, strlen(tensor->name));
        buf_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", types[tensor->type]);
        for (int d = 0; d < tensor->rank; d++) buf_printf(header, "%s%lld", d ? "," : "", (long long)tensor->shape[d]);
        buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", *data_size, end);
        *data_size = end;
    }
    buf_puts(header, "}");
    while (header->size % 8) buf_append(header, " ", 1);
    size_t length = header->size - PREFIX_SIZE;
    for (int i = 0; i < PREFIX_SIZE; i++) header->data[i] = (char)(length >> 8 * i);
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
    NEW(&writer, 1);
    writer->fd = -1;
    writer->durable = durable;
    writer->path = arena_strndup(&writer->arena, path, strlen(path));
    writer->temporary = arena_printf(&writer->arena, "%s.tmp", path);
    safetensors_header(&header, tensors, count, &writer->remaining);
    TRY_TO(result, done, file_lock_exclusive(writer->temporary, &writer->fd));
    struct stat info; // a file that was there before is overwritten, and what lies behind the new end is cut off
    size_t size = header.size + writer->remaining;
    if ((fstat(writer->fd, &info) || (size_t)info.st_size > size) && ftruncate(writer->fd, (off_t)size))
        TRY_TO(result, done, safetensors_error(writer));
    if (durable) {
        writer->block = mem_checked(aligned_alloc(DIRECT_ALIGNMENT, BLOCK_SIZE));
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
