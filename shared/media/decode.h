// The decoders behind media_decode. Used inside shared/media only.
#pragma once

#include "shared/media/media.h"
#include "shared/media/resize.h"

// media_decode for a video.
status video_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                    const struct media_options *options);

// media_decode for an image.
status image_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling);

// media_decode for a video that is a directory of pictures.
status picture_clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling);

// The paths of the pictures in a directory, in the order of their names.
struct picture_list {
    char **paths; // in `memory`
    size_t count;
    struct arena memory;
};

// Lists the files whose names end like an image's (.jpg, .jpeg, .png, .webp, .bmp, in small letters or capitals) and do
// not begin with a dot. BAD_SAMPLE when the directory is missing or has none. Release with picture_list_release, also
// after a failure.
status picture_list_read(struct picture_list *list, const char *path);

// Frees and zeroes; a zeroed one is fine.
void picture_list_release(struct picture_list *list);
