// From a decoder's frame to RGB, in two ways: as swscale does it, for videos and most images; and for JPEG and lossy
// WebP as libjpeg and libwebp do it, to the bit. A video's frame is then rotated as the file states, and resized. Used
// inside shared/media only.
#ifndef SHARED_MEDIA_COLOR_H
#define SHARED_MEDIA_COLOR_H

#include <stdbool.h>
#include <stdint.h>

#include <libavutil/frame.h>

#include "shared/base/status.h"
#include "shared/media/ffmpeg.h"
#include "shared/media/resize.h"

// Converts frames to RGB24 with swscale, in each frame's own color space and range. A zeroed struct is ready.
struct color_converter {
    struct SwsContext *scaler;
    int format, width, height, space, range; // what the scaler was made for
    uint8_t *rgb;
    int stride;
};

// *rgb = the frame as RGB24 rows of converter->stride bytes, owned by the converter and valid until its next call.
// BAD_SAMPLE when swscale cannot convert the frame.
status color_convert(struct color_converter *converter, const AVFrame *frame, const uint8_t **rgb);

// Frees and zeroes.
void color_converter_release(struct color_converter *converter);

// Converts one image into the empty frame `out` of the format RGB24 or, with_alpha, RGBA. BAD_SAMPLE when swscale
// cannot convert it. The caller frees the frame.
status color_convert_image(AVFrame *out, const AVFrame *image, bool with_alpha);

// Returns whether color_jpeg_row can convert this frame of a JPEG.
bool color_jpeg_supported(const AVFrame *frame);

// Returns whether color_webp_row can convert this frame of a WebP.
bool color_webp_supported(const AVFrame *frame);

// out[width, RGB] = row y of a JPEG's frame, as libjpeg's fancy upsampling and integer arithmetic give it. `scratch`
// has room for 4 * (width + 2) samples.
void color_jpeg_row(const AVFrame *frame, int y, int *scratch, uint8_t *out);

// The same for a lossy WebP's frame, as libwebp's fancy upsampler gives it.
void color_webp_row(const AVFrame *frame, int y, int *scratch, uint8_t *out);

// ---- videos ----

// From a video's decoded frame to its final pixels. A zeroed struct is ready. Not to be used by two threads at once.
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
