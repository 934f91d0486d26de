#include "shared/model/desk.h"

#include <stdlib.h>

#include "shared/base/memory.h"

enum { smallest_chunk = 32 << 20, alignment = 64 };

static status add_chunk(struct desk *desk, size_t bytes) {
    size_t known = desk->count ? 0 : desk->peak;
    size_t size = bytes > known ? bytes : known;
    if (size < smallest_chunk) size = smallest_chunk;
    TRY(RESIZE(&desk->chunks, desk->count + 1));
    struct desk_chunk *chunk = &desk->chunks[desk->count];
    *chunk = (struct desk_chunk){NULL, size};
    TRY(desk->backend->ops->buffer_new(desk->backend, size, &chunk->memory));
    desk->chunk = desk->count++;
    desk->used = 0;
    return OK;
}

status desk_take(struct desk *desk, enum element type, int64_t rows, int64_t columns, struct tensor *out) {
    size_t bytes = (size_t)rows * (size_t)columns * element_size(type);
    bytes = (bytes + alignment - 1) / alignment * alignment;
    while (desk->chunk < desk->count && desk->chunks[desk->chunk].size - desk->used < bytes) {
        desk->chunk++;
        desk->used = 0;
    }
    if (desk->chunk >= desk->count) TRY(add_chunk(desk, bytes));
    *out = (struct tensor){desk->chunks[desk->chunk].memory, desk->used, type, rows, columns, columns};
    desk->used += bytes;
    desk->live += bytes;
    return OK;
}

status desk_put(struct desk *desk, enum element type, int64_t rows, int64_t columns, const void *host,
                struct tensor *out) {
    TRY(desk_take(desk, type, rows, columns, out));
    return rows ? desk->backend->ops->upload(desk->backend, *out, host, type) : OK;
}

struct desk_mark desk_here(const struct desk *desk) {
    return (struct desk_mark){desk->chunk, desk->used, desk->live};
}

void desk_back(struct desk *desk, struct desk_mark mark) {
    if (desk->live > desk->peak) desk->peak = desk->live;
    desk->chunk = mark.chunk;
    desk->used = mark.used;
    desk->live = mark.live;
    if (desk->count < 2 || mark.live) return;
    size_t peak = desk->peak; // several chunks that are all free become one
    desk_release(desk);
    desk->peak = peak;
}

void desk_release(struct desk *desk) {
    struct backend *backend = desk->backend;
    for (size_t i = 0; i < desk->count; i++) backend->ops->buffer_free(backend, &desk->chunks[i].memory);
    free(desk->chunks);
    *desk = (struct desk){.backend = backend};
}
