// FFmpeg's log and error codes as our failures, and the differences between the FFmpeg versions 5, 6 and 7. Used inside
// shared/media only.
//
// The surprise: FFmpeg logs from a callback without a return value, so the last error that it logged is kept for each
// thread. It never reaches the terminal.
#ifndef SHARED_MEDIA_FFMPEG_H
#define SHARED_MEDIA_FFMPEG_H

#include <stdbool.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "shared/base/status.h"

// Forgets the last error that FFmpeg logged on this thread; the first call installs the log callback.
void ffmpeg_clear_error(void);

// Returns whether FFmpeg logged an error on this thread since ffmpeg_clear_error.
bool ffmpeg_has_error(void);

// Fails with BAD_SAMPLE and "WHAT: reason of `code`: last logged error"; empty parts are left out, as the reason of
// code 0. UNAVAILABLE when the code is ENOMEM and memory is short; otherwise the file asked for more than FFmpeg
// allows.
status ffmpeg_fail(int code, const char *what);

// Returns the matrix by which a player transforms the stream's frames, 9 integers owned by the stream; NULL: none.
const int32_t *ffmpeg_display_matrix(const AVStream *stream);

// To be called between opening a file and avformat_find_stream_info: makes the latter measure the frame rate of a GIF.
// FFmpeg 7 takes the rate of the GIF's shortest frame from the header instead.
void ffmpeg_measure_frame_rate(AVFormatContext *format);

#endif
