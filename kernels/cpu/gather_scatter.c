// Rows that are copied or added: gather, scatter, scatter_add, add, scale, the mean of each segment, and patchify,
// which copies pixels to rows of patches.
#include <assert.h>

#include "kernels/cpu/cpu.h"

enum {
    TASK_ELEMENTS = 1 << 14, // elements that a task copies
    SUM_COLUMNS = 256,       // columns of a task of a sum
    ADD_COLUMNS = 8192,      // the most that a row of dense tensors has in add, where it can be halved
    PART_COLUMNS = 256,      // columns that add converts at once
    TASK_PATCHES = 16,
};

struct gather_job {
    struct cpu_backend *cpu;
    struct tensor out, in, index; // index: of segments, where each begins
    bool scatter;                 // the index is of rows of `out`, not of `in`
    float factor;                 // of scale
    // Of scatter_add: the rows of `in` with the same index are a list: first[index] is the first of them, next[i]
    // follows i, -1 ends it.
    int32_t *first, *next;
};

static void gather_run(struct backend *backend, struct gather_job job, int64_t rows,
                       void (*task)(void *context, struct task_range range)) {
    job.cpu = cpu_of(backend);
    parallel_for(job.cpu, rows, TASK_ELEMENTS / (job.out.columns + 1) + 1, task, &job);
}

static void gather_copy_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    for (int64_t i = range.first; i < range.end; i++) {
        int64_t row = *tensor_i32(job->index, i), out = job->scatter ? row : i, in = job->scatter ? i : row;
        cpu_convert(job->cpu, tensor_row(job->out, out), job->out.type, tensor_row(job->in, in), job->in.type,
                    (size_t)job->out.columns);
    }
}

status cpu_gather(struct backend *backend, struct tensor out, struct tensor table, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(table) && out.columns == table.columns);
    CHECK(tensor_in_range(index, out.rows, 1, 0, table.rows));
    gather_run(backend, (struct gather_job){.out = out, .in = table, .index = index}, out.rows, gather_copy_task);
    return OK;
}

status cpu_scatter(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.columns == in.columns);
    CHECK(tensor_in_range(index, in.rows, 1, 0, out.rows));
    gather_run(backend, (struct gather_job){.out = out, .in = in, .index = index, .scatter = true}, in.rows,
               gather_copy_task);
    return OK;
}

// A task adds a range of columns of every row, so that each sum is taken in the order of the rows.
static void gather_add_rows_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    struct tensor part = tensor_columns(job->in, range.first, range.end - range.first);
    float values[SUM_COLUMNS];
    assert(range.end - range.first <= SUM_COLUMNS);
    for (int64_t i = 0; i < part.rows; i++) {
        const float *in = cpu_row_read(job->cpu, part, i, values);
        job->cpu->simd.add(tensor_f32(job->out, 0) + range.first, in, (size_t)(range.end - range.first));
    }
}

void cpu_add_rows(struct cpu_backend *cpu, struct tensor out, struct tensor in) {
    struct gather_job job = {.cpu = cpu, .out = out, .in = in};
    parallel_for(cpu, in.columns, SUM_COLUMNS, gather_add_rows_task, &job);
}

// Adds a range of columns of every row. Each row of `out` is read and stored once.
static void gather_scatter_add_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    struct tensor in = tensor_columns(job->in, range.first, range.end - range.first);
    struct tensor out = tensor_columns(job->out, range.first, range.end - range.first);
    float sums[SUM_COLUMNS], values[SUM_COLUMNS];
    assert(range.end - range.first <= SUM_COLUMNS);
    for (int32_t i = 0; i < in.rows; i++) {
        int32_t row = *tensor_i32(job->index, i);
        if (job->first[row] != i) continue;
        float *sum = out.type == ELEMENT_F32 ? tensor_f32(out, row) : sums;
        if (sum == sums) cpu_row_read(job->cpu, out, row, sums);
        for (int32_t at = i; at >= 0; at = job->next[at])
            job->cpu->simd.add(sum, cpu_row_read(job->cpu, in, at, values), (size_t)(range.end - range.first));
        if (sum == sums) cpu_row_write(job->cpu, out, row, sums);
    }
}

