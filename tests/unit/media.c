// Decoding, sampling and resizing against golden data of the published preprocessing
// (tests/parity/make_media_golden.py); one way of decoding against another; files that cannot be decoded.
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/media/decode.h"
#include "shared/media/media.h"
#include "tools/demo/clip_writer.h"
#include "shared/media/resize.h"

static const char directory[] = "tests/data/media";
static struct buf golden;

static int read_golden(void **state) {
    (void)state;
    return file_read("tests/data/media/golden.txt", &golden) != OK;
}

static int free_golden(void **state) {
    (void)state;
    buf_release(&golden);
    return 0;
}

// Small frames, as the golden data has them.
static struct sampling_config small_sampling(void) {
    struct sampling_config sampling = sampling_config_default();
    sampling.min_pixels = sampling.image_min_pixels = 784 * 6;
    sampling.max_pixels = sampling.image_max_pixels = 784 * 24;
    return sampling;
}

// Returns what follows `word` in the next golden line that starts with it, NULL at the end; moves *at past the line.
static const char *next_line(const char **at, const char *word) {
    size_t length = strlen(word);
    for (const char *line = *at; *line; line = strchr(line, '\n') + 1) {
        if (strncmp(line, word, length) != 0 || line[length] != ' ') continue;
        *at = strchr(line, '\n') + 1;
        return line + length + 1;
    }
    return NULL;
}

static uint64_t fnv(const uint8_t *data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

static uint8_t *noise(int height, int width, uint32_t seed) {
    size_t size = (size_t)height * (size_t)width * 3;
    uint8_t *out = malloc(size);
    assert_non_null(out);
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (uint8_t)(seed >> 24);
    }
    return out;
}

TEST(sizes_are_those_of_qwen_vl_utils) {
    const char *at = golden.data;
    int cases = 0;
    for (const char *line; (line = next_line(&at, "size")); cases++) {
        int h, w, want_h, want_w, got_h = -1, got_w = -1;
        double low, high;
        assert_int_equal(sscanf(line, "%d %d %lf %lf %d %d", &h, &w, &low, &high, &want_h, &want_w), 6);
        assert_int_equal(smart_resize(h, w, low, high, &got_h, &got_w), want_h < 0 ? BAD_SAMPLE : OK);
        if (want_h < 0) continue;
        assert_int_equal(got_h, want_h);
        assert_int_equal(got_w, want_w);
    }
    assert_int_equal(cases, 64);
}

TEST(counts_and_indices_are_those_of_qwen_vl_utils) {
    const char *at = golden.data;
    struct sampling_config sampling = sampling_config_default();
    int cases = 0;
    for (const char *line; (line = next_line(&at, "count")); cases++) {
        long frames;
        double fps;
        int want, got, used;
        assert_int_equal(sscanf(line, "%ld %lf %d%n", &frames, &fps, &want, &used), 3);
        assert_int_equal(sampling_frame_count(&sampling, frames, fps, &got), OK);
        assert_int_equal(got, want);
        for (int i = 0; i < want; i++) {
            long index;
            line += used;
            assert_int_equal(sscanf(line, "%ld%n", &index, &used), 1);
            assert_int_equal(sampling_frame_index(frames, want, i), index);
        }
    }
    assert_int_equal(cases, 11);
}

TEST(short_clips_give_an_even_number_of_frames) {
    struct sampling_config sampling = sampling_config_default();
    int count;
    for (int frames = 2; frames <= 3; frames++) { // all that there is, but an even number
        assert_int_equal(sampling_frame_count(&sampling, frames, 25, &count), OK);
        assert_int_equal(count, 2);
    }
    assert_int_equal(sampling_frame_count(&sampling, 1, 1, &count), BAD_SAMPLE);
    assert_int_equal(sampling_frame_count(&sampling, 0, 25, &count), BAD_SAMPLE);
    assert_int_equal(sampling_frame_count(&sampling, 2, 2, &count), OK); // two samples at the sampled rate
    assert_int_equal(count, 2);
    sampling.min_frames = 5; // an odd bound is rounded up to the next even number
    assert_int_equal(sampling_frame_count(&sampling, 100, 50, &count), OK);
    assert_int_equal(count, 6);
    sampling.max_frames = 7;
    assert_int_equal(sampling_frame_count(&sampling, 100, 1, &count), OK);
    assert_int_equal(count, 6);
    assert_int_equal(sampling_frame_count(&sampling, 5, 25, &count), OK);
    assert_int_equal(count, 4);
}

