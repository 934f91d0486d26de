// From a video's decoded frame to its final pixels: RGB, rotated as the file states, resized. Used inside shared/media
// only.
#ifndef SHARED_MEDIA_FRAME_CONVERTER_H
#define SHARED_MEDIA_FRAME_CONVERTER_H

#include "shared/media/color.h"
#include "shared/media/ffmpeg.h"
#include "shared/media/resize.h"

// A zeroed struct is ready. Not to be used by two threads at once.
struct frame_converter {
    struct color_converter color;
    struct resizer *resizer;
    int in_height, in_width; // what the resizer was made for
    uint8_t *rotated;
};

// The height and width of a frame.
struct frame_size {
    int height, width;
};

// Returns by how many degrees a player rotates the stream's frames clockwise: 0, 90, 180 or 270.
int stream_rotation(const AVStream *stream);

// Returns the frame's size after the rotation.
struct frame_size rotated_size(const AVFrame *frame, int rotation);

// out[size.height, size.width, RGB] = the frame. BAD_SAMPLE when it is damaged or cannot be converted, UNAVAILABLE when
// memory is short.
status frame_convert(struct frame_converter *converter, const AVFrame *frame, int rotation, struct frame_size size,
                     uint8_t *out);

// Frees and zeroes.
void frame_converter_release(struct frame_converter *converter);

#endif
