// Decoding an image: the first frame of the file, converted to RGB as image libraries do it, resized in fixed point.
//
// The surprise: only a PNG's or WebP's real alpha channel counts; such an image is laid over white. Transparency of a
// palette, of 8-bit gray or of a single color (PNG's tRNS) is ignored, and so is an orientation tag.
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/intreadwrite.h>
#include <libavutil/pixdesc.h>

#include "shared/base/file.h"
#include "shared/media/decode.h"
#include "shared/media/ffmpeg.h"

// ---- color ----

// JPEG and lossy WebP as libjpeg and libwebp convert them, to the bit.

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
    const AVPixFmtDescriptor *format = ffmpeg.av_pix_fmt_desc_get(frame->format);
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

// out[width, RGB] = row y of a JPEG's frame, as libjpeg's fancy upsampling and integer arithmetic give it. `scratch`
// has room for 4 * (width + 2) samples.
static void color_jpeg_row(const AVFrame *frame, int y, int *scratch, uint8_t *out) {
    enum { BITS = 16, HALF = 1 << (BITS - 1) };
    const int r_cr = 91881, b_cb = 116130, g_cr = 46802, g_cb = 22554; // the BT.601 coefficients x 2^16, rounded
    int stride = frame->width + 2;
    int *cb = scratch, *cr = scratch + stride, *work = scratch + 2 * (ptrdiff_t)stride;
    color_jpeg_chroma(frame, 1, y, work, cb);
    color_jpeg_chroma(frame, 2, y, work, cr);
    const uint8_t *luma = color_plane_row(frame, 0, y);
    for (int x = 0; x < frame->width; x++, out += 3) {
        int b = cb[x] - 128, r = cr[x] - 128;
        out[0] = (uint8_t)color_clamp(luma[x] + ((r_cr * r + HALF) >> BITS));
        out[1] = (uint8_t)color_clamp(luma[x] + ((-g_cb * b + HALF - g_cr * r) >> BITS));
        out[2] = (uint8_t)color_clamp(luma[x] + ((b_cb * b + HALF) >> BITS));
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

// An image, decoded and converted to RGB row by row.
struct image_reader {
    struct image_rows rows;
    struct demuxer demuxer;
    AVFrame *decoded, *converted; // `converted` only where no layout fits
    const AVFrame *frame;         // the one that is read
    bool over_white;              // the alpha channel counts
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
    const bool jpeg = format == AV_PIX_FMT_YUVJ420P || format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ440P ||
                      format == AV_PIX_FMT_YUVJ444P;
    const bool webp = format == AV_PIX_FMT_YUV420P || format == AV_PIX_FMT_YUVA420P;
    if (codec == AV_CODEC_ID_MJPEG && jpeg) reader->layout = LAYOUT_JPEG;
    if (codec == AV_CODEC_ID_WEBP && webp) reader->layout = LAYOUT_WEBP;
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
    const uint8_t *in = color_plane_row(frame, 0, y);
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
        for (int c = 0; c < 3; c++) samples[c] = color_plane_row(frame, packed->planes[c], y) + packed->offsets[c];
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
    case LAYOUT_WEBP: { // as libwebp's fancy upsampler gives it
        const uint8_t *alpha = reader->over_white ? color_plane_row(frame, 3, y) : NULL;
        int *u = reader->scratch, *v = reader->scratch + frame->width + 2;
        color_webp_chroma(frame, 1, y, u);
        color_webp_chroma(frame, 2, y, v);
        for (int x = 0; x < frame->width; x++, out += 3) {
            int l = in[x] * 19077 >> 8; // the coefficients are libwebp's, x 2^14; 6 bits are left for rounding
            out[0] = (uint8_t)color_clamp((l + (v[x] * 26149 >> 8) - 14234) >> 6);
            out[1] = (uint8_t)color_clamp((l - (u[x] * 6419 >> 8) - (v[x] * 13320 >> 8) + 8708) >> 6);
            out[2] = (uint8_t)color_clamp((l + (u[x] * 33050 >> 8) - 17685) >> 6);
            for (int c = 0; alpha && c < 3; c++) out[c] = image_over_white(out[c], alpha[x]);
        }
        break;
    }
    case LAYOUT_NONE:
        return fail(BUG, "the layout of the image is unknown");
    }
    return OK;
}

// ---- decoding ----

// Whether a JPEG is there up to its end-of-image marker, which need not be at the end of the data.
static bool image_jpeg_ends(const uint8_t *data, int size) {
    enum { MARKER = 0xff, RESTART = 0xd0, END_OF_IMAGE = 0xd9 };
    for (int at = 2; size - at >= 2;) { // behind the start-of-image marker
        const uint8_t code = data[at + 1];
        if (data[at] != MARKER || code == 0 || code == MARKER || (code >= RESTART && code < RESTART + 8)) {
            at++; // coded pixels, or what fills up
        } else if (code == END_OF_IMAGE) {
            return true;
        } else { // a segment: its length, which counts itself, follows
            const int length = size - at >= 4 ? AV_RB16(data + at + 2) : 0;
            at += length > 2 ? 2 + length : 4;
        }
    }
    return false;
}

// Whether the first image of a TIFF file is compressed as JPEG, which FFmpeg decodes to a black picture, without an
// error. Only those in a camera's raw file (DNG) it can decode.
static bool image_tiff_is_jpeg(const uint8_t *data, size_t size) {
    enum { FIRST = 4, ENTRY_SIZE = 12, VALUE = 8, COMPRESSION = 259, DNG_VERSION = 50706, OLD_JPEG = 6, JPEG = 7 };
    bool jpeg = false, dng = false;
    if (size < FIRST + 4) return false;
    const bool big_endian = data[0] == 'M';
    const size_t first = big_endian ? AV_RB32(data + FIRST) : AV_RL32(data + FIRST);
    if (first > size - 2) return false;
    const size_t count = big_endian ? AV_RB16(data + first) : AV_RL16(data + first);
    for (size_t i = 0; i < count && first + 2 + (i + 1) * ENTRY_SIZE <= size; i++) {
        const uint8_t *entry = data + first + 2 + i * ENTRY_SIZE;
        const unsigned tag = big_endian ? AV_RB16(entry) : AV_RL16(entry);
        const unsigned value = big_endian ? AV_RB16(entry + VALUE) : AV_RL16(entry + VALUE);
        jpeg |= tag == COMPRESSION && (value == OLD_JPEG || value == JPEG);
        dng |= tag == DNG_VERSION;
    }
    return jpeg && !dng;
}

// Decodes the first frame of the file. *png_color_type = what the header of a PNG states; left as it is otherwise.
static status image_decode_first(struct demuxer *demuxer, AVPacket *packet, AVFrame *frame, int *png_color_type) {
    enum { PNG_COLOR_TYPE_OFFSET = 25 };
    AVCodecContext *decoder = demuxer->decoder;
    bool drained = false;
    for (;;) {
        int code = ffmpeg.avcodec_receive_frame(decoder, frame);
        if (code == 0) break;
        if (code == AVERROR_EOF) return ffmpeg_fail(0, "has no frame");
        if (code != AVERROR(EAGAIN)) return ffmpeg_fail(code, "cannot be decoded");
        status result = drained ? END : demuxer_read(demuxer, packet);
        if (result != OK && result != END) return result;
        drained = result == END;
        // FFmpeg fills up the missing part of a truncated JPEG without an error.
        if (!drained && decoder->codec_id == AV_CODEC_ID_MJPEG && !image_jpeg_ends(packet->data, packet->size))
            return fail(BAD_SAMPLE, "the file is truncated");
        if (!drained && decoder->codec_id == AV_CODEC_ID_PNG && packet->size > PNG_COLOR_TYPE_OFFSET &&
            *png_color_type < 0) {
            *png_color_type = packet->data[PNG_COLOR_TYPE_OFFSET];
        }
        if (!drained && decoder->codec_id == AV_CODEC_ID_TIFF && image_tiff_is_jpeg(packet->data, (size_t)packet->size))
            return fail(BAD_SAMPLE, "FFmpeg cannot decode JPEG inside of TIFF");
        ffmpeg_clear_error();
        code = ffmpeg.avcodec_send_packet(decoder, drained ? NULL : packet);
        if (!drained) ffmpeg.av_packet_unref(packet);
        if (code < 0 && code != AVERROR_EOF) return ffmpeg_fail(code, "cannot be decoded");
    }
    bool damaged = frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags;
    return damaged ? ffmpeg_fail(0, "is damaged") : OK;
}

static void image_close(struct image_reader *reader) {
    free(reader->row);
    free(reader->scratch);
    demuxer_close(&reader->demuxer);
    ffmpeg.av_frame_free(&reader->converted);
    ffmpeg.av_frame_free(&reader->decoded);
}

// Decodes an image, whose rows can then be read. BAD_SAMPLE when the file is missing or damaged. The caller closes it
// with image_close, also after a failure.
static status image_open(struct image_reader *reader, const char *path) {
    enum { PNG_GRAY_ALPHA = 4, PNG_RGB_ALPHA = 6 };
    int png_color_type = -1; // stays -1 unless the file is a PNG
    AVFrame *frame = mem_checked(ffmpeg.av_frame_alloc());
    AVPacket *packet = mem_checked(ffmpeg.av_packet_alloc());
    *reader = (struct image_reader){.decoded = frame, .frame = frame};
    status result = demuxer_open(&reader->demuxer, path, 1, DEMUX_IMAGE);
    if (result == OK) result = image_decode_first(&reader->demuxer, packet, frame, &png_color_type);
    ffmpeg.av_packet_free(&packet);
    if (result != OK) return result;
    enum AVCodecID codec = reader->demuxer.decoder->codec_id;
    // Whether the frame's alpha channel is the file's own.
    const AVPixFmtDescriptor *format = ffmpeg.av_pix_fmt_desc_get(frame->format);
    bool alpha = format && format->flags & AV_PIX_FMT_FLAG_ALPHA && !(format->flags & AV_PIX_FMT_FLAG_PAL) &&
                 codec != AV_CODEC_ID_GIF && codec != AV_CODEC_ID_MJPEG && codec != AV_CODEC_ID_BMP;
    if (png_color_type < 0)
        alpha = alpha && frame->format != AV_PIX_FMT_YA8;
    else if (png_color_type != PNG_RGB_ALPHA)
        alpha = alpha && png_color_type == PNG_GRAY_ALPHA && format->comp[0].depth > 8;
    reader->over_white = alpha;
    image_reader_set_layout(reader, codec);
    if (reader->layout == LAYOUT_NONE) {
        AVFrame *rgb = mem_checked(ffmpeg.av_frame_alloc());
        reader->frame = reader->converted = rgb;
        rgb->format = alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
        rgb->width = frame->width;
        rgb->height = frame->height;
        if (ffmpeg.av_frame_get_buffer(rgb, 0) < 0) return fail_oom();
        // The flags that come nearest to what image libraries do.
        int flags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
        struct SwsContext *scaler = NULL;
        result = color_new_scaler(&scaler, frame, rgb->format, flags);
        if (result == OK) result = color_scale(scaler, frame, rgb->data, rgb->linesize);
        ffmpeg.sws_freeContext(scaler);
        TRY(result);
        image_reader_set_layout(reader, AV_CODEC_ID_NONE);
        assert(reader->layout != LAYOUT_NONE);
    }
    NEW(&reader->row, (size_t)frame->width * 3);
    NEW(&reader->scratch, 4 * ((size_t)frame->width + 2));
    reader->rows = (struct image_rows){frame->height, frame->width, image_read_row, reader};
    return OK;
}

status image_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    *view = (struct frames_view){.frames = {.count = 1, .seconds_per_grid = NAN}};
    struct frames *frames = &view->frames;
    struct image_reader image;
    const struct image_rows *rows = &image.rows;
    status result;
    TRY_TO(result, done, image_open(&image, path));
    TRY_TO(result, done,
           smart_resize(rows->height, rows->width, sampling->image_min_pixels, sampling->image_max_pixels,
                        &frames->height, &frames->width));
    TRY_TO(result, done, mem_new_large(&view->owned, frames_bytes(frames), 1));
    TRY_TO(result, done, image_resize(rows, frames->height, frames->width, view->owned));
    frames->pixels = view->owned;
done:
    image_close(&image);
    if (result != OK) frames_view_release(view);
    return result;
}

