// Buffers, their guarding, views of them, and copies in, out and between.
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "shared/base/memory.h"

enum { map_at = 1 << 20, copy_block = 1 << 16 }; // bytes; elements

size_t element_size(enum element type) {
    static const size_t sizes[] = {
        [ELEMENT_F32] = 4, [ELEMENT_BF16] = 2, [ELEMENT_F16] = 2, [ELEMENT_I32] = 4, [ELEMENT_U8] = 1};
    return sizes[type];
}

struct tensor tensor_rows(struct tensor whole, int64_t first, int64_t rows) {
    whole.offset += (size_t)(first * whole.stride) * element_size(whole.type);
    whole.rows = rows;
    return whole;
}

struct tensor tensor_columns(struct tensor whole, int64_t first, int64_t columns) {
    whole.offset += (size_t)first * element_size(whole.type);
    whole.columns = columns;
    return whole;
}

struct tensor tensor_reshape(struct tensor whole, int64_t rows, int64_t columns) {
    whole.rows = rows;
    whole.columns = columns;
    whole.stride = columns;
    return whole;
}

bool tensor_fits(struct tensor t) {
    if (tensor_none(t) || t.rows < 0 || t.columns < 0 || (t.rows > 1 && t.stride < t.columns)) return false;
    if (t.rows == 0 || t.columns == 0) return true;
    size_t elements = (size_t)((t.rows - 1) * t.stride + t.columns);
    return t.offset + elements * element_size(t.type) <= t.buffer->bytes;
}

bool tensor_is(struct tensor t, int type, int64_t rows, int64_t columns) {
    bool typed = type < 0 ? t.type == ELEMENT_F32 || t.type == ELEMENT_BF16 : t.type == (enum element)type;
    return typed && t.rows == rows && t.columns == columns && tensor_fits(t);
}

// ---- buffers ----

static status take_memory(struct buffer *buffer, size_t bytes) {
    buffer->data = aligned_alloc(64, bytes);
    if (!buffer->data) return fail(UNAVAILABLE, "out of memory: %zu bytes of tensors", bytes);
    memset(buffer->data, 0, bytes);
    return OK;
}

static status take_block(struct buffer *buffer, size_t bytes) {
    TRY(pages_map(bytes, &buffer->block));
    buffer->data = buffer->block.data;
    return OK;
}

status cpu_buffer_new(struct backend *backend, size_t bytes, struct buffer **out) {
    struct cpu_backend *cpu = cpu_of(backend);
    *out = NULL;
    struct buffer *buffer;
    TRY(NEW(&buffer, 1));
    buffer->bytes = bytes;
    status result =
        cpu->guarded || bytes >= map_at ? take_block(buffer, bytes) : take_memory(buffer, (bytes / 64 + 1) * 64);
    if (result != OK) {
        free(buffer);
        return result;
    }
    buffer->next = cpu->buffers;
    if (buffer->next) buffer->next->previous = buffer;
    cpu->buffers = buffer;
    *out = buffer;
    return OK;
}

void cpu_buffer_free(struct backend *backend, struct buffer **place) {
    struct buffer *buffer = *place;
    if (!buffer) return;
    if (buffer->previous) {
        buffer->previous->next = buffer->next;
    } else {
        cpu_of(backend)->buffers = buffer->next;
    }
    if (buffer->next) buffer->next->previous = buffer->previous;
    if (buffer->block.data) {
        pages_unmap(&buffer->block);
    } else {
        free(buffer->data);
    }
    free(buffer);
    *place = NULL;
}

void cpu_guard(struct cpu_backend *cpu, bool open) {
    for (const struct buffer *buffer = cpu->buffers; buffer; buffer = buffer->next) {
        mprotect(buffer->data, buffer->block.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

// ---- copies ----

struct copying {
    const struct cpu_backend *cpu;
    unsigned char *out;
    const unsigned char *in;
    enum element to, from;
    int64_t columns;
    size_t out_stride, in_stride; // bytes
};

static void copy_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct copying *c = context;
    for (int64_t row = first; row < end; row++) {
        cpu_convert(c->cpu, c->out + (size_t)row * c->out_stride, c->to, c->in + (size_t)row * c->in_stride, c->from,
                    (size_t)c->columns);
    }
}

static void copy_elements(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct copying *c = context;
    cpu_convert(c->cpu, c->out + (size_t)first * element_size(c->to), c->to,
                c->in + (size_t)first * element_size(c->from), c->from, (size_t)(end - first));
}

static bool convertible(enum element to, enum element from) {
    bool floats = to <= ELEMENT_F16 && from <= ELEMENT_F16;
    return floats || to == from;
}

static void run_copy(struct cpu_backend *cpu, struct copying *copying, int64_t rows) {
    size_t out_dense = (size_t)copying->columns * element_size(copying->to);
    size_t in_dense = (size_t)copying->columns * element_size(copying->from);
    if (copying->out_stride == out_dense && copying->in_stride == in_dense) {
        parallel_for(cpu, rows * copying->columns, copy_block, copy_elements, copying);
    } else {
        parallel_for(cpu, rows, copy_block / (copying->columns + 1) + 1, copy_rows, copying);
    }
}

status cpu_upload(struct backend *backend, struct tensor out, const void *host, enum element type) {
    CHECK(tensor_fits(out) && convertible(out.type, type));
    struct copying copying = {.cpu = cpu_of(backend),
                              .out = tensor_row(out, 0),
                              .in = host,
                              .to = out.type,
                              .from = type,
                              .columns = out.columns,
                              .out_stride = (size_t)out.stride * element_size(out.type),
                              .in_stride = (size_t)out.columns * element_size(type)};
    run_copy(cpu_of(backend), &copying, out.rows);
    return OK;
}

status cpu_download(struct backend *backend, void *host, enum element type, struct tensor in) {
    CHECK(tensor_fits(in) && convertible(type, in.type));
    struct copying copying = {.cpu = cpu_of(backend),
                              .out = host,
                              .in = tensor_row(in, 0),
                              .to = type,
                              .from = in.type,
                              .columns = in.columns,
                              .out_stride = (size_t)in.columns * element_size(type),
                              .in_stride = (size_t)in.stride * element_size(in.type)};
    run_copy(cpu_of(backend), &copying, in.rows);
    return OK;
}

status cpu_copy(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.rows == in.rows && out.columns == in.columns);
    CHECK(convertible(out.type, in.type));
    struct copying copying = {.cpu = cpu_of(backend),
                              .out = tensor_row(out, 0),
                              .in = tensor_row(in, 0),
                              .to = out.type,
                              .from = in.type,
                              .columns = out.columns,
                              .out_stride = (size_t)out.stride * element_size(out.type),
                              .in_stride = (size_t)in.stride * element_size(in.type)};
    run_copy(cpu_of(backend), &copying, out.rows);
    return OK;
}

static void zero_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct tensor *out = context;
    for (int64_t row = first; row < end; row++) {
        memset(tensor_row(*out, row), 0, (size_t)out->columns * element_size(out->type));
    }
}

status cpu_zero(struct backend *backend, struct tensor out) {
    CHECK(tensor_fits(out));
    if (tensor_dense(out) && out.columns % 4096 == 0) out = tensor_reshape(out, out.rows * (out.columns / 4096), 4096);
    parallel_for(cpu_of(backend), out.rows, copy_block / (out.columns + 1) + 1, zero_rows, &out);
    return OK;
}

status cpu_wait(struct backend *backend) {
    (void)backend;
    return OK;
}
