#include "shared/media/container.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"

enum { io_buffer = 256 << 10, most_pixels = 100 * 1000 * 1000 };

static _Thread_local char heard[240];

static void keep_talk(void *context, int level, const char *format, va_list arguments) {
    if (level > AV_LOG_ERROR) return;
    int prefix = 1;
    char line[240];
    av_log_format_line2(context, level, format, arguments, line, sizeof line, &prefix);
    const char *text = line;
    for (const char *end; line[0] == '[' && (end = strstr(text, "] ")) && text[0] == '[';) text = end + 2;
    snprintf(heard, sizeof heard, "%s", text);
    heard[strcspn(heard, "\r\n")] = 0;
    log_debug("ffmpeg: %s", heard);
}

static void set_up(void) {
    av_log_set_callback(keep_talk);
}

void container_listen(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up);
    heard[0] = 0;
}

const char *container_heard(void) {
    return heard;
}

status container_defect(int code, const char *what) {
    if (code == AVERROR(ENOMEM)) return fail(UNAVAILABLE, "%s: memory is short", what);
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    if (code) av_strerror(code, reason, sizeof reason);
    return fail(BAD_SAMPLE, "%s%s%s%s%s", what, reason[0] ? ": " : "", reason, heard[0] ? ": " : "", heard);
}

static int read_bytes(void *context, uint8_t *out, int size) {
    struct container *container = context;
    ssize_t got = fd_pread(container->fd, out, (size_t)size, container->at);
    if (got < 0) return AVERROR(errno);
    container->at += got;
    return got ? (int)got : AVERROR_EOF;
}

static int64_t seek_bytes(void *context, int64_t offset, int whence) {
    struct container *container = context;
    if (whence & AVSEEK_SIZE) return container->size;
    whence &= ~AVSEEK_FORCE;
    int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? container->at : container->size;
    if (base + offset < 0) return AVERROR(EINVAL);
    return container->at = base + offset;
}

static int refuse_other_files(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                              AVDictionary **options) {
    (void)io, (void)flags, (void)options;
    av_log(format, AV_LOG_ERROR, "it asks for another file, '%.100s', which is not allowed\n", url);
    return AVERROR(EACCES);
}

