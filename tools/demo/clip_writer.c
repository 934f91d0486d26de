#include "tools/demo/clip_writer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/media/ffmpeg.h"

struct clip_writer {
    AVFormatContext *file;
    AVCodecContext *encoder;
    AVStream *stream;
    struct SwsContext *scaler;
    AVFrame *frame;
    AVPacket *packet;
    uint8_t *rgb; // a frame, with room behind it: libswscale reads a few bytes more than there are
    int64_t count;
    bool header_written;
};

static status clip_writer_fail(const struct clip_writer *writer, const char *what, int code) {
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    ffmpeg.av_strerror(code, reason, sizeof reason);
    return fail(UNAVAILABLE, "%s: cannot %s: %s", writer->file->url, what, reason);
}

status clip_writer_open(struct clip_writer **out, const char *path, int width, int height, int rate) {
    struct clip_writer *writer;
    status result;
    *out = NULL;
    TRY(ffmpeg_open());
    NEW(&writer, 1);
    ffmpeg.av_log_set_level(AV_LOG_ERROR); // encoders log every video otherwise
    int code = ffmpeg.avformat_alloc_output_context2(&writer->file, NULL, "mp4", path);
    if (code < 0) TRY_TO(result, failure, fail(UNAVAILABLE, "%s: FFmpeg cannot write MP4", path));
    const AVCodec *codec = ffmpeg.avcodec_find_encoder(AV_CODEC_ID_H264);
    if (!codec) TRY_TO(result, failure, fail(UNAVAILABLE, "%s: FFmpeg has no H.264 encoder", path));
    AVCodecContext *encoder = writer->encoder = mem_checked(ffmpeg.avcodec_alloc_context3(codec));
    encoder->width = width;
    encoder->height = height;
    encoder->time_base = (AVRational){1, rate};
    encoder->framerate = (AVRational){rate, 1};
    encoder->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder->thread_count = 1;
    encoder->gop_size = 12;
    if (writer->file->oformat->flags & AVFMT_GLOBALHEADER) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    ffmpeg.av_opt_set(encoder->priv_data, "preset", "veryfast", 0); // options of libx264; other encoders lack them
    ffmpeg.av_opt_set(encoder->priv_data, "crf", "18", 0);
#ifdef __x86_64__
    // x264's code for AVX-512 chooses quantizers by memory that nobody has written: a clip had other bytes each time.
    if (__builtin_cpu_supports("avx512f")) ffmpeg.av_opt_set(encoder->priv_data, "x264-params", "asm=avx2", 0);
#endif
    code = ffmpeg.avcodec_open2(encoder, codec, NULL);
    if (code < 0) TRY_TO(result, failure, clip_writer_fail(writer, "open the encoder", code));
    writer->stream = mem_checked(ffmpeg.avformat_new_stream(writer->file, NULL));
    writer->stream->time_base = encoder->time_base;
    writer->stream->avg_frame_rate = encoder->framerate;
    code = ffmpeg.avcodec_parameters_from_context(writer->stream->codecpar, encoder);
    if (code >= 0) code = ffmpeg.avio_open(&writer->file->pb, path, AVIO_FLAG_WRITE);
    if (code >= 0) code = ffmpeg.avformat_write_header(writer->file, NULL);
    if (code < 0) TRY_TO(result, failure, clip_writer_fail(writer, "write", code));
    writer->header_written = true;
    writer->scaler = mem_checked(ffmpeg.sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height,
                                                       AV_PIX_FMT_YUV420P, SWS_BICUBIC, NULL, NULL, NULL));
    enum { BEHIND = 64 };
    NEW(&writer->rgb, 3 * (size_t)width * (size_t)height + BEHIND);
    writer->frame = mem_checked(ffmpeg.av_frame_alloc());
    writer->packet = mem_checked(ffmpeg.av_packet_alloc());
    writer->frame->format = AV_PIX_FMT_YUV420P;
    writer->frame->width = width;
    writer->frame->height = height;
    code = ffmpeg.av_frame_get_buffer(writer->frame, 0);
    if (code < 0) TRY_TO(result, failure, clip_writer_fail(writer, "allocate a frame", code));
    *out = writer;
    return OK;
failure:
    clip_writer_close(&writer);
    return result;
}

// Sends a frame (NULL: the end) to the encoder and writes the packets that come out.
static status clip_writer_encode(struct clip_writer *writer, const AVFrame *frame) {
    int code = ffmpeg.avcodec_send_frame(writer->encoder, frame);
    if (code < 0) return clip_writer_fail(writer, "encode", code);
    for (;;) {
        code = ffmpeg.avcodec_receive_packet(writer->encoder, writer->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return OK;
        if (code >= 0) {
            if (!writer->packet->duration) writer->packet->duration = 1;
            ffmpeg.av_packet_rescale_ts(writer->packet, writer->encoder->time_base, writer->stream->time_base);
            writer->packet->stream_index = writer->stream->index;
            code = ffmpeg.av_interleaved_write_frame(writer->file, writer->packet);
        }
        if (code < 0) return clip_writer_fail(writer, "write", code);
    }
}

status clip_writer_add(struct clip_writer *writer, const uint8_t *rgb) {
    AVFrame *frame = writer->frame;
    int code = ffmpeg.av_frame_make_writable(frame);
    if (code < 0) return clip_writer_fail(writer, "allocate a frame", code);
    int stride = 3 * frame->width;
    memcpy(writer->rgb, rgb, (size_t)stride * (size_t)frame->height);
    int rows = ffmpeg.sws_scale(writer->scaler, (const uint8_t *const *)&writer->rgb, &stride, 0, frame->height,
                                frame->data, frame->linesize);
    if (rows != frame->height) return fail(UNAVAILABLE, "%s: cannot convert a frame", writer->file->url);
    frame->pts = writer->count++;
    return clip_writer_encode(writer, frame);
}

status clip_writer_close(struct clip_writer **out) {
    struct clip_writer *writer = *out;
    if (!writer) return OK;
    status result = OK;
    if (writer->header_written && writer->packet) {
        result = clip_writer_encode(writer, NULL);
        int code = result == OK ? ffmpeg.av_write_trailer(writer->file) : 0;
        if (code < 0) result = clip_writer_fail(writer, "write", code);
    }
    ffmpeg.av_packet_free(&writer->packet);
    ffmpeg.av_frame_free(&writer->frame);
    ffmpeg.sws_freeContext(writer->scaler);
    ffmpeg.avcodec_free_context(&writer->encoder);
    if (writer->file) {
        int code = writer->file->pb ? ffmpeg.avio_closep(&writer->file->pb) : 0;
        if (code < 0 && result == OK) result = clip_writer_fail(writer, "write", code);
        ffmpeg.avformat_free_context(writer->file);
    }
    free(writer->rgb);
    free(writer);
    *out = NULL;
    return result;
}