TEST(total_pixels_are_shared_by_the_frames) {
    struct sampling_config sampling = sampling_config_default();
    assert_true(sampling_frame_max_pixels(&sampling, 16) == 105369);
    sampling.max_pixels = 602112;
    sampling.total_pixels = 16 * 150000;
    assert_true(sampling_frame_max_pixels(&sampling, 16) == 300000);
    assert_true(sampling_frame_max_pixels(&sampling, 4) == 602112);
    assert_true(sampling_frame_max_pixels(&sampling, 768) == 105369);
}

struct raw_image {
    const uint8_t *pixels;
    int width;
};

static status raw_image_row(void *context, int y, const uint8_t **row) {
    const struct raw_image *image = context;
    *row = image->pixels + (size_t)y * (size_t)image->width * 3;
    return OK;
}

TEST(resized_pixels_are_those_of_torchvision) {
    const char *at = golden.data;
    int cases = 0, versions;
    const struct resize_ops *const *ops = resize_ops_available(&versions);
    for (const char *line; (line = next_line(&at, "resize")); cases++) {
        int h, w, oh, ow, seed;
        unsigned long clip_hash, image_hash;
        assert_int_equal(sscanf(line, "%d %d %d %d %d %lx %lx", &h, &w, &oh, &ow, &seed, &clip_hash, &image_hash), 7);
        uint8_t *in = noise(h, w, (uint32_t)seed);
        size_t size = (size_t)oh * (size_t)ow * 3;
        uint8_t *out = malloc(size);
        assert_non_null(out);
        struct resizer *resizer;
        assert_int_equal(resizer_new(&resizer, h, w, oh, ow), OK);
        for (int version = 0; version < versions; version++) {
            memset(out, 0, size);
            resizer_set_ops(resizer, ops[version]);
            resizer_run(resizer, in, (ptrdiff_t)w * 3, out);
            assert_true(fnv(out, size) == clip_hash);
        }
        resizer_free(&resizer);
        struct raw_image image = {in, w};
        assert_int_equal(image_resize(&(struct image_rows){h, w, raw_image_row, &image}, oh, ow, out), OK);
        assert_true(fnv(out, size) == image_hash);
        free(out);
        free(in);
    }
    assert_int_equal(cases, 7);
}

// Every version gives the reference's bits, for odd strides and sizes that leave a remainder, and writes nothing past
// the end.
TEST(versions_equal_the_reference) {
    int versions;
    const struct resize_ops *const *ops = resize_ops_available(&versions);
    for (int n = 0; n < 40; n++) {
        int h = 3 + n * 7 % 90, w = 3 + n * 31 % 230, oh = 28 + n * 28 % 84, ow = 28 + n * 56 % 168;
        size_t stride = (size_t)w * 3 + (size_t)(n % 5), size = (size_t)oh * (size_t)ow * 3;
        uint8_t *in = noise(h, (int)stride, (uint32_t)n), *want = malloc(size), *got = malloc(size + 64);
        assert_true(want && got);
        struct resizer *resizer;
        assert_int_equal(resizer_new(&resizer, h, w, oh, ow), OK);
        resizer_set_ops(resizer, ops[0]);
        resizer_run(resizer, in, (ptrdiff_t)stride, want);
        for (int version = 1; version < versions; version++) {
            memset(got, 0xa5, size + 64);
            resizer_set_ops(resizer, ops[version]);
            resizer_run(resizer, in, (ptrdiff_t)stride, got);
            assert_memory_equal(got, want, size);
            for (size_t i = size; i < size + 64; i++) assert_int_equal(got[i], 0xa5);
        }
        resizer_free(&resizer);
        free(in);
        free(want);
        free(got);
    }
}