status cpu_scatter_add(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    struct gather_job job = {.cpu = cpu_of(backend), .out = out, .in = in, .index = index};
    CHECK(tensor_is(out, -1, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(tensor_in_range(index, in.rows, 1, 0, out.rows) && in.rows <= INT32_MAX && out.rows <= INT32_MAX);
    TRY(cpu_scratch(job.cpu, SCRATCH_SUMS, (size_t)(out.rows + in.rows) * sizeof *job.first, &job.first));
    job.next = job.first + out.rows;
    for (int64_t i = 0; i < in.rows; i++) job.first[*tensor_i32(index, i)] = -1;
    for (int64_t i = in.rows - 1; i >= 0; i--) {
        int32_t row = *tensor_i32(index, i);
        job.next[i] = job.first[row];
        job.first[row] = (int32_t)i;
    }
    parallel_for(job.cpu, in.columns, SUM_COLUMNS, gather_scatter_add_task, &job);
    return OK;
}

static void gather_add_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    float sums[PART_COLUMNS], values[PART_COLUMNS];
    for (int64_t row = range.first; row < range.end; row++) {
        for (int64_t column = 0; column < job->out.columns; column += PART_COLUMNS) {
            int64_t count = job->out.columns - column < PART_COLUMNS ? job->out.columns - column : PART_COLUMNS;
            struct tensor out = tensor_columns(job->out, column, count);
            const float *in = cpu_row_read(job->cpu, tensor_columns(job->in, column, count), row, values);
            float *sum = out.type == ELEMENT_F32 ? tensor_f32(out, row) : sums;
            if (sum == sums) cpu_row_read(job->cpu, out, row, sums);
            job->cpu->simd.add(sum, in, (size_t)count);
            if (sum == sums) cpu_row_write(job->cpu, out, row, sums);
        }
    }
}

// Few long rows are divided into more and shorter ones, so that every thread has work.
status cpu_add(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    const bool dense = tensor_dense(out) && tensor_dense(in);
    while (dense && out.columns > ADD_COLUMNS && out.columns % 2 == 0) {
        out = tensor_reshape(out, out.rows * 2, out.columns / 2);
        in = tensor_reshape(in, out.rows, out.columns);
    }
    gather_run(backend, (struct gather_job){.out = out, .in = in}, out.rows, gather_add_task);
    return OK;
}

static void gather_scale_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    float scaled[PART_COLUMNS], values[PART_COLUMNS];
    for (int64_t row = range.first; row < range.end; row++) {
        for (int64_t column = 0; column < job->out.columns; column += PART_COLUMNS) {
            int64_t count = job->out.columns - column < PART_COLUMNS ? job->out.columns - column : PART_COLUMNS;
            const float *in = cpu_row_read(job->cpu, tensor_columns(job->in, column, count), row, values);
            for (int64_t c = 0; c < count; c++) scaled[c] = job->factor * in[c];
            cpu_row_write(job->cpu, tensor_columns(job->out, column, count), row, scaled);
        }
    }
}

status cpu_scale(struct backend *backend, struct tensor out, struct tensor in, float factor) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    gather_run(backend, (struct gather_job){.out = out, .in = in, .factor = factor}, out.rows, gather_scale_task);
    return OK;
}

// ---- segment_mean ----

// A task works on a range of columns of every row, so that each sum is taken in the order of the rows.

// Whether begins is I32 [segments + 1, 1] and increases strictly from 0 to `rows`.
static bool segment_mean_begins_fit(struct tensor begins, int64_t segments, int64_t rows) {
    if (!tensor_is(begins, ELEMENT_I32, segments + 1, 1)) return false;
    for (int64_t s = 0; s < segments; s++)
        if (*tensor_i32(begins, s) >= *tensor_i32(begins, s + 1)) return false;
    return *tensor_i32(begins, 0) == 0 && *tensor_i32(begins, segments) == rows;
}

static void segment_mean_divide(float *values, int64_t count, int64_t rows) {
    for (int64_t c = 0; c < count; c++) values[c] /= (float)rows;
}

static void segment_mean_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    struct tensor out = tensor_columns(job->out, range.first, range.end - range.first);
    struct tensor in = tensor_columns(job->in, range.first, range.end - range.first);
    float sums[SUM_COLUMNS], values[SUM_COLUMNS];
    assert(range.end - range.first <= SUM_COLUMNS);
    for (int64_t s = 0; s < out.rows; s++) {
        int32_t begin = *tensor_i32(job->index, s), stop = *tensor_i32(job->index, s + 1);
        memset(sums, 0, sizeof sums);
        for (int64_t t = begin; t < stop; t++)
            job->cpu->simd.add(sums, cpu_row_read(job->cpu, in, t, values), (size_t)(range.end - range.first));
        segment_mean_divide(sums, range.end - range.first, stop - begin);
        cpu_row_write(job->cpu, out, s, sums);
    }
}

