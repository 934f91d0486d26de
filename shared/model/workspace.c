#include "shared/model/workspace.h"

#include <stdlib.h>

#include "shared/base/memory.h"

enum { smallest_chunk = 32 << 20, alignment = 64 };

static status add_chunk(struct workspace *workspace, size_t bytes) {
    size_t known = workspace->count ? 0 : workspace->peak;
    size_t size = bytes > known ? bytes : known;
    if (size < smallest_chunk) size = smallest_chunk;
    TRY(RESIZE(&workspace->chunks, workspace->count + 1));
    struct workspace_chunk *chunk = &workspace->chunks[workspace->count];
    *chunk = (struct workspace_chunk){NULL, size};
    TRY(workspace->backend->ops->buffer_new(workspace->backend, size, &chunk->memory));
    workspace->chunk = workspace->count++;
    workspace->used = 0;
    return OK;
}

status workspace_alloc(struct workspace *workspace, enum element type, int64_t rows, int64_t columns,
                       struct tensor *out) {
    size_t bytes = (size_t)rows * (size_t)columns * element_size(type);
    bytes = (bytes + alignment - 1) / alignment * alignment;
    while (workspace->chunk < workspace->count && workspace->chunks[workspace->chunk].size - workspace->used < bytes) {
        workspace->chunk++;
        workspace->used = 0;
    }
    if (workspace->chunk >= workspace->count) TRY(add_chunk(workspace, bytes));
    *out = (struct tensor){workspace->chunks[workspace->chunk].memory, workspace->used, type, rows, columns, columns};
    workspace->used += bytes;
    workspace->live += bytes;
    return OK;
}

status workspace_upload(struct workspace *workspace, enum element type, int64_t rows, int64_t columns, const void *host,
                        struct tensor *out) {
    TRY(workspace_alloc(workspace, type, rows, columns, out));
    return rows ? workspace->backend->ops->upload(workspace->backend, *out, host, type) : OK;
}

struct workspace_mark workspace_save(const struct workspace *workspace) {
    return (struct workspace_mark){workspace->chunk, workspace->used, workspace->live};
}

void workspace_restore(struct workspace *workspace, struct workspace_mark mark) {
    if (workspace->live > workspace->peak) workspace->peak = workspace->live;
    workspace->chunk = mark.chunk;
    workspace->used = mark.used;
    workspace->live = mark.live;
    if (workspace->count < 2 || mark.live) return;
    size_t peak = workspace->peak; // several chunks that are all free become one
    workspace_release(workspace);
    workspace->peak = peak;
}

void workspace_release(struct workspace *workspace) {
    struct backend *backend = workspace->backend;
    for (size_t i = 0; i < workspace->count; i++) backend->ops->buffer_free(backend, &workspace->chunks[i].memory);
    free(workspace->chunks);
    *workspace = (struct workspace){.backend = backend};
}
