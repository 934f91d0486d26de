// Videos for the demo's data and for tests of the decoder.
#pragma once

#include <stdint.h>

#include "shared/base/status.h"

// Writes RGB frames as an H.264 video in an MP4 file.
struct clip_writer;

// Opens `path` for frames of width x height, both even, at `rate` frames per second. UNAVAILABLE when FFmpeg has no
// H.264 encoder or the file cannot be written. The caller closes it with clip_writer_close.
status clip_writer_open(struct clip_writer **out, const char *path, int width, int height, int rate);

// Appends one frame: rgb[height, width, 3], read during the call. UNAVAILABLE when it cannot be encoded or written.
status clip_writer_add(struct clip_writer *writer, const uint8_t *rgb);

// Ends the video, closes the file, frees and sets *writer to NULL; NULL is fine. UNAVAILABLE when the end cannot be
// written; the file is then not usable.
status clip_writer_close(struct clip_writer **writer);
