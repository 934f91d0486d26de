// From a file to frames: any image or video that FFmpeg opens, sampled and resized by a sampling_config.
#ifndef SHARED_MEDIA_MEDIA_H
#define SHARED_MEDIA_MEDIA_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/media/sampling_config.h"
#include "shared/store/frame_store.h"

// How a video is decoded. Every way gives the same frames.
struct media_options {
    bool sequential; // decode every packet from the first one on: no jump to a key frame, no frame skipped
    int threads;     // of the decoder; 0: one
};

// Decodes the file at `path` into *view, on the heap: the one frame of an image or the sampled frames of a video.
// options NULL: the fastest way with one thread. BAD_SAMPLE when the file is missing, damaged, too short or has too
// extreme an aspect ratio; fail_text() is then the reason without the path. The caller releases the view with
// frames_view_release.
status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options);

// Computes the key of a file's frames: a hash of the file's content and of all values of `sampling` that apply. `store`
// (NULL: none) caches the content's hash until the file changes. BAD_SAMPLE when the file cannot be read.
status media_key(char key[frame_key_size], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store);

#endif
