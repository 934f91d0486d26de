// Frames to patches in the order of Hugging Face's processor. Rows are ordered by time, then by blocks of merge_size x
// merge_size patches, row by row; columns by channel, time, y, x.
#include "kernels/cpu/cpu.h"

enum { task_patches = 16 };

struct patchify_job {
    struct cpu_backend *cpu;
    struct tensor out, frames;
    const struct patch_shape *shape;
    float *scratch;       // a row in float32 for each thread
    float values[3][256]; // of each channel and byte
};

static void patchify_row(const struct patchify_job *job, int64_t row, float *out) {
    const struct patch_shape *s = job->shape;
    int64_t merge = s->merge_size, across = s->width / s->patch_size / merge, down = s->height / s->patch_size / merge;
    int64_t in_block = row % (merge * merge), block = row / (merge * merge);
    int64_t x = (block % across * merge + in_block % merge) * s->patch_size;
    int64_t y = (block / across % down * merge + in_block / merge) * s->patch_size;
    int64_t first = block / across / down * s->temporal_patch_size;
    for (int channel = 0; channel < 3; channel++) {
        for (int64_t frame = first; frame < first + s->temporal_patch_size; frame++) {
            // An image has one frame for every time of a patch.
            const unsigned char *pixels = tensor_row(job->frames, frame < s->frames ? frame : s->frames - 1);
            for (int dy = 0; dy < s->patch_size; dy++) {
                const unsigned char *line = pixels + ((y + dy) * s->width + x) * 3 + channel;
                for (int dx = 0; dx < s->patch_size; dx++) *out++ = job->values[channel][line[dx * 3]];
            }
        }
    }
}

static void patchify_task(void *context, int64_t first, int64_t end, int thread) {
    const struct patchify_job *job = context;
    float *scratch = job->scratch + (int64_t)thread * job->out.columns;
    for (int64_t row = first; row < end; row++) {
        float *values = job->out.type == ELEMENT_F32 ? tensor_f32(job->out, row) : scratch;
        patchify_row(job, row, values);
        if (values == scratch) cpu_row_write(job->cpu, job->out, row, values);
    }
}

status cpu_patchify(struct backend *backend, struct tensor out, struct tensor frames, const struct patch_shape *s) {
    int64_t unit = (int64_t)s->patch_size * s->merge_size;
    int64_t columns = (int64_t)3 * s->temporal_patch_size * s->patch_size * s->patch_size;
    CHECK(s->frames > 0 && s->height % unit == 0 && s->width % unit == 0);
    int64_t times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size;
    int64_t patches = times * (s->height / s->patch_size) * (s->width / s->patch_size);
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
    parallel_for(job.cpu, patches, task_patches, patchify_task, &job);
    return OK;
}
