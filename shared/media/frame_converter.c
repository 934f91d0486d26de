#include "shared/media/frame_converter.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/display.h>

#include "shared/base/memory.h"

int stream_rotation(const AVStream *stream) {
    const int32_t *matrix = ffmpeg_display_matrix(stream);
    double angle = matrix ? -av_display_rotation_get(matrix) : 0;
    if (isnan(angle)) return 0;
    angle -= 360 * floor(angle / 360 + 0.9 / 360);
    for (int rotation = 90; rotation < 360; rotation += 90) {
        if (fabs(angle - rotation) < 1) return rotation;
    }
    return 0;
}

struct frame_size rotated_size(const AVFrame *frame, int rotation) {
    bool upright = rotation == 0 || rotation == 180;
    return upright ? (struct frame_size){frame->height, frame->width}
                   : (struct frame_size){frame->width, frame->height};
}

// out = rgb[height, width] rotated clockwise, rows without gaps.
static void frame_rotate(uint8_t *out, const uint8_t *rgb, ptrdiff_t stride, int height, int width, int rotation) {
    assert(rotation == 90 || rotation == 180 || rotation == 270);
    int out_width = rotation == 180 ? width : height;
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int out_y = rotation == 90 ? x : rotation == 180 ? height - 1 - y : width - 1 - x;
            int out_x = rotation == 90 ? height - 1 - y : rotation == 180 ? width - 1 - x : y;
            memcpy(out + ((size_t)out_y * (size_t)out_width + (size_t)out_x) * 3, rgb + y * stride + x * 3, 3);
        }
    }
}

status frame_convert(struct frame_converter *converter, const AVFrame *frame, int rotation, struct frame_size size,
                     uint8_t *out) {
    if (frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags)
        return ffmpeg_fail(0, "a sampled frame is damaged");
    const uint8_t *rgb;
    TRY(color_convert(&converter->color, frame, &rgb));
    ptrdiff_t stride = converter->color.stride;
    struct frame_size in = rotated_size(frame, rotation);
    if (!converter->resizer || converter->in_height != in.height || converter->in_width != in.width) {
        resizer_free(&converter->resizer);
        TRY(resizer_new(&converter->resizer, in.height, in.width, size.height, size.width));
        TRY(RESIZE(&converter->rotated, rotation ? (size_t)in.height * (size_t)in.width * 3 : 1));
        converter->in_height = in.height;
        converter->in_width = in.width;
    }
    assert(size.height > 0 && size.width > 0);
    if (rotation) {
        frame_rotate(converter->rotated, rgb, stride, frame->height, frame->width, rotation);
        rgb = converter->rotated;
        stride = (ptrdiff_t)in.width * 3;
    }
    resizer_run(converter->resizer, rgb, stride, out);
    return OK;
}

void frame_converter_release(struct frame_converter *converter) {
    color_converter_release(&converter->color);
    resizer_free(&converter->resizer);
    free(converter->rotated);
    *converter = (struct frame_converter){0};
}
