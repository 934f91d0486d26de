// A file opened for decoding: FFmpeg's demuxer, the video stream and its decoder. It does not know which packets are
// needed. Used inside shared/media only.
//
// The surprise: FFmpeg reads the file through our callbacks and never learns its name. So no name is taken for a
// pattern, a list or an address, and a file that refers to other files is refused.
#ifndef SHARED_MEDIA_DEMUX_H
#define SHARED_MEDIA_DEMUX_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/media/ffmpeg.h"

enum demux_kind {
    DEMUX_VIDEO,
    DEMUX_IMAGE, // reads no packet where the header suffices, since an image needs no frame rate
};

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

#endif
