// Buffers, their protection in guarded mode, and copies between the host, tensors and types.
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

enum {
    heap_bytes = 1 << 20,    // a buffer of fewer bytes is on the heap
    task_elements = 1 << 16, // elements that a task copies
    zero_columns = 4096,
};

// ---- buffers ----

status cpu_buffer_new(struct backend *backend, size_t bytes, struct buffer **out) {
    struct cpu_backend *cpu = cpu_of(backend);
    *out = NULL;
    struct buffer *buffer;
    TRY(NEW(&buffer, 1));
    buffer->bytes = bytes;
    status result = OK;
    if (cpu->guarded || bytes >= heap_bytes) {
        result = pages_map(bytes, &buffer->pages);
        buffer->data = buffer->pages.data;
    } else {
        size_t rounded = (bytes / 64 + 1) * 64;
        buffer->data = aligned_alloc(64, rounded);
        if (!buffer->data) result = fail(UNAVAILABLE, "out of memory: cannot allocate %zu bytes for tensors", rounded);
        if (buffer->data) memset(buffer->data, 0, rounded);
    }
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
        assert(cpu_of(backend)->buffers == buffer);
        cpu_of(backend)->buffers = buffer->next;
    }
    if (buffer->next) buffer->next->previous = buffer->previous;
    if (buffer->pages.data) {
        pages_unmap(&buffer->pages);
    } else {
        free(buffer->data);
    }
    free(buffer);
    *place = NULL;
}

void cpu_guard(struct cpu_backend *cpu, bool open) {
    for (const struct buffer *buffer = cpu->buffers; buffer; buffer = buffer->next) {
        assert(buffer->pages.data);
        mprotect(buffer->data, buffer->pages.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

// ---- copies ----

struct copy_job {
    const struct cpu_backend *cpu;
    unsigned char *out;
    const unsigned char *in;
    enum element out_type, in_type;
    int64_t columns;
    size_t out_stride, in_stride; // bytes
};

static void copy_rows_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct copy_job *job = context;
    for (int64_t row = first; row < end; row++) {
        cpu_convert(job->cpu, job->out + (size_t)row * job->out_stride, job->out_type,
                    job->in + (size_t)row * job->in_stride, job->in_type, (size_t)job->columns);
    }
}

static void copy_elements_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct copy_job *job = context;
    cpu_convert(job->cpu, job->out + (size_t)first * element_size(job->out_type), job->out_type,
                job->in + (size_t)first * element_size(job->in_type), job->in_type, (size_t)(end - first));
}

static bool copy_possible(enum element out, enum element in) {
    static_assert(ELEMENT_F32 < ELEMENT_F16 && ELEMENT_BF16 < ELEMENT_F16 && ELEMENT_F16 < ELEMENT_I32,
                  "the float types come first");
    return out == in || (out <= ELEMENT_F16 && in <= ELEMENT_F16);
}

static status copy_run(struct cpu_backend *cpu, struct copy_job job, int64_t rows) {
    size_t out_dense = (size_t)job.columns * element_size(job.out_type);
    size_t in_dense = (size_t)job.columns * element_size(job.in_type);
    job.cpu = cpu;
    if (job.out_stride == out_dense && job.in_stride == in_dense) {
        parallel_for(cpu, rows * job.columns, task_elements, copy_elements_task, &job);
    } else {
        parallel_for(cpu, rows, task_elements / (job.columns + 1) + 1, copy_rows_task, &job);
    }
    return OK;
}

status cpu_upload(struct backend *backend, struct tensor out, const void *host, enum element type) {
    CHECK(tensor_fits(out) && copy_possible(out.type, type));
    struct copy_job job = {.out = tensor_row(out, 0),
                           .in = host,
                           .out_type = out.type,
                           .in_type = type,
                           .columns = out.columns,
                           .out_stride = (size_t)out.stride * element_size(out.type),
                           .in_stride = (size_t)out.columns * element_size(type)};
    return copy_run(cpu_of(backend), job, out.rows);
}

status cpu_download(struct backend *backend, void *host, enum element type, struct tensor in) {
    CHECK(tensor_fits(in) && copy_possible(type, in.type));
    struct copy_job job = {.out = host,
                           .in = tensor_row(in, 0),
                           .out_type = type,
                           .in_type = in.type,
                           .columns = in.columns,
                           .out_stride = (size_t)in.columns * element_size(type),
                           .in_stride = (size_t)in.stride * element_size(in.type)};
    return copy_run(cpu_of(backend), job, in.rows);
}

status cpu_copy(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.rows == in.rows && out.columns == in.columns);
    CHECK(copy_possible(out.type, in.type));
    struct copy_job job = {.out = tensor_row(out, 0),
                           .in = tensor_row(in, 0),
                           .out_type = out.type,
                           .in_type = in.type,
                           .columns = out.columns,
                           .out_stride = (size_t)out.stride * element_size(out.type),
                           .in_stride = (size_t)in.stride * element_size(in.type)};
    return copy_run(cpu_of(backend), job, out.rows);
}

static void zero_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct tensor *out = context;
    for (int64_t row = first; row < end; row++) {
        memset(tensor_row(*out, row), 0, (size_t)out->columns * element_size(out->type));
    }
}

// A tensor of few long rows is divided into more and shorter ones, so that every thread has work.
status cpu_zero(struct backend *backend, struct tensor out) {
    CHECK(tensor_fits(out));
    if (tensor_dense(out) && out.columns % zero_columns == 0)
        out = tensor_reshape(out, out.rows * (out.columns / zero_columns), zero_columns);
    parallel_for(cpu_of(backend), out.rows, task_elements / (out.columns + 1) + 1, zero_task, &out);
    return OK;
}

// Operations are done when they return.
status cpu_wait(struct backend *backend) {
    (void)backend;
    return OK;
}
