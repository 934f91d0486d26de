// From a decoder's frame to RGB, in two ways: as swscale does it, for videos and most images; and for JPEG and lossy
// WebP as libjpeg and libwebp do it, to the bit. Used inside shared/media only.
#ifndef SHARED_MEDIA_COLOR_H
#define SHARED_MEDIA_COLOR_H

#include <stdbool.h>
#include <stdint.h>

#include <libavutil/frame.h>

#include "shared/base/status.h"

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

#endif
