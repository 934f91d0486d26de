// The outbox: which group each replica of a reader gets next, and what becomes of the groups of one that is lost.
#include "tests/unit/unit.h"

#include "shared/stage/outbox.h"

static const struct origins origins = {1, {1}};

static void add(struct outbox *outbox, int64_t seq) {
    struct buf data = {0};
    buf_printf(&data, "group %d", (int)seq);
    outbox_add(outbox, seq, &origins, &data);
    assert_null(data.data);
}

static struct outbox make_outbox(size_t readers, int64_t count) {
    struct outbox outbox = {.reader_count = readers};
    for (int64_t seq = count - 1; seq >= 0; seq--) add(&outbox, seq);
    return outbox;
}

// Gives the next group to a replica; returns its seq, or -1.
static int64_t give(struct outbox *outbox, size_t reader, int replica) {
    struct outbox_entry *entry = outbox_next(outbox, reader, replica);
    if (entry) outbox_give(entry, reader, replica);
    return entry ? entry->seq : -1;
}

static void claim(struct outbox *outbox, int64_t seq, int replica, bool passed, bool ghost) {
    bool made;
    outbox_claim(outbox, seq, 0, replica, passed, &made);
    assert_int_equal(made, ghost);
}

static void each_reader_gets_the_groups_in_order(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(2, 3);
    assert_int_equal(outbox_available(&outbox, 0), 3);
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 2), 1);
    assert_int_equal(give(&outbox, 1, 1), 0);
    assert_true(outbox_passed(&outbox, outbox_find(&outbox, 0)));
    assert_false(outbox_passed(&outbox, outbox_find(&outbox, 1)));
    assert_int_equal(outbox_available(&outbox, 0), 1);
    assert_int_equal(outbox_available(&outbox, 1), 2);
    assert_int_equal(outbox_available(&outbox, -1), 2);
    add(&outbox, 0); // once more: it stays as it is
    assert_int_equal(outbox_available(&outbox, 0), 1);
    outbox_settle_below(&outbox, 2);
    assert_null(outbox_find(&outbox, 1));
    assert_int_equal(outbox.count, 1);
    outbox_release(&outbox);
    assert_int_equal(outbox_available(&outbox, -1), 0);
}

static void a_restarted_replica_loses_what_it_had_not_passed_on(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(give(&outbox, 0, i < 2 ? 1 : 2), i);
    claim(&outbox, 0, 1, true, false); // passed on
    outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 1000);
    assert_int_equal(give(&outbox, 0, 2), 1); // the other replica's is still its own
    assert_int_equal(give(&outbox, 0, 2), -1);
    // The new process says that nobody told it of the first group.
    outbox_lose(&outbox, 0, 1, LOSS_BROKEN, 1100);
    assert_int_equal(give(&outbox, 0, 1), -1);
    outbox_lose(&outbox, 0, 1, LOSS_SYNCED, 1200);
    assert_int_equal(give(&outbox, 0, 1), 0);
    outbox_release(&outbox);
}

static void a_new_connection_confirms_what_the_replica_has(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(give(&outbox, 0, 1), i);
    outbox_lose(&outbox, 0, 1, LOSS_BROKEN, 0);
    claim(&outbox, 0, 1, false, false);
    claim(&outbox, 2, 1, true, false);
    outbox_lose(&outbox, 0, 1, LOSS_SYNCED, 0);
    assert_int_equal(give(&outbox, 0, 2), 1); // the message with this group was lost
    assert_int_equal(give(&outbox, 0, 2), -1);
    outbox_release(&outbox);
}

static void what_a_silent_replica_has_is_available_after_a_while(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 2);
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), 1);
    claim(&outbox, 1, 1, true, false);
    outbox_lose(&outbox, 0, 1, LOSS_GONE, 1000);
    assert_false(outbox_release_due(&outbox, 1000));
    assert_true(outbox_release_due(&outbox, 2000));
    assert_int_equal(give(&outbox, 0, 2), 0);
    assert_int_equal(give(&outbox, 0, 2), -1);
    assert_true(outbox_release_due(&outbox, 7000));
    assert_int_equal(give(&outbox, 0, 2), 1);
    outbox_lose(&outbox, 0, 2, LOSS_GONE, 8000);
    claim(&outbox, 1, 2, false, false); // it is back
    assert_true(outbox_release_due(&outbox, 90000));
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), -1);
    outbox_release(&outbox);
}

