// A list of chunks of device memory with one position in it. When everything is free again, several chunks become one.
#include "shared/model/workspace.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"

enum { MIN_CHUNK = 32 << 20, ALIGNMENT = 256 };
static_assert((ALIGNMENT & (ALIGNMENT - 1)) == 0, "an alignment is a power of two");
static_assert(MIN_CHUNK % ALIGNMENT == 0, "a chunk holds whole units of alignment");

size_t workspace_chunk_size(size_t bytes) {
    return bytes > MIN_CHUNK ? bytes : MIN_CHUNK;
}

// Frees the memory, and keeps what is known of its uses.
static void workspace_free_chunks(struct workspace *workspace) {
    struct backend *backend = workspace->backend;
    for (size_t i = 0; i < workspace->count; i++) backend->ops->buffer_free(backend, &workspace->chunks[i].memory);
    free(workspace->chunks);
    workspace->chunks = NULL;
    workspace->count = workspace->chunk = workspace->used = workspace->live = 0;
}

status workspace_alloc(struct workspace *workspace, enum element type, int64_t rows, int64_t columns,
                       struct tensor *out) {
    assert(rows >= 0 && columns >= 0);
    size_t bytes = (size_t)rows * (size_t)columns * element_size(type);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    while (workspace->chunk < workspace->count && workspace->chunks[workspace->chunk].size - workspace->used < bytes) {
        workspace->chunk++;
        workspace->used = 0;
    }
    if (workspace->chunk >= workspace->count) {
        size_t most = workspace->peak > workspace->expected ? workspace->peak : workspace->expected;
        if (workspace->count || most < bytes) most = bytes;
        size_t size = workspace_chunk_size(most);
        RESIZE(&workspace->chunks, workspace->count + 1);
        struct workspace_chunk *chunk = &workspace->chunks[workspace->count];
        *chunk = (struct workspace_chunk){NULL, size};
        TRY(workspace->backend->ops->buffer_new(workspace->backend, size, &chunk->memory));
        workspace->chunk = workspace->count++;
        workspace->used = 0;
    }
    assert(workspace->used % ALIGNMENT == 0);
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

status workspace_reserve(struct workspace *workspace) {
    assert(workspace->live == 0 && workspace->count < 2); // several chunks are freed when nothing is in use
    if (workspace->count) return OK;
    struct workspace_mark mark = workspace_save(workspace);
    struct tensor any;
    TRY(workspace_alloc(workspace, ELEMENT_U8, 1, 1, &any));
    workspace_restore(workspace, mark);
    return OK;
}

void workspace_expect(struct workspace *workspace, size_t bytes) {
    assert(workspace->live == 0);
    if (workspace->expected >= bytes) return;
    if (workspace_size(workspace) < bytes) workspace_free_chunks(workspace);
    workspace->expected = bytes;
}

struct workspace_mark workspace_save(const struct workspace *workspace) {
    return (struct workspace_mark){workspace->chunk, workspace->used, workspace->live};
}

void workspace_restore(struct workspace *workspace, struct workspace_mark mark) {
    assert(mark.live <= workspace->live);
    if (workspace->live > workspace->peak) workspace->peak = workspace->live;
    workspace->chunk = mark.chunk;
    workspace->used = mark.used;
    workspace->live = mark.live;
    if (workspace->count > 1 && !mark.live) workspace_free_chunks(workspace); // the next use makes one of them
}

size_t workspace_size(const struct workspace *workspace) {
    size_t size = 0;
    for (size_t i = 0; i < workspace->count; i++) size += workspace->chunks[i].size;
    return size;
}

void workspace_release(struct workspace *workspace) {
    workspace_free_chunks(workspace);
    *workspace = (struct workspace){.backend = workspace->backend};
}

status kv_scratch_reserve(struct kv_scratch *kv, struct backend *backend, enum element type, int64_t rows,
                          struct heads heads) {
    if (kv->rows >= rows) return OK;
    kv_scratch_release(kv, backend);
    TRY(backend->ops->kv_cache_new(backend, &kv->cache, type, 1, rows, heads));
    kv->rows = rows;
    return OK;
}

void kv_scratch_release(struct kv_scratch *kv, struct backend *backend) {
    backend->ops->kv_cache_free(backend, &kv->cache);
    kv->rows = 0;
}

// ---- rotary angles ----

// Angles are computed in float32, as in Hugging Face, and their cosines and sines in double.

enum { MIN_POSITIONS = 1024 };

static float rope_angles_round(float value) {
    union {
        float number;
        uint32_t bits;
    } rounded = {value};
    rounded.bits = (rounded.bits + 0x7fffu + (rounded.bits >> 16 & 1)) & 0xffff0000u;
    return rounded.number;
}

// The rows of a table that has at least `positions`.
static int64_t rope_angles_rows(int64_t positions) {
    int64_t rows = MIN_POSITIONS;
    while (rows < positions) rows *= 2;
    return rows;
}

size_t rope_angles_bytes(int pairs, int64_t positions) {
    return 2 * (size_t)rope_angles_rows(positions) * (size_t)pairs * sizeof(float);
}

status rope_angles_reserve(struct rope_angles *angles, struct backend *backend, int64_t positions) {
    struct rope_table *table = &angles->table;
    if (table->cos.rows >= positions) return OK;
    const int64_t rows = rope_angles_rows(positions), pairs = angles->pairs;
    const size_t count = (size_t)rows * (size_t)pairs, bytes = count * sizeof(float);
    float *cosines = NULL, *sines;
    TRY(NEW_LARGE(&cosines, 2 * count));
    sines = cosines + count;
    for (int64_t j = 0; j < pairs; j++) {
        float exponent = (float)(2 * (j % angles->period)) / (float)(2 * angles->period);
        float frequency = 1.0f / (float)pow(angles->theta, (double)exponent);
        for (int64_t position = 0; position < rows; position++) {
            float angle = (float)position * frequency;
            float c = (float)cos((double)angle), s = (float)sin((double)angle);
            cosines[position * pairs + j] = angles->rounded ? rope_angles_round(c) : c;
            sines[position * pairs + j] = angles->rounded ? rope_angles_round(s) : s;
        }
    }
    struct tensor cos_table = {NULL, 0, ELEMENT_F32, rows, pairs, pairs}, sin_table = cos_table;
    struct buffer *buffer = NULL;
    status result = backend->ops->buffer_new(backend, 2 * bytes, &buffer);
    cos_table.buffer = sin_table.buffer = buffer;
    sin_table.offset = bytes;
    if (result == OK) result = backend->ops->upload(backend, cos_table, cosines, ELEMENT_F32);
    if (result == OK) result = backend->ops->upload(backend, sin_table, sines, ELEMENT_F32);
    if (result == OK) {
        backend->ops->buffer_free(backend, &angles->values);
        angles->values = buffer;
        table->cos = cos_table;
        table->sin = sin_table;
    } else {
        backend->ops->buffer_free(backend, &buffer);
    }
    free(cosines);
    return result;
}

void rope_angles_release(struct rope_angles *angles, struct backend *backend) {
    backend->ops->buffer_free(backend, &angles->values);
    angles->table.cos = angles->table.sin = (struct tensor){0};
}
