#include "shared/media/color.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/display.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "shared/base/memory.h"

// ---- swscale ----

static status color_new_scaler(struct SwsContext **out, const AVFrame *frame, enum AVPixelFormat format, int flags) {
    struct SwsContext *scaler = *out = sws_getContext(frame->width, frame->height, frame->format, frame->width,
                                                      frame->height, format, flags, NULL, NULL, NULL);
    if (!scaler) {
        const char *name = av_get_pix_fmt_name(frame->format);
        return fail(BAD_SAMPLE, "its pixels (%s) cannot be converted", name ? name : "of an unknown format");
    }
    // Formats without a matrix (RGB, gray) have no details to set.
    int *table, *out_table, full_range, out_full_range, brightness, contrast, saturation;
    if (sws_getColorspaceDetails(scaler, &table, &full_range, &out_table, &out_full_range, &brightness, &contrast,
                                 &saturation) >= 0) {
        if (frame->color_range != AVCOL_RANGE_UNSPECIFIED) full_range = frame->color_range == AVCOL_RANGE_JPEG;
        (void)sws_setColorspaceDetails(scaler, sws_getCoefficients((int)frame->colorspace), full_range, out_table,
                                       out_full_range, brightness, contrast, saturation);
    }
    return OK;
}

static status color_scale(struct SwsContext *scaler, const AVFrame *frame, uint8_t *const *planes, const int *strides) {
    int rows =
        sws_scale(scaler, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes, strides);
    return rows == frame->height ? OK : fail(BAD_SAMPLE, "its pixels cannot be converted");
}

status color_convert(struct color_converter *converter, const AVFrame *frame, const uint8_t **rgb) {
    if (!converter->rgb || converter->format != frame->format || converter->width != frame->width ||
        converter->height != frame->height || converter->space != (int)frame->colorspace ||
        converter->range != (int)frame->color_range) {
        color_converter_release(converter);
        TRY(color_new_scaler(&converter->scaler, frame, AV_PIX_FMT_RGB24, SWS_BILINEAR));
        // swscale may write up to a vector's length past the end of a row.
        converter->stride = (frame->width * 3 + 127) / 64 * 64;
        converter->rgb = av_malloc((size_t)converter->stride * (size_t)frame->height + 64);
        if (!converter->rgb) return fail_oom();
        converter->format = frame->format;
        converter->width = frame->width;
        converter->height = frame->height;
        converter->space = (int)frame->colorspace;
        converter->range = (int)frame->color_range;
    }
    uint8_t *planes[4] = {converter->rgb};
    int strides[4] = {converter->stride};
    TRY(color_scale(converter->scaler, frame, planes, strides));
    *rgb = converter->rgb;
    return OK;
}

void color_converter_release(struct color_converter *converter) {
    sws_freeContext(converter->scaler);
    av_free(converter->rgb);
    *converter = (struct color_converter){0};
}

status color_convert_image(AVFrame *out, const AVFrame *image, bool with_alpha) {
    out->format = with_alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
    out->width = image->width;
    out->height = image->height;
    if (av_frame_get_buffer(out, 0) < 0) return fail_oom();
    // The flags that come nearest to what image libraries do.
    int flags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
    struct SwsContext *scaler = NULL;
    status result = color_new_scaler(&scaler, image, out->format, flags);
    if (result == OK) result = color_scale(scaler, image, out->data, out->linesize);
    sws_freeContext(scaler);
    return result;
}

// ---- JPEG and WebP ----

static int color_clamp(int level) {
    return level < 0 ? 0 : level > 255 ? 255 : level;
}

static const uint8_t *color_plane_row(const AVFrame *frame, int plane, int y) {
    return frame->data[plane] + (ptrdiff_t)y * frame->linesize[plane];
}

// The two chroma rows from which row y is interpolated, where chroma has half as many rows.
struct chroma_rows {
    const uint8_t *near, *far;
};

// `rows`: of chroma. At the picture's edges the far row is the near one.
static struct chroma_rows color_chroma_rows(const AVFrame *frame, int plane, int y, int shift, int rows) {
    assert(y >> shift < rows && plane > 0);
    int near = y >> shift, far = near + (y & 1 ? 1 : -1);
    far = far < 0 ? 0 : far >= rows ? rows - 1 : far;
    return (struct chroma_rows){color_plane_row(frame, plane, near), color_plane_row(frame, plane, far)};
}

bool color_jpeg_supported(const AVFrame *frame) {
    switch (frame->format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ444P:
        return true;
    default:
        return false;
    }
}

bool color_webp_supported(const AVFrame *frame) {
    return frame->format == AV_PIX_FMT_YUV420P || frame->format == AV_PIX_FMT_YUVA420P;
}

// Doubles a row of `count` samples: each output is 3/4 of the nearer sample and 1/4 of its other neighbour. The input
// is scaled by 2^bits; `round_even` and `round_odd` (of even and odd outputs) are added before the division.
static void color_double_row(int *out, const int *in, int count, int bits, int round_even, int round_odd) {
    for (int i = 0; i < count; i++) {
        int before = i ? in[i - 1] : in[i], after = i + 1 < count ? in[i + 1] : in[i];
        out[2 * i] = (3 * in[i] + before + round_even) >> (2 + bits);
        out[2 * i + 1] = (3 * in[i] + after + round_odd) >> (2 + bits);
    }
}

