// What every operation uses: conversions between element types, rounding to nearest even, and loops that are
// distributed over the threads of the pool. This file has no operation.
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <limits.h>

static void cpu_convert_to_f32(const struct cpu_backend *cpu, float *out, const void *in, enum element from,
                               size_t count) {
    if (from == ELEMENT_F32) memcpy(out, in, count * sizeof *out);
    if (from == ELEMENT_BF16) cpu->simd.f32_from_bf16(out, in, count);
    if (from == ELEMENT_F16) {
        const uint16_t *halves = in;
        for (size_t i = 0; i < count; i++) out[i] = f32_from_f16(halves[i]);
    }
}

static void cpu_convert_from_f32(const struct cpu_backend *cpu, void *out, enum element to, const float *in,
                                 size_t count) {
    if (to == ELEMENT_F32) memcpy(out, in, count * sizeof *in);
    if (to == ELEMENT_BF16) cpu->simd.bf16_from_f32(out, in, count);
    if (to == ELEMENT_F16) {
        uint16_t *halves = out;
        for (size_t i = 0; i < count; i++) halves[i] = f16_from_f32(in[i]);
    }
}

void cpu_convert(const struct cpu_backend *cpu, void *out, enum element to, const void *in, enum element from,
                 size_t count) {
    if (to == from) {
        memcpy(out, in, count * element_size(to));
    } else if (to == ELEMENT_F32) {
        cpu_convert_to_f32(cpu, out, in, from, count);
    } else if (from == ELEMENT_F32) {
        cpu_convert_from_f32(cpu, out, to, in, count);
    } else {
        enum { PART_ELEMENTS = 256 };
        float part[PART_ELEMENTS];
        for (size_t done = 0; done < count; done += PART_ELEMENTS) {
            size_t now = count - done < PART_ELEMENTS ? count - done : PART_ELEMENTS;
            cpu_convert_to_f32(cpu, part, (const char *)in + done * element_size(from), from, now);
            cpu_convert_from_f32(cpu, (char *)out + done * element_size(to), to, part, now);
        }
    }
}

const float *cpu_row_read(const struct cpu_backend *cpu, struct tensor t, int64_t row, float *scratch) {
    if (t.type == ELEMENT_F32) return tensor_f32(t, row);
    cpu_convert_to_f32(cpu, scratch, tensor_row(t, row), t.type, (size_t)t.columns);
    return scratch;
}

void cpu_row_write(const struct cpu_backend *cpu, struct tensor t, int64_t row, const float *values) {
    cpu_convert_from_f32(cpu, tensor_row(t, row), t.type, values, (size_t)t.columns);
}

bool tensor_in_range(struct tensor t, int64_t rows, int64_t columns, int32_t least, int64_t end) {
    if (!tensor_is(t, ELEMENT_I32, rows, columns)) return false;
    for (int64_t i = 0; i < rows * columns; i++) {
        int32_t number = tensor_i32(t, i / columns)[i % columns];
        if (number < least || number >= end) return false;
    }
    return true;
}

// ---- parallel loops ----

struct parallel_job {
    int64_t count, block;
    void (*work)(void *context, struct task_range range);
    void *context;
};

static void cpu_parallel_task(void *context, int task, int thread) {
    const struct parallel_job *job = context;
    int64_t first = task * job->block, end = first + job->block < job->count ? first + job->block : job->count;
    job->work(job->context, (struct task_range){first, end, thread});
}

void parallel_for(struct cpu_backend *cpu, int64_t count, int64_t block,
                  void (*work)(void *context, struct task_range range), void *context) {
    if (count <= 0) return;
    if (block < 1) block = 1;
    struct parallel_job job = {.count = count, .block = block, .work = work, .context = context};
    int64_t tasks = (count + block - 1) / block;
    assert(tasks <= INT_MAX);
    pool_run(cpu->pool, (int)tasks, cpu_parallel_task, &job);
}
