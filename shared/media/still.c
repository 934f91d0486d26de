// The image's chain: the first frame, to RGB as an image library does it, resized in fixed point.
//
// An image with an alpha channel lies over white; transparency that hangs on a palette, on a gray channel or on one
// colour (PNG's tRNS) is dropped. An orientation tag is not applied.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/imgutils.h>
#include <libavutil/intreadwrite.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "shared/base/memory.h"
#include "shared/media/chroma.h"
#include "shared/media/container.h"
#include "shared/media/decode.h"
#include "shared/media/resize.h"

// One row of a frame as RGB.
struct source {
    const AVFrame *frame;
    bool over_white;
    void (*to_rgb)(const struct source *source, int y, uint8_t *out);
    uint8_t *row;
    int *scratch;
};

static const uint8_t *row_of(const struct source *source, int plane, int y) {
    return source->frame->data[plane] + (ptrdiff_t)y * source->frame->linesize[plane];
}

static uint8_t over_white(int level, int alpha) {
    int sum = 255 * (255 - alpha) + level * alpha + 128;
    return (uint8_t)((sum + (sum >> 8)) >> 8);
}

static void set_gray(uint8_t *out, uint8_t level) {
    out[0] = out[1] = out[2] = level;
}

static void from_rgb24(const struct source *source, int y, uint8_t *out) {
    memcpy(out, row_of(source, 0, y), (size_t)source->frame->width * 3);
}

// Four bytes a pixel, RGBA; `step` 8 with the high bytes of 16-bit samples.
static void from_alpha(const struct source *source, int y, uint8_t *out, int bytes, int high) {
    const uint8_t *in = row_of(source, 0, y) + high;
    for (int x = 0; x < source->frame->width; x++, in += 4 * bytes, out += 3) {
        int alpha = source->over_white ? in[3 * bytes] : 255;
        for (int c = 0; c < 3; c++) out[c] = over_white(in[c * bytes], alpha);
    }
}

static void from_rgba(const struct source *source, int y, uint8_t *out) {
    from_alpha(source, y, out, 1, 0);
}

static void from_rgba64be(const struct source *source, int y, uint8_t *out) {
    from_alpha(source, y, out, 2, 0);
}

static void from_rgba64le(const struct source *source, int y, uint8_t *out) {
    from_alpha(source, y, out, 2, 1);
}

static void from_rgb48(const struct source *source, int y, uint8_t *out, int high) {
    const uint8_t *in = row_of(source, 0, y) + high;
    for (int i = 0; i < source->frame->width * 3; i++) out[i] = in[2 * i];
}

static void from_rgb48be(const struct source *source, int y, uint8_t *out) {
    from_rgb48(source, y, out, 0);
}

static void from_rgb48le(const struct source *source, int y, uint8_t *out) {
    from_rgb48(source, y, out, 1);
}

static void from_gray8(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++) set_gray(out + 3 * x, in[x]);
}

static uint8_t clip16(unsigned level) {
    return (uint8_t)(level > 255 ? 255 : level);
}

static void from_gray16be(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++) set_gray(out + 3 * x, clip16(AV_RB16(in + 2 * x)));
}

static void from_gray16le(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++) set_gray(out + 3 * x, clip16(AV_RL16(in + 2 * x)));
}

static void from_ya8(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++) set_gray(out + 3 * x, in[2 * x]);
}

static void from_ya16be(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++) {
        set_gray(out + 3 * x, source->over_white ? over_white(in[4 * x], in[4 * x + 2]) : in[4 * x]);
    }
}

static void from_pal8(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    for (int x = 0; x < source->frame->width; x++, out += 3) {
        uint32_t colour;
        memcpy(&colour, source->frame->data[1] + 4 * in[x], 4);
        out[0] = (uint8_t)(colour >> 16);
        out[1] = (uint8_t)(colour >> 8);
        out[2] = (uint8_t)colour;
    }
}

static void from_bits(const struct source *source, int y, uint8_t *out) {
    const uint8_t *in = row_of(source, 0, y);
    bool white_is_zero = source->frame->format == AV_PIX_FMT_MONOWHITE;
    for (int x = 0; x < source->frame->width; x++) {
        bool bit = in[x / 8] >> (7 - x % 8) & 1;
        set_gray(out + 3 * x, bit != white_is_zero ? 255 : 0);
    }
}

static void from_planes(const struct source *source, int y, uint8_t *out) {
    const uint8_t *green = row_of(source, 0, y), *blue = row_of(source, 1, y), *red = row_of(source, 2, y);
    for (int x = 0; x < source->frame->width; x++, out += 3) {
        out[0] = red[x];
        out[1] = green[x];
        out[2] = blue[x];
    }
}