// out[width] = the chroma samples of row y, upsampled as libjpeg does it.
static void color_jpeg_chroma(const AVFrame *frame, int plane, int y, int *work, int *out) {
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    int x_shift = format->log2_chroma_w, y_shift = format->log2_chroma_h;
    assert(x_shift <= 1 && y_shift <= 1);
    int count = (frame->width + (1 << x_shift) - 1) >> x_shift, rows = (frame->height + (1 << y_shift) - 1) >> y_shift;
    struct chroma_rows chroma = color_chroma_rows(frame, plane, y, y_shift, rows);
    bool nearest = x_shift && count <= 2; // libjpeg does not interpolate so narrow a picture
    bool blend = y_shift && !nearest;
    int *sums = x_shift ? work : out;
    for (int i = 0; i < count; i++) sums[i] = blend ? 3 * chroma.near[i] + chroma.far[i] : chroma.near[i];
    if (nearest) {
        for (int x = 0; x < frame->width; x++) out[x] = chroma.near[x >> 1];
    } else if (x_shift && blend) {
        color_double_row(out, sums, count, 2, 8, 7);
    } else if (x_shift) {
        color_double_row(out, sums, count, 0, 1, 2);
    } else if (blend) {
        for (int i = 0; i < count; i++) out[i] = (out[i] + (y & 1 ? 2 : 1)) >> 2;
    }
}

void color_jpeg_row(const AVFrame *frame, int y, int *scratch, uint8_t *out) {
    enum { bits = 16, half = 1 << (bits - 1) };
    const int r_cr = 91881, b_cb = 116130, g_cr = 46802, g_cb = 22554; // the BT.601 coefficients x 2^16, rounded
    int stride = frame->width + 2;
    int *cb = scratch, *cr = scratch + stride, *work = scratch + 2 * (ptrdiff_t)stride;
    color_jpeg_chroma(frame, 1, y, work, cb);
    color_jpeg_chroma(frame, 2, y, work, cr);
    const uint8_t *luma = color_plane_row(frame, 0, y);
    for (int x = 0; x < frame->width; x++, out += 3) {
        int b = cb[x] - 128, r = cr[x] - 128;
        out[0] = (uint8_t)color_clamp(luma[x] + ((r_cr * r + half) >> bits));
        out[1] = (uint8_t)color_clamp(luma[x] + ((-g_cb * b + half - g_cr * r) >> bits));
        out[2] = (uint8_t)color_clamp(luma[x] + ((b_cb * b + half) >> bits));
    }
}

// out[width] = the chroma samples of row y: 9, 3, 3 and 1 sixteenths of the four samples around the pixel, rounded in
// two steps as libwebp does it; in the first and last column 3 and 1 quarters of the two samples there.
static void color_webp_chroma(const AVFrame *frame, int plane, int y, int *out) {
    int count = (frame->width + 1) / 2;
    struct chroma_rows chroma = color_chroma_rows(frame, plane, y, 1, (frame->height + 1) / 2);
    const uint8_t *near = chroma.near, *far = chroma.far;
    for (int x = 0; x < frame->width; x++) {
        int i = x / 2, next = i + (x & 1 ? 1 : -1);
        if (x == 0 || next >= count) {
            out[x] = (3 * near[i] + far[i] + 2) >> 2;
            continue;
        }
        int sum = near[i] + near[next] + far[i] + far[next] + 8;
        int diagonal = (sum + 2 * (far[i] + near[next])) >> 3;
        out[x] = (diagonal + near[i]) >> 1;
    }
}

void color_webp_row(const AVFrame *frame, int y, int *scratch, uint8_t *out) {
    int *u = scratch, *v = scratch + frame->width + 2;
    color_webp_chroma(frame, 1, y, u);
    color_webp_chroma(frame, 2, y, v);
    const uint8_t *luma = color_plane_row(frame, 0, y);
    for (int x = 0; x < frame->width; x++, out += 3) {
        int l = luma[x] * 19077 >> 8; // the coefficients are libwebp's, x 2^14; 6 bits are left for rounding
        out[0] = (uint8_t)color_clamp((l + (v[x] * 26149 >> 8) - 14234) >> 6);
        out[1] = (uint8_t)color_clamp((l - (u[x] * 6419 >> 8) - (v[x] * 13320 >> 8) + 8708) >> 6);
        out[2] = (uint8_t)color_clamp((l + (u[x] * 33050 >> 8) - 17685) >> 6);
    }
}

// ---- videos ----

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
        TRY(RESIZE_LARGE(&converter->rotated, rotation ? (size_t)in.height * (size_t)in.width * 3 : 1));
        converter->in_height = in.height;
        converter->in_width = in.width;
    }
    assert(size.height > 0 && size.width > 0);
    if (rotation) { // clockwise, into rows without gaps
        assert(rotation == 90 || rotation == 180 || rotation == 270);
        int height = frame->height, width = frame->width;
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++) {
                int out_y = rotation == 90 ? x : rotation == 180 ? height - 1 - y : width - 1 - x;
                int out_x = rotation == 90 ? height - 1 - y : rotation == 180 ? width - 1 - x : y;
                size_t pixel = (size_t)out_y * (size_t)in.width + (size_t)out_x;
                memcpy(converter->rotated + pixel * 3, rgb + y * stride + x * 3, 3);
            }
        }
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
