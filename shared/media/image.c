// Decoding an image: the first frame of the file, converted to RGB as image libraries do it, resized in fixed point.
//
// The surprise: only a PNG's or WebP's real alpha channel counts; such an image is laid over white. Transparency of a
// palette, of 8-bit gray or of a single color (PNG's tRNS) is ignored, and so is an orientation tag.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/intreadwrite.h>
#include <libavutil/pixdesc.h>

#include "shared/base/memory.h"
#include "shared/media/color.h"
#include "shared/media/decode.h"
#include "shared/media/demux.h"
#include "shared/media/resize.h"

// ---- rows ----

// A format whose samples are whole bytes. A pixel is `step` bytes; of 16-bit samples only the high byte is read.
struct packed_format {
    enum AVPixelFormat format;
    uint8_t step;
    uint8_t planes[3], offsets[3]; // of red, green and blue
    int8_t alpha;                  // its offset in plane 0, -1: none
};

static const struct packed_format packed_formats[] = {
    {AV_PIX_FMT_RGBA, 4, {0, 0, 0}, {0, 1, 2}, 3},     {AV_PIX_FMT_RGBA64BE, 8, {0, 0, 0}, {0, 2, 4}, 6},
    {AV_PIX_FMT_RGBA64LE, 8, {0, 0, 0}, {1, 3, 5}, 7}, {AV_PIX_FMT_RGB48BE, 6, {0, 0, 0}, {0, 2, 4}, -1},
    {AV_PIX_FMT_RGB48LE, 6, {0, 0, 0}, {1, 3, 5}, -1}, {AV_PIX_FMT_GRAY8, 1, {0, 0, 0}, {0, 0, 0}, -1},
    {AV_PIX_FMT_YA8, 2, {0, 0, 0}, {0, 0, 0}, -1},     {AV_PIX_FMT_YA16BE, 4, {0, 0, 0}, {0, 0, 0}, 2},
    {AV_PIX_FMT_GBRP, 1, {2, 0, 1}, {0, 0, 0}, -1},    {AV_PIX_FMT_GBRAP, 1, {2, 0, 1}, {0, 0, 0}, -1},
};

enum image_layout {
    LAYOUT_NONE,
    LAYOUT_RGB24,
    LAYOUT_PACKED,
    LAYOUT_GRAY16,
    LAYOUT_PALETTE,
    LAYOUT_BITS,
    LAYOUT_JPEG,
    LAYOUT_WEBP,
};

// Converts a frame to RGB, row by row.
struct image_reader {
    const AVFrame *frame;
    bool over_white; // the alpha channel counts
    enum image_layout layout;
    const struct packed_format *packed;
    uint8_t *row;
    int *scratch;
};

static void image_reader_set_layout(struct image_reader *reader, enum AVCodecID codec) {
    reader->layout = LAYOUT_NONE;
    for (size_t i = 0; i < sizeof packed_formats / sizeof *packed_formats; i++) {
        if (packed_formats[i].format != reader->frame->format) continue;
        reader->packed = &packed_formats[i];
        reader->layout = LAYOUT_PACKED;
    }
    enum AVPixelFormat format = reader->frame->format;
    if (format == AV_PIX_FMT_RGB24) reader->layout = LAYOUT_RGB24;
    if (format == AV_PIX_FMT_GRAY16BE || format == AV_PIX_FMT_GRAY16LE) reader->layout = LAYOUT_GRAY16;
    if (format == AV_PIX_FMT_PAL8) reader->layout = LAYOUT_PALETTE;
    if (format == AV_PIX_FMT_MONOBLACK || format == AV_PIX_FMT_MONOWHITE) reader->layout = LAYOUT_BITS;
    if (codec == AV_CODEC_ID_MJPEG && color_jpeg_supported(reader->frame)) reader->layout = LAYOUT_JPEG;
    if (codec == AV_CODEC_ID_WEBP && color_webp_supported(reader->frame)) reader->layout = LAYOUT_WEBP;
}

// level * alpha / 255 + 255 - alpha, rounded.
static uint8_t image_over_white(int level, int alpha) {
    int sum = 255 * (255 - alpha) + level * alpha + 128;
    return (uint8_t)((sum + (sum >> 8)) >> 8);
}

