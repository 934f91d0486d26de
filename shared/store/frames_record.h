// Frames, their keys, and the record in which they are stored and sent between processes.
#ifndef SHARED_STORE_FRAMES_RECORD_H
#define SHARED_STORE_FRAMES_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum { frame_key_bytes = 16, frame_key_size = 2 * frame_key_bytes + 1 }; // the size counts the NUL

// Writes the hash as a key.
void frame_key_print(char key[frame_key_size], const uint8_t hash[frame_key_bytes]);

// Sets the hash that the key states. DATAERR when it is not 32 hex digits.
status frame_key_parse(uint8_t out[frame_key_bytes], const char *key);

// The frames of one image (count 1, no timestamps) or video.
struct frames {
    bool video;
    int count, height, width;
    double seconds_per_grid;  // of a video: two frames at the sampled rate; NaN for an image
    const double *timestamps; // [count] seconds from the video's first frame; NULL for an image
    const uint8_t *pixels;    // [count, height, width, RGB]
};

// Returns the size of the pixels in bytes.
size_t frames_bytes(const struct frames *frames);

// Returns the size of the record in bytes.
size_t frames_record_size(const struct frames *frames);

// Writes the record, frames_record_size bytes, as it is stored and sent: header, timestamps, pixels.
void frames_record_write(const struct frames *frames, uint8_t *out);

// Appends the record.
status frames_to_record(const struct frames *frames, struct buf *out);

// *frames = the record's, pointing into `record`, which is aligned to 8 bytes. DATAERR when it is not a complete record
// of this version.
status frames_from_record(struct frames *frames, const void *record, size_t size);

#endif