static void from_jpeg(const struct source *source, int y, uint8_t *out) {
    chroma_jpeg_row(source->frame, y, source->scratch, out);
}

static void from_webp(const struct source *source, int y, uint8_t *out) {
    chroma_webp_row(source->frame, y, source->scratch, out);
    if (!source->over_white) return;
    const uint8_t *alpha = row_of(source, 3, y);
    for (int i = 0; i < source->frame->width * 3; i++) out[i] = over_white(out[i], alpha[i / 3]);
}

static const struct {
    enum AVPixelFormat format;
    void (*to_rgb)(const struct source *source, int y, uint8_t *out);
} readers[] = {
    {AV_PIX_FMT_RGB24, from_rgb24},       {AV_PIX_FMT_RGBA, from_rgba},         {AV_PIX_FMT_RGBA64BE, from_rgba64be},
    {AV_PIX_FMT_RGBA64LE, from_rgba64le}, {AV_PIX_FMT_RGB48BE, from_rgb48be},   {AV_PIX_FMT_RGB48LE, from_rgb48le},
    {AV_PIX_FMT_GRAY8, from_gray8},       {AV_PIX_FMT_GRAY16BE, from_gray16be}, {AV_PIX_FMT_GRAY16LE, from_gray16le},
    {AV_PIX_FMT_YA8, from_ya8},           {AV_PIX_FMT_YA16BE, from_ya16be},     {AV_PIX_FMT_PAL8, from_pal8},
    {AV_PIX_FMT_MONOBLACK, from_bits},    {AV_PIX_FMT_MONOWHITE, from_bits},    {AV_PIX_FMT_GBRP, from_planes},
    {AV_PIX_FMT_GBRAP, from_planes},
};

static bool choose_reader(struct source *source, enum AVCodecID codec) {
    if (codec == AV_CODEC_ID_MJPEG && chroma_jpeg_fits(source->frame)) source->to_rgb = from_jpeg;
    if (codec == AV_CODEC_ID_WEBP && chroma_webp_fits(source->frame)) source->to_rgb = from_webp;
    if (source->to_rgb) return true;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (readers[i].format != source->frame->format) continue;
        source->to_rgb = readers[i].to_rgb;
        return true;
    }
    return false;
}

// Everything else by way of swscale, the nearest there is to the usual image libraries' own conversion.
static status convert(const AVFrame *frame, AVFrame *out, bool alpha) {
    out->format = alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
    out->width = frame->width;
    out->height = frame->height;
    if (av_frame_get_buffer(out, 0) < 0) return fail(UNAVAILABLE, "memory is short");
    int flags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
    struct SwsContext *scaler = sws_getContext(frame->width, frame->height, frame->format, frame->width, frame->height,
                                               out->format, flags, NULL, NULL, NULL);
    if (!scaler) return fail(BAD_SAMPLE, "its pixels (%s) cannot be converted", av_get_pix_fmt_name(frame->format));
    int *from, *to, full, full_out, brightness, contrast, saturation;
    if (sws_getColorspaceDetails(scaler, &from, &full, &to, &full_out, &brightness, &contrast, &saturation) >= 0) {
        if (frame->color_range != AVCOL_RANGE_UNSPECIFIED) full = frame->color_range == AVCOL_RANGE_JPEG;
        (void)sws_setColorspaceDetails(scaler, sws_getCoefficients(frame->colorspace), full, to, full_out, brightness,
                                       contrast, saturation);
    }
    int rows = sws_scale(scaler, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, out->data,
                         out->linesize);
    sws_freeContext(scaler);
    return rows == frame->height ? OK : fail(BAD_SAMPLE, "its pixels cannot be converted");
}

// Whether the alpha channel of these frames is the image's own.
static bool alpha_counts(const AVFrame *frame, enum AVCodecID codec, int png_colours) {
    const AVPixFmtDescriptor *facts = av_pix_fmt_desc_get(frame->format);
    if (!facts || !(facts->flags & AV_PIX_FMT_FLAG_ALPHA) || facts->flags & AV_PIX_FMT_FLAG_PAL) return false;
    if (codec == AV_CODEC_ID_GIF || codec == AV_CODEC_ID_MJPEG || codec == AV_CODEC_ID_BMP) return false;
    enum { png_gray_alpha = 4, png_rgb_alpha = 6 };
    if (png_colours >= 0)
        return png_colours == png_rgb_alpha || (png_colours == png_gray_alpha && facts->comp[0].depth > 8);
    return frame->format != AV_PIX_FMT_YA8;
}

