// The two chains, apart. Inside shared/media only.
#ifndef SHARED_MEDIA_DECODE_H
#define SHARED_MEDIA_DECODE_H

#include "shared/media/media.h"

// A clip's frames.
status clip_decode(frames_view *view, const char *path, const rules *rules, const media_options *options);

// An image's frame.
status still_decode(frames_view *view, const char *path, const rules *rules);

#endif
