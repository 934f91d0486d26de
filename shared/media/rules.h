// Which frames of a clip are taken and to what size frames go: the published rules, as plain arithmetic.
#ifndef SHARED_MEDIA_RULES_H
#define SHARED_MEDIA_RULES_H

#include <stdint.h>

#include "shared/base/status.h"

enum { rules_factor = 28, rules_most_ratio = 200 };

struct rules {
    double fps; // sampled frames a second
    int64_t min_frames, max_frames;
    double min_pixels, max_pixels; // of a video frame
    double total_pixels;           // of a clip; NaN: no such limit
    double image_min_pixels, image_max_pixels;
};

// The published settings.
struct rules rules_standard(void);

// USAGE when the rules contradict themselves; the line names the keys.
status rules_check(const struct rules *rules);

// *count = how many frames (even) are taken of a clip of `frames` frames at `fps`. BAD_SAMPLE: the clip is shorter than
// min_frames (one that is kept at no more than the sampled rate may be, down to 2).
status rules_frame_count(const struct rules *rules, int64_t frames, double fps, int *count);

// The index of the i-th of `count` frames taken of `frames`: round(linspace(0, frames-1, count))[i].
int64_t rules_index(int64_t frames, int count, int i);

// The most pixels of a frame when `count` frames are taken.
double rules_frame_pixels(const struct rules *rules, int count);

// The size that height x width goes to: both sides multiples of 28, between the bounds in pixels, the shape kept as
// far as that goes (Qwen's smart_resize). BAD_SAMPLE when one side is more than 200 times the other.
status rules_size(int height, int width, double min_pixels, double max_pixels, int *out_height, int *out_width);

#endif
