#include "shared/media/ffmpeg.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/media/decode.h"

// ---- functions ----

struct ffmpeg_functions ffmpeg;

#define avutil_FILE   "libavutil.so." AV_STRINGIFY(LIBAVUTIL_VERSION_MAJOR)
#define avcodec_FILE  "libavcodec.so." AV_STRINGIFY(LIBAVCODEC_VERSION_MAJOR)
#define avformat_FILE "libavformat.so." AV_STRINGIFY(LIBAVFORMAT_VERSION_MAJOR)
#define swscale_FILE  "libswscale.so." AV_STRINGIFY(LIBSWSCALE_VERSION_MAJOR)

status ffmpeg_open(void) {
#define FFMPEG_PLACE(library, function) {library##_FILE, #function, offsetof(struct ffmpeg_functions, function)},
    static const struct {
        const char *file, *function;
        size_t offset;
    } places[] = {FFMPEG_FUNCTIONS(FFMPEG_PLACE)};
#undef FFMPEG_PLACE
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static size_t found;
    status result = OK;
    pthread_mutex_lock(&mutex);
    for (; result == OK && found < sizeof places / sizeof *places; found += result == OK) {
        void *library = dlopen(places[found].file, RTLD_NOW | RTLD_LOCAL);
        void *function = library ? dlsym(library, places[found].function) : NULL;
        if (!function) result = fail(UNAVAILABLE, "FFmpeg cannot be loaded: %s", dlerror());
        memcpy((char *)&ffmpeg + places[found].offset, &function, sizeof function);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

// ---- errors ----

static _Thread_local char ffmpeg_last_error[240];

// A line has the form "[component @ address] message", with several components sometimes. Only the message is kept.
static void ffmpeg_log(void *context, int level, const char *format, va_list arguments) {
    if (level > AV_LOG_ERROR) return;
    int print_prefix = 1;
    char line[sizeof ffmpeg_last_error];
    ffmpeg.av_log_format_line2(context, level, format, arguments, line, sizeof line, &print_prefix);
    const char *message = line;
    for (const char *end; message[0] == '[' && (end = strstr(message, "] "));) message = end + 2;
    snprintf(ffmpeg_last_error, sizeof ffmpeg_last_error, "%s", message);
    ffmpeg_last_error[strcspn(ffmpeg_last_error, "\r\n")] = 0;
    log_debug("ffmpeg: %s", ffmpeg_last_error);
}

static void ffmpeg_set_log_callback(void) {
    ffmpeg.av_log_set_callback(ffmpeg_log);
}

void ffmpeg_clear_error(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ffmpeg_set_log_callback);
    ffmpeg_last_error[0] = 0;
}

status ffmpeg_fail(int code, const char *what) {
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    if (code == AVERROR(ENOMEM)) {
        // FFmpeg also reports it when a file asks for a block above its limit, which is INT_MAX bytes.
        void *block = mmap(NULL, INT_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return fail_oom(); // the machine cannot give so much
        munmap(block, INT_MAX);
        code = AVERROR_INVALIDDATA; // no machine has what the file asks for
    }
    if (code) ffmpeg.av_strerror(code, reason, sizeof reason);
    return fail(BAD_SAMPLE, "%s%s%s%s%s", what, reason[0] ? ": " : "", reason, ffmpeg_last_error[0] ? ": " : "",
                ffmpeg_last_error);
}

// ---- demux ----

enum {
    IO_BUFFER_SIZE = 256 << 10,
    MAX_PIXELS = 100 * 1000 * 1000,
    MAX_PADDED_PIXELS = MAX_PIXELS + MAX_PIXELS / 16, // decoders count their padding, too
};
static_assert(MAX_PADDED_PIXELS <= INT32_MAX / 8, "eight bytes per pixel fit an int");

static int demux_read_bytes(void *context, uint8_t *out, int size) {
    struct demuxer *demuxer = context;
    ssize_t count = fd_pread(demuxer->fd, out, (size_t)size, demuxer->position);
    if (count < 0) return AVERROR(errno);
    demuxer->position += count;
    return count ? (int)count : AVERROR_EOF;
}

static int64_t demux_seek(void *context, int64_t offset, int whence) {
    struct demuxer *demuxer = context;
    if (whence & AVSEEK_SIZE) return demuxer->size;
    whence &= ~AVSEEK_FORCE;
    int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? demuxer->position : demuxer->size;
    if (base + offset < 0) return AVERROR(EINVAL);
    return demuxer->position = base + offset;
}

static int demux_refuse_io_open(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                                AVDictionary **options) {
    (void)io, (void)flags, (void)options;
    ffmpeg.av_log(format, AV_LOG_ERROR, "it refers to another file, '%.100s', which is not allowed\n", url);
    return AVERROR(EACCES);
}

// Chooses the video stream that is decoded.
static status demux_find_stream(struct demuxer *demuxer, enum demux_kind kind, const AVCodec **codec) {
    AVFormatContext *format = demuxer->format;
    bool codec_known = false;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        const AVCodecParameters *stream = format->streams[i]->codecpar;
        codec_known |= stream->codec_type == AVMEDIA_TYPE_VIDEO && stream->codec_id != AV_CODEC_ID_NONE;
    }
    if (kind == DEMUX_VIDEO || !codec_known) { // reads packets to find out what the headers do not say
        enum { MAX_STREAMS = 64 };
        AVDictionary *options[MAX_STREAMS] = {0}; // for the decoders that FFmpeg may run: they get our limits, too
        unsigned count = format->nb_streams;
        for (unsigned i = 0; i < count && i < MAX_STREAMS; i++) {
            ffmpeg.av_dict_set_int(&options[i], "max_pixels", MAX_PIXELS, 0);
            ffmpeg.av_dict_set(&options[i], "threads", "1", 0);
        }
        int code = ffmpeg.avformat_find_stream_info(format, count <= MAX_STREAMS ? options : NULL);
        for (unsigned i = 0; i < MAX_STREAMS; i++) ffmpeg.av_dict_free(&options[i]);
        if (code < 0) return ffmpeg_fail(code, "has no readable stream");
    }
    for (unsigned i = 0; i < format->nb_streams; i++) {
        const AVCodecParameters *stream = format->streams[i]->codecpar;
        if (stream->codec_type != AVMEDIA_TYPE_VIDEO) continue;
        if ((int64_t)stream->width * stream->height <= MAX_PIXELS) break;
        return fail(BAD_SAMPLE, "has %d x %d pixels, at most %d million are allowed", stream->width, stream->height,
                    MAX_PIXELS / 1000000);
    }
    int index = ffmpeg.av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, codec, 0);
    if (index == AVERROR_DECODER_NOT_FOUND) return fail(BAD_SAMPLE, "FFmpeg has no decoder for its video");
    // The cover of an audio file is not a video.
    if (index < 0 || format->streams[index]->disposition & AV_DISPOSITION_ATTACHED_PIC)
        return fail(BAD_SAMPLE, "has no video stream");
    demuxer->stream = format->streams[index];
    for (unsigned i = 0; i < format->nb_streams; i++)
        if ((int)i != index) format->streams[i]->discard = AVDISCARD_ALL;
    return OK;
}

