// The ledger: the state of each group, after restarts and after optim went back to a checkpoint. Also the outbox and
// the sets of sequence numbers.
#include "tests/unit/unit.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/stage/outbox.h"
#include "shared/store/ledger.h"
#include "shared/wire/seq_set.h"

static char dir[64], path[96];
static const struct ledger_config config = {.data = 77, .groups_per_step = 2};

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/caravan-ledger-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/ledger.lmdb", dir);
    return dir_make(dir) == OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove(dir) == OK ? 0 : -1;
}

static struct ledger *open_ledger(void) {
    struct ledger *ledger = NULL;
    assert_int_equal(ledger_open(&ledger, path, &config), OK);
    return ledger;
}

static void settle(struct ledger *ledger, int64_t seq, enum ledger_state state, int64_t step) {
    const struct ledger_entry entry = {
        .seq = seq, .state = state, .step = step, .id = "g", .stage = "frames", .reason = "cut off"};
    assert_int_equal(ledger_settle(ledger, &entry, NULL), OK);
}

static void test_issue_and_settle(void **state) {
    (void)state;
    struct ledger *ledger = open_ledger();
    for (int i = 0; i < 4; i++) assert_int_equal(ledger_issue(ledger, i, "g"), OK);
    assert_int_equal(ledger_next_unissued(ledger), 4);
    assert_int_equal(ledger_in_flight(ledger), 4);
    settle(ledger, 1, LEDGER_QUARANTINED, -1);
    assert_int_equal(ledger_settled(ledger), 0);
    settle(ledger, 0, LEDGER_TRAINED, 1);
    assert_int_equal(ledger_settled(ledger), 2);
    assert_int_equal(ledger_in_flight(ledger), 2);
    bool newly_settled = true;
    const struct ledger_entry twice = {.seq = 0, .state = LEDGER_TRAINED, .step = 9, .id = "g"};
    assert_int_equal(ledger_settle(ledger, &twice, &newly_settled), OK);
    assert_false(newly_settled);
    assert_int_equal(ledger_count(ledger, LEDGER_TRAINED), 1);
    assert_int_equal(ledger_count(ledger, LEDGER_QUARANTINED), 1);
    ledger_close(&ledger);
}

struct seen {
    int count;
    struct ledger_entry last;
};

static status see(void *context, const struct ledger_entry *entry) {
    struct seen *seen = context;
    seen->count++;
    seen->last = *entry;
    if (entry->seq == 1) assert_string_equal(entry->reason, "cut off");
    if (entry->seq == 0) assert_int_equal(entry->step, 1);
    return OK;
}

static void test_restart(void **state) {
    (void)state;
    struct ledger *ledger = open_ledger();
    assert_int_equal(ledger_settled(ledger), 2);
    assert_int_equal(ledger_next_unissued(ledger), 4);
    assert_int_equal(ledger_in_flight(ledger), 2);
    struct seen seen = {0};
    assert_int_equal(ledger_issue(ledger, 3, "g3"), OK);
    assert_int_equal(ledger_each(ledger, 0, see, &seen), OK);
    assert_int_equal(seen.count, 4);
    assert_int_equal(seen.last.seq, 3);
    assert_int_equal(seen.last.issues, 2);
    ledger_close(&ledger);
}

static void test_rewind_to_optim(void **state) {
    (void)state;
    struct ledger *ledger = open_ledger();
    // Optim has trained 2, and its message was lost.
    assert_int_equal(ledger_rewind_to(ledger, 3), OK);
    assert_int_equal(ledger_settled(ledger), 3);
    assert_int_equal(ledger_next_unissued(ledger), 3);
    assert_int_equal(ledger_in_flight(ledger), 0);
    assert_int_equal(ledger_state_of(ledger, 3), LEDGER_NEW);
    // Its checkpoint is older than its last message.
    assert_int_equal(ledger_rewind_to(ledger, 1), OK);
    assert_int_equal(ledger_settled(ledger), 1);
    assert_int_equal(ledger_state_of(ledger, 0), LEDGER_TRAINED);
    assert_int_equal(ledger_count(ledger, LEDGER_TRAINED), 1);
    assert_int_equal(ledger_count(ledger, LEDGER_QUARANTINED), 0);
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger_settled(ledger), 1);
    assert_int_equal(ledger_next_unissued(ledger), 1);
    ledger_close(&ledger);
}

static void test_other_data_is_refused(void **state) {
    (void)state;
    struct ledger *ledger = NULL;
    const struct ledger_config other = {.data = 78, .groups_per_step = 2};
    assert_int_equal(ledger_open(&ledger, path, &other), DATAERR);
    assert_non_null(strstr(fail_text(), "other data"));
    assert_null(ledger);
}

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
        cmocka_unit_test(test_issue_and_settle),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_rewind_to_optim),
        cmocka_unit_test(test_other_data_is_refused),
        cmocka_unit_test(test_outbox_gives_each_reader_the_groups_in_order),
        cmocka_unit_test(test_seq_sets_are_short_strings),
    };
    return cmocka_run_group_tests_name("ledger", tests, set_up, tear_down);
}
