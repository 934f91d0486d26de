// The store of frames: what goes in comes out, mapped; the size limit; several processes; a disk that is full; and how
// a later stage comes to a medium.
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/media/media_source.h"
#include "shared/media/media.h"
#include "shared/store/frame_store.h"

static char folder[64];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/caravan-frames-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove(folder) != OK;
}

enum { height = 56, width = 84, count = 4, pixel_bytes = count * height * width * 3 };

// A clip whose every pixel follows from `seed`.
struct sample {
    uint8_t pixels[pixel_bytes];
    double times[count];
    struct frames frames;
    char key[frame_key_size];
};

static void make(struct sample *sample, unsigned seed) {
    for (size_t i = 0; i < pixel_bytes; i++) sample->pixels[i] = (uint8_t)(i * 31 + seed * 17);
    for (int i = 0; i < count; i++) sample->times[i] = i * 0.1 + seed;
    sample->frames = (struct frames){true, count, height, width, 1.25, sample->times, sample->pixels};
    snprintf(sample->key, sizeof sample->key, "%032x", seed);
}

static bool is_there(struct frame_store *store, unsigned seed) {
    struct sample want;
    struct frames_view view;
    bool found;
    make(&want, seed);
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

static status put(struct frame_store *store, unsigned seed) {
    struct sample sample;
    make(&sample, seed);
    return frame_store_put(store, sample.key, &sample.frames);
}

static void test_put_and_get(void **state) {
    (void)state;
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, true), DATAERR);
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    assert_false(is_there(store, 1));
    assert_int_equal(put(store, 1), OK);
    assert_int_equal(put(store, 1), OK);
    assert_true(is_there(store, 1));
    frame_store_close(&store);
    assert_int_equal(frame_store_open(&store, folder, 0, true), OK);
    assert_true(is_there(store, 1));
    struct frames_view view;
    bool found;
    assert_int_equal(frame_store_get(store, "12", &view, &found), DATAERR);
    assert_int_equal(frame_store_get(store, "0000000000000000000000000000000g", &view, &found), DATAERR);
    frame_store_close(&store);
    frame_store_close(&store);
}

static void test_records_are_checked(void **state) {
    (void)state;
    struct sample sample;
    struct buf record = {0};
    struct frames frames;
    make(&sample, 3);
    assert_int_equal(frames_to_record(&sample.frames, &record), OK);
    assert_int_equal(frames_from_record(&frames, record.data, record.size), OK);
    assert_memory_equal(frames.pixels, sample.pixels, pixel_bytes);
    for (size_t size = 0; size < record.size; size += 997) {
        assert_int_equal(frames_from_record(&frames, record.data, size), DATAERR);
    }
    // Every byte of the header turned over: nothing may be read past the record.
    for (size_t i = 0; i < 40; i++) {
        record.data[i] ^= (char)0xff;
        if (frames_from_record(&frames, record.data, record.size) == OK) {
            assert_true((size_t)((const char *)frames.pixels - record.data) + frames_bytes(&frames) <= record.size);
        }
        record.data[i] ^= (char)0xff;
    }
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    assert_int_equal(frame_store_put_record(store, sample.key, record.data, 100), DATAERR);
    assert_false(is_there(store, 3));
    assert_int_equal(frame_store_put_record(store, sample.key, record.data, record.size), OK);
    assert_true(is_there(store, 3));
    frame_store_close(&store);
    buf_release(&record);
}

static void test_longest_unused_goes_first(void **state) {
    (void)state;
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, (uint64_t)(3.5 * pixel_bytes), false), OK);
    for (unsigned i = 1; i <= 3; i++) assert_int_equal(put(store, i), OK);
    assert_true(is_there(store, 1)); // used again, so 2 is the oldest
    struct sample two;
    struct frames_view view;
    bool found;
    make(&two, 2);
    struct frame_store
        *reader; // another's hold on 2 does not keep it in the store, nor does eviction take it away from him
    assert_int_equal(frame_store_open(&reader, folder, 0, true), OK);
    assert_int_equal(frame_store_get(reader, two.key, &view, &found), OK);
    assert_true(found);
    assert_int_equal(put(store, 4), OK);
    assert_false(is_there(store, 2));
    assert_memory_equal(view.frames.pixels, two.pixels, pixel_bytes);
    frames_view_release(&view);
    frame_store_close(&reader);
    for (unsigned i = 1; i <= 4; i++) assert_true(is_there(store, i) == (i != 2));
    for (unsigned i = 10; i < 60; i++) assert_int_equal(put(store, i), OK);
    frame_store_close(&store);
    struct stat facts;
    char path[96];
    snprintf(path, sizeof path, "%s/frames.lmdb", folder);
    assert_int_equal(stat(path, &facts), 0);
    assert_true(facts.st_size < 12 * pixel_bytes); // freed space is used again
}