static void check_block_means(const char **at, const struct frames *frames, int allowed) {
    for (int f = 0; f < frames->count; f++) {
        const uint8_t *frame = frames->pixels + frames_bytes(frames) / (size_t)frames->count * (size_t)f;
        const char *line = next_line(at, "means");
        assert_non_null(line);
        for (int block = 0; block < 192; block++) {
            int y0 = frames->height * (block / 24) / 8, y1 = frames->height * (block / 24 + 1) / 8;
            int x0 = frames->width * (block / 3 % 8) / 8, x1 = frames->width * (block / 3 % 8 + 1) / 8;
            long sum = 0;
            for (int y = y0; y < y1; y++) {
                for (int x = x0; x < x1; x++)
                    sum += frame[((size_t)y * (size_t)frames->width + (size_t)x) * 3 + (size_t)(block % 3)];
            }
            char *end;
            long want = strtol(line, &end, 10), got = sum / ((y1 - y0) * (x1 - x0));
            line = end;
            assert_in_range(got - want + allowed, 0, 2 * allowed);
        }
    }
}

static const char *read_golden_path(char path[300], const char *line) {
    char name[200];
    assert_int_equal(sscanf(line, "%199s", name), 1);
    snprintf(path, 300, "%s/%s", directory, name);
    return line + strlen(name);
}

TEST(frames_of_clips_are_those_of_decord) {
    const char *at = golden.data;
    struct sampling_config sampling = small_sampling();
    int cases = 0;
    for (const char *line; (line = next_line(&at, "clip")); cases++) {
        char path[300];
        line = read_golden_path(path, line);
        int count, height, width, used;
        double seconds_per_grid;
        assert_int_equal(sscanf(line, "%d %d %d %lf%n", &count, &height, &width, &seconds_per_grid, &used), 4);
        SCOPED(struct frames_view, frames_view_release) fast = {0}, sequential = {0}, threaded = {0};
        assert_int_equal(media_decode(&fast, path, true, &sampling, NULL), OK);
        assert_int_equal(fast.frames.count, count);
        assert_int_equal(fast.frames.height, height);
        assert_int_equal(fast.frames.width, width);
        assert_true(fabs(fast.frames.seconds_per_grid - seconds_per_grid) < 1e-6);
        for (int i = 0; i < count; i++) {
            double time;
            line += used;
            assert_int_equal(sscanf(line, "%lf%n", &time, &used), 1);
            assert_true(fabs(fast.frames.timestamps[i] - time) < 1e-4);
        }
        check_block_means(&at, &fast.frames, 1);
        assert_int_equal(media_decode(&sequential, path, true, &sampling, &(struct media_options){.sequential = true}),
                         OK);
        assert_memory_equal(sequential.frames.pixels, fast.frames.pixels, frames_bytes(&fast.frames));
        assert_int_equal(media_decode(&threaded, path, true, &sampling, &(struct media_options){.threads = 4}), OK);
        assert_memory_equal(threaded.frames.pixels, fast.frames.pixels, frames_bytes(&fast.frames));
    }
    assert_int_equal(cases, 14);
}

TEST(images_are_those_of_pillow) {
    const char *at = golden.data;
    struct sampling_config sampling = small_sampling();
    int cases = 0;
    for (const char *line; (line = next_line(&at, "image")); cases++) {
        char path[300], hash[20];
        line = read_golden_path(path, line);
        int height, width;
        assert_int_equal(sscanf(line, "%d %d %19s", &height, &width, hash), 3);
        SCOPED(struct frames_view, frames_view_release) view = {0};
        assert_int_equal(media_decode(&view, path, false, &sampling, NULL), OK);
        assert_int_equal(view.frames.count, 1);
        assert_null(view.frames.timestamps);
        assert_int_equal(view.frames.height, height);
        assert_int_equal(view.frames.width, width);
        if (hash[0] != '-') assert_true(fnv(view.frames.pixels, frames_bytes(&view.frames)) == strtoul(hash, NULL, 16));
        check_block_means(&at, &view.frames, 1);
    }
    assert_int_equal(cases, 11);
}

TEST(a_clip_of_three_frames_gives_two) {
    struct sampling_config sampling = small_sampling();
    SCOPED(struct frames_view, frames_view_release) view = {0};
    assert_int_equal(media_decode(&view, "tests/data/media/three.mp4", true, &sampling, NULL), OK);
    assert_int_equal(view.frames.count, 2);
    assert_true(fabs(view.frames.timestamps[1] - 2 / 12.0) < 1e-4); // the first frame and the last
    assert_true(fabs(view.frames.seconds_per_grid - 0.25) < 1e-6);
}