status demuxer_open(struct demuxer *demuxer, const char *path, int threads, enum demux_kind kind) {
    static const char *const lists[] = {"concat", "dash", "hls", "imf", "rtsp", "sdp", "webm_dash_manifest"};
    *demuxer = (struct demuxer){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    ffmpeg_clear_error();
    struct stat file;
    if (demuxer->fd < 0 || fstat(demuxer->fd, &file)) return media_read_fail();
    if (!S_ISREG(file.st_mode)) return fail(BAD_SAMPLE, "not a file");
    if (file.st_size == 0) return fail(BAD_SAMPLE, "the file is empty");
    demuxer->size = file.st_size;
    unsigned char *buffer = mem_checked(ffmpeg.av_malloc(IO_BUFFER_SIZE));
    demuxer->io =
        mem_checked(ffmpeg.avio_alloc_context(buffer, IO_BUFFER_SIZE, 0, demuxer, demux_read_bytes, NULL, demux_seek));
    demuxer->format = mem_checked(ffmpeg.avformat_alloc_context());
    demuxer->format->pb = demuxer->io;
    demuxer->format->io_open = demux_refuse_io_open;
    demuxer->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    // A JPEG is not probed: FFmpeg would look at what follows its end, too, such as a film that a camera appends.
    static const char jpeg[] = {'\xff', '\xd8', '\xff'};
    char begin[sizeof jpeg];
    const bool is_jpeg =
        kind == DEMUX_IMAGE && fd_pread_all(demuxer->fd, begin, sizeof begin, 0) && !memcmp(begin, jpeg, sizeof begin);
    const AVInputFormat *format = is_jpeg ? ffmpeg.av_find_input_format("jpeg_pipe") : NULL;
    int code = format ? 0 : ffmpeg.av_probe_input_buffer2(demuxer->io, &format, NULL, demuxer->format, 0, 0);
    if (code < 0) return ffmpeg_fail(code, "cannot be opened");
    // FFmpeg opens what such a file refers to past io_open, and the key of the frames is a hash of this file alone.
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (ffmpeg.av_match_name(lists[i], format->name))
            return fail(BAD_SAMPLE, "it is a list of other files (%s), not a clip or an image", lists[i]);
    AVDictionary *limits = NULL; // nothing that the file names is opened, whatever opens it
    ffmpeg.av_dict_set(&limits, "protocol_whitelist", "none", 0);
    code = ffmpeg.avformat_open_input(&demuxer->format, NULL, format, &limits);
    ffmpeg.av_dict_free(&limits);
    if (code) return ffmpeg_fail(code, "cannot be opened");
    // The frame rate of a GIF is measured. FFmpeg 7 takes that of its shortest frame from the header instead.
    const bool gif = !strcmp(demuxer->format->iformat->name, "gif");
    for (unsigned i = 0; gif && i < demuxer->format->nb_streams; i++)
        demuxer->format->streams[i]->avg_frame_rate = (AVRational){0, 0};
    const AVCodec *codec = NULL;
    TRY(demux_find_stream(demuxer, kind, &codec));
    return demuxer_new_decoder(&demuxer->decoder, demuxer, codec, threads, kind);
}

status demuxer_new_decoder(AVCodecContext **out, const struct demuxer *demuxer, const AVCodec *codec, int threads,
                           enum demux_kind kind) {
    AVCodecContext *decoder = *out = mem_checked(ffmpeg.avcodec_alloc_context3(codec));
    int code = ffmpeg.avcodec_parameters_to_context(decoder, demuxer->stream->codecpar);
    if (code < 0) return ffmpeg_fail(code, "cannot set up its decoder");
    decoder->thread_count = threads;
    decoder->pkt_timebase = demuxer->stream->time_base;
    decoder->max_pixels = MAX_PADDED_PIXELS;
    if (kind == DEMUX_IMAGE) decoder->idct_algo = FF_IDCT_INT; // the nearest to libjpeg's
    code = ffmpeg.avcodec_open2(decoder, codec, NULL);
    return code < 0 ? ffmpeg_fail(code, "cannot open its decoder") : OK;
}

void demuxer_close(struct demuxer *demuxer) {
    ffmpeg.avcodec_free_context(&demuxer->decoder);
    if (demuxer->format) ffmpeg.avformat_close_input(&demuxer->format);
    if (demuxer->io) {
        ffmpeg.av_freep(&demuxer->io->buffer);
        ffmpeg.avio_context_free(&demuxer->io);
    }
    if (demuxer->fd >= 0) close(demuxer->fd);
    *demuxer = (struct demuxer){.fd = -1};
}

status demuxer_read(struct demuxer *demuxer, AVPacket *packet) {
    for (;;) {
        ffmpeg_clear_error();
        int code = ffmpeg.av_read_frame(demuxer->format, packet);
        // For a truncated file FFmpeg logs an error and then reports an ordinary end.
        if (code == AVERROR_EOF && !ffmpeg_last_error[0]) return END;
        if (code < 0) return ffmpeg_fail(code == AVERROR_EOF ? 0 : code, "the file is truncated");
        assert(packet->stream_index >= 0);
        if (packet->stream_index == demuxer->stream->index) break;
        ffmpeg.av_packet_unref(packet);
    }
    if (!(packet->flags & AV_PKT_FLAG_CORRUPT)) return OK;
    ffmpeg.av_packet_unref(packet);
    return ffmpeg_fail(0, "the file is truncated or damaged");
}

// ---- color ----

status color_new_scaler(struct SwsContext **out, const AVFrame *frame, enum AVPixelFormat format, int flags) {
    struct SwsContext *scaler = *out = ffmpeg.sws_getContext(frame->width, frame->height, frame->format, frame->width,
                                                             frame->height, format, flags, NULL, NULL, NULL);
    if (!scaler) {
        const char *name = ffmpeg.av_get_pix_fmt_name(frame->format);
        return fail(BAD_SAMPLE, "its pixels (%s) cannot be converted", name ? name : "of an unknown format");
    }
    // Formats without a matrix (RGB, gray) have no details to set.
    int *table, *out_table, full_range, out_full_range, brightness, contrast, saturation;
    if (ffmpeg.sws_getColorspaceDetails(scaler, &table, &full_range, &out_table, &out_full_range, &brightness,
                                        &contrast, &saturation) >= 0) {
        if (frame->color_range != AVCOL_RANGE_UNSPECIFIED) full_range = frame->color_range == AVCOL_RANGE_JPEG;
        (void)ffmpeg.sws_setColorspaceDetails(scaler, ffmpeg.sws_getCoefficients((int)frame->colorspace), full_range,
                                              out_table, out_full_range, brightness, contrast, saturation);
    }
    return OK;
}

status color_scale(struct SwsContext *scaler, const AVFrame *frame, uint8_t *const *planes, const int *strides) {
    int rows = ffmpeg.sws_scale(scaler, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes,
                                strides);
    return rows == frame->height ? OK : fail(BAD_SAMPLE, "its pixels cannot be converted");
}