static status open_file(struct container *container) {
    struct stat facts;
    container->fd = open(container->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (container->fd < 0 || fstat(container->fd, &facts)) return fail(BAD_SAMPLE, "%s", strerror(errno));
    if (!S_ISREG(facts.st_mode)) return fail(BAD_SAMPLE, "not a file");
    if (facts.st_size == 0) return fail(BAD_SAMPLE, "the file is empty");
    container->size = facts.st_size;
    return OK;
}

// Looks into the packets for what the headers do not say; a decoder that runs for this has our bounds, too.
static status find_facts(AVFormatContext *format) {
    enum { most_streams = 64 };
    AVDictionary *options[most_streams] = {0};
    unsigned known = format->nb_streams;
    for (unsigned i = 0; i < known && i < most_streams; i++) {
        av_dict_set_int(&options[i], "max_pixels", most_pixels, 0);
        av_dict_set(&options[i], "threads", "1", 0);
    }
    int code = avformat_find_stream_info(format, known <= most_streams ? options : NULL);
    for (unsigned i = 0; i < most_streams; i++) av_dict_free(&options[i]);
    return code < 0 ? container_defect(code, "has no readable stream") : OK;
}

static bool header_will_do(const AVFormatContext *format) {
    for (unsigned i = 0; i < format->nb_streams; i++) {
        const AVCodecParameters *facts = format->streams[i]->codecpar;
        if (facts->codec_type == AVMEDIA_TYPE_VIDEO && facts->codec_id != AV_CODEC_ID_NONE) return true;
    }
    return false;
}

static status open_format(struct container *container, bool quick) {
    unsigned char *buffer = av_malloc(io_buffer);
    if (buffer) container->io = avio_alloc_context(buffer, io_buffer, 0, container, read_bytes, NULL, seek_bytes);
    if (!container->io) av_free(buffer);
    container->format = avformat_alloc_context();
    if (!container->io || !container->format) return fail(UNAVAILABLE, "memory is short");
    container->format->pb = container->io;
    container->format->io_open = refuse_other_files;
    container->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    int code = avformat_open_input(&container->format, NULL, NULL, NULL);
    if (code) return container_defect(code, "cannot be opened");
    return quick && header_will_do(container->format) ? OK : find_facts(container->format);
}

static status open_decoder(struct container *container, int threads, bool quick) {
    const AVCodec *codec = NULL;
    int index = av_find_best_stream(container->format, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    if (index == AVERROR_DECODER_NOT_FOUND) return fail(BAD_SAMPLE, "there is no decoder for its video");
    if (index < 0) return fail(BAD_SAMPLE, "has no video stream");
    container->stream = container->format->streams[index];
    if (container->stream->disposition & AV_DISPOSITION_ATTACHED_PIC) return fail(BAD_SAMPLE, "has no video stream");
    for (unsigned i = 0; i < container->format->nb_streams; i++) {
        if ((int)i != index) container->format->streams[i]->discard = AVDISCARD_ALL;
    }
    return container_decoder(container, codec, threads, quick);
}

status container_decoder(struct container *container, const AVCodec *codec, int threads, bool quick) {
    container->decoder = avcodec_alloc_context3(codec);
    if (!container->decoder) return fail(UNAVAILABLE, "memory is short");
    int code = avcodec_parameters_to_context(container->decoder, container->stream->codecpar);
    if (code < 0) return container_defect(code, "cannot set up its decoder");
    container->decoder->thread_count = threads;
    container->decoder->pkt_timebase = container->stream->time_base;
    container->decoder->max_pixels = most_pixels + most_pixels / 16; // decoders count their padding
    if (quick) container->decoder->idct_algo = FF_IDCT_INT;          // nearest to what libraries for JPEG do

    code = avcodec_open2(container->decoder, codec, NULL);
    return code < 0 ? container_defect(code, "cannot open its decoder") : OK;
}

status container_open(struct container *container, const char *path, int threads, bool quick) {
    *container = (struct container){.path = path, .fd = -1};
    container_listen();
    TRY(open_file(container));
    TRY(open_format(container, quick));
    const AVCodecParameters *facts = NULL;
    for (unsigned i = 0; i < container->format->nb_streams && !facts; i++) {
        facts = container->format->streams[i]->codecpar;
        if (facts->codec_type != AVMEDIA_TYPE_VIDEO) facts = NULL;
    }
    if (facts && (int64_t)facts->width * facts->height > most_pixels) {
        return fail(BAD_SAMPLE, "%d x %d pixels, more than %d million are not opened", facts->width, facts->height,
                    most_pixels / 1000000);
    }
    return open_decoder(container, threads, quick);
}

void container_release(struct container *container) {
    avcodec_free_context(&container->decoder);
    if (container->format) avformat_close_input(&container->format);
    if (container->io) {
        av_freep(&container->io->buffer);
        avio_context_free(&container->io);
    }
    if (container->path && container->fd >= 0) close(container->fd);
    *container = (struct container){.fd = -1};
}

status container_read(struct container *container, AVPacket *packet) {
    for (;;) {
        container_listen();
        int code = av_read_frame(container->format, packet);
        // A file that was cut ends with a complaint.
        if (code == AVERROR_EOF) return heard[0] ? container_defect(0, "breaks off") : END;
        if (code < 0) return container_defect(code, "breaks off");
        if (packet->stream_index != container->stream->index) {
            av_packet_unref(packet);
            continue;
        }
        if (!(packet->flags & AV_PKT_FLAG_CORRUPT)) return OK;
        av_packet_unref(packet);
        return container_defect(0, "breaks off or is damaged");
    }
}