TEST(a_cut_clip_has_the_frames_of_its_range) {
    // Numbered timestamps, and a file whose timestamps do not tell its frames.
    static const char *const paths[] = {"tests/data/media/b-frames.mp4", "tests/data/media/packed.avi"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct sampling_config sampling = small_sampling();
        SCOPED(struct frames_view, frames_view_release) whole = {0}, cut = {0};
        sampling.fps = 1000;
        sampling.max_frames = 1000; // every frame, but an even number
        assert_int_equal(media_decode(&whole, paths[i], true, &sampling, NULL), OK);
        const double *times = whole.frames.timestamps;
        assert_in_range(whole.frames.count, 8, 1000);
        sampling.start = times[2];
        sampling.end = times[5] + 1e-9;
        assert_int_equal(media_decode(&cut, paths[i], true, &sampling, NULL), OK);
        assert_int_equal(cut.frames.count, 4);
        size_t frame = frames_bytes(&cut.frames) / 4;
        for (int f = 0; f < 4; f++) {
            assert_true(fabs(cut.frames.timestamps[f] - times[2 + f]) < 1e-9);
            assert_memory_equal(cut.frames.pixels + (size_t)f * frame, whole.frames.pixels + (size_t)(2 + f) * frame,
                                frame);
        }
        frames_view_release(&cut);
        sampling.end = NAN; // to the end of the clip
        assert_int_equal(media_decode(&cut, paths[i], true, &sampling, NULL), OK);
        assert_true(cut.frames.timestamps[0] == times[2]);
        assert_true(cut.frames.timestamps[cut.frames.count - 1] >= times[whole.frames.count - 1] - 1e-9);
    }
}

static void copy_picture(const char *dir, const char *name, const char *from) {
    char path[300];
    SCOPED(struct buf, buf_release) content = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_read(from, &content), OK);
    assert_int_equal(file_write_atomic(path, content.data, content.size), OK);
}

// Ten pictures: photo.jpg, and from the fifth on photo-422.jpg, which is of the same size.
static const char *make_pictures(void) {
    const char *dir = unit_new_directory();
    for (int i = 9; i >= 0; i--) {
        char name[24];
        snprintf(name, sizeof name, i % 2 ? "%05d.JPG" : "%05d.jpeg", i + 1);
        copy_picture(dir, name, i < 4 ? "tests/data/media/photo.jpg" : "tests/data/media/photo-422.jpg");
    }
    copy_picture(dir, "notes.txt", "tests/data/media/golden.txt");
    copy_picture(dir, ".hidden.jpg", "tests/data/media/golden.txt");
    return dir;
}

TEST(a_directory_of_pictures_is_a_clip) {
    const char *dir = make_pictures();
    char a[FRAME_KEY_SIZE], b[FRAME_KEY_SIZE];
    struct sampling_config sampling = small_sampling(), image = sampling;
    struct frames_view view, one;
    sampling.frame_rate = 2;
    assert_int_equal(media_decode(&view, dir, true, &sampling, NULL), OK);
    assert_int_equal(view.frames.count, 10);
    assert_true(view.frames.video && view.frames.seconds_per_grid == 1);
    for (int i = 0; i < 10; i++) assert_true(view.frames.timestamps[i] == i / 2.0);
    // A picture is resized as a frame, which differs from an image in the rounding alone.
    assert_int_equal(media_decode(&one, "tests/data/media/photo.jpg", false, &image, NULL), OK);
    assert_int_equal(one.frames.height, view.frames.height);
    assert_int_equal(one.frames.width, view.frames.width);
    size_t frame = frames_bytes(&one.frames);
    long difference = 0;
    for (size_t i = 0; i < frame; i++) difference += abs(one.frames.pixels[i] - view.frames.pixels[i]);
    assert_true((double)difference / (double)frame < 1);
    assert_memory_equal(view.frames.pixels, view.frames.pixels + 3 * frame, frame);
    assert_memory_not_equal(view.frames.pixels, view.frames.pixels + 4 * frame, frame);
    frames_view_release(&one);
    frames_view_release(&view);

    sampling.start = 1;
    sampling.end = 2.6; // the pictures at 1, 1.5, 2 and 2.5 seconds
    assert_int_equal(media_decode(&view, dir, true, &sampling, NULL), OK);
    assert_int_equal(view.frames.count, 4);
    assert_true(view.frames.timestamps[0] == 1 && view.frames.timestamps[3] == 2.5);
    frames_view_release(&view);

    // The key covers the range, the rate and the contents of the pictures in their order.
    assert_int_equal(media_key(a, dir, true, &sampling, NULL), OK);
    sampling.end = 2.5;
    assert_int_equal(media_key(b, dir, true, &sampling, NULL), OK);
    assert_string_not_equal(a, b);
    sampling.frame_rate = 3;
    assert_int_equal(media_key(a, dir, true, &sampling, NULL), OK);
    assert_string_not_equal(a, b);
    copy_picture(dir, "00009.jpeg", "tests/data/media/photo.jpg");
    assert_int_equal(media_key(b, dir, true, &sampling, NULL), OK);
    assert_string_not_equal(a, b);
}

