#include "shared/media/rules.h"

#include <math.h>
#include <stdbool.h>

struct rules rules_standard(void) {
    return (struct rules){
        .fps = 2,
        .min_frames = 4,
        .max_frames = 16,
        .min_pixels = 100352,
        .max_pixels = 105369,
        .total_pixels = NAN,
        .image_min_pixels = 3136,
        .image_max_pixels = 200704,
    };
}

status rules_check(const struct rules *rules) {
    if (rules->min_frames + rules->min_frames % 2 > rules->max_frames) {
        return fail(USAGE, "min_frames %lld leaves no even number of frames up to max_frames %lld",
                    (long long)rules->min_frames, (long long)rules->max_frames);
    }
    if (!(rules->min_pixels <= rules->max_pixels)) {
        return fail(USAGE, "min_pixels %.0f is more than max_pixels %.0f", rules->min_pixels, rules->max_pixels);
    }
    if (!(rules->image_min_pixels <= rules->image_max_pixels)) {
        return fail(USAGE, "image_min_pixels %.0f is more than image_max_pixels %.0f", rules->image_min_pixels,
                    rules->image_max_pixels);
    }
    return OK;
}

status rules_frame_count(const struct rules *rules, int64_t frames, double fps, int *count) {
    // A clip kept at no more than the sampled rate is a row of samples already: there is nothing to take more densely.
    bool sampled_already = fps <= rules->fps && frames >= 2;
    if ((frames < rules->min_frames && !sampled_already) || frames < 2) {
        return fail(BAD_SAMPLE, "the clip has %lld frame%s, at least %lld are needed", (long long)frames,
                    frames == 1 ? "" : "s", (long long)(rules->min_frames > 2 ? rules->min_frames : 2));
    }
    double least = (double)(rules->min_frames + rules->min_frames % 2);
    double most = fmin((double)(rules->max_frames - rules->max_frames % 2), (double)frames);
    double wanted = (double)frames / fps * rules->fps;
    wanted = fmin(fmax(wanted, least), most);
    *count = 2 * (int)floor(wanted / 2);
    return OK;
}

int64_t rules_index(int64_t frames, int count, int i) {
    if (count < 2) return 0;
    int64_t steps = count - 1;
    return (2 * (frames - 1) * i + steps) / (2 * steps);
}

double rules_frame_pixels(const struct rules *rules, int count) {
    if (isnan(rules->total_pixels)) return rules->max_pixels;
    double share = fmax(rules->total_pixels / count * 2, floor(rules->min_pixels * 1.05));
    return fmin(rules->max_pixels, share);
}

// The multiple of 28 that `how` (rint: half to even, floor, ceil) finds, one unit at least.
static double multiple(double side, double (*how)(double)) {
    return fmax(rules_factor, how(side / rules_factor) * rules_factor);
}

status rules_size(int height, int width, double min_pixels, double max_pixels, int *out_height, int *out_width) {
    if (height < 1 || width < 1) return fail(BAD_SAMPLE, "the picture is %d x %d pixels", width, height);
    double longer = height > width ? height : width, shorter = height > width ? width : height;
    if (longer / shorter > rules_most_ratio) {
        return fail(BAD_SAMPLE, "one side is %.1f times the other (%d x %d pixels), at most %d times is allowed",
                    longer / shorter, width, height, rules_most_ratio);
    }
    double h = multiple(height, rint), w = multiple(width, rint);
    double area = (double)height * width;
    if (h * w > max_pixels) {
        double beta = sqrt(area / max_pixels);
        h = multiple(height / beta, floor);
        w = multiple(width / beta, floor);
    } else if (h * w < min_pixels) {
        double beta = sqrt(min_pixels / area);
        h = multiple(height * beta, ceil);
        w = multiple(width * beta, ceil);
    }
    *out_height = (int)h;
    *out_width = (int)w;
    return OK;
}