status cpu_segment_mean(struct backend *backend, struct tensor out, struct tensor in, struct tensor begins) {
    CHECK(tensor_is(out, -1, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(segment_mean_begins_fit(begins, out.rows, in.rows));
    struct gather_job job = {.cpu = cpu_of(backend), .out = out, .in = in, .index = begins};
    parallel_for(cpu_of(backend), in.columns, SUM_COLUMNS, segment_mean_task, &job);
    return OK;
}

static void segment_mean_grad_task(void *context, struct task_range range) {
    const struct gather_job *job = context;
    struct tensor grad_out = tensor_columns(job->in, range.first, range.end - range.first);
    struct tensor grad_in = tensor_columns(job->out, range.first, range.end - range.first);
    float values[SUM_COLUMNS], shares[SUM_COLUMNS];
    assert(range.end - range.first <= SUM_COLUMNS);
    for (int64_t s = 0; s < grad_out.rows; s++) {
        int32_t begin = *tensor_i32(job->index, s), stop = *tensor_i32(job->index, s + 1);
        memcpy(shares, cpu_row_read(job->cpu, grad_out, s, values), (size_t)(range.end - range.first) * sizeof *shares);
        segment_mean_divide(shares, range.end - range.first, stop - begin);
        for (int64_t t = begin; t < stop; t++) cpu_row_write(job->cpu, grad_in, t, shares);
    }
}

status cpu_segment_mean_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out,
                             struct tensor begins) {
    CHECK(tensor_is(grad_in, -1, grad_in.rows, grad_in.columns));
    CHECK(tensor_is(grad_out, -1, grad_out.rows, grad_in.columns));
    CHECK(segment_mean_begins_fit(begins, grad_out.rows, grad_in.rows));
    struct gather_job job = {.cpu = cpu_of(backend), .out = grad_in, .in = grad_out, .index = begins};
    parallel_for(cpu_of(backend), grad_in.columns, SUM_COLUMNS, segment_mean_grad_task, &job);
    return OK;
}

// ---- patchify ----

struct patchify_job {
    struct cpu_backend *cpu;
    struct tensor out, frames;
    const struct patch_shape *shape;
    float *scratch;       // a row in float32 for each thread
    float values[3][256]; // of each channel and byte
};

// Patches in the order of Hugging Face's processor. Rows are ordered by time, then by blocks of merge_size x merge_size
// patches, row by row; columns by channel, time, y, x.
static void gather_patches_task(void *context, struct task_range range) {
    const struct patchify_job *job = context;
    const struct patch_shape *s = job->shape;
    int64_t merge = s->merge_size, across = s->width / s->patch_size / merge, down = s->height / s->patch_size / merge;
    float *scratch = job->scratch + (int64_t)range.thread * job->out.columns;
    for (int64_t row = range.first; row < range.end; row++) {
        float *values = job->out.type == ELEMENT_F32 ? tensor_f32(job->out, row) : scratch, *out = values;
        int64_t in_block = row % (merge * merge), block = row / (merge * merge);
        int64_t x = (block % across * merge + in_block % merge) * s->patch_size;
        int64_t y = (block / across % down * merge + in_block / merge) * s->patch_size;
        int64_t first = block / across / down * s->temporal_patch_size;
        for (int channel = 0; channel < 3; channel++) {
            for (int64_t frame = first; frame < first + s->temporal_patch_size; frame++) {
                // An image has one frame for every time of a patch.
                const unsigned char *pixels = tensor_row(job->frames, frame < s->frames ? frame : s->frames - 1);
                for (int dy = 0; dy < s->patch_size; dy++) {
                    const unsigned char *pixel_row = pixels + ((y + dy) * s->width + x) * 3 + channel;
                    for (int dx = 0; dx < s->patch_size; dx++) *out++ = job->values[channel][pixel_row[dx * 3]];
                }
            }
        }
        if (values == scratch) cpu_row_write(job->cpu, job->out, row, values);
    }
}

status cpu_patchify(struct backend *backend, struct tensor out, struct tensor frames, const struct patch_shape *s) {
    int64_t patches, columns;
    CHECK(patch_shape_counts(s, &patches, &columns));
    CHECK(tensor_is(frames, ELEMENT_U8, s->frames, (int64_t)s->height * s->width * 3));
    CHECK(tensor_is(out, -1, patches, columns));
    struct patchify_job job = {.cpu = cpu_of(backend), .out = out, .frames = frames, .shape = s};
    size_t bytes = (size_t)(pool_threads(job.cpu->pool) * columns) * sizeof *job.scratch;
    TRY(cpu_scratch(job.cpu, SCRATCH_ROWS, bytes, &job.scratch));
    for (int channel = 0; channel < 3; channel++) {
        for (int byte = 0; byte < 256; byte++) {
            job.values[channel][byte] =
                ((float)byte * s->rescale_factor - s->image_mean[channel]) / s->image_std[channel];
        }
    }
    parallel_for(job.cpu, patches, TASK_PATCHES, gather_patches_task, &job);
    return OK;
}