static void expect_bad(const char *path, bool video, struct sampling_config sampling, const char *reason) {
    struct frames_view view;
    assert_int_equal(media_decode(&view, path, video, &sampling, NULL), BAD_SAMPLE);
    if (!strstr(fail_text(), reason)) print_error("%s: '%s' lacks '%s'\n", path, fail_text(), reason);
    assert_non_null(strstr(fail_text(), reason));
    assert_null(strchr(fail_text(), '\n'));
    assert_null(view.owned);
}

TEST(bad_directories_and_ranges_are_refused) {
    const char *dir = make_pictures(), *empty = unit_new_directory();
    char key[FRAME_KEY_SIZE];
    const double ranges[][3] = {{-1, NAN, 2}, {3, 3, 2}, {9, 12, 2}, {4.2, 4.7, 2}, {NAN, NAN, 0}};
    static const char *const reasons[] = {"start -1 is negative", "end 3 is not after start 3", "no frame",
                                          "1 frame, at least 2", "frame_rate 0 is not above 0"};
    struct sampling_config sampling = small_sampling();
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        sampling.start = ranges[i][0];
        sampling.end = ranges[i][1];
        sampling.frame_rate = ranges[i][2];
        expect_bad(dir, true, sampling, reasons[i]);
    }
    sampling = small_sampling();
    sampling.frame_rate = 2;
    copy_picture(dir, "00010.JPG", "tests/data/media/golden.txt");
    expect_bad(dir, true, sampling, "00010.JPG: cannot be opened");
    expect_bad("/nowhere", true, sampling, "No such file");
    expect_bad("tests/data/media/photo.jpg", true, sampling, "Not a directory");
    expect_bad(empty, true, sampling, "the directory has no picture");
    assert_int_equal(media_key(key, empty, true, &sampling, NULL), BAD_SAMPLE);
    sampling = small_sampling();
    sampling.start = 1e6;
    expect_bad("tests/data/media/b-frames.mp4", true, sampling, "no frame of the video lies between start and end");
}

static void expect_bad_sample(const char *path, bool video, const char *reason) {
    expect_bad(path, video, sampling_config_default(), reason);
}

// Writes these bytes to a file.
static void expect_bad_content(const char *data, size_t size, bool video, const char *reason) {
    char path[300];
    snprintf(path, sizeof path, "%s/bad", unit_directory());
    assert_int_equal(file_write_atomic(path, data, size), OK);
    expect_bad_sample(path, video, reason);
}

// Truncates a copy of the file to this part of its length.
static void expect_truncated_bad_sample(const char *name, double part, bool video, const char *reason) {
    char from[300];
    SCOPED(struct buf, buf_release) content = {0};
    snprintf(from, sizeof from, "%s/%s", directory, name);
    assert_int_equal(file_read(from, &content), OK);
    expect_bad_content(content.data, (size_t)((double)content.size * part), video, reason);
}

