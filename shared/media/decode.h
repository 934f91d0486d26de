// The two decoders behind media_decode. Used inside shared/media only.
#ifndef SHARED_MEDIA_DECODE_H
#define SHARED_MEDIA_DECODE_H

#include "shared/media/media.h"

// media_decode for a video.
status video_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                    const struct media_options *options);

// media_decode for an image.
status image_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling);

#endif