static status give_row(void *context, int y, const uint8_t **row) {
    struct source *source = context;
    source->to_rgb(source, y, source->row);
    *row = source->row;
    return OK;
}

static status resize_frame(struct frames_view *view, const AVFrame *frame, enum AVCodecID codec, bool alpha,
                           const struct sampling_config *sampling) {
    struct frames *frames = &view->frames;
    *frames = (struct frames){.count = 1, .seconds_per_grid = NAN};
    TRY(smart_resize(frame->height, frame->width, sampling->image_min_pixels, sampling->image_max_pixels,
                     &frames->height, &frames->width));
    struct source source = {.frame = frame, .over_white = alpha};
    AVFrame *converted = NULL;
    status result = OK;
    if (!choose_reader(&source, codec)) {
        converted = av_frame_alloc();
        result = converted ? convert(frame, converted, alpha) : fail(UNAVAILABLE, "memory is short");
        source.frame = converted;
        if (result == OK && !choose_reader(&source, AV_CODEC_ID_NONE))
            result = fail(BUG, "no reader for our own format");
    }
    if (result == OK) result = NEW(&source.row, (size_t)frame->width * 3);
    if (result == OK) result = NEW(&source.scratch, 4 * ((size_t)frame->width + 2));
    if (result == OK) result = mem_new(&view->owned, frames_bytes(frames), 1);
    struct image_rows rows = {frame->height, frame->width, give_row, &source};
    if (result == OK) result = image_resize(&rows, frames->height, frames->width, view->owned);
    frames->pixels = view->owned;
    free(source.row);
    free(source.scratch);
    av_frame_free(&converted);
    return result;
}

// A PNG's colour type as its header states it, -1 for other files.
static int png_colour_type(const AVPacket *packet, enum AVCodecID codec) {
    enum { colour_type_at = 25 };
    return codec == AV_CODEC_ID_PNG && packet->size > colour_type_at ? packet->data[colour_type_at] : -1;
}

// FFmpeg fills up what a cut JPEG lacks without a word; the end-of-image marker tells.
static status check_whole(const AVPacket *packet, enum AVCodecID codec) {
    enum { marker = 0xff, scan = 0xda, end_of_image = 0xd9 };
    if (codec != AV_CODEC_ID_MJPEG) return OK;
    for (int i = packet->size - 1; i > 0; i--) {
        if (packet->data[i - 1] != marker) continue;
        if (packet->data[i] == end_of_image) return OK;
        if (packet->data[i] == scan) break;
    }
    return fail(BAD_SAMPLE, "the file breaks off");
}

// The first frame of the file.
static status first_frame(struct container *container, AVPacket *packet, AVFrame *frame, int *png_colours) {
    AVCodecContext *decoder = container->decoder;
    bool drained = false;
    for (;;) {
        int code = avcodec_receive_frame(decoder, frame);
        if (code == 0) return OK;
        if (code == AVERROR_EOF) return container_defect(0, "has no frame");
        if (code != AVERROR(EAGAIN)) return container_defect(code, "cannot be decoded");
        status result = drained ? END : container_read(container, packet);
        if (result != OK && result != END) return result;
        if (result == OK) TRY(check_whole(packet, decoder->codec_id));
        if (result == OK && *png_colours < 0) *png_colours = png_colour_type(packet, decoder->codec_id);
        drained = result == END;
        container_listen();
        code = avcodec_send_packet(decoder, drained ? NULL : packet);
        if (!drained) av_packet_unref(packet);
        if (code < 0 && code != AVERROR_EOF) return container_defect(code, "cannot be decoded");
    }
}

static status decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                     AVPacket *packet, AVFrame *frame) {
    struct container container;
    int png_colours = -1;
    status result = container_open(&container, path, 1, true);
    if (result == OK) result = first_frame(&container, packet, frame, &png_colours);
    if (result == OK && (frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags)) {
        result = container_defect(0, "is damaged");
    }
    if (result == OK) {
        enum AVCodecID codec = container.decoder->codec_id;
        result = resize_frame(view, frame, codec, alpha_counts(frame, codec, png_colours), sampling);
    }
    container_release(&container);
    return result;
}

status still_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    *view = (struct frames_view){0};
    AVFrame *frame = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    status result = fail(UNAVAILABLE, "memory is short");
    if (frame && packet) result = decode(view, path, sampling, packet, frame);
    if (result != OK) frames_view_release(view);
    av_packet_free(&packet);
    av_frame_free(&frame);
    return result;
}