TEST(a_bad_file_is_a_bad_sample) {
    expect_bad_sample("tests/data/media/missing.mp4", true, "No such file");
    expect_bad_sample("tests/data/media", true, "not a file");
    expect_bad_sample("tests/data/media/golden.txt", true, "cannot be opened");
    expect_bad_sample("tests/data/media/golden.txt", false, "cannot be opened");
    expect_bad_sample("tests/data/media/plain-%03d.png", true, "1 frame, at least 2");
    expect_bad_sample("/dev/zero", true, "not a file");
    expect_truncated_bad_sample("b-frames.mp4", 0, true, "empty");
    expect_truncated_bad_sample("b-frames.mp4", 0.5, true, "moov atom not found");
    expect_truncated_bad_sample("open.mkv", 0.6, true, "is truncated");
    expect_truncated_bad_sample("full-range.webm", 0.6, true, "is truncated");
    for (int tenths = 1; tenths < 10; tenths++)
        expect_truncated_bad_sample("moving.gif", tenths / 10.0, true, "is truncated");
    expect_truncated_bad_sample("photo.jpg", 0.7, false, "is truncated");
    expect_truncated_bad_sample("plain-%03d.png", 0.7, false, "cannot be decoded");
}

// Cameras append a second picture, or a film.
TEST(what_follows_a_jpeg_does_not_count) {
    static const char *const trailers[] = {"\xff\xd9", "a film \xff\xda", "\xff\xd8\xff\xe0 a picture \xff\xd9"};
    const struct sampling_config sampling = small_sampling();
    struct frames_view plain, view;
    char path[300];
    snprintf(path, sizeof path, "%s/trailed.jpg", unit_directory());
    assert_int_equal(media_decode(&plain, "tests/data/media/photo.jpg", false, &sampling, NULL), OK);
    for (size_t i = 0; i < sizeof trailers / sizeof *trailers; i++) {
        SCOPED(struct buf, buf_release) content = {0};
        MUST(file_read("tests/data/media/photo.jpg", &content));
        buf_puts(&content, trailers[i]);
        MUST(file_write_atomic(path, content.data, content.size));
        MUST(media_decode(&view, path, false, &sampling, NULL));
        assert_int_equal(frames_bytes(&view.frames), frames_bytes(&plain.frames));
        assert_memory_equal(view.frames.pixels, plain.frames.pixels, frames_bytes(&plain.frames));
        frames_view_release(&view);
    }
    frames_view_release(&plain);
}

// A gray picture of 8 x 8 pixels whose compression is 1, none, and then 6 and 7, JPEG.
TEST(jpeg_inside_of_tiff_is_refused) {
    enum { ENTRIES = 9, HEADER = 10, SIZE = HEADER + ENTRIES * 12 + 4, COMPRESSION = HEADER + 3 * 12 + 8 };
    static const uint16_t tags[ENTRIES][2] = {{256, 8},    {257, 8}, {258, 8}, {259, 1}, {262, 1},
                                              {273, SIZE}, {277, 1}, {278, 8}, {279, 64}};
    char path[300], file[SIZE + 64] = {'I', 'I', 42, 0, 8, 0, 0, 0, ENTRIES, 0};
    const struct sampling_config sampling = small_sampling();
    struct frames_view view;
    for (int i = 0; i < ENTRIES; i++) { // a tag, the type of a short number, one of it, the number
        const char entry[12] = {(char)(tags[i][0] & 255), (char)(tags[i][0] >> 8), 3, 0, 1, 0, 0, 0, (char)tags[i][1]};
        memcpy(file + HEADER + i * 12, entry, sizeof entry);
    }
    memset(file + SIZE, 0x77, 64);
    snprintf(path, sizeof path, "%s/gray.tif", unit_directory());
    assert_int_equal(file_write_atomic(path, file, sizeof file), OK);
    assert_int_equal(media_decode(&view, path, false, &sampling, NULL), OK);
    assert_int_equal(view.frames.pixels[0], 0x77);
    frames_view_release(&view);
    for (char jpeg = 6; jpeg <= 7; jpeg++) {
        file[COMPRESSION] = jpeg;
        expect_bad_content(file, sizeof file, false, "JPEG inside of TIFF");
    }
}

TEST(a_gif_without_its_trailer_is_whole) {
    char path[300];
    SCOPED(struct buf, buf_release) content = {0};
    struct frames_view whole, view;
    const struct sampling_config sampling = small_sampling();
    assert_int_equal(media_decode(&whole, "tests/data/media/moving.gif", true, &sampling, NULL), OK);
    assert_int_equal(file_read("tests/data/media/moving.gif", &content), OK);
    snprintf(path, sizeof path, "%s/no-trailer.gif", unit_directory());
    assert_int_equal(file_write_atomic(path, content.data, content.size - 1), OK);
    assert_int_equal(media_decode(&view, path, true, &sampling, NULL), OK);
    assert_int_equal(view.frames.count, whole.frames.count);
    assert_memory_equal(view.frames.pixels, whole.frames.pixels, frames_bytes(&whole.frames));
    frames_view_release(&view);
    frames_view_release(&whole);
}