// ---- pictures ----

status picture_list_read(struct picture_list *list, const char *path) {
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".webp", ".bmp"};
    *list = (struct picture_list){0};
    DIR *dir = opendir(path);
    if (!dir) return media_read_fail();
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *name = entry->d_name, *dot = strrchr(name, '.');
        bool picture = false;
        for (size_t i = 0; dot && *name != '.' && i < sizeof endings / sizeof *endings; i++)
            picture |= strcasecmp(dot, endings[i]) == 0;
        if (!picture) continue;
        GROW(&list->paths, list->count);
        list->paths[list->count++] = arena_printf(&list->memory, "%s/%s", path, name);
    }
    closedir(dir);
    if (!list->count) return fail(BAD_SAMPLE, "the directory has no picture");
    qsort(list->paths, list->count, sizeof *list->paths, path_compare);
    return OK;
}

void picture_list_release(struct picture_list *list) {
    arena_release(&list->memory);
    free(list->paths);
    *list = (struct picture_list){0};
}

// A clip that is a directory of pictures: each one is decoded as an image and resized as a video's frame.

static double picture_time(const void *sampling, int64_t index) {
    return (double)index / ((const struct sampling_config *)sampling)->frame_rate;
}

status picture_clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    struct frames frames = {.video = true};
    uint8_t *pixels = NULL;    // until the first picture, which decides the size of all, is decoded
    double *timestamps = NULL; // behind them in one block
    struct picture_list list;
    int64_t first, range;
    *view = (struct frames_view){0};
    status result;
    TRY_TO(result, done, picture_list_read(&list, path));
    TRY_TO(result, done, sampling_range(sampling, (int64_t)list.count, picture_time, sampling, &first, &range));
    TRY_TO(result, done, sampling_frame_count(sampling, range, sampling->frame_rate, &frames.count));
    frames.seconds_per_grid = 2 / ((double)frames.count / (double)range * sampling->frame_rate);
    for (int i = 0; i < frames.count; i++) {
        const int64_t at = first + sampling_frame_index(range, frames.count, i);
        struct image_reader image;
        const struct image_rows *rows = &image.rows;
        struct resizer *resizer = NULL;
        uint8_t *rgb = NULL;
        result = image_open(&image, list.paths[at]);
        if (result == OK && !pixels)
            result = sampling_new_frames(sampling, rows->height, rows->width, &frames, &pixels, &timestamps);
        const size_t stride = (size_t)rows->width * 3, bytes = (size_t)frames.height * (size_t)frames.width * 3;
        if (result == OK) result = NEW_LARGE(&rgb, (size_t)rows->height * stride);
        for (int y = 0; result == OK && y < rows->height; y++) {
            const uint8_t *row = NULL;
            result = rows->row(rows->context, y, &row);
            if (result == OK) memcpy(rgb + (size_t)y * stride, row, stride);
        }
        if (result == OK) result = resizer_new(&resizer, rows->height, rows->width, frames.height, frames.width);
        if (result == OK) resizer_run(resizer, rgb, (ptrdiff_t)stride, pixels + (size_t)i * bytes);
        resizer_free(&resizer);
        free(rgb);
        image_close(&image);
        if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path_base_name(list.paths[at]));
        if (result != OK) goto done;
        timestamps[i] = picture_time(sampling, at);
    }
    *view = (struct frames_view){.frames = frames, .owned = pixels};
    pixels = NULL;
