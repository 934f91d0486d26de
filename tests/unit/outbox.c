// The outbox: which group each reader gets next. And the sets of sequence numbers that peers report in messages.
#include "tests/unit/unit.h"

#include "shared/stage/outbox.h"
#include "shared/wire/seq_set.h"

static void test_outbox_gives_each_reader_the_groups_in_order(void **state) {
    (void)state;
    struct outbox outbox = {0};
    const int64_t seqs[3] = {5, 2, 9};
    const char *ids[3] = {"five", "two", "nine"};
    for (int i = 0; i < 3; i++) {
        struct buf data = {0};
        assert_int_equal(buf_puts(&data, ids[i]), OK);
        assert_int_equal(outbox_add(&outbox, seqs[i], ids[i], 3, &data), OK);
    }
    assert_int_equal(outbox_count(&outbox, 1), 3);
    assert_string_equal(outbox_first(&outbox, 0)->id, "two");
    outbox_take(&outbox, outbox_first(&outbox, 0), 0);
    assert_string_equal(outbox_first(&outbox, 0)->id, "five");
    assert_string_equal(outbox_first(&outbox, 1)->id, "two");
    assert_true(outbox_has(&outbox, "two"));
    outbox_take(&outbox, outbox_first(&outbox, 1), 1);
    assert_false(outbox_has(&outbox, "two"));
    assert_int_equal(outbox_count(&outbox, 0), 2);
    outbox_release(&outbox);
    assert_int_equal(outbox_count(&outbox, -1), 0);
}

static void check_seq_set(int64_t *seqs, size_t count, const char *text) {
    struct buf out = {0};
    assert_int_equal(seq_set_format(seqs, count, &out), OK);
    assert_string_equal(out.data, text);
    buf_release(&out);
}

static void test_seq_sets_are_short_strings(void **state) {
    (void)state;
    check_seq_set(NULL, 0, "");
    check_seq_set((int64_t[]){7, 3, 4, 5, -1, 12, 4}, 7, "3-5 7 12");
    int64_t *list = NULL;
    size_t count = 0;
    int whole;
    assert_int_equal(seq_set_parse("3-5 7 12", &list, &count, &whole), OK);
    assert_int_equal(count, 5);
    assert_int_equal(list[4], 12);
    assert_true(whole);
    assert_int_equal(seq_set_parse("1 +", &list, &count, &whole), OK);
    assert_false(whole);
    assert_int_equal(seq_set_parse("5-3", &list, &count, NULL), DATAERR);
    assert_int_equal(seq_set_parse("x", &list, &count, NULL), DATAERR);
    assert_int_equal(seq_set_parse("0-9223372036854775807", &list, &count, NULL), DATAERR);
    free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outbox_gives_each_reader_the_groups_in_order),
        cmocka_unit_test(test_seq_sets_are_short_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
