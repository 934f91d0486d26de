// Frames to patches in the order of Hugging Face's processor: rows by time, then blocks of merge x merge patches row by
// row; columns by channel, time, y, x.
#include "kernels/cpu/cpu.h"

struct patching {
    struct cpu_backend *cpu;
    struct tensor out, frames;
    const struct patch_shape *shape;
    float levels[3][256]; // of each channel and byte
};

static void fill_levels(struct patching *p) {
    const struct patch_shape *s = p->shape;
    for (int channel = 0; channel < 3; channel++) {
        for (int byte = 0; byte < 256; byte++) {
            p->levels[channel][byte] =
                ((float)byte * s->rescale_factor - s->image_mean[channel]) / s->image_std[channel];
        }
    }
}

// The upper left pixel of patch `row`, and its first frame.
static void place_patch(const struct patch_shape *s, int64_t row, int64_t *frame, int64_t *y, int64_t *x) {
    int64_t across = s->width / s->patch_size / s->merge_size, down = s->height / s->patch_size / s->merge_size;
    int64_t inner = row % (s->merge_size * s->merge_size), block = row / (s->merge_size * s->merge_size);
    *x = (block % across * s->merge_size + inner % s->merge_size) * s->patch_size;
    *y = (block / across % down * s->merge_size + inner / s->merge_size) * s->patch_size;
    *frame = block / across / down * s->temporal_patch_size;
}

static void patch_row(const struct patching *p, int64_t row, float *values) {
    const struct patch_shape *s = p->shape;
    int64_t frame, y, x;
    place_patch(s, row, &frame, &y, &x);
    for (int channel = 0; channel < 3; channel++) {
        for (int time = 0; time < s->temporal_patch_size; time++) {
            int64_t source = frame + time < s->frames ? frame + time : s->frames - 1;
            const unsigned char *pixels = tensor_row(p->frames, source);
            for (int dy = 0; dy < s->patch_size; dy++) {
                const unsigned char *line = pixels + ((y + dy) * s->width + x) * 3 + channel;
                for (int dx = 0; dx < s->patch_size; dx++) *values++ = p->levels[channel][line[dx * 3]];
            }
        }
    }
}

static void patch_rows(void *context, int64_t first, int64_t end, int thread) {
    const struct patching *p = context;
    float *room = (float *)p->cpu->scratch[SCRATCH_ROWS].data + (int64_t)thread * p->out.columns;
    for (int64_t row = first; row < end; row++) {
        float *values = p->out.type == ELEMENT_F32 ? tensor_f32(p->out, row) : room;
        patch_row(p, row, values);
        if (values == room) cpu_row_write(p->cpu, p->out, row, values);
    }
}

status cpu_patchify(struct backend *backend, struct tensor out, struct tensor frames, const struct patch_shape *s) {
    int64_t unit = (int64_t)s->patch_size * s->merge_size,
            columns = (int64_t)3 * s->temporal_patch_size * s->patch_size * s->patch_size;
    CHECK(s->frames > 0 && s->height % unit == 0 && s->width % unit == 0);
    int64_t times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size;
    int64_t patches = times * (s->height / s->patch_size) * (s->width / s->patch_size);
    CHECK(tensor_is(frames, ELEMENT_U8, s->frames, (int64_t)s->height * s->width * 3));
    CHECK(tensor_is(out, -1, patches, columns));
    struct patching patching = {.cpu = cpu_of(backend), .out = out, .frames = frames, .shape = s};
    void *room;
    TRY(cpu_scratch(patching.cpu, SCRATCH_ROWS, (size_t)(pool_threads(patching.cpu->pool) * columns) * 4, &room));
    fill_levels(&patching);
    parallel_for(patching.cpu, patches, 16, patch_rows, &patching);
    return OK;
}
