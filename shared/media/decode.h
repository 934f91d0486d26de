// The decoders behind media_decode. Used inside shared/media only.
#pragma once

#include "shared/media/media.h"
#include "shared/media/resize.h"

// Whether it is the machine or the network that fails, perhaps for a moment, when a file cannot be opened or read. EIO
// is no such error: it mostly is of one file.
bool media_error_passes(int error);

// Fails for a file that cannot be opened or read, for the reason in errno: UNAVAILABLE where that may pass, otherwise
// BAD_SAMPLE.
#define media_read_fail() fail(media_error_passes(errno) ? UNAVAILABLE : BAD_SAMPLE, "%s", strerror(errno))

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
// not begin with a dot. BAD_SAMPLE when the directory is missing or has none; UNAVAILABLE as media_read_fail. Release
// with picture_list_release, also after a failure.
status picture_list_read(struct picture_list *list, const char *path);

// Frees and zeroes; a zeroed one is fine.
void picture_list_release(struct picture_list *list);
