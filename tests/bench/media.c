// bench-media draw FILE | decode FILE | resize: decoding a video and getting it from the store; the versions of the
// resampler.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/media/media.h"
#include "tools/demo/clip_writer.h"
#include "shared/media/resize.h"

enum { height = 360, width = 640, rate = 30, seconds = 30, rounds = 5, lookups = 200 };

// A textured background that drifts under a few textured squares: as hard to encode as a quiet film.
static void draw_frame(uint8_t *rgb, const uint8_t *texture, int frame) {
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int square = (x + 3 * frame) / 97 % 4 == 1 && (y + frame) / 83 % 3 == 1;
            int from = ((y + frame / 3) % height * width + (x + (square ? 5 : 1) * frame / 2) % width);
            for (int c = 0; c < 3; c++) *rgb++ = (uint8_t)((texture[from] >> 2) + (square ? 120 : 40) + 20 * c + y / 8);
        }
    }
}

static status draw(const char *path) {
    uint8_t *rgb = NULL, *texture = NULL;
    struct clip_writer *writer = NULL;
    NEW(&rgb, height * width * 3);
    NEW(&texture, height * width);
    for (int i = 0; i < height * width; i++) {
        texture[i] = (uint8_t)rng_below(1, (uint64_t)(i / width / 3), (uint64_t)(i % width / 3), 256);
    }
    status result = clip_writer_open(&writer, path, width, height, rate);
    for (int frame = 0; result == OK && frame < rate * seconds; frame++) {
        draw_frame(rgb, texture, frame);
        result = clip_writer_add(writer, rgb);
    }
    status closed = clip_writer_close(&writer);
    free(texture);
    free(rgb);
    return result != OK ? result : closed;
}

static status time_cold(const char *path, const struct sampling_config *sampling, int threads, struct frames_view *view,
                        double *best) {
    *best = 1e9;
    for (int round = 0; round < rounds; round++) {
        frames_view_release(view);
        double start = clock_monotonic();
        TRY(media_decode(view, path, true, sampling, &(struct media_options){.threads = threads}));
        double took = clock_monotonic() - start;
        if (took < *best) *best = took;
    }
    return OK;
}

// What the frames stage does for a stored video: computes the key of the file, maps the frames and reads every pixel.
static status time_cached(const char *path, const struct sampling_config *sampling, const struct frames *frames,
                          double *each) {
    char dir[] = "/tmp/caravan-bench-XXXXXX", key[FRAME_KEY_SIZE];
    struct frame_store *store = NULL;
    if (!mkdtemp(dir)) return fail(UNAVAILABLE, "%s: cannot be made", dir);
    status result = frame_store_open(&store, dir, 0, false);
    if (result == OK) result = media_key(key, path, true, sampling, store);
    if (result == OK) result = frame_store_put(store, key, frames);
    double start = clock_monotonic();
    unsigned sum = 0;
    for (int i = 0; result == OK && i < lookups; i++) {
        struct frames_view view = {0};
        bool found = false;
        result = media_key(key, path, true, sampling, store);
        if (result == OK) result = frame_store_get(store, key, &view, &found);
        for (size_t at = 0; found && at < frames_bytes(&view.frames); at += 64) sum += view.frames.pixels[at];
        frames_view_release(&view);
    }
    *each = (clock_monotonic() - start) / lookups;
    frame_store_close(&store);
    (void)dir_remove(dir);
    return sum || result != OK ? result : fail(BUG, "the cached clip is black");
}

static status time_clip(const char *path) {
    struct sampling_config sampling = sampling_config_default();
    struct frames_view view = {0};
    double one = 0, all = 0, cached = 0;
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    status result = time_cold(path, &sampling, 1, &view, &one);
    if (result == OK) result = time_cold(path, &sampling, processors, &view, &all);
    if (result == OK) result = time_cached(path, &sampling, &view.frames, &cached);
    frames_view_release(&view);
    if (result == OK) {
        printf("caravan %s cold %.1f ms (one thread %.1f), from the cache %.3f ms\n", path, all * 1e3, one * 1e3,
               cached * 1e3);
    }
    return result;
}

static status time_resize(void) {
    enum { out_height = 252, out_width = 392 };
    struct resizer *resizer = NULL;
    uint8_t *in = NULL, *out = NULL;
    int count;
    const struct resize_ops *const *versions = resize_ops_available(&count);
    NEW(&in, height * width * 3);
    NEW(&out, out_height * out_width * 3);
    status result = resizer_new(&resizer, height, width, out_height, out_width);
    for (int i = 0; result == OK && i < height * width * 3; i++) in[i] = (uint8_t)(i * 7 + i / 999);
    for (int version = 0; result == OK && version < count; version++) {
        double best = 1e9;
        resizer_set_ops(resizer, versions[version]);
        for (int round = 0; round < rounds * 4; round++) {
            double start = clock_monotonic();
            resizer_run(resizer, in, width * 3, out);
            if (clock_monotonic() - start < best) best = clock_monotonic() - start;
        }
        printf("resize %dx%d to %dx%d %s %.3f ms\n", width, height, out_width, out_height, versions[version]->name,
               best * 1e3);
    }
    resizer_free(&resizer);
    free(in);
    free(out);
    return result;
}

int main(int argc, char **argv) {
    log_open("bench-media");
    status result = OK;
    if (argc == 3 && !strcmp(argv[1], "draw"))
        result = draw(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "decode"))
        result = time_clip(argv[2]);
    else if (argc == 2 && !strcmp(argv[1], "resize"))
        result = time_resize();
    else
        result = fail(USAGE, "usage: bench-media draw FILE | decode FILE | resize");
    if (result != OK) log_info("%s", fail_text());
    return (int)result;
}
