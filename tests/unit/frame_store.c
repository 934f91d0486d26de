// The frame store: records are mapped unchanged; the size limit; several processes; a full disk. And from which source
// a later stage gets its frames.
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/config/stage_kinds.h"
#include "shared/base/file.h"
#include "shared/media/media.h"
#include "shared/stage/runner.h"
#include "shared/stage/stage_model.h"
#include "shared/store/frame_store.h"
#include "shared/store/lmdb_env.h"
#include "tests/support/groups.h"

static const char *directory; // of the present test's store

// Opens a new store, whose records may take `limit` bytes.
static struct frame_store *open_new(uint64_t limit) {
    struct frame_store *store = NULL;
    directory = unit_new_directory();
    assert_int_equal(frame_store_open(&store, directory, limit, false), OK);
    return store;
}

enum { height = 56, width = 84, count = 4, pixel_bytes = count * height * width * 3 };

// A video whose pixels are a function of `seed`.
struct stored_video {
    uint8_t pixels[pixel_bytes];
    double times[count];
    struct frames frames;
    char key[FRAME_KEY_SIZE];
};

static void make_sample(struct stored_video *sample, unsigned seed) {
    for (size_t i = 0; i < pixel_bytes; i++) sample->pixels[i] = (uint8_t)(i * 31 + seed * 17);
    for (int i = 0; i < count; i++) sample->times[i] = i * 0.1 + seed;
    sample->frames = (struct frames){true, count, height, width, 1.25, sample->times, sample->pixels};
    snprintf(sample->key, sizeof sample->key, "%032x", seed);
}

static bool has_sample(struct frame_store *store, unsigned seed) {
    struct stored_video want;
    struct frames_view view;
    bool found;
    make_sample(&want, seed);
    assert_int_equal(frame_store_get(store, want.key, &view, &found), OK);
    if (!found) return false;
    assert_int_equal(view.frames.count, count);
    assert_int_equal(view.frames.height, height);
    assert_int_equal(view.frames.width, width);
    assert_true(view.frames.video && view.frames.seconds_per_grid == 1.25);
    assert_memory_equal(view.frames.timestamps, want.times, sizeof want.times);
    assert_memory_equal(view.frames.pixels, want.pixels, pixel_bytes);
    frames_view_release(&view);
    return true;
}

static status put_sample(struct frame_store *store, unsigned seed) {
    struct stored_video sample;
    make_sample(&sample, seed);
    return frame_store_put(store, sample.key, &sample.frames);
}

// Removes one record from the file of the store.
static void remove_record(const char *key, bool *found) {
    static const char *const dbis[] = {"frames", NULL};
    SCOPED(struct arena, arena_release) arena = {0};
    SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
    struct lmdb_txn *txn;
    uint8_t bytes[FRAME_KEY_BYTES];
    for (int i = 0; i < FRAME_KEY_BYTES; i++) assert_int_equal(sscanf(key + 2 * i, "%2hhx", &bytes[i]), 1);
    assert_int_equal(lmdb_env_open(&env, path_join(&arena, directory, "frames.lmdb"), dbis, NULL), OK);
    assert_int_equal(lmdb_txn_begin_write(env, &txn), OK);
    const struct lmdb_val record_key = {bytes, sizeof bytes};
    struct lmdb_val record;
    status result = lmdb_txn_get(txn, 0, record_key, &record);
    *found = record.data != NULL;
    if (result == OK) result = lmdb_txn_del(txn, 0, record_key);
    assert_false(lmdb_txn_commit(&txn, &result));
    assert_int_equal(result, OK);
}

TEST(what_is_put_is_got) {
    SCOPED(struct frame_store *, frame_store_close) store = NULL;
    directory = unit_new_directory();
    assert_int_equal(frame_store_open(&store, directory, 0, true), DATAERR);
    assert_int_equal(frame_store_open(&store, directory, 0, false), OK);
    assert_false(has_sample(store, 1));
    assert_int_equal(put_sample(store, 1), OK);
    assert_int_equal(put_sample(store, 1), OK);
    assert_true(has_sample(store, 1));
    frame_store_close(&store);
    assert_int_equal(frame_store_open(&store, directory, 0, true), OK);
    assert_true(has_sample(store, 1));
    struct frames_view view;
    bool found;
    assert_int_equal(frame_store_get(store, "12", &view, &found), DATAERR);
    assert_int_equal(frame_store_get(store, "0000000000000000000000000000000g", &view, &found), DATAERR);
    frame_store_close(&store);
}

