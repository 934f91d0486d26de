#include "shared/media/sampling_config.h"

#include <assert.h>
#include <math.h>

#include "shared/base/memory.h"

struct sampling_config sampling_config_default(void) {
    return (struct sampling_config){
        .fps = 2,
        .min_frames = 4,
        .max_frames = 16,
        .min_pixels = 100352,
        .max_pixels = 105369,
        .total_pixels = NAN,
        .image_min_pixels = 3136,
        .image_max_pixels = 200704,
        .start = NAN,
        .end = NAN,
        .frame_rate = NAN,
    };
}

status sampling_config_check(const struct sampling_config *config) {
    if (config->min_frames + config->min_frames % 2 > config->max_frames) {
        return fail(USAGE, "min_frames %lld leaves no even number of frames up to max_frames %lld",
                    (long long)config->min_frames, (long long)config->max_frames);
    }
    if (!(config->min_pixels <= config->max_pixels)) {
        return fail(USAGE, "min_pixels %.0f is more than max_pixels %.0f", config->min_pixels, config->max_pixels);
    }
    if (!(config->image_min_pixels <= config->image_max_pixels)) {
        return fail(USAGE, "image_min_pixels %.0f is more than image_max_pixels %.0f", config->image_min_pixels,
                    config->image_max_pixels);
    }
    return OK;
}

status sampling_range(const struct sampling_config *config, int64_t count,
                      double (*time)(const void *context, int64_t index), const void *context, int64_t *first,
                      int64_t *range) {
    static const double tolerance = 1e-6; // of times that are rounded
    int64_t end = count;
    *first = 0;
    if (config->start < 0) return fail(BAD_SAMPLE, "start %g is negative", config->start);
    if (config->end <= config->start)
        return fail(BAD_SAMPLE, "end %g is not after start %g", config->end, config->start);
    if (config->frame_rate <= 0) return fail(BAD_SAMPLE, "frame_rate %g is not above 0", config->frame_rate);
    while (*first < count && time(context, *first) < config->start - tolerance) ++*first;
    while (end > *first && time(context, end - 1) > config->end + tolerance) end--;
    *range = end - *first;
    return *range ? OK : fail(BAD_SAMPLE, "no frame of the video lies between start and end");
}

status sampling_frame_count(const struct sampling_config *config, int64_t frames, double fps, int *count) {
    if (frames < 2) {
        return fail(BAD_SAMPLE, "the video has %lld frame%s, at least 2 are needed", (long long)frames,
                    frames == 1 ? "" : "s");
    }
    double min = (double)(config->min_frames + config->min_frames % 2);
    double max = fmin((double)(config->max_frames - config->max_frames % 2), (double)frames);
    double wanted = (double)frames / fps * config->fps;
    wanted = fmin(fmax(wanted, min), max);
    *count = 2 * (int)floor(wanted / 2);
    assert(*count >= 2 && *count <= frames);
    return OK;
}

int64_t sampling_frame_index(int64_t frames, int count, int i) {
    assert(frames > 0 && i >= 0 && i < count);
    if (count < 2) return 0;
    int64_t steps = count - 1;
    return (2 * (frames - 1) * i + steps) / (2 * steps);
}

double sampling_frame_max_pixels(const struct sampling_config *config, int count) {
    if (isnan(config->total_pixels)) return config->max_pixels;
    double per_frame = fmax(config->total_pixels / count * 2, floor(config->min_pixels * 1.05));
    return fmin(config->max_pixels, per_frame);
}

// `rounding`: rint, which rounds halves to even, floor or ceil. The result is at least one factor.
static double sampling_resize_multiple(double side, double (*rounding)(double)) {
    return fmax(SMART_RESIZE_FACTOR, rounding(side / SMART_RESIZE_FACTOR) * SMART_RESIZE_FACTOR);
}

status smart_resize(int height, int width, double min_pixels, double max_pixels, int *out_height, int *out_width) {
    if (height < 1 || width < 1) return fail(BAD_SAMPLE, "the picture has %d x %d pixels", width, height);
    double longer = height > width ? height : width, shorter = height > width ? width : height;
    if (longer / shorter > MAX_SMART_RESIZE_RATIO) {
        return fail(BAD_SAMPLE, "one side is %.1f times the other (%d x %d pixels), at most %d times are allowed",
                    longer / shorter, width, height, MAX_SMART_RESIZE_RATIO);
    }
    double h = sampling_resize_multiple(height, rint), w = sampling_resize_multiple(width, rint);
    double area = (double)height * width;
    if (h * w > max_pixels) {
        double beta = sqrt(area / max_pixels);
        h = sampling_resize_multiple(height / beta, floor);
        w = sampling_resize_multiple(width / beta, floor);
    } else if (h * w < min_pixels) {
        double beta = sqrt(min_pixels / area);
        h = sampling_resize_multiple(height * beta, ceil);
        w = sampling_resize_multiple(width * beta, ceil);
    }
    assert(h >= SMART_RESIZE_FACTOR && w >= SMART_RESIZE_FACTOR);
    *out_height = (int)h;
    *out_width = (int)w;
    return OK;
}

status sampling_new_frames(const struct sampling_config *config, int height, int width, struct frames *frames,
                           uint8_t **pixels, double **timestamps) {
    enum { ALIGNMENT = 64 };
    static_assert(ALIGNMENT % sizeof(double) == 0, "timestamps follow the pixels in one block");
    const double max_pixels = sampling_frame_max_pixels(config, frames->count);
    TRY(smart_resize(height, width, config->min_pixels, max_pixels, &frames->height, &frames->width));
    const size_t bytes = (frames_bytes(frames) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    TRY(NEW_LARGE(pixels, bytes + (size_t)frames->count * sizeof(double)));
    *timestamps = (double *)(void *)(*pixels + bytes);
    frames->pixels = *pixels;
    frames->timestamps = *timestamps;
    return OK;
}
