#include "shared/media/clip_writer.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/log.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <stdlib.h>

#include "shared/base/memory.h"

struct clip_writer {
    AVFormatContext *file;
    AVCodecContext *encoder;
    AVStream *stream;
    struct SwsContext *colours;
    AVFrame *frame;
    AVPacket *packet;
    int64_t count;
    const char *path; // of file, for messages
    int began;
};

static status failed(const struct clip_writer *writer, const char *what, int code) {
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    av_strerror(code, reason, sizeof reason);
    return fail(UNAVAILABLE, "%s: cannot %s: %s", writer->path, what, reason);
}

static status open_encoder(struct clip_writer *writer, int width, int height, int rate) {
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_H264);
    if (!codec) return fail(UNAVAILABLE, "%s: FFmpeg has no H.264 encoder here", writer->path);
    AVCodecContext *encoder = writer->encoder = avcodec_alloc_context3(codec);
    if (!encoder) return fail_oom();
    encoder->width = width;
    encoder->height = height;
    encoder->time_base = (AVRational){1, rate};
    encoder->framerate = (AVRational){rate, 1};
    encoder->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder->thread_count = 1;
    encoder->gop_size = 12;
    if (writer->file->oformat->flags & AVFMT_GLOBALHEADER) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    av_opt_set(encoder->priv_data, "preset", "veryfast", 0); // options of libx264; another encoder lacks them
    av_opt_set(encoder->priv_data, "crf", "18", 0);
    int code = avcodec_open2(encoder, codec, NULL);
    return code < 0 ? failed(writer, "open the encoder", code) : OK;
}

static status open_file(struct clip_writer *writer) {
    writer->stream = avformat_new_stream(writer->file, NULL);
    if (!writer->stream) return fail_oom();
    writer->stream->time_base = writer->encoder->time_base;
    writer->stream->avg_frame_rate = writer->encoder->framerate;
    int code = avcodec_parameters_from_context(writer->stream->codecpar, writer->encoder);
    if (code >= 0) code = avio_open(&writer->file->pb, writer->path, AVIO_FLAG_WRITE);
    if (code >= 0) code = avformat_write_header(writer->file, NULL);
    if (code < 0) return failed(writer, "write", code);
    writer->began = 1;
    return OK;
}

static status open_frame(struct clip_writer *writer, int width, int height) {
    writer->colours = sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height, AV_PIX_FMT_YUV420P, SWS_BICUBIC,
                                     NULL, NULL, NULL);
    writer->frame = av_frame_alloc();
    writer->packet = av_packet_alloc();
    if (!writer->colours || !writer->frame || !writer->packet) return fail_oom();
    writer->frame->format = AV_PIX_FMT_YUV420P;
    writer->frame->width = width;
    writer->frame->height = height;
    int code = av_frame_get_buffer(writer->frame, 0);
    return code < 0 ? failed(writer, "make a frame", code) : OK;
}

status clip_writer_open(struct clip_writer **out, const char *path, int width, int height, int rate) {
    struct clip_writer *writer;
    status result;
    TRY(NEW(&writer, 1));
    av_log_set_level(AV_LOG_ERROR); // encoders report every clip otherwise
    *out = writer;
    writer->path = path;
    int code = avformat_alloc_output_context2(&writer->file, NULL, "mp4", path);
    if (code < 0) TRY_TO(result, failure, failed(writer, "write", code));
    writer->path = writer->file->url; // the caller's text may go
    TRY_TO(result, failure, open_encoder(writer, width, height, rate));
    TRY_TO(result, failure, open_file(writer));
    TRY_TO(result, failure, open_frame(writer, width, height));
    return OK;
failure:
    clip_writer_close(out);
    return result;
}

static status drain(struct clip_writer *writer) {
    for (;;) {
        int code = avcodec_receive_packet(writer->encoder, writer->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return OK;
        if (code >= 0) {
            if (!writer->packet->duration) writer->packet->duration = 1;
            av_packet_rescale_ts(writer->packet, writer->encoder->time_base, writer->stream->time_base);
            writer->packet->stream_index = writer->stream->index;
            code = av_interleaved_write_frame(writer->file, writer->packet);
        }
        if (code < 0) return failed(writer, "write", code);
    }
}

status clip_writer_add(struct clip_writer *writer, const uint8_t *rgb) {
    int code = av_frame_make_writable(writer->frame);
    if (code < 0) return failed(writer, "make a frame", code);
    int stride = 3 * writer->frame->width;
    sws_scale(writer->colours, &rgb, &stride, 0, writer->frame->height, writer->frame->data, writer->frame->linesize);
    writer->frame->pts = writer->count++;
    code = avcodec_send_frame(writer->encoder, writer->frame);
    if (code < 0) return failed(writer, "encode", code);
    return drain(writer);
}

static status finish(struct clip_writer *writer) {
    int code = avcodec_send_frame(writer->encoder, NULL);
    if (code < 0) return failed(writer, "encode", code);
    TRY(drain(writer));
    code = av_write_trailer(writer->file);
    return code < 0 ? failed(writer, "write", code) : OK;
}

status clip_writer_close(struct clip_writer **place) {
    struct clip_writer *writer = *place;
    if (!writer) return OK;
    status result = writer->began && writer->packet ? finish(writer) : OK;
    av_packet_free(&writer->packet);
    av_frame_free(&writer->frame);
    sws_freeContext(writer->colours);
    avcodec_free_context(&writer->encoder);
    if (writer->file) {
        int code = writer->file->pb ? avio_closep(&writer->file->pb) : 0;
        if (code < 0 && result == OK) result = failed(writer, "write", code);
        avformat_free_context(writer->file);
    }
    free(writer);
    *place = NULL;
    return result;
}
