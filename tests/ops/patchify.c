// Frames to patches, against loops over every index in the order of Hugging Face's reshape and transpose.
#include "tests/ops/harness.h"

static double patchify_expected_value(const struct patch_shape *s, int channel, int byte) {
    return ((double)((float)byte * s->rescale_factor) - s->image_mean[channel]) / s->image_std[channel];
}

// Order of rows: time, block row, block column, row in the block, column in the block.
static double *patchify_reference(struct harness *h, const struct patch_shape *s, const uint8_t *frames) {
    int times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size, unit = s->patch_size * s->merge_size;
    double *want = harness_memory(h, (size_t)times * (size_t)(s->temporal_patch_size * s->height * s->width * 3) *
                                         sizeof *want),
           *at = want;
    for (int t = 0; t < times; t++)
        for (int block_y = 0; block_y < s->height / unit; block_y++)
            for (int block_x = 0; block_x < s->width / unit; block_x++)
                for (int y = 0; y < s->merge_size; y++)
                    for (int x = 0; x < s->merge_size; x++)
                        for (int c = 0; c < 3; c++)
                            for (int dt = 0; dt < s->temporal_patch_size; dt++)
                                for (int dy = 0; dy < s->patch_size; dy++)
                                    for (int dx = 0; dx < s->patch_size; dx++) {
                                        int frame = t * s->temporal_patch_size + dt < s->frames
                                                        ? t * s->temporal_patch_size + dt
                                                        : s->frames - 1;
                                        int row = block_y * unit + y * s->patch_size + dy;
                                        int column = block_x * unit + x * s->patch_size + dx;
                                        *at++ = patchify_expected_value(
                                            s, c, frames[((frame * s->height + row) * s->width + column) * 3 + c]);
                                    }
    return want;
}

static void patchify_check(struct harness *h) {
    for (int i = 0; i < 12; i++) {
        struct patch_shape s = {.patch_size = (int)harness_range(h, 1, 14),
                                .temporal_patch_size = 2,
                                .merge_size = 2,
                                .rescale_factor = 1.0f / 255,
                                .image_mean = {0.48145466f, 0.4578275f, 0.40821073f},
                                .image_std = {0.26862954f, 0.26130258f, 0.27577711f}};
        s.frames = harness_unit(h) < 0.3 ? 1 : 2 * (int)harness_range(h, 1, 3);
        s.height = s.patch_size * 2 * (int)harness_range(h, 1, 4);
        s.width = s.patch_size * 2 * (int)harness_range(h, 1, 4);
        harness_case(h, "%d frames %d x %d, patch %d", s.frames, s.height, s.width, s.patch_size);
        int64_t bytes = (int64_t)s.height * s.width * 3;
        struct tensor frames =
            harness_dense(h, ELEMENT_F32, s.frames, (bytes + 3) / 4, FILL_ZERO, 0); // memory for the bytes
        frames = (struct tensor){frames.buffer, frames.offset, ELEMENT_U8, s.frames, bytes, bytes};
        uint8_t *pixels = harness_memory(h, (size_t)(s.frames * bytes));
        for (int64_t j = 0; j < s.frames * bytes; j++) pixels[j] = (uint8_t)harness_range(h, 0, 255);
        harness_ok(h, h->ops->upload(h->backend, frames, pixels, ELEMENT_U8));
        int64_t patches = (int64_t)((s.frames + 1) / 2) * (s.height / s.patch_size) * (s.width / s.patch_size);
        struct tensor out = harness_tensor(h, i % 2 ? ELEMENT_BF16 : ELEMENT_F32, patches,
                                           (int64_t)6 * s.patch_size * s.patch_size, FILL_ZERO, 0);
        harness_ok(h, h->ops->patchify(h->backend, out, frames, &s));
        harness_near(h, "patches", out, h->first ? patchify_reference(h, &s, pixels) : NULL, 1e-6, 1e-6);
    }
}

const struct suite suite_patchify = {"patchify", patchify_check, NULL};