// Appends the record of frames.
static void pack(const struct frames *frames, struct buf *out) {
    const size_t size = frames_record_size(frames);
    buf_reserve(out, size);
    frames_record_write(frames, (uint8_t *)out->data + out->size);
    out->size += size;
}

TEST(records_are_checked) {
    struct stored_video sample;
    SCOPED(struct buf, buf_release) record = {0};
    struct frames frames;
    make_sample(&sample, 3);
    pack(&sample.frames, &record);
    assert_int_equal(frames_from_record(&frames, record.data, record.size), OK);
    assert_memory_equal(frames.pixels, sample.pixels, pixel_bytes);
    for (size_t size = 0; size < record.size; size += 997) {
        assert_int_equal(frames_from_record(&frames, record.data, size), DATAERR);
    }
    // Every byte of the header inverted: nothing may be read past the record.
    for (size_t i = 0; i < 40; i++) {
        record.data[i] ^= (char)0xff;
        if (frames_from_record(&frames, record.data, record.size) == OK) {
            assert_true((size_t)((const char *)frames.pixels - record.data) + frames_bytes(&frames) <= record.size);
        }
        record.data[i] ^= (char)0xff;
    }
    SCOPED(struct frame_store *, frame_store_close) store = open_new(0);
    assert_int_equal(frames_from_record(&frames, record.data, record.size), OK);
    assert_int_equal(frame_store_put(store, sample.key, &frames), OK);
    assert_true(has_sample(store, 3));
}

TEST(the_least_recently_used_is_evicted) {
    struct frame_store *store = open_new((uint64_t)(3.5 * pixel_bytes));
    for (unsigned i = 1; i <= 3; i++) assert_int_equal(put_sample(store, i), OK);
    assert_true(has_sample(store, 1)); // used again, so 2 is the least recently used
    struct stored_video two;
    struct frames_view view;
    bool found;
    make_sample(&two, 2);
    // A reader that holds 2 does not keep it in the store, and its view stays valid after the eviction.
    struct frame_store *reader;
    assert_int_equal(frame_store_open(&reader, directory, 0, true), OK);
    assert_int_equal(frame_store_get(reader, two.key, &view, &found), OK);
    assert_true(found);
    assert_int_equal(put_sample(store, 4), OK);
    assert_false(has_sample(store, 2));
    assert_memory_equal(view.frames.pixels, two.pixels, pixel_bytes);
    frames_view_release(&view);
    frame_store_close(&reader);
    for (unsigned i = 1; i <= 4; i++) assert_true(has_sample(store, i) == (i != 2));
    for (unsigned i = 10; i < 60; i++) assert_int_equal(put_sample(store, i), OK);
    frame_store_close(&store);
    struct stat file;
    char path[96];
    snprintf(path, sizeof path, "%s/frames.lmdb", directory);
    assert_int_equal(stat(path, &file), 0);
    assert_true(file.st_size < 12 * pixel_bytes); // freed space is reused
}

TEST(origins_are_remembered) {
    SCOPED(struct frame_store *, frame_store_close) store = open_new(1);
    struct frame_origin origin = {.path = "/a/b.mp4", .video = true, .start = 1.5, .end = NAN, .frame_rate = NAN};
    struct frame_origin got;
    struct stored_video sample;
    SCOPED(struct arena, arena_release) arena = {0};
    bool found = true;
    make_sample(&sample, 1);
    assert_int_equal(frame_store_recall_origin(store, sample.key, &arena, &got, &found), OK);
    assert_false(found);
    for (int i = 0; i < 2; i++) assert_int_equal(frame_store_remember_origin(store, sample.key, &origin), OK);
    origin.path = "c.mp4";
    assert_int_equal(frame_store_remember_origin(store, sample.key, &origin), OK);
    assert_int_equal(put_sample(store, 2), OK); // nothing else fits
    assert_int_equal(frame_store_recall_origin(store, sample.key, &arena, &got, &found), OK);
    assert_true(found && got.video && got.start == 1.5 && isnan(got.end));
    assert_string_equal(got.path, "c.mp4");
    assert_int_equal(frame_store_remember_origin(store, "zz", &origin), DATAERR);
    assert_int_equal(frame_store_recall_origin(store, "zz", &arena, &got, &found), DATAERR);
}