// The callback of struct image_rows.
static status image_read_row(void *context, int y, const uint8_t **row) {
    struct image_reader *reader = context;
    const AVFrame *frame = reader->frame;
    const uint8_t *in = frame->data[0] + (ptrdiff_t)y * frame->linesize[0];
    uint8_t *out = reader->row;
    *row = out;
    switch (reader->layout) {
    case LAYOUT_RGB24:
        *row = in;
        break;
    case LAYOUT_PACKED: {
        const struct packed_format *packed = reader->packed;
        assert(packed && packed->format == frame->format);
        const uint8_t *samples[3], *alpha = reader->over_white && packed->alpha >= 0 ? in + packed->alpha : NULL;
        for (int c = 0; c < 3; c++) {
            int plane = packed->planes[c];
            samples[c] = frame->data[plane] + (ptrdiff_t)y * frame->linesize[plane] + packed->offsets[c];
        }
        for (int x = 0; x < frame->width; x++, out += 3) {
            int at = x * packed->step;
            for (int c = 0; c < 3; c++) out[c] = alpha ? image_over_white(samples[c][at], alpha[at]) : samples[c][at];
        }
        break;
    }
    case LAYOUT_GRAY16: // values above 255 become 255, as Pillow's conversion makes them
        for (int x = 0; x < frame->width; x++, out += 3) {
            unsigned level = frame->format == AV_PIX_FMT_GRAY16BE ? AV_RB16(in + 2 * x) : AV_RL16(in + 2 * x);
            out[0] = out[1] = out[2] = (uint8_t)(level > 255 ? 255 : level);
        }
        break;
    case LAYOUT_PALETTE:
        for (int x = 0; x < frame->width; x++, out += 3) {
            uint32_t color;
            memcpy(&color, frame->data[1] + 4 * in[x], 4);
            out[0] = (uint8_t)(color >> 16);
            out[1] = (uint8_t)(color >> 8);
            out[2] = (uint8_t)color;
        }
        break;
    case LAYOUT_BITS:
        for (int x = 0; x < frame->width; x++, out += 3) {
            bool bit = in[x / 8] >> (7 - x % 8) & 1;
            out[0] = out[1] = out[2] = bit != (frame->format == AV_PIX_FMT_MONOWHITE) ? 255 : 0;
        }
        break;
    case LAYOUT_JPEG:
        color_jpeg_row(frame, y, reader->scratch, out);
        break;
    case LAYOUT_WEBP: {
        color_webp_row(frame, y, reader->scratch, out);
        const uint8_t *alpha = reader->over_white ? frame->data[3] + (ptrdiff_t)y * frame->linesize[3] : NULL;
        for (int i = 0; alpha && i < frame->width * 3; i++) out[i] = image_over_white(out[i], alpha[i / 3]);
        break;
    }
    case LAYOUT_NONE:
        return fail(BUG, "the layout of the image is unknown");
    }
    return OK;
}

// ---- decoding ----

// Decodes the first frame of the file. *png_color_type = what the header of a PNG states; left as it is otherwise.
static status image_decode_first(struct demuxer *demuxer, AVPacket *packet, AVFrame *frame, int *png_color_type) {
    enum { png_color_type_offset = 25 };
    enum { marker = 0xff, start_of_scan = 0xda, end_of_image = 0xd9 }; // of a JPEG
    AVCodecContext *decoder = demuxer->decoder;
    bool drained = false;
    for (;;) {
        int code = avcodec_receive_frame(decoder, frame);
        if (code == 0) break;
        if (code == AVERROR_EOF) return ffmpeg_fail(0, "has no frame");
        if (code != AVERROR(EAGAIN)) return ffmpeg_fail(code, "cannot be decoded");
        status result = drained ? END : demuxer_read(demuxer, packet);
        if (result != OK && result != END) return result;
        drained = result == END;
        if (!drained && decoder->codec_id == AV_CODEC_ID_MJPEG) {
            // FFmpeg fills up the missing part of a truncated JPEG without an error; the end-of-image marker tells.
            int i = packet->size - 1;
            while (i > 0 && !(packet->data[i - 1] == marker &&
                              (packet->data[i] == end_of_image || packet->data[i] == start_of_scan)))
                i--;
            if (i <= 0 || packet->data[i] != end_of_image) return fail(BAD_SAMPLE, "the file is truncated");
        }
        if (!drained && decoder->codec_id == AV_CODEC_ID_PNG && packet->size > png_color_type_offset &&
            *png_color_type < 0) {
            *png_color_type = packet->data[png_color_type_offset];
        }
        ffmpeg_clear_error();
        code = avcodec_send_packet(decoder, drained ? NULL : packet);
        if (!drained) av_packet_unref(packet);
        if (code < 0 && code != AVERROR_EOF) return ffmpeg_fail(code, "cannot be decoded");
    }
    bool damaged = frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags;
    return damaged ? ffmpeg_fail(0, "is damaged") : OK;
}