TEST(too_few_descriptors_are_no_defect_of_a_sample) {
    struct sampling_config sampling = small_sampling(), rate = sampling;
    struct rlimit limit;
    struct frames_view view;
    char key[FRAME_KEY_SIZE];
    const char *dir = make_pictures();
    rate.frame_rate = 2;
    assert_int_equal(media_decode(&view, dir, true, &rate, NULL), OK); // opens FFmpeg
    frames_view_release(&view);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {0, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const status got[] = {
        media_decode(&view, "tests/data/media/b-frames.mp4", true, &sampling, NULL),
        media_decode(&view, "tests/data/media/photo.jpg", false, &sampling, NULL),
        media_decode(&view, dir, true, &rate, NULL),
        media_key(key, "tests/data/media/b-frames.mp4", true, &sampling, NULL),
        media_key(key, dir, true, &rate, NULL),
    };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (size_t i = 0; i < sizeof got / sizeof *got; i++) assert_int_equal(got[i], UNAVAILABLE);
    assert_string_equal(fail_text(), "Too many open files");
    assert_true(media_error_passes(ESTALE));
    assert_false(media_error_passes(EIO) || media_error_passes(ENOENT));
}

// Each refers to a clip that could be decoded, or to the network.
TEST(lists_of_files_are_refused) {
    char clip[PATH_MAX], text[2 * PATH_MAX];
    const char *const lists[][2] = {
        {"hls", "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n%s\n#EXT-X-ENDLIST\n"},
        {"concat", "ffconcat version 1.0\nfile '%s'\n"},
        {"dash", "<?xml version=\"1.0\"?>\n<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" type=\"static\" "
                 "mediaPresentationDuration=\"PT2S\" profiles=\"urn:mpeg:dash:profile:isoff-on-demand:2011\"><Period>"
                 "<AdaptationSet contentType=\"video\"><Representation id=\"1\" bandwidth=\"100\" "
                 "mimeType=\"video/mp4\"><BaseURL>%s</BaseURL></Representation></AdaptationSet></Period></MPD>\n"},
        {"sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=%s\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
                "a=rtpmap:96 H264/90000\n"},
    };
    assert_non_null(realpath("tests/data/media/b-frames.mp4", clip));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char reason[64];
        const char *mark = strstr(lists[i][1], "%s");
        assert_non_null(mark);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - lists[i][1]), lists[i][1], clip, mark + 2);
        snprintf(reason, sizeof reason, "it is a list of other files (%s)", lists[i][0]);
        expect_bad_content(text, strlen(text), true, reason);
        expect_bad_content(text, strlen(text), false, reason);
    }
}

// A table of 2^30 elements is more than FFmpeg allocates. It says then that memory is short, which it is not.
TEST(a_file_that_asks_for_too_much_is_a_bad_sample) {
    SCOPED(struct buf, buf_release) content = {0};
    assert_int_equal(file_read("tests/data/media/b-frames.mp4", &content), OK);
    const char *const tables[] = {"stts", "stco"};
    static const char huge[4] = {0x40, 0, 0, 0};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char *table = memmem(content.data, content.size, tables[i], 4), count[4];
        assert_non_null(table);
        memcpy(count, table + 8, 4);
        memcpy(table + 8, huge, 4);
        expect_bad_content(content.data, content.size, true, "cannot be opened: Invalid data");
        memcpy(table + 8, count, 4);
    }
}

