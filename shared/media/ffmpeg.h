// FFmpeg's functions, its log and error codes as our failures, a file opened for decoding, and frames as RGB. Used
// inside shared/media and by the writer of the demos' clips.
//
// The surprises: FFmpeg logs from a callback without a return value, so the last error that it logged is kept for each
// thread. It never reaches the terminal. And FFmpeg reads a file through our callbacks and never learns its name. So no
// name is taken for a pattern, a list or an address, and a file that refers to other files is refused.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "shared/base/status.h"

// ---- functions ----

// What is called of FFmpeg, and of which library. Programs are not linked with it: it brings over a hundred libraries,
// with which each start takes fifty milliseconds, and most programs that may decode never do.
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
#define FFMPEG_SIDE_DATA(USE) USE(avcodec, av_packet_side_data_get)
#else
#define FFMPEG_SIDE_DATA(USE) USE(avformat, av_stream_get_side_data)
#endif
#define FFMPEG_FUNCTIONS(USE)                                                                                          \
    USE(avutil, av_dict_free)                                                                                          \
    USE(avutil, av_dict_set)                                                                                           \
    USE(avutil, av_dict_set_int)                                                                                       \
    USE(avutil, av_display_rotation_get)                                                                               \
    USE(avutil, av_frame_alloc)                                                                                        \
    USE(avutil, av_frame_free)                                                                                         \
    USE(avutil, av_frame_get_buffer)                                                                                   \
    USE(avutil, av_frame_make_writable)                                                                                \
    USE(avutil, av_frame_unref)                                                                                        \
    USE(avutil, av_free)                                                                                               \
    USE(avutil, av_freep)                                                                                              \
    USE(avutil, av_get_pix_fmt_name)                                                                                   \
    USE(avutil, av_log)                                                                                                \
    USE(avutil, av_log_format_line2)                                                                                   \
    USE(avutil, av_log_set_callback)                                                                                   \
    USE(avutil, av_log_set_level)                                                                                      \
    USE(avutil, av_malloc)                                                                                             \
    USE(avutil, av_match_name)                                                                                         \
    USE(avutil, av_opt_set)                                                                                            \
    USE(avutil, av_pix_fmt_desc_get)                                                                                   \
    USE(avutil, av_strerror)                                                                                           \
    USE(avcodec, av_packet_alloc)                                                                                      \
    USE(avcodec, av_packet_clone)                                                                                      \
    USE(avcodec, av_packet_free)                                                                                       \
    USE(avcodec, av_packet_get_side_data)                                                                              \
    USE(avcodec, av_packet_rescale_ts)                                                                                 \
    USE(avcodec, av_packet_unref)                                                                                      \
    USE(avcodec, avcodec_alloc_context3)                                                                               \
    USE(avcodec, avcodec_descriptor_get)                                                                               \
    USE(avcodec, avcodec_find_encoder)                                                                                 \
    USE(avcodec, avcodec_flush_buffers)                                                                                \
    USE(avcodec, avcodec_free_context)                                                                                 \
    USE(avcodec, avcodec_open2)                                                                                        \
    USE(avcodec, avcodec_parameters_from_context)                                                                      \
    USE(avcodec, avcodec_parameters_to_context)                                                                        \
    USE(avcodec, avcodec_receive_frame)                                                                                \
    USE(avcodec, avcodec_receive_packet)                                                                               \
    USE(avcodec, avcodec_send_frame)                                                                                   \
    USE(avcodec, avcodec_send_packet)                                                                                  \
    USE(avformat, av_find_best_stream)                                                                                 \
    USE(avformat, av_find_input_format)                                                                                \
    USE(avformat, av_interleaved_write_frame)                                                                          \
    USE(avformat, av_probe_input_buffer2)                                                                              \
    USE(avformat, av_read_frame)                                                                                       \
    USE(avformat, av_write_trailer)                                                                                    \
    USE(avformat, avformat_alloc_context)                                                                              \
    USE(avformat, avformat_alloc_output_context2)                                                                      \
    USE(avformat, avformat_close_input)                                                                                \
    USE(avformat, avformat_find_stream_info)                                                                           \
    USE(avformat, avformat_free_context)                                                                               \
    USE(avformat, avformat_index_get_entries_count)                                                                    \
    USE(avformat, avformat_index_get_entry)                                                                            \
    USE(avformat, avformat_new_stream)                                                                                 \
    USE(avformat, avformat_open_input)                                                                                 \
    USE(avformat, avformat_write_header)                                                                               \
    USE(avformat, avio_alloc_context)                                                                                  \
    USE(avformat, avio_closep)                                                                                         \
    USE(avformat, avio_context_free)                                                                                   \
    USE(avformat, avio_open)                                                                                           \
    USE(swscale, sws_freeContext)                                                                                      \
    USE(swscale, sws_getCoefficients)                                                                                  \
    USE(swscale, sws_getColorspaceDetails)                                                                             \
    USE(swscale, sws_getContext)                                                                                       \
    USE(swscale, sws_scale)                                                                                            \
    USE(swscale, sws_setColorspaceDetails)                                                                             \
    FFMPEG_SIDE_DATA(USE)

struct ffmpeg_functions {
#define FFMPEG_POINTER(library, function) __typeof__(function) *function;
    FFMPEG_FUNCTIONS(FFMPEG_POINTER)
#undef FFMPEG_POINTER
};

extern struct ffmpeg_functions ffmpeg;

// Opens FFmpeg, the first time; every other function here, and all of `ffmpeg`, need it. The libraries are those of the
// headers' major versions and stay open. UNAVAILABLE when one is missing, with the loader's reason.
status ffmpeg_open(void);

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
// has no video stream that can be decoded; UNAVAILABLE as media_read_fail. The caller closes it with demuxer_close,
// also after a failure.
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