status image_read(const char *path, status (*use)(void *context, const struct image_rows *rows), void *context) {
    enum { png_gray_alpha = 4, png_rgb_alpha = 6 };
    struct image_reader reader = {0};
    struct demuxer demuxer;
    int png_color_type = -1; // stays -1 unless the file is a PNG
    AVFrame *frame = mem_checked(av_frame_alloc()), *converted = NULL;
    AVPacket *packet = mem_checked(av_packet_alloc());
    status result;
    TRY_TO(result, done, demuxer_open(&demuxer, path, 1, DEMUX_IMAGE));
    TRY_TO(result, done, image_decode_first(&demuxer, packet, frame, &png_color_type));
    enum AVCodecID codec = demuxer.decoder->codec_id;
    // Whether the frame's alpha channel is the file's own.
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    bool alpha = format && format->flags & AV_PIX_FMT_FLAG_ALPHA && !(format->flags & AV_PIX_FMT_FLAG_PAL) &&
                 codec != AV_CODEC_ID_GIF && codec != AV_CODEC_ID_MJPEG && codec != AV_CODEC_ID_BMP;
    if (png_color_type < 0)
        alpha = alpha && frame->format != AV_PIX_FMT_YA8;
    else if (png_color_type != png_rgb_alpha)
        alpha = alpha && png_color_type == png_gray_alpha && format->comp[0].depth > 8;
    reader.frame = frame;
    reader.over_white = alpha;
    image_reader_set_layout(&reader, codec);
    if (reader.layout == LAYOUT_NONE) {
        converted = mem_checked(av_frame_alloc());
        TRY_TO(result, done, color_convert_image(converted, frame, alpha));
        reader.frame = converted;
        image_reader_set_layout(&reader, AV_CODEC_ID_NONE);
        assert(reader.layout != LAYOUT_NONE);
    }
    NEW(&reader.row, (size_t)frame->width * 3);
    NEW(&reader.scratch, 4 * ((size_t)frame->width + 2));
    result = use(context, &(struct image_rows){frame->height, frame->width, image_read_row, &reader});
done:
    free(reader.row);
    free(reader.scratch);
    demuxer_close(&demuxer);
    av_frame_free(&converted);
    av_packet_free(&packet);
    av_frame_free(&frame);
    return result;
}

struct image_target {
    struct frames_view *view;
    const struct sampling_config *sampling;
};

// The `use` of image_read: resizes the image into the view.
static status image_resize_to_view(void *context, const struct image_rows *rows) {
    const struct image_target *target = context;
    struct frames_view *view = target->view;
    struct frames *frames = &view->frames;
    TRY(smart_resize(rows->height, rows->width, target->sampling->image_min_pixels, target->sampling->image_max_pixels,
                     &frames->height, &frames->width));
    TRY(mem_new_large(&view->owned, frames_bytes(frames), 1));
    TRY(image_resize(rows, frames->height, frames->width, view->owned));
    frames->pixels = view->owned;
    return OK;
}

status image_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    *view = (struct frames_view){.frames = {.count = 1, .seconds_per_grid = NAN}};
    status result = image_read(path, image_resize_to_view, &(struct image_target){view, sampling});
    if (result != OK) frames_view_release(view);
    return result;
}
