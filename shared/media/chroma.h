// From a photograph's YCbCr to RGB as the usual decoders of JPEG and WebP do it, to the bit: how the halved chroma is
// spread over the pixels and which whole-number arithmetic makes the colours. Inside shared/media only.
#ifndef SHARED_MEDIA_CHROMA_H
#define SHARED_MEDIA_CHROMA_H

#include <stdbool.h>
#include <stdint.h>

#include <libavutil/frame.h>

// Whether a JPEG's frame of this format can be converted here.
bool chroma_jpeg_fits(const AVFrame *frame);

// Whether a lossy WebP's frame of this format can be converted here.
bool chroma_webp_fits(const AVFrame *frame);

// out[width, RGB] = row y of a JPEG's frame. `scratch` has room for 4 * (width + 2) samples.
void chroma_jpeg_row(const AVFrame *frame, int y, int *scratch, uint8_t *out);

// The same of a lossy WebP's frame.
void chroma_webp_row(const AVFrame *frame, int y, int *scratch, uint8_t *out);

#endif
