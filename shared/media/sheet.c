// A contact sheet: frames side by side in rows, as one PNG.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/media/container.h"
#include "shared/media/media.h"

enum { gap = 4 };

static status lay_out(const struct frames *frames, AVFrame *sheet) {
    int columns = (int)ceil(sqrt((double)frames->count)), rows = (frames->count + columns - 1) / columns;
    sheet->format = AV_PIX_FMT_RGB24;
    sheet->width = columns * (frames->width + gap) - gap;
    sheet->height = rows * (frames->height + gap) - gap;
    if (av_frame_get_buffer(sheet, 0) < 0) return fail(UNAVAILABLE, "memory is short");
    for (int y = 0; y < sheet->height; y++)
        memset(sheet->data[0] + (ptrdiff_t)y * sheet->linesize[0], 255, (size_t)sheet->width * 3);
    size_t row = (size_t)frames->width * 3;
    for (int i = 0; i < frames->count; i++) {
        int top = i / columns * (frames->height + gap), left = i % columns * (frames->width + gap);
        for (int y = 0; y < frames->height; y++) {
            memcpy(sheet->data[0] + (ptrdiff_t)(top + y) * sheet->linesize[0] + (ptrdiff_t)left * 3,
                   frames->pixels + ((size_t)i * (size_t)frames->height + (size_t)y) * row, row);
        }
    }
    return OK;
}

static status encode(AVCodecContext *encoder, const AVFrame *sheet, AVPacket *packet) {
    encoder->width = sheet->width;
    encoder->height = sheet->height;
    encoder->pix_fmt = AV_PIX_FMT_RGB24;
    encoder->time_base = (AVRational){1, 1};
    int code = avcodec_open2(encoder, NULL, NULL);
    if (code == 0) code = avcodec_send_frame(encoder, sheet);
    if (code == 0) code = avcodec_send_frame(encoder, NULL);
    if (code == 0) code = avcodec_receive_packet(encoder, packet);
    if (code == 0) return OK;
    status result = container_defect(code, "cannot encode a PNG");
    return result == BAD_SAMPLE ? UNAVAILABLE : result;
}

status contact_sheet_write(const struct frames *frames, const char *path) {
    container_listen();
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    if (!codec) return fail(UNAVAILABLE, "this FFmpeg has no PNG encoder");
    AVCodecContext *encoder = avcodec_alloc_context3(codec);
    AVFrame *sheet = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    status result = fail(UNAVAILABLE, "memory is short");
    if (encoder && sheet && packet) {
        result = lay_out(frames, sheet);
        if (result == OK) result = encode(encoder, sheet, packet);
        if (result == OK) result = file_write_atomic(path, packet->data, (size_t)packet->size);
    }
    av_packet_free(&packet);
    av_frame_free(&sheet);
    avcodec_free_context(&encoder);
    return result;
}
