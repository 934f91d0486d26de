// One file opened for decoding: demuxer, the video stream, its decoder. Inside shared/media only.
//
// The file is read through our own callbacks and known to FFmpeg by no name: so no name is ever taken for a pattern,
// a list or an address, and a file that asks for other files is refused.
#ifndef SHARED_MEDIA_CONTAINER_H
#define SHARED_MEDIA_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "shared/base/status.h"

struct container {
    const char *path;
    int fd;
    int64_t size, at;
    AVIOContext *io;
    AVFormatContext *format;
    AVStream *stream;
    AVCodecContext *decoder;
};

// Opens `path`, which must outlive the container; `threads` for decoding. `quick`: the header will do, no packet is
// looked at where that can be (an image needs no rate). BAD_SAMPLE, with FFmpeg's own reason, when it is missing or is
// no medium with a video stream. Release with container_release, also after a failure.
status container_open(struct container *container, const char *path, int threads, bool quick);

// Sets the container's decoder to a new one of that kind, for the same stream.
status container_decoder(struct container *container, const AVCodec *codec, int threads, bool quick);

// Frees and zeroes; a zeroed container is fine.
void container_release(struct container *container);

// The next packet of the video stream. END at the end; BAD_SAMPLE when the file breaks off or is damaged there.
status container_read(struct container *container, AVPacket *packet);

// Fails with BAD_SAMPLE and one line: what went wrong, and the last thing FFmpeg said about it, if anything.
status container_defect(int code, const char *what);

// Forgets what FFmpeg said before on this thread; FFmpeg's own talk never reaches the terminal.
void container_listen(void);

// Whether FFmpeg complained on this thread since container_listen.
const char *container_heard(void);

#endif
