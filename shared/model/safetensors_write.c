// Writing: the header first, then the data as they come; the file gets its name only when it is whole.
//
// A lasting file goes to the disk past the page cache, where the file system allows it: gigabytes that nobody reads
// soon would push out what is in use, and are written several times faster so.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/json.h"
#include "shared/model/safetensors.h"

struct safetensors_writer {
    struct arena arena;
    char *path, *temporary;
    int file;
    size_t left; // bytes of data still to come
    bool lasting, direct;
    char *room; // a lasting file's: `piece` bytes, aligned to pages
    size_t used;
};

enum { piece = 8 << 20, page = 4096 };

static size_t bytes_of(const struct stored_tensor *tensor) {
    return (size_t)stored_tensor_count(tensor) * (tensor->type == ELEMENT_F32 ? 4 : 2);
}

static json_object *entry_of(const struct stored_tensor *tensor, size_t first, size_t end) {
    static const char *const types[] = {[ELEMENT_F32] = "F32", [ELEMENT_BF16] = "BF16", [ELEMENT_F16] = "F16"};
    json_object *entry = json_object_new_object(), *shape = json_object_new_array(), *offset = json_object_new_array();
    if (!entry || !shape || !offset) {
        json_object_put(entry);
        json_object_put(shape);
        json_object_put(offset);
        return NULL;
    }
    for (int i = 0; i < tensor->rank; i++) json_object_array_add(shape, json_object_new_int64(tensor->shape[i]));
    json_object_array_add(offset, json_object_new_int64((int64_t)first));
    json_object_array_add(offset, json_object_new_int64((int64_t)end));
    json_object_object_add(entry, "dtype", json_object_new_string(types[tensor->type]));
    json_object_object_add(entry, "shape", shape);
    json_object_object_add(entry, "data_offsets", offset);
    return entry;
}

// The header's JSON, padded with blanks to a multiple of 8 bytes; *data = the bytes of data that follow it.
static status make_header(struct buf *header, const struct stored_tensor *tensors, size_t count, size_t *data) {
    json_object *all = json_object_new_object(), *metadata = json_object_new_object();
    status result = OK;
    if (!all || !metadata) TRY_TO(result, done, fail_oom());
    json_object_object_add(metadata, "format", json_object_new_string("pt"));
    json_object_object_add(all, "__metadata__", json_object_get(metadata));
    *data = 0;
    for (size_t i = 0; i < count; i++) {
        size_t end = *data + bytes_of(&tensors[i]);
        json_object *entry = entry_of(&tensors[i], *data, end);
        if (!entry) TRY_TO(result, done, fail_oom());
        json_object_object_add(all, tensors[i].name, entry);
        *data = end;
    }
    TRY_TO(
        result, done,
        buf_puts(header, json_object_to_json_string_ext(all, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE)));
    while (header->size % 8) TRY_TO(result, done, buf_append(header, " ", 1));
done:
    json_object_put(metadata);
    json_object_put(all);
    return result;
}

static void set_direct(struct safetensors_writer *writer, bool direct) {
    int flags = fcntl(writer->file, F_GETFL);
    writer->direct = !fcntl(writer->file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) && direct;
}

static status send(struct safetensors_writer *writer, const char *data, size_t size) {
    while (size) {
        if (writer->direct && ((uintptr_t)data % page || size % page)) set_direct(writer, false);
        ssize_t done = write(writer->file, data, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EINVAL && writer->direct) {
            set_direct(writer, false);
            continue;
        }
        if (done < 0) return fail(UNAVAILABLE, "%s: cannot write: %s", writer->path, strerror(errno));
        data += done;
        size -= (size_t)done;
    }
    return OK;
}

static status flush(struct safetensors_writer *writer) {
    TRY(send(writer, writer->room, writer->used));
    writer->used = 0;
    return OK;
}

static status put(struct safetensors_writer *writer, const char *data, size_t size) {
    if (!writer->lasting) return send(writer, data, size);
    while (size) {
        size_t some = piece - writer->used < size ? piece - writer->used : size;
        memcpy(writer->room + writer->used, data, some);
        writer->used += some;
        data += some;
        size -= some;
        if (writer->used == piece) TRY(flush(writer));
    }
    return OK;
}

