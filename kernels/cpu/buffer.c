// Memory: whole pages, the scratch memory of operations, the buffers of tensors, and copies between the host, tensors
// and types.
//
// Prepacked weights are stored in pages that are reused: a new version of the weights replaces the old one, and fresh
// pages cost several times as much as writing to them. Idle and used pages together never exceed the most that was in
// use at one time.
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

enum {
    PAGE_BYTES = 4096,
    SPARE_FRACTION = 8,      // reused pages may exceed the request by this fraction of it
    TASK_ELEMENTS = 1 << 16, // elements that a task copies
};

static_assert((PAGE_BYTES & (PAGE_BYTES - 1)) == 0, "PAGE_BYTES is a power of two");

// ---- pages and scratch memory ----

static size_t buffer_round_up(size_t bytes) {
    return bytes ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;
}

status pages_map(size_t bytes, struct pages *out) {
    bytes = buffer_round_up(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return fail(UNAVAILABLE, "out of memory: cannot allocate %zu bytes for tensors", bytes);
    (void)madvise(data, bytes, MADV_HUGEPAGE); // a hint: without huge pages it is only slower
    *out = (struct pages){data, bytes};
    return OK;
}

void pages_unmap(struct pages *pages) {
    if (pages->data) munmap(pages->data, pages->bytes);
    *pages = (struct pages){0};
}

static void buffer_unmap_largest_idle(struct cpu_backend *cpu) {
    size_t largest = 0;
    assert(cpu->idle_count > 0);
    for (size_t i = 1; i < cpu->idle_count; i++)
        if (cpu->idle[i].bytes > cpu->idle[largest].bytes) largest = i;
    cpu->idle_bytes -= cpu->idle[largest].bytes;
    pages_unmap(&cpu->idle[largest]);
    cpu->idle[largest] = cpu->idle[--cpu->idle_count];
}

// Takes the smallest idle pages that are large enough, but not much larger; otherwise maps new ones.
status pages_get(struct cpu_backend *cpu, size_t bytes, struct pages *out) {
    bytes = buffer_round_up(bytes);
    size_t best = cpu->idle_count;
    for (size_t i = 0; i < cpu->idle_count; i++) {
        size_t size = cpu->idle[i].bytes;
        if (size < bytes || size > bytes + bytes / SPARE_FRACTION) continue;
        if (best == cpu->idle_count || size < cpu->idle[best].bytes) best = i;
    }
    if (best < cpu->idle_count) {
        *out = cpu->idle[best];
        cpu->idle[best] = cpu->idle[--cpu->idle_count];
        cpu->idle_bytes -= out->bytes;
    } else {
        while (cpu->idle_count && cpu->used_bytes + cpu->idle_bytes + bytes > cpu->peak_bytes)
            buffer_unmap_largest_idle(cpu);
        TRY(pages_map(bytes, out));
    }
    cpu->used_bytes += out->bytes;
    if (cpu->used_bytes > cpu->peak_bytes) cpu->peak_bytes = cpu->used_bytes;
    return OK;
}

void pages_put(struct cpu_backend *cpu, struct pages *pages) {
    if (!pages->data) return;
    assert(cpu->used_bytes >= pages->bytes);
    cpu->used_bytes -= pages->bytes;
    RESIZE(&cpu->idle, cpu->idle_count + 1);
    cpu->idle[cpu->idle_count++] = *pages;
    cpu->idle_bytes += pages->bytes;
    *pages = (struct pages){0};
}

void pages_release_idle(struct cpu_backend *cpu) {
    while (cpu->idle_count) buffer_unmap_largest_idle(cpu);
    free(cpu->idle);
    cpu->idle = NULL;
}

// Scratch memory is mapped and not taken from the heap, where the memory that it outgrows would remain as holes.
status cpu_scratch(struct cpu_backend *cpu, enum scratch_slot slot, size_t bytes, void *out) {
    struct pages *scratch = &cpu->scratch[slot];
    if (scratch->bytes < bytes) {
        pages_unmap(scratch);
        TRY(pages_map(bytes, scratch));
    }
    memcpy(out, &scratch->data, sizeof scratch->data);
    return OK;
}

status cpu_scratch_tensor(struct cpu_backend *cpu, enum scratch_slot slot, struct buffer *buffer, struct tensor *out,
                          enum element type, int64_t rows, int64_t columns) {
    *buffer = (struct buffer){.bytes = (size_t)(rows * columns) * element_size(type)};
    TRY(cpu_scratch(cpu, slot, buffer->bytes, &buffer->data));
    *out = (struct tensor){.buffer = buffer, .type = type, .rows = rows, .columns = columns, .stride = columns};
    return OK;
}

// ---- buffers ----

status cpu_buffer_new(struct backend *backend, size_t bytes, struct buffer **out) {
    struct cpu_backend *cpu = cpu_of(backend);
    *out = NULL;
    struct buffer *buffer;
    NEW(&buffer, 1);
    buffer->bytes = bytes;
    status result = OK;
    if (bytes >= cpu->heap_bytes) {
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

void cpu_buffer_free(struct backend *backend, struct buffer **pointer) {
    struct buffer *buffer = *pointer;
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
    *pointer = NULL;
}

// ---- copies ----

struct copy_job {
    const struct cpu_backend *cpu;
    struct tensor out, in;
    bool dense; // no gaps between the rows
};

// Of dense operands [first, end) are elements, otherwise rows.
static void buffer_copy_task(void *context, struct task_range range) {
    const struct copy_job *job = context;
    struct tensor out = job->out, in = job->in;
    if (job->dense) {
        cpu_convert(job->cpu, (char *)tensor_row(out, 0) + (size_t)range.first * element_size(out.type), out.type,
                    (const char *)tensor_row(in, 0) + (size_t)range.first * element_size(in.type), in.type,
                    (size_t)(range.end - range.first));
        return;
    }
    for (int64_t i = range.first; i < range.end; i++)
        cpu_convert(job->cpu, tensor_row(out, i), out.type, tensor_row(in, i), in.type, (size_t)out.columns);
}

static status buffer_copy(struct cpu_backend *cpu, struct tensor out, struct tensor in) {
    static_assert(ELEMENT_F32 < ELEMENT_F16 && ELEMENT_BF16 < ELEMENT_F16 && ELEMENT_F16 < ELEMENT_I32,
                  "the float types come first");
    CHECK(out.type == in.type || (out.type <= ELEMENT_F16 && in.type <= ELEMENT_F16));
    struct copy_job job = {cpu, out, in, tensor_dense(out) && tensor_dense(in)};
    parallel_for(cpu, job.dense ? out.rows * out.columns : out.rows,
                 job.dense ? TASK_ELEMENTS : TASK_ELEMENTS / (out.columns + 1) + 1, buffer_copy_task, &job);
    return OK;
}

// The host's dense rows as a tensor of the shape of `like`; *memory is the buffer that it refers to.
static struct tensor buffer_host(struct buffer *memory, const void *host, enum element type, struct tensor like) {
    *memory = (struct buffer){.data = (unsigned char *)(uintptr_t)host};
    return (struct tensor){memory, 0, type, like.rows, like.columns, like.columns};
}

status cpu_upload(struct backend *backend, struct tensor out, const void *host, enum element type) {
    struct buffer memory;
    CHECK(tensor_fits(out));
    return buffer_copy(cpu_of(backend), out, buffer_host(&memory, host, type, out));
}

status cpu_download(struct backend *backend, void *host, enum element type, struct tensor in) {
    struct buffer memory;
    CHECK(tensor_fits(in));
    return buffer_copy(cpu_of(backend), buffer_host(&memory, host, type, in), in);
}

status cpu_copy(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.rows == in.rows && out.columns == in.columns);
    return buffer_copy(cpu_of(backend), out, in);
}

static void buffer_zero_task(void *context, struct task_range range) {
    const struct tensor *out = context;
    struct tensor part = tensor_rows(*out, range.first, range.end - range.first);
    if (tensor_dense(part)) part = tensor_reshape(part, 1, part.rows * part.columns);
    for (int64_t row = 0; row < part.rows; row++)
        memset(tensor_row(part, row), 0, (size_t)part.columns * element_size(part.type));
}

// The elements of a dense tensor are divided wherever it suits, so that every thread has work.
status cpu_zero(struct backend *backend, struct tensor out) {
    CHECK(tensor_fits(out));
    if (tensor_dense(out)) out = tensor_reshape(out, out.rows * out.columns, 1);
    parallel_for(cpu_of(backend), out.rows, TASK_ELEMENTS / (out.columns + 1) + 1, buffer_zero_task, &out);
    return OK;
}

// Operations are done when they return.
status cpu_wait(struct backend *backend) {
    (void)backend;
    return OK;
}