static status count_record(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    assert_int_equal(strlen(key), 32);
    assert_int_equal(frames->count, count);
    assert_true(bytes >= pixel_bytes && used > 1.7e9);
    ++*(int *)context;
    return OK;
}

static void test_list_and_evict(void **state) {
    (void)state;
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    for (unsigned i = 0; i < 5; i++) assert_int_equal(put(store, i), OK);
    struct sample sample;
    make(&sample, 2);
    bool found;
    assert_int_equal(frame_store_evict(store, sample.key, &found), OK);
    assert_true(found);
    assert_int_equal(frame_store_evict(store, sample.key, &found), OK);
    assert_false(found);
    int records = 0;
    assert_int_equal(frame_store_each(store, count_record, &records), OK);
    assert_int_equal(records, 4);
    frame_store_close(&store);
}

static void test_many_processes(void **state) {
    (void)state;
    enum { processes = 4, each = 12 };
    pid_t children[processes];
    fflush(stdout);
    for (unsigned p = 0; p < processes; p++) {
        children[p] = fork();
        if (children[p]) continue;
        struct frame_store *store;
        if (frame_store_open(&store, folder, 0, false) != OK) _exit(1);
        for (unsigned i = 0; i < each; i++) {
            if (put(store, p * 6 + i) != OK || !is_there(store, p * 6 + i)) _exit(2);
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
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    for (unsigned i = 0; i < 24; i++) assert_true(is_there(store, i));
    frame_store_close(&store);
}

// A file that may not grow any more stands for a disk that is full.
static void test_full_disk_loses_nothing(void **state) {
    (void)state;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct frame_store *store;
        signal(SIGXFSZ, SIG_IGN);
        if (frame_store_open(&store, folder, 0, false) != OK || put(store, 1) != OK) _exit(1);
        struct rlimit limit = {5 * pixel_bytes, 5 * pixel_bytes};
        if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(2);
        unsigned next = 2;
        while (next < 20 && put(store, next) == OK) next++;
        if (next < 3 || next == 20) _exit(3);
        if (put(store, 30) != UNAVAILABLE || !strstr(fail_text(), "frames.lmdb")) _exit(4);
        for (unsigned i = 1; i < next; i++) {
            if (!is_there(store, i)) _exit(5);
        }
        frame_store_close(&store);
        _exit(0);
    }
    int ended;
    waitpid(child, &ended, 0);
    assert_int_equal(ended, 0);
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    assert_true(is_there(store, 1));
    assert_int_equal(put(store, 50), OK);
    frame_store_close(&store);
}

static void test_files_are_remembered(void **state) {
    (void)state;
    struct frame_store *store;
    struct file_stamp facts = {1, 2, 3, 4, 5}, other = {1, 2, 3, 4, 6};
    uint8_t hash[16] = "fifteen letters", got[16] = {0};
    bool found;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    assert_int_equal(frame_store_remember_hash(store, "/a/path", &facts, hash), OK);
    for (unsigned i = 0; i < 600; i++) { // more than wait at once
        char path[32];
        snprintf(path, sizeof path, "/path/%u", i);
        assert_int_equal(frame_store_remember_hash(store, path, &facts, hash), OK);
    }
    frame_store_close(&store);
    assert_int_equal(frame_store_open(&store, folder, 0, true), OK);
    assert_int_equal(frame_store_recall_hash(store, "/a/path", &facts, got, &found), OK);
    assert_true(found);
    assert_memory_equal(got, hash, 16);
    assert_int_equal(frame_store_recall_hash(store, "/path/599", &facts, got, &found), OK);
    assert_true(found);
    assert_int_equal(frame_store_recall_hash(store, "/a/path", &other, got, &found), OK);
    assert_false(found);
    frame_store_close(&store);
}

static void check_path(const char *root, const char *written, const char *want) {
    struct arena arena = {0};
    char *path;
    assert_int_equal(media_path(&path, &arena, root, string_of(written)), OK);
    assert_string_equal(path, want);
    arena_release(&arena);
}

static void test_paths(void **state) {
    (void)state;
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
    struct arena arena = {0};
    char *path;
    assert_int_equal(media_path(&path, &arena, NULL, string_of("https://x.org/a.mp4")), BAD_SAMPLE);
    assert_int_equal(media_path(&path, &arena, NULL, string_of("")), BAD_SAMPLE);
    assert_int_equal(media_path(&path, &arena, NULL, (struct string){"a\0b", 3}), BAD_SAMPLE);
    arena_release(&arena);
}

// A prompt with one clip, and its section as the frames stage writes it.
static struct group *clip_group(const char *key, int frames_count) {
    struct buf json = {0};
    struct group *group;
    assert_int_equal(
        buf_printf(&json,
                   "{\"id\":\"a\",\"sample_id\":\"a\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":"
                   "[{\"type\":\"video\",\"video\":\"b-frames.mp4\"}]}],\"problem_type\":\"free-form\","
                   "\"solution\":\"<answer>x</answer>\"},\"media\":[{\"kind\":\"video\",\"key\":\"%s\","
                   "\"frames\":%d,\"height\":280,\"width\":392,\"seconds_per_grid\":1.0}]}",
                   key, frames_count),
        OK);
    assert_int_equal(group_from_json(&group, json.data, json.size), OK);
    buf_release(&json);
    return group;
}

static int asked;

static status give_record(void *context, const char *key, struct buf *record, bool *found) {
    (void)key;
    asked++;
    *found = context != NULL;
    return *found ? frames_to_record(context, record) : OK;
}

static void test_fetch(void **state) {
    (void)state;
    struct sampling_config sampling = sampling_config_default();
    char key[frame_key_size];
    assert_int_equal(media_key(key, "tests/data/media/b-frames.mp4", true, &sampling, NULL), OK);
    struct frame_store *store;
    assert_int_equal(frame_store_open(&store, folder, 0, false), OK);
    struct group *group = clip_group(key, 6);
    struct media_source source = {.store = store, .request = give_record};
    struct frames_view view, decoded;
    asked = 0;
    assert_int_equal(media_get(&view, &source, group, 0), UNAVAILABLE); // nowhere
    assert_non_null(strstr(fail_text(), key));
    assert_int_equal(asked, 1);
    source.media_root = "tests/data/media"; // from the file
    assert_int_equal(media_get(&decoded, &source, group, 0), OK);
    assert_int_equal(asked, 2);
    assert_int_equal(media_get(&view, &source, group, 0), OK); // from the store now
    assert_int_equal(asked, 2);
    assert_null(view.owned);
    assert_memory_equal(view.frames.pixels, decoded.frames.pixels, frames_bytes(&view.frames));
    frames_view_release(&view);
    bool found;
    assert_int_equal(frame_store_evict(store, key, &found), OK);
    source.media_root = NULL; // from another machine, and kept
    source.context = &decoded.frames;
    assert_int_equal(media_get(&view, &source, group, 0), OK);
    assert_int_equal(asked, 3);
    frames_view_release(&view);
    source.store = NULL; // from another machine without a store
    assert_int_equal(media_get(&view, &source, group, 0), OK);
    assert_int_equal(asked, 4);
    assert_memory_equal(view.frames.pixels, decoded.frames.pixels, frames_bytes(&view.frames));
    frames_view_release(&view);
    struct group *lying = clip_group(key, 8);
    assert_int_equal(media_get(&view, &source, lying, 0), DATAERR);
    assert_int_equal(media_get(&view, &source, lying, 1), DATAERR);
    group_free(&lying);
    frames_view_release(&decoded);
    group_free(&group);
    frame_store_close(&store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_and_get, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_records_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_longest_unused_goes_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_list_and_evict, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_processes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk_loses_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files_are_remembered, set_up, tear_down),
        cmocka_unit_test(test_paths),
        cmocka_unit_test_setup_teardown(test_fetch, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