done:
    free(pixels);
    picture_list_release(&list);
    return result;
}

// ---- contact_sheet ----

status contact_sheet_encode(const struct frames *frames, struct buf *out) {
    enum { GAP = 4, WHITE = 255 };
    TRY(ffmpeg_open());
    ffmpeg_clear_error();
    const AVCodec *codec = ffmpeg.avcodec_find_encoder(AV_CODEC_ID_PNG);
    if (!codec) return fail(UNAVAILABLE, "FFmpeg has no PNG encoder");
    AVCodecContext *encoder = mem_checked(ffmpeg.avcodec_alloc_context3(codec));
    AVFrame *sheet = mem_checked(ffmpeg.av_frame_alloc());
    AVPacket *packet = mem_checked(ffmpeg.av_packet_alloc());
    status result;
    int columns = (int)ceil(sqrt((double)frames->count)), rows = (frames->count + columns - 1) / columns;
    sheet->format = AV_PIX_FMT_RGB24;
    sheet->width = columns * (frames->width + GAP) - GAP;
    sheet->height = rows * (frames->height + GAP) - GAP;
    TRY_TO(result, done, ffmpeg.av_frame_get_buffer(sheet, 0) < 0 ? fail_oom() : OK);
    for (int y = 0; y < sheet->height; y++)
        memset(sheet->data[0] + (ptrdiff_t)y * sheet->linesize[0], WHITE, (size_t)sheet->width * 3);
    size_t row = (size_t)frames->width * 3;
    for (int i = 0; i < frames->count; i++) {
        int top = i / columns * (frames->height + GAP), left = i % columns * (frames->width + GAP);
        for (int y = 0; y < frames->height; y++) {
            memcpy(sheet->data[0] + (ptrdiff_t)(top + y) * sheet->linesize[0] + (ptrdiff_t)left * 3,
                   frames->pixels + ((size_t)i * (size_t)frames->height + (size_t)y) * row, row);
        }
    }
    encoder->width = sheet->width;
    encoder->height = sheet->height;
    encoder->pix_fmt = AV_PIX_FMT_RGB24;
    encoder->time_base = (AVRational){1, 1};
    int code = ffmpeg.avcodec_open2(encoder, NULL, NULL);
    if (code == 0) code = ffmpeg.avcodec_send_frame(encoder, sheet);
    if (code == 0) code = ffmpeg.avcodec_send_frame(encoder, NULL);
    if (code == 0) code = ffmpeg.avcodec_receive_packet(encoder, packet);
    if (code) {
        ffmpeg_fail(code, "cannot encode a PNG");
        result = UNAVAILABLE;
        goto done;
    }
    buf_append(out, packet->data, (size_t)packet->size);
done:
    ffmpeg.av_packet_free(&packet);
    ffmpeg.av_frame_free(&sheet);
    ffmpeg.avcodec_free_context(&encoder);
    return result;
}

status contact_sheet_write(const struct frames *frames, const char *path) {
    struct buf png = {0};
    status result = contact_sheet_encode(frames, &png);
    if (result == OK) result = file_write_atomic(path, png.data, png.size);
    buf_release(&png);
    return result;
}
