// What the training of a consistency model does without the model: the file of pairs, what is held out, the schedule,
// the order of the pairs, and the figures.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/data/labelled_pairs.h"
#include "tools/consistency/consistency_training.h"

static char path[256]; // of what open_text has written

static status open_text(struct labelled_pairs *pairs, const char *text) {
    snprintf(path, sizeof path, "%s/pairs", unit_directory());
    assert_int_equal(file_write_atomic(path, text, strlen(text)), OK);
    return labelled_pairs_open(pairs, path);
}

#define PAIR(question, label)                                                                                          \
    "{\"premise\":\"" question "\\nt\",\"hypothesis\":\"h\",\"question\":\"" question "\",\"label\":" label            \
    ",\"step\":null}\n"

TEST(pairs_without_a_label_are_left_out) {
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    SCOPED(struct pair_record, pair_record_release) record = {0};
    assert_int_equal(open_text(&pairs, PAIR("a", "1") "\n \n" PAIR("b", "null") PAIR("b", "0.0")), OK);
    assert_int_equal(pairs.count, 2);
    assert_int_equal(pairs.unlabelled, 1);
    assert_int_equal(pairs.list[1].label, 0);
    assert_int_equal(labelled_pairs_read(&pairs, &pairs.list[1], &record), OK);
    assert_true(string_equals(record.premise, "b\nt") && string_equals(record.question, "b"));
}

TEST(a_bad_file_is_refused_with_its_line) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", ": no pair has a label"},
        {PAIR("a", "null"), ": no pair has a label"},
        {PAIR("a", "1") "\n{}\n", ":3: premise: missing"},
        {PAIR("a", "1") PAIR("a", "2"), ":2: label: neither 0, 1 nor null"},
        {PAIR("a", "-1"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "0.5"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "true"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "\"1\""), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", ""), ":1: not JSON"},
        {"7\n", ":1: not a JSON object"},
        {"{\"premise\":\"p\",\"hypothesis\":\"h\",\"question\":\"q\"}", ":1: label: missing"},
        {"{\"premise\":\"p\",\"hypothesis\":null,\"question\":\"q\"}", ":1: hypothesis: missing"},
        {"{\"premise\":[],\"hypothesis\":\"h\"}", ":1: premise: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
        assert_int_equal(open_text(&pairs, cases[i].text), DATAERR);
        if (strncmp(fail_text(), path, strlen(path)) != 0 ||
            strncmp(fail_text() + strlen(path), cases[i].message, strlen(cases[i].message)) != 0)
            print_error("case %zu: %s\n", i, fail_text());
        assert_memory_equal(fail_text(), path, strlen(path));
        assert_memory_equal(fail_text() + strlen(path), cases[i].message, strlen(cases[i].message));
    }
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    assert_int_equal(labelled_pairs_open(&pairs, "/nowhere"), DATAERR);
}

// Opens 20 questions with two pairs each and holds out a share. Returns a bit for each question that is.
static uint32_t hold_out(double share, uint64_t seed) {
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    SCOPED(struct buf, buf_release) text = {0};
    size_t count, questions = 0;
    uint32_t bits = 0;
    for (int i = 0; i < 40; i++)
        buf_printf(&text, "{\"premise\":\"\",\"hypothesis\":\"\",\"question\":\"q%d\",\"label\":%d}\n", i % 20, i % 2);
    assert_int_equal(open_text(&pairs, text.data), OK);
    labelled_pairs_hold_out(&pairs, share, seed, &count);
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(pairs.list[i].held_out, pairs.list[i + 20].held_out); // never split
        bits |= (uint32_t)pairs.list[i].held_out << i;
        questions += pairs.list[i].held_out;
    }
    assert_int_equal(count, 2 * questions);
    return bits;
}

TEST(the_held_out_share_is_rounded_and_drawn_by_the_seed) {
    assert_int_equal(hold_out(0, 1), 0);
    assert_int_equal(__builtin_popcount(hold_out(1e-9, 1)), 1);
    assert_int_equal(__builtin_popcount(hold_out(0.05, 1)), 1);
    assert_int_equal(__builtin_popcount(hold_out(0.124, 1)), 2);
    assert_int_equal(__builtin_popcount(hold_out(0.125, 1)), 3); // 2.5 is rounded up
    assert_int_equal(__builtin_popcount(hold_out(1, 1)), 20);
    assert_int_equal(hold_out(0.3, 7), hold_out(0.3, 7));
    assert_int_not_equal(hold_out(0.3, 7), hold_out(0.3, 8));
}

TEST(the_rate_rises_and_falls_linearly) {
    const struct linear_schedule schedule = linear_schedule_of(1601, 64, 2, 1e-3);
    assert_int_equal(schedule.steps, 52);
    assert_int_equal(schedule.steps_per_epoch, 26);
    assert_int_equal(schedule.warmup, 3);
    assert_true(linear_schedule_lr(&schedule, 0) <= 0);
    assert_true(fabs(linear_schedule_lr(&schedule, 2) - 2e-3 / 3) <= 1e-18);
    assert_true(fabs(linear_schedule_lr(&schedule, 3) - 1e-3) <= 1e-18);
    assert_true(fabs(linear_schedule_lr(&schedule, 51) - 1e-3 / 49) <= 1e-18);
    const struct linear_schedule shortest = linear_schedule_of(1, 64, 1, 0.5);
    assert_int_equal(shortest.steps, 1);
    assert_true(fabs(linear_schedule_lr(&shortest, 0) - 0.5) <= 1e-18); // no warm-up
    assert_int_equal(linear_schedule_of(64, 64, 3, 1).steps, 3);
}

TEST(the_order_depends_on_seed_and_epoch_alone) {
    size_t first[50], again[50], second[50], other[50], seen[50] = {0};
    epoch_order(3, 0, 50, first);
    epoch_order(3, 0, 50, again);
    epoch_order(3, 1, 50, second);
    epoch_order(4, 0, 50, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, second, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    for (size_t i = 0; i < 50; i++) seen[first[i]]++;
    for (size_t i = 0; i < 50; i++) assert_int_equal(seen[i], 1);
}

static void assert_near(double value, double expected) {
    assert_true(isnan(expected) ? isnan(value) : fabs(value - expected) <= 1e-12);
}

static void assert_classification(const double *probabilities, const int *labels, size_t count, double accuracy,
                                  double auc, double rate_consistent, double rate_inconsistent) {
    struct classification got;
    classification_compute(&got, probabilities, labels, count, 0.5);
    assert_int_equal(got.count, count);
    assert_near(got.accuracy, accuracy);
    assert_near(got.auc, auc);
    assert_near(got.rate_consistent, rate_consistent);
    assert_near(got.rate_inconsistent, rate_inconsistent);
}

TEST(ties_count_half_and_one_class_has_no_area) {
    assert_classification((double[]){0.9, 0.1, 0.6, 0.4}, (int[]){1, 0, 0, 1}, 4, 0.5, 0.75, 0.5, 0.5);
    assert_classification((double[]){0.2, 0.5, 0.5, 0.5}, (int[]){0, 0, 1, 1}, 4, 0.75, 0.75, 1, 0.5); // ties
    assert_classification((double[]){0.3, 0.3}, (int[]){1, 0}, 2, 0.5, 0.5, 0, 1);
    assert_classification((double[]){0.9, 0.4}, (int[]){1, 1}, 2, 0.5, NAN, 0.5, NAN); // one class
    assert_classification((double[]){0.9}, (int[]){0}, 1, 0, NAN, NAN, 0);
    assert_classification(NULL, NULL, 0, NAN, NAN, NAN, NAN);
}
