#include "shared/media/ffmpeg.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "shared/base/log.h"

static _Thread_local char ffmpeg_last_error[240];

// A line has the form "[component @ address] message", with several components sometimes. Only the message is kept.
static void ffmpeg_log(void *context, int level, const char *format, va_list arguments) {
    if (level > AV_LOG_ERROR) return;
    int print_prefix = 1;
    char line[sizeof ffmpeg_last_error];
    av_log_format_line2(context, level, format, arguments, line, sizeof line, &print_prefix);
    const char *message = line;
    for (const char *end; message[0] == '[' && (end = strstr(message, "] "));) message = end + 2;
    snprintf(ffmpeg_last_error, sizeof ffmpeg_last_error, "%s", message);
    ffmpeg_last_error[strcspn(ffmpeg_last_error, "\r\n")] = 0;
    log_debug("ffmpeg: %s", ffmpeg_last_error);
}

static void ffmpeg_set_log_callback(void) {
    av_log_set_callback(ffmpeg_log);
}

void ffmpeg_clear_error(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ffmpeg_set_log_callback);
    ffmpeg_last_error[0] = 0;
}

bool ffmpeg_has_error(void) {
    return ffmpeg_last_error[0];
}

// FFmpeg also reports ENOMEM when a file asks for a block above its limit, which is INT_MAX bytes. Returns whether
// the machine cannot give so much.
static bool ffmpeg_memory_is_short(void) {
    void *block = mmap(NULL, INT_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return true;
    munmap(block, INT_MAX);
    return false;
}

status ffmpeg_fail(int code, const char *what) {
    if (code == AVERROR(ENOMEM) && ffmpeg_memory_is_short()) return fail_oom();
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    if (code == AVERROR(ENOMEM)) code = AVERROR_INVALIDDATA; // no machine has what the file asks for
    if (code) av_strerror(code, reason, sizeof reason);
    return fail(BAD_SAMPLE, "%s%s%s%s%s", what, reason[0] ? ": " : "", reason, ffmpeg_last_error[0] ? ": " : "",
                ffmpeg_last_error);
}

const int32_t *ffmpeg_display_matrix(const AVStream *stream) {
    const uint8_t *data = NULL;
    size_t size = 0;
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
    const AVPacketSideData *entry = av_packet_side_data_get(
        stream->codecpar->coded_side_data, stream->codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    if (entry) data = entry->data, size = entry->size;
#else
    data = av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
#endif
    // FFmpeg allocates side data with an alignment that suits every type.
    return data && size >= 9 * sizeof(int32_t) ? (const int32_t *)(const void *)data : NULL;
}

void ffmpeg_measure_frame_rate(AVFormatContext *format) {
    if (strcmp(format->iformat->name, "gif") != 0) return;
    for (unsigned i = 0; i < format->nb_streams; i++) format->streams[i]->avg_frame_rate = (AVRational){0, 0};
}