static void a_ghost_needs_no_data_until_its_reader_is_lost(void **state) {
    (void)state;
    struct outbox outbox = {.reader_count = 1};
    int64_t seq;
    claim(&outbox, 5, 1, false, true);
    claim(&outbox, 7, 1, true, true);
    assert_int_equal(outbox_available(&outbox, 0), 0);
    assert_int_equal(give(&outbox, 0, 2), -1);
    assert_false(outbox_remove_orphan(&outbox, &seq));
    outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 0);
    assert_int_equal(give(&outbox, 0, 2), -1); // there is nothing to give
    assert_true(outbox_remove_orphan(&outbox, &seq));
    assert_int_equal(seq, 5);
    add(&outbox, 7);                 // it came after all
    outbox_return(&outbox, 7, 0, 2); // of a replica that does not have it
    assert_int_equal(give(&outbox, 0, 2), -1);
    outbox_return(&outbox, 7, 0, 1);
    assert_int_equal(give(&outbox, 0, 2), 7);
    assert_false(outbox_remove_orphan(&outbox, &seq));
    outbox_release(&outbox);
}

static void of_two_replicas_that_have_a_group_the_one_further_on_counts(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 1);
    assert_int_equal(give(&outbox, 0, 1), 0);
    claim(&outbox, 0, 2, false, false);
    outbox_lose(&outbox, 0, 2, LOSS_CRASHED, 0); // not its
    assert_int_equal(give(&outbox, 0, 3), -1);
    claim(&outbox, 0, 2, true, false);
    outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 0);
    assert_int_equal(give(&outbox, 0, 3), -1);
    outbox_release(&outbox);
}

static void a_group_that_is_lost_again_and_again_is_given_alone(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 4);
    size_t reader;
    for (int loss = 0; loss < 2; loss++) {
        for (int64_t seq = 0; seq < 2; seq++) assert_int_equal(give(&outbox, 0, 1), seq);
        assert_null(outbox_find_lost(&outbox, 2, &reader));
        const struct lost_again again = outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 0);
        assert_int_equal(again.count, loss == 0 ? 0 : 2);
        assert_int_equal(again.first, 0);
    }
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), -1);
    assert_int_equal(outbox_lose(&outbox, 0, 1, LOSS_RESTARTED, 0).count, 0); // not for what it had
    assert_int_equal(outbox_find(&outbox, 0)->leases[0].losses, 2);
    assert_int_equal(give(&outbox, 0, 1), 0);
    claim(&outbox, 0, 1, true, false); // it was innocent
    assert_int_equal(give(&outbox, 0, 1), 1);
    outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 0);
    assert_int_equal(give(&outbox, 0, 1), 1);
    assert_int_equal(outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 0).count, 0); // the fourth time
    assert_int_equal(outbox_find_lost(&outbox, 4, &reader)->seq, 1);
    outbox_release(&outbox);
}

// The connection is lost first; whether the process had died is known when it is back.
static void a_loss_counts_when_the_replica_comes_back_restarted(void **state) {
    (void)state;
    struct outbox outbox = make_outbox(1, 1);
    const struct lease *lease = outbox_find(&outbox, 0)->leases;
    for (int loss = 1; loss <= 2; loss++) {
        assert_int_equal(give(&outbox, 0, 1), 0);
        outbox_lose(&outbox, 0, 1, LOSS_GONE, 1000);
        assert_true(outbox_release_due(&outbox, 2000));
        assert_int_equal(lease->losses, loss - 1);
        assert_int_equal(give(&outbox, 0, 2), 0);
        assert_int_equal(outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 3000).count, loss == 2);
        assert_int_equal(outbox_lose(&outbox, 0, 1, LOSS_CRASHED, 3000).count, 0); // once
        assert_int_equal(lease->losses, loss);
        outbox_lose(&outbox, 0, 2, LOSS_GONE, 3000); // a cut: the same process is back
        assert_true(outbox_release_due(&outbox, 4000));
        outbox_lose(&outbox, 0, 2, LOSS_BROKEN, 4000);
        outbox_lose(&outbox, 0, 2, LOSS_SYNCED, 4000);
        outbox_lose(&outbox, 0, 2, LOSS_CRASHED, 4000); // it had the group no more
        assert_int_equal(lease->losses, loss);
    }
    outbox_release(&outbox);
}

static void many_origins_are_all(void **state) {
    (void)state;
    struct origins some = {0};
    assert_false(origins_include(&some, 1));
    for (int replica = 1; replica <= ORIGINS_MAX; replica++) {
        origins_add(&some, replica);
        origins_add(&some, replica);
    }
    assert_int_equal(some.count, ORIGINS_MAX);
    assert_false(origins_include(&some, 9));
    origins_add(&some, 8);
    assert_true(origins_include(&some, 9));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_reader_gets_the_groups_in_order),
        cmocka_unit_test(a_restarted_replica_loses_what_it_had_not_passed_on),
        cmocka_unit_test(a_new_connection_confirms_what_the_replica_has),
        cmocka_unit_test(what_a_silent_replica_has_is_available_after_a_while),
        cmocka_unit_test(a_ghost_needs_no_data_until_its_reader_is_lost),
        cmocka_unit_test(of_two_replicas_that_have_a_group_the_one_further_on_counts),
        cmocka_unit_test(a_group_that_is_lost_again_and_again_is_given_alone),
        cmocka_unit_test(a_loss_counts_when_the_replica_comes_back_restarted),
        cmocka_unit_test(many_origins_are_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
