// FFmpeg's log and error codes as our failures, a file opened for decoding, and frames as RGB. Used inside shared/media
// and by the writer of the demos' clips.
//
// The surprises: FFmpeg logs from a callback without a return value, so the last error that it logged is kept for each
// thread. It never reaches the terminal. And FFmpeg reads a file through our callbacks and never learns its name. So no
// name is taken for a pattern, a list or an address, and a file that refers to other files is refused.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>

#include "shared/base/status.h"

// ---- errors ----

// Forgets the last error that FFmpeg logged on this thread; the first call installs the log callback.
void ffmpeg_clear_error(void);

// Fails with BAD_SAMPLE and "WHAT: reason of `code`: last logged error"; empty parts are left out, as the reason of
// code 0. UNAVAILABLE when the code is ENOMEM and memory is short; otherwise the file asked for more than FFmpeg
// allows.
status ffmpeg_fail(int code, const char *what);

// ---- a file opened for decoding ----

enum demux_kind {
    DEMUX_VIDEO,
    DEMUX_IMAGE, // reads no packet where the header suffices, since an image needs no frame rate
};

// FFmpeg's demuxer, the video stream and its decoder. It does not know which packets are needed.
struct demuxer {
    int fd;
    int64_t size, position; // of the file
    AVIOContext *io;
    AVFormatContext *format;
    AVStream *stream;
    AVCodecContext *decoder;
};

// Opens `path` and a decoder with `threads` threads. BAD_SAMPLE, with FFmpeg's own reason, when the file is missing or
// has no video stream that can be decoded. The caller closes it with demuxer_close, also after a failure.
status demuxer_open(struct demuxer *demuxer, const char *path, int threads, enum demux_kind kind);

// Closes, frees and zeroes. A demuxer that was never opened has fd -1 and is otherwise zero.
void demuxer_close(struct demuxer *demuxer);

// *decoder = a new decoder for the demuxer's stream, owned by the caller, who frees it also after a failure.
status demuxer_new_decoder(AVCodecContext **decoder, const struct demuxer *demuxer, const AVCodec *codec, int threads,
                           enum demux_kind kind);

// Reads the next packet of the video stream. END at the end; BAD_SAMPLE when the file is truncated or damaged there.
status demuxer_read(struct demuxer *demuxer, AVPacket *packet);

// ---- frames as RGB ----

// *scaler = a new converter of frames like this one to `format`, in the frame's own color space and range, as swscale's
// `flags` say. The caller frees it with sws_freeContext. BAD_SAMPLE when there is none for the frame's format.
status color_new_scaler(struct SwsContext **scaler, const AVFrame *frame, enum AVPixelFormat format, int flags);

// Converts a frame into rows of `strides` bytes at `planes`. BAD_SAMPLE when it cannot be converted.
status color_scale(struct SwsContext *scaler, const AVFrame *frame, uint8_t *const *planes, const int *strides);