static status count_record(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    assert_int_equal(strlen(key), 32);
    assert_int_equal(frames->count, count);
    assert_true(bytes >= pixel_bytes && used > 1.7e9);
    ++*(int *)context;
    return OK;
}

TEST(records_are_listed_and_evicted_by_key) {
    SCOPED(struct frame_store *, frame_store_close) store = open_new(0);
    for (unsigned i = 0; i < 5; i++) assert_int_equal(put_sample(store, i), OK);
    struct stored_video sample;
    make_sample(&sample, 2);
    bool found;
    remove_record(sample.key, &found);
    assert_true(found);
    remove_record(sample.key, &found);
    assert_false(found);
    int records = 0;
    assert_int_equal(frame_store_each(store, count_record, &records), OK);
    assert_int_equal(records, 4);
}

TEST(many_processes_write_at_once) {
    enum { processes = 4, each = 12 };
    pid_t children[processes];
    directory = unit_new_directory();
    fflush(stdout);
    for (unsigned p = 0; p < processes; p++) {
        children[p] = fork();
        if (children[p]) continue;
        struct frame_store *store;
        if (frame_store_open(&store, directory, 0, false) != OK) _exit(1);
        for (unsigned i = 0; i < each; i++) {
            if (put_sample(store, p * 6 + i) != OK || !has_sample(store, p * 6 + i)) _exit(2);
            if (p == 3 && i == each / 2) raise(SIGKILL);
        }
        frame_store_close(&store);
        _exit(0);
    }
    for (unsigned p = 0; p < processes; p++) {
        int ended;
        waitpid(children[p], &ended, 0);
        if (p != 3) assert_int_equal(ended, 0);
    }
    SCOPED(struct frame_store *, frame_store_close) store = NULL;
    assert_int_equal(frame_store_open(&store, directory, 0, false), OK);
    for (unsigned i = 0; i < 24; i++) assert_true(has_sample(store, i));
}

// A limit on the file's size stands in for a full disk.
TEST(a_full_disk_loses_nothing) {
    directory = unit_new_directory();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct frame_store *store;
        signal(SIGXFSZ, SIG_IGN);
        if (frame_store_open(&store, directory, 0, false) != OK || put_sample(store, 1) != OK) _exit(1);
        struct rlimit limit = {5 * pixel_bytes, 5 * pixel_bytes};
        if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(2);
        unsigned next = 2;
        while (next < 20 && put_sample(store, next) == OK) next++;
        if (next < 3 || next == 20) _exit(3);
        if (put_sample(store, 30) != UNAVAILABLE || !strstr(fail_text(), "frames.lmdb")) _exit(4);
        for (unsigned i = 1; i < next; i++) {
            if (!has_sample(store, i)) _exit(5);
        }
        frame_store_close(&store);
        _exit(0);
    }
    int ended;
    waitpid(child, &ended, 0);
    assert_int_equal(ended, 0);
    SCOPED(struct frame_store *, frame_store_close) store = NULL;
    assert_int_equal(frame_store_open(&store, directory, 0, false), OK);
    assert_true(has_sample(store, 1));
    assert_int_equal(put_sample(store, 50), OK);
}

TEST(hashes_are_remembered) {
    SCOPED(struct frame_store *, frame_store_close) store = open_new(0);
    struct file_stamp stamp = {1, 2, 3, 4, 5}, other = {1, 2, 3, 4, 6};
    uint8_t hash[16] = "fifteen letters", got[16] = {0};
    bool found;
    assert_int_equal(frame_store_remember_hash(store, "/a/path", &stamp, hash), OK);
    for (unsigned i = 0; i < 600; i++) { // more than may be pending
        char path[32];
        snprintf(path, sizeof path, "/path/%u", i);
        assert_int_equal(frame_store_remember_hash(store, path, &stamp, hash), OK);
    }
    frame_store_close(&store);
    assert_int_equal(frame_store_open(&store, directory, 0, true), OK);
    assert_int_equal(frame_store_recall_hash(store, "/a/path", &stamp, got, &found), OK);
    assert_true(found);
    assert_memory_equal(got, hash, 16);
    assert_int_equal(frame_store_recall_hash(store, "/path/599", &stamp, got, &found), OK);
    assert_true(found);
    assert_int_equal(frame_store_recall_hash(store, "/a/path", &other, got, &found), OK);
    assert_false(found);
}

