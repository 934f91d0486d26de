// TensorBoard's event files, byte for byte as in tests/data/events, which TensorBoard's own reader has read
// (tests/parity/tensorboard_compare.py). EVENTS=DIR writes those files anew.
#include "tests/unit/unit.h"

#include <math.h>

#include "stages/optim/event_file.h"
#include "shared/base/file.h"

static const double lengths[] = {3, 4, 5, 8}, rewards[] = {2, 2, NAN, 2};

TEST(crc32c_gives_the_known_answers) {
    // From RFC 3720, B.4, and the usual check value.
    unsigned char bytes[32] = {0};
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(crc32c(bytes, 32), 0x46dd794e);
}

// The scalars are those of tests/data/events/metrics.jsonl. What is not finite, also as a float32, is left out.
static void append_step(struct buf *out, int64_t step) {
    const struct event_scalar scalars[] = {{"loss", -0.25 * (double)step}, {"reward", 2},      {"kl", NAN},
                                           {"completion_length", 5},       {"completions", 4}, {"accuracy", 1e300}};
    const struct event_histogram histograms[] = {{"completion_lengths", lengths, 4}, {"rewards", rewards, 4}};
    event_file_step(out, 1000.5 + (double)step, step, scalars, 6, histograms, 2);
}

static void compare_file(const char *name, const struct buf *got) {
    const char *dir = getenv("EVENTS");
    char path[512];
    SCOPED(struct buf, buf_release) want = {0};
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "tests/data/events", name);
    if (dir) assert_int_equal(file_write_atomic(path, got->data, got->size), OK);
    assert_int_equal(file_read(path, &want), OK);
    assert_int_equal(got->size, want.size);
    assert_memory_equal(got->data, want.data, want.size);
}

// The first process has trained step 3 and part of step 4 has been written when it dies; the second goes on at step 3.
TEST(a_second_process_goes_on_where_the_first_died) {
    SCOPED(struct buf, buf_release) first = {0}, second = {0};
    size_t whole = 0;
    event_file_begin(&first, 1000.5, 1);
    for (int64_t step = 1; step <= 4; step++) {
        whole = first.size;
        append_step(&first, step);
    }
    first.size = whole + (first.size - whole) / 2;
    compare_file("events.out.tfevents.0000000001.caravan", &first);
    event_file_begin(&second, 2000, 3);
    for (int64_t step = 3; step <= 300; step += 297) append_step(&second, step); // a step of two bytes
    compare_file("events.out.tfevents.0000000002.caravan", &second);
}

// Without a value there is no scalar and no histogram, but the step.
TEST(without_a_finite_value_there_is_only_the_step) {
    SCOPED(struct buf, buf_release) empty = {0}, missing = {0};
    const struct event_scalar scalar = {"loss", INFINITY};
    const double none[] = {NAN, INFINITY};
    const struct event_histogram histograms[] = {{"rewards", none, 2}, {"completion_lengths", NULL, 0}};
    event_file_step(&empty, 1, 7, NULL, 0, NULL, 0);
    event_file_step(&missing, 1, 7, &scalar, 1, histograms, 2);
    assert_int_equal(missing.size, empty.size);
    assert_memory_equal(missing.data, empty.data, empty.size);
    assert_int_equal(empty.size, 12 + 13 + 4);
}
