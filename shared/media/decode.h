// The two chains, apart. Inside shared/media only.
#ifndef SHARED_MEDIA_DECODE_H
#define SHARED_MEDIA_DECODE_H

#include "shared/media/media.h"

// A clip's frames.
status clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                   const struct media_options *options);

// An image's frame.
status still_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling);

#endif