static void check_path(const char *root, const char *uri, const char *want) {
    SCOPED(struct arena, arena_release) arena = {0};
    char *path;
    assert_int_equal(media_path(&path, &arena, root, string_of(uri)), OK);
    assert_string_equal(path, want);
}

TEST(relative_paths_and_urls_are_resolved) {
    check_path(NULL, "a/b.mp4", "a/b.mp4");
    check_path("/root", "a/b.mp4", "/root/a/b.mp4");
    check_path("/root", "/a/b.mp4", "/a/b.mp4");
    check_path("/root", "file:///a/b%20c.mp4", "/a/b c.mp4");
    check_path("/root", "file://localhost/a.mp4", "/a.mp4");
    check_path("/root", "file://a.mp4", "/root/a.mp4");
    check_path("/root", "a%20b.mp4", "/root/a%20b.mp4");
    check_path("tests/data/media", "file://plain-%03d.png", "tests/data/media/plain-%03d.png");
    check_path("tests/data/media", "file://plain-%2503d.png", "tests/data/media/plain-%03d.png");
    check_path(NULL, "file:///100%.mp4", "/100%.mp4");
    SCOPED(struct arena, arena_release) arena = {0};
    char *path;
    assert_int_equal(media_path(&path, &arena, NULL, string_of("https://x.org/a.mp4")), BAD_SAMPLE);
    assert_int_equal(media_path(&path, &arena, NULL, string_of("")), BAD_SAMPLE);
    assert_int_equal(media_path(&path, &arena, NULL, (struct string){"a\0b", 3}), BAD_SAMPLE);
}

// A prompt with one video, and the section that the frames stage writes for it.
static struct group *video_group(const char *key, int frames_count) {
    return group_of_format("{\"id\":\"a\",\"sample_id\":\"a\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":"
                           "[{\"type\":\"video\",\"video\":\"b-frames.mp4\"}]}],\"problem_type\":\"free-form\","
                           "\"solution\":\"<answer>x</answer>\"},\"media\":[{\"kind\":\"video\",\"key\":\"%s\","
                           "\"frames\":%d,\"height\":280,\"width\":392,\"seconds_per_grid\":1.0}]}",
                           key, frames_count);
}

static int request_count;

static status send_record(void *context, const char *key, struct buf *record, bool *found) {
    (void)key;
    request_count++;
    *found = context != NULL;
    if (*found) pack(context, record);
    return OK;
}

TEST(frames_come_from_the_store_or_are_decoded_again) {
    struct sampling_config sampling = sampling_config_default();
    char key[FRAME_KEY_SIZE];
    assert_int_equal(media_key(key, "tests/data/media/b-frames.mp4", true, &sampling, NULL), OK);
    SCOPED(struct frame_store *, frame_store_close) store = open_new(0);
    SCOPED(struct group *, group_free) group = video_group(key, 6);
    struct media_source source = {.store = store, .request = send_record};
    struct frames_view view, decoded;
    request_count = 0;
    assert_int_equal(media_get(&view, &source, group, 0), UNAVAILABLE); // from no source
    assert_non_null(strstr(fail_text(), key));
    assert_int_equal(request_count, 1);
    source.media_root = "tests/data/media"; // from the file
    assert_int_equal(media_get(&decoded, &source, group, 0), OK);
    assert_int_equal(request_count, 2);
    assert_int_equal(media_get(&view, &source, group, 0), OK); // from the store now
    assert_int_equal(request_count, 2);
    assert_null(view.owned);
    assert_memory_equal(view.frames.pixels, decoded.frames.pixels, frames_bytes(&view.frames));
    frames_view_release(&view);
    bool found;
    remove_record(key, &found);
    source.media_root = NULL; // from another process, and stored
    source.context = &decoded.frames;
    assert_int_equal(media_get(&view, &source, group, 0), OK);
    assert_int_equal(request_count, 3);
    frames_view_release(&view);
    source.store = NULL; // from another process, without a store
    assert_int_equal(media_get(&view, &source, group, 0), OK);
    assert_int_equal(request_count, 4);
    assert_memory_equal(view.frames.pixels, decoded.frames.pixels, frames_bytes(&view.frames));
    frames_view_release(&view);
    SCOPED(struct group *, group_free) wrong = video_group(key, 8);
    assert_int_equal(media_get(&view, &source, wrong, 0), DATAERR);
    assert_int_equal(media_get(&view, &source, wrong, 1), DATAERR);
    frames_view_release(&decoded);
}

