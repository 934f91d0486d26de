// From a decoder's frame to packed RGB, in the frame's own matrix and range. Inside shared/media only.
#ifndef SHARED_MEDIA_COLOUR_H
#define SHARED_MEDIA_COLOUR_H

#include <stdint.h>

#include <libavutil/frame.h>

#include "shared/base/status.h"

// A converter and its buffer; a zeroed one is ready. It is set up again when the frames change.
struct colour {
    struct SwsContext *scaler;
    int format, width, height, space, range, flags;
    uint8_t *rgb;
    int stride;
};

// *rgb = the frame as RGB rows of colour->stride bytes, valid until the next call. `flags` are swscale's.
status colour_convert(struct colour *colour, const AVFrame *frame, int flags, const uint8_t **rgb);

// Frees and zeroes.
void colour_release(struct colour *colour);

#endif
