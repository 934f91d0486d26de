#include "shared/media/colour.h"

#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

static status set_up(struct colour *colour, const AVFrame *frame, int flags) {
    colour_release(colour);
    colour->scaler = sws_getContext(frame->width, frame->height, frame->format, frame->width, frame->height,
                                    AV_PIX_FMT_RGB24, flags, NULL, NULL, NULL);
    if (!colour->scaler) {
        const char *name = av_get_pix_fmt_name(frame->format);
        return fail(BAD_SAMPLE, "its pixels (%s) cannot be converted", name ? name : "of an unknown kind");
    }
    // Formats without a matrix (RGB, gray) refuse details, and need none.
    int *old_in, *old_out, in_full, out_full, brightness, contrast, saturation;
    if (sws_getColorspaceDetails(colour->scaler, &old_in, &in_full, &old_out, &out_full, &brightness, &contrast,
                                 &saturation) >= 0) {
        int full = frame->color_range == AVCOL_RANGE_UNSPECIFIED ? in_full : frame->color_range == AVCOL_RANGE_JPEG;
        (void)sws_setColorspaceDetails(colour->scaler, sws_getCoefficients(frame->colorspace), full, old_out, out_full,
                                       brightness, contrast, saturation);
    }
    colour->stride = (frame->width * 3 + 127) / 64 * 64;
    colour->rgb = av_malloc((size_t)colour->stride * (size_t)frame->height + 64);
    if (!colour->rgb) return fail(UNAVAILABLE, "memory is short");
    colour->format = frame->format;
    colour->width = frame->width;
    colour->height = frame->height;
    colour->space = frame->colorspace;
    colour->range = frame->color_range;
    colour->flags = flags;
    return OK;
}

status colour_convert(struct colour *colour, const AVFrame *frame, int flags, const uint8_t **rgb) {
    if (!colour->rgb || colour->format != frame->format || colour->width != frame->width ||
        colour->height != frame->height || colour->space != (int)frame->colorspace ||
        colour->range != (int)frame->color_range || colour->flags != flags) {
        TRY(set_up(colour, frame, flags));
    }
    uint8_t *rows[4] = {colour->rgb};
    int strides[4] = {colour->stride};
    int done = sws_scale(colour->scaler, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, rows,
                         strides);
    if (done != frame->height) return fail(BAD_SAMPLE, "its pixels cannot be converted");
    *rgb = colour->rgb;
    return OK;
}

void colour_release(struct colour *colour) {
    sws_freeContext(colour->scaler);
    av_free(colour->rgb);
    *colour = (struct colour){0};
}