// The frames come when media_get has waited twice.
static const struct frames *awaited;
static int wait_count;

static status send_awaited(void *context, const char *key, struct buf *record, bool *found) {
    (void)context, (void)key;
    *found = wait_count == 2;
    if (*found) pack(awaited, record);
    return OK;
}

static status wait_for_frames(void *context, const char *key) {
    assert_non_null(strstr(fail_text(), key));
    if (context && wait_count == 1) return END;
    wait_count++;
    return OK;
}

TEST(missing_frames_are_waited_for) {
    SCOPED(struct frames_view, frames_view_release) view = {0}, decoded = {0};
    struct sampling_config sampling = sampling_config_default();
    char key[FRAME_KEY_SIZE];
    sampling.min_pixels = sampling.max_pixels = 50176;
    assert_int_equal(media_key(key, "tests/data/media/b-frames.mp4", true, &sampling, NULL), OK);
    assert_int_equal(media_decode(&decoded, "tests/data/media/b-frames.mp4", true, &sampling, NULL), OK);
    awaited = &decoded.frames;
    SCOPED(struct group *, group_free) group = video_group(key, awaited->count);
    group->media[0].height = awaited->height;
    group->media[0].width = awaited->width;
    struct media_source source = {.request = send_awaited, .wait = wait_for_frames};
    wait_count = 0;
    assert_int_equal(media_get(&view, &source, group, 0), OK);
    assert_int_equal(wait_count, 2);
    assert_memory_equal(view.frames.pixels, awaited->pixels, frames_bytes(awaited));
    frames_view_release(&view);
    wait_count = 0;
    source.context = &source; // the program is asked to stop
    assert_int_equal(media_get(&view, &source, group, 0), END);
    // The file is decoded with the options that it was decoded with at first.
    source = (struct media_source){.media_root = "tests/data/media"};
    assert_int_equal(media_get(&view, &source, group, 0), UNAVAILABLE);
    source.sampling = &sampling;
    assert_int_equal(media_get(&view, &source, group, 0), OK);
}

// Opens the frames of a rollout that is given these options of the frames stage, "frames.NAME=VALUE ...".
static status open_media(const char *pairs) {
    struct rollout_options values;
    struct stage_context context = {0};
    struct stage_media *media = NULL;
    char copy[128];
    options_init(&context.options, &stage_kinds[STAGE_ROLLOUT].options, &values);
    values.model.common.store = directory;
    snprintf(copy, sizeof copy, "%s", pairs);
    status result = OK;
    for (char *pair = strtok(copy, " "); pair && result == OK; pair = strtok(NULL, " ")) {
        char *value = strchr(pair, '=');
        *value = 0;
        result = options_set(&context.options, pair, value + 1);
    }
    if (result == OK) result = stage_media_open(&media, &context);
    stage_media_close(&media);
    options_release(&context.options);
    return result;
}

TEST(the_options_of_the_frames_stage_are_checked) {
    directory = unit_new_directory();
    assert_int_equal(open_media(""), OK);
    assert_int_equal(open_media("frames.fps=4 frames.store_limit=10 frames.total_pixels=100000"), OK);
    assert_int_equal(open_media("frames.fps=x"), USAGE);
    assert_int_equal(open_media("frames.speed=1"), USAGE);
    assert_int_equal(open_media("frames.min_frames=8 frames.max_frames=4"), USAGE);
}
