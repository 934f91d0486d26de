#include "shared/media/contact_sheet.h"

#include <math.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/media/ffmpeg.h"

status contact_sheet_write(const struct frames *frames, const char *path) {
    enum { gap = 4, white = 255 };
    ffmpeg_clear_error();
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    if (!codec) return fail(UNAVAILABLE, "FFmpeg has no PNG encoder");
    AVCodecContext *encoder = mem_checked(avcodec_alloc_context3(codec));
    AVFrame *sheet = mem_checked(av_frame_alloc());
    AVPacket *packet = mem_checked(av_packet_alloc());
    status result;
    int columns = (int)ceil(sqrt((double)frames->count)), rows = (frames->count + columns - 1) / columns;
    sheet->format = AV_PIX_FMT_RGB24;
    sheet->width = columns * (frames->width + gap) - gap;
    sheet->height = rows * (frames->height + gap) - gap;
    TRY_TO(result, done, av_frame_get_buffer(sheet, 0) < 0 ? fail_oom() : OK);
    for (int y = 0; y < sheet->height; y++)
        memset(sheet->data[0] + (ptrdiff_t)y * sheet->linesize[0], white, (size_t)sheet->width * 3);
    size_t row = (size_t)frames->width * 3;
    for (int i = 0; i < frames->count; i++) {
        int top = i / columns * (frames->height + gap), left = i % columns * (frames->width + gap);
        for (int y = 0; y < frames->height; y++) {
            memcpy(sheet->data[0] + (ptrdiff_t)(top + y) * sheet->linesize[0] + (ptrdiff_t)left * 3,
                   frames->pixels + ((size_t)i * (size_t)frames->height + (size_t)y) * row, row);
        }
    }
    encoder->width = sheet->width;
    encoder->height = sheet->height;
    encoder->pix_fmt = AV_PIX_FMT_RGB24;
    encoder->time_base = (AVRational){1, 1};
    int code = avcodec_open2(encoder, NULL, NULL);
    if (code == 0) code = avcodec_send_frame(encoder, sheet);
    if (code == 0) code = avcodec_send_frame(encoder, NULL);
    if (code == 0) code = avcodec_receive_packet(encoder, packet);
    if (code) {
        ffmpeg_fail(code, "cannot encode a PNG");
        result = UNAVAILABLE;
        goto done;
    }
    result = file_write_atomic(path, packet->data, (size_t)packet->size);
done:
    av_packet_free(&packet);
    av_frame_free(&sheet);
    avcodec_free_context(&encoder);
    return result;
}