TEST(a_file_that_was_found_below_the_media_root_stays_the_one_that_is_read) {
    const char *root = unit_new_directory(), *outside = unit_new_directory();
    char inside[PATH_MAX], other[PATH_MAX], link[PATH_MAX], opened[32];
    struct stat checked, read;
    int fd;
    copy_picture(root, "a.jpg", "tests/data/media/photo.jpg");
    copy_picture(outside, "b.jpg", "tests/data/media/photo-422.jpg");
    snprintf(inside, sizeof inside, "%s/a.jpg", root);
    snprintf(other, sizeof other, "%s/b.jpg", outside);
    snprintf(link, sizeof link, "%s/link.jpg", root);
    assert_int_equal(symlink("a.jpg", link), 0);
    assert_int_equal(media_open_inside(&fd, root, link), OK);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(other, link), 0);
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", fd);
    assert_int_equal(stat(inside, &checked), 0);
    assert_int_equal(stat(opened, &read), 0);
    assert_int_equal(read.st_ino, checked.st_ino);
    close(fd);
    assert_int_equal(media_open_inside(&fd, root, link), BAD_SAMPLE);
    assert_string_equal(fail_text(), "it lies outside media_root, which media_outside refuses");
    assert_int_equal(fd, -1);
}

TEST(a_file_without_a_name_lies_below_no_media_root) {
    char opened[32];
    int fd;
    const int nameless = memfd_create("medium", MFD_CLOEXEC);
    assert_true(nameless >= 0);
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", nameless);
    static const char *const roots[] = {NULL, "/", "tests/data/media"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        assert_int_equal(media_check_inside(roots[i], opened), BAD_SAMPLE);
        assert_string_equal(fail_text(), "No such file or directory");
        assert_int_equal(media_open_inside(&fd, roots[i], opened), BAD_SAMPLE);
    }
    close(nameless);
}

TEST(the_key_depends_on_content_and_sampling) {
    struct sampling_config sampling = sampling_config_default(), other = sampling;
    char a[FRAME_KEY_SIZE], b[FRAME_KEY_SIZE];
    const char *path = "tests/data/media/b-frames.mp4";
    assert_int_equal(media_key(a, path, true, &sampling, NULL), OK);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    other.image_max_pixels = 784; // does not apply to a video
    assert_int_equal(media_key(b, path, true, &other, NULL), OK);
    assert_string_equal(a, b);
    other.max_frames = 32;
    assert_int_equal(media_key(b, path, true, &other, NULL), OK);
    assert_string_not_equal(a, b);
    assert_int_equal(media_key(b, path, false, &sampling, NULL), OK);
    assert_string_not_equal(a, b);
    assert_int_equal(media_key(b, "tests/data/media/turned.mp4", true, &sampling, NULL), OK);
    assert_string_not_equal(a, b);
    assert_int_equal(media_key(b, "/nowhere", true, &sampling, NULL), BAD_SAMPLE);
}

TEST(the_media_of_a_prompt_are_counted_in_one_pass) {
    enum { PARTS = 150000 }; // with one pass for each of them it takes half a minute
    struct group *group = NULL;
    group_new(&group);
    struct message *messages = arena_alloc(&group->arena, 2 * sizeof *messages);
    for (size_t m = 0; m < 2; m++) {
        messages[m].parts = arena_alloc(&group->arena, PARTS * sizeof *messages[m].parts);
        messages[m].part_count = PARTS;
        for (size_t p = 0; p < PARTS; p++) messages[m].parts[p].kind = p % 3 ? PART_IMAGE : PART_TEXT;
    }
    group->prompt.messages = messages;
    group->prompt.message_count = 2;
    const clock_t start = clock(); // the processor's time: a busy machine may let it wait
    assert_int_equal(media_part_count(group), 2 * (PARTS / 3 * 2));
    assert_true(clock() - start < 5 * CLOCKS_PER_SEC);
    group_free(&group);
}

TEST(a_contact_sheet_shows_the_frames) {
    struct sampling_config sampling = small_sampling();
    struct frames_view view, sheet;
    char path[300];
    snprintf(path, sizeof path, "%s/sheet.png", unit_directory());
    assert_int_equal(media_decode(&view, "tests/data/media/b-frames.mp4", true, &sampling, NULL), OK);
    assert_int_equal(contact_sheet_write(&view.frames, path), OK);
    sampling.image_min_pixels = 784;
    sampling.image_max_pixels = 1e9;
    assert_int_equal(media_decode(&sheet, path, false, &sampling, NULL), OK);
    assert_true(sheet.frames.width >= 3 * view.frames.width - 28);
    frames_view_release(&sheet);
    assert_int_equal(contact_sheet_write(&view.frames, "/nowhere/at/all.png"), UNAVAILABLE);
    frames_view_release(&view);
}

int main(void) {
    return unit_run(read_golden, free_golden);
}
