// Which frames of a video are sampled and to which size frames are resized: the published preprocessing, as plain
// arithmetic.
#pragma once

#include <stdint.h>

#include "shared/base/status.h"
#include "shared/store/frame_store.h"

// Both sides of a resized frame are multiples of the factor: two patches of 14 pixels.
enum { SMART_RESIZE_FACTOR = 28, MAX_SMART_RESIZE_RATIO = 200 };

struct sampling_config {
    double fps; // sampled frames per second
    int64_t min_frames, max_frames;
    double min_pixels, max_pixels; // of a video frame
    double total_pixels;           // of all frames of a video; NaN: no limit
    double image_min_pixels, image_max_pixels;
    double start, end; // of a video: frames are taken between these seconds; NaN: from its beginning, to its end
    double frame_rate; // of a video that is a directory of pictures; NaN: it is a file
};

// Returns the published values.
struct sampling_config sampling_config_default(void);

// Returns USAGE when two values contradict each other; the message names their options.
status sampling_config_check(const struct sampling_config *config);

// Sets *first and *range to the frames between start and end: of a video of `count` frames whose rising times, in
// seconds from its first frame, `time` returns. BAD_SAMPLE when there is none or start, end or frame_rate make no
// sense.
status sampling_range(const struct sampling_config *config, int64_t count,
                      double (*time)(const void *context, int64_t index), const void *context, int64_t *first,
                      int64_t *range);

// *count = the even number of frames to sample from a video of `frames` frames at `fps`: at least min_frames if the
// video has as many. BAD_SAMPLE when the video has fewer than 2 frames.
status sampling_frame_count(const struct sampling_config *config, int64_t frames, double fps, int *count);

// Returns the index of the i-th of `count` samples from `frames` frames: round(linspace(0, frames-1, count))[i].
int64_t sampling_frame_index(int64_t frames, int count, int i);

// Returns the largest number of pixels that each of `count` sampled frames may have.
double sampling_frame_max_pixels(const struct sampling_config *config, int count);

// The size to which height x width is resized: both sides are multiples of 28, the area lies between min_pixels and
// max_pixels, the aspect ratio is kept as far as that allows (smart_resize of Qwen). BAD_SAMPLE when the longer side is
// more than 200 times the shorter one.
status smart_resize(int height, int width, double min_pixels, double max_pixels, int *out_height, int *out_width);

// Sets the size of a clip's frames by that of its first picture and allocates frames->count of them: *pixels, which the
// caller frees, and *timestamps behind them in the same block. BAD_SAMPLE as smart_resize; UNAVAILABLE.
status sampling_new_frames(const struct sampling_config *config, int height, int width, struct frames *frames,
                           uint8_t **pixels, double **timestamps);
