// Writes RGB frames as an H.264 clip in an MP4 file: for the demo's clips and for tests of the decoder.
#ifndef SHARED_MEDIA_CLIP_WRITER_H
#define SHARED_MEDIA_CLIP_WRITER_H

#include <stdint.h>

#include "shared/base/status.h"

struct clip_writer;

// Opens PATH for frames of width x height (both even) at `rate` frames a second. UNAVAILABLE when there is no H.264
// encoder or the file cannot be written.
status clip_writer_open(struct clip_writer **out, const char *path, int width, int height, int rate);

// Appends one frame: rgb[height, width, 3], read during the call.
status clip_writer_add(struct clip_writer *writer, const uint8_t *rgb);

// Ends the clip and closes the file; sets *writer to NULL. A failure leaves no usable file. NULL is fine.
status clip_writer_close(struct clip_writer **writer);

#endif