// A file that was there before is written over, its end cut off.
static status shorten(struct safetensors_writer *writer, size_t size) {
    struct stat about;
    if (!fstat(writer->file, &about) && (size_t)about.st_size <= size) return OK;
    if (!ftruncate(writer->file, (off_t)size)) return OK;
    return fail(UNAVAILABLE, "%s: cannot write: %s", writer->path, strerror(errno));
}

static status start_lasting(struct safetensors_writer *writer) {
    writer->room = aligned_alloc(page, piece);
    if (!writer->room) return fail_oom();
    set_direct(writer, true);
    return OK;
}

static status start(struct safetensors_writer *writer, const char *path, const struct stored_tensor *tensors,
                    size_t count) {
    writer->path = arena_strndup(&writer->arena, path, strlen(path));
    writer->temporary = arena_printf(&writer->arena, "%s.tmp", path);
    if (!writer->path || !writer->temporary) return fail_oom();
    struct buf header = {0};
    status result = OK;
    TRY_TO(result, done, make_header(&header, tensors, count, &writer->left));
    TRY_TO(result, done, file_lock_exclusive(writer->temporary, &writer->file));
    TRY_TO(result, done, shorten(writer, 8 + header.size + writer->left));
    if (writer->lasting) TRY_TO(result, done, start_lasting(writer));
    char length[8];
    for (int i = 0; i < 8; i++) length[i] = (char)(header.size >> 8 * i);
    TRY_TO(result, done, put(writer, length, sizeof length));
    TRY_TO(result, done, put(writer, header.data, header.size));
done:
    buf_release(&header);
    return result;
}

status safetensors_create(struct safetensors_writer **out, const char *path, const struct stored_tensor *tensors,
                          size_t count, bool lasting) {
    *out = NULL;
    struct safetensors_writer *writer = NULL;
    TRY(NEW(&writer, 1));
    writer->file = -1;
    writer->lasting = lasting;
    status result = start(writer, path, tensors, count);
    if (result != OK) safetensors_abort(&writer);
    *out = writer;
    return result;
}

status safetensors_write(struct safetensors_writer *writer, const void *data, size_t size) {
    if (size > writer->left) return fail(BUG, "%s: more data than tensors", writer->path);
    TRY(put(writer, data, size));
    writer->left -= size;
    return OK;
}

status safetensors_sink(void *writer, const void *data, size_t size) {
    return safetensors_write(writer, data, size);
}

static status sync_folder_of(const char *path) {
    struct arena arena = {0};
    const char *slash = strrchr(path, '/');
    char *dir = slash ? arena_strndup(&arena, path, (size_t)(slash - path) + 1) : arena_strndup(&arena, ".", 1);
    status result = dir ? dir_sync(dir) : fail_oom();
    arena_release(&arena);
    return result;
}

// Gives the file its name.
static status settle(struct safetensors_writer *it) {
    if (it->left) return fail(BUG, "%s: %zu bytes of data are missing", it->path, it->left);
    if (rename(it->temporary, it->path)) return fail(UNAVAILABLE, "%s: cannot write: %s", it->path, strerror(errno));
    it->temporary = NULL;
    return OK;
}

status safetensors_finish(struct safetensors_writer **writer) {
    struct safetensors_writer *it = *writer;
    status result = it->lasting ? flush(it) : OK;
    if (result == OK && it->lasting && fsync(it->file))
        result = fail(UNAVAILABLE, "%s: cannot write: %s", it->path, strerror(errno));
    if (result == OK) result = settle(it);
    if (result == OK && it->lasting) result = sync_folder_of(it->path);
    safetensors_abort(writer);
    return result;
}

void safetensors_abort(struct safetensors_writer **writer) {
    struct safetensors_writer *it = *writer;
    if (!it) return;
    if (it->file >= 0) {
        close(it->file);
        if (it->temporary) unlink(it->temporary);
    }
    arena_release(&it->arena);
    free(it->room);
    free(it);
    *writer = NULL;
}
