// From a file to frames: any image or clip that FFmpeg opens, sampled and resized by the sampling.
#ifndef SHARED_MEDIA_MEDIA_H
#define SHARED_MEDIA_MEDIA_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/media/sampling_config.h"
#include "shared/store/frame_store.h"

// How a clip is decoded; every way gives the same frames.
struct media_options {
    bool sequential; // decode from the first packet on, never jump to a key frame, leave nothing out
    int threads;     // of the decoder; 0: one
};

// Decodes the frames of `path` into *view, on the heap: an image's one frame, or a clip's sampled ones. `options` NULL:
// the fastest way. BAD_SAMPLE when the file is missing, damaged, too short or too long-drawn: fail_text() is the reason
// and does not name the path.
status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options);

// The key of a file's frames: a hash of the file's content and of every rule that matters. `store` (NULL: none) keeps
// the content's hash until the file changes. BAD_SAMPLE when it cannot be read.
status media_key(char key[frame_key_size], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store);

// Writes the frames as one PNG, side by side in rows (a contact sheet). UNAVAILABLE when the file cannot be written.
status contact_sheet_write(const struct frames *frames, const char *path);

#endif
