// The outbox: which group each replica of a reader gets next, and what becomes of the groups of one that is lost.
#include "tests/unit/unit.h"

#include "shared/base/file.h"
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

static void claim(struct outbox *outbox, int64_t seq, int replica, bool passed) {
    assert_int_equal(outbox_claim(outbox, seq, 0, replica, passed)->seq, seq);
}

// What happens to a replica of the first reader, which may be lost because of a group.
static struct lost_again happen(struct outbox *outbox, int replica, enum lease_event event, int64_t now) {
    return outbox_apply(outbox, 0, replica, event, true, now);
}

TEST(each_reader_gets_the_groups_in_order) {
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

TEST(a_restarted_replica_loses_what_it_had_not_passed_on) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(give(&outbox, 0, i < 2 ? 1 : 2), i);
    claim(&outbox, 0, 1, true); // passed on
    happen(&outbox, 1, LEASE_RESTARTED, 1000);
    assert_int_equal(give(&outbox, 0, 2), 1); // the other replica's is still its own
    assert_int_equal(give(&outbox, 0, 2), -1);
    // The new process does not know the first group.
    assert_int_equal(give(&outbox, 0, 1), -1);
    happen(&outbox, 1, LEASE_SYNCED, 1200);
    assert_int_equal(give(&outbox, 0, 1), 0);
}

TEST(a_new_connection_confirms_what_the_replica_has) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(give(&outbox, 0, 1), i);
    happen(&outbox, 1, LEASE_RECONNECTED, 0);
    claim(&outbox, 0, 1, false);
    claim(&outbox, 2, 1, true);
    happen(&outbox, 1, LEASE_SYNCED, 0);
    assert_int_equal(give(&outbox, 0, 2), 1); // the message with this group was lost
    assert_int_equal(give(&outbox, 0, 2), -1);
}

TEST(what_a_silent_replica_has_is_available_after_a_while) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 2);
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), 1);
    claim(&outbox, 1, 1, true);
    happen(&outbox, 1, LEASE_GONE, 1000);
    assert_false(outbox_expire(&outbox, 1000));
    assert_true(outbox_expire(&outbox, 2000));
    assert_int_equal(give(&outbox, 0, 2), 0);
    assert_int_equal(give(&outbox, 0, 2), -1);
    assert_true(outbox_expire(&outbox, 7000));
    assert_int_equal(give(&outbox, 0, 2), 1);
    happen(&outbox, 2, LEASE_GONE, 8000);
    claim(&outbox, 1, 2, false); // it is back
    assert_true(outbox_expire(&outbox, 90000));
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), -1);
}

TEST(a_claim_is_kept_until_the_group_comes) {
    SCOPED(struct outbox, outbox_release) outbox = {.reader_count = 1};
    claim(&outbox, 5, 1, false);
    claim(&outbox, 7, 1, true);
    assert_int_equal(outbox_available(&outbox, 0), 0);
    assert_int_equal(give(&outbox, 0, 2), -1);
    add(&outbox, 7);
    assert_int_equal(give(&outbox, 0, 2), -1); // its reader has it
    happen(&outbox, 1, LEASE_RESTARTED, 0);
    assert_int_equal(give(&outbox, 0, 2), -1); // there is nothing to give of the other one
    add(&outbox, 5);
    assert_int_equal(give(&outbox, 0, 2), 5);
    happen(&outbox, 1, LEASE_SYNCED, 0);
    assert_int_equal(give(&outbox, 0, 2), 7);
}

TEST(of_two_replicas_that_have_a_group_the_one_further_on_counts) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 1);
    assert_int_equal(give(&outbox, 0, 1), 0);
    claim(&outbox, 0, 2, false);
    happen(&outbox, 2, LEASE_RESTARTED, 0); // not its
    assert_int_equal(give(&outbox, 0, 3), -1);
    claim(&outbox, 0, 2, true);
    happen(&outbox, 1, LEASE_RESTARTED, 0);
    assert_int_equal(give(&outbox, 0, 3), -1);
}

TEST(a_group_that_is_lost_again_and_again_is_given_alone) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 4);
    for (int loss = 0; loss < 2; loss++) {
        for (int64_t seq = 0; seq < 2; seq++) assert_int_equal(give(&outbox, 0, 1), seq);
        assert_null(outbox_find_lost(&outbox, 0, 2));
        const struct lost_again again = happen(&outbox, 1, LEASE_RESTARTED, 0);
        assert_int_equal(again.count, loss == 0 ? 0 : 2);
        assert_int_equal(again.first, 0);
    }
    assert_int_equal(give(&outbox, 0, 1), 0);
    assert_int_equal(give(&outbox, 0, 1), -1);
    assert_int_equal(outbox_apply(&outbox, 0, 1, LEASE_RESTARTED, false, 0).count, 0); // not for what it had
    assert_int_equal(outbox_find(&outbox, 0)->leases[0].losses, 2);
    assert_int_equal(give(&outbox, 0, 1), 0);
    claim(&outbox, 0, 1, true); // it was innocent
    assert_int_equal(give(&outbox, 0, 1), 1);
    happen(&outbox, 1, LEASE_RESTARTED, 0);
    assert_int_equal(give(&outbox, 0, 1), 1);
    assert_int_equal(happen(&outbox, 1, LEASE_RESTARTED, 0).count, 0); // the fourth time
    assert_int_equal(outbox_find_lost(&outbox, 0, 4)->seq, 1);
}

// The connection is lost first; whether the process had died is known when it is back.
TEST(a_loss_counts_when_the_replica_comes_back_restarted) {
    SCOPED(struct outbox, outbox_release) outbox = make_outbox(1, 1);
    const struct lease *lease = outbox_find(&outbox, 0)->leases;
    for (int loss = 1; loss <= 2; loss++) {
        assert_int_equal(give(&outbox, 0, 1), 0);
        happen(&outbox, 1, LEASE_GONE, 1000);
        assert_true(outbox_expire(&outbox, 2000));
        assert_int_equal(lease->losses, loss - 1);
        assert_int_equal(give(&outbox, 0, 2), 0);
        assert_int_equal(happen(&outbox, 1, LEASE_RESTARTED, 3000).count, loss == 2);
        assert_int_equal(happen(&outbox, 1, LEASE_RESTARTED, 3000).count, 0); // once
        assert_int_equal(lease->losses, loss);
        happen(&outbox, 2, LEASE_GONE, 3000); // a cut: the same process is back
        assert_true(outbox_expire(&outbox, 4000));
        happen(&outbox, 2, LEASE_RECONNECTED, 4000);
        happen(&outbox, 2, LEASE_SYNCED, 4000);
        happen(&outbox, 2, LEASE_RESTARTED, 4000); // it had the group no more
        assert_int_equal(lease->losses, loss);
    }
}

TEST(many_origins_are_all) {
    struct origins some = {0};
    assert_false(origins_include(&some, 1));
    for (int replica = 1; replica <= MAX_ORIGINS; replica++) {
        origins_add(&some, replica);
        origins_add(&some, replica);
    }
    assert_int_equal(some.count, MAX_ORIGINS);
    assert_false(origins_include(&some, 9));
    origins_add(&some, 8);
    assert_true(origins_include(&some, 9));
}

// Prints lease_rules as the table of the page.
TEST(the_rules_of_leases_are_those_of_the_protocol) {
    static const char *const events[LEASE_EVENTS] = {"sent",      "HAVE",        "HAVE `passed`", "gone",
                                                     "restarted", "reconnected", "SYNCED",        "expired"};
    static const char *const states[LEASE_STATES] = {"free", "given", "asked", "due", "passed", "asked", "due"};
    SCOPED(struct buf, buf_release) page = {0}, table = {0};
    assert_int_equal(file_read("shared/wire/PROTOCOL.md", &page), OK);
    buf_printf(&table, "| %-13s |", "C");
    for (int from = 0; from < LEASE_STATES; from++) buf_printf(&table, " %-6s |", states[from]);
    buf_puts(&table, "\n|---------------|");
    for (int from = 0; from < LEASE_STATES; from++) buf_puts(&table, "--------|");
    for (int event = 0; event < LEASE_EVENTS; event++) {
        buf_printf(&table, "\n| %-13s |", events[event]);
        for (int from = 0; from < LEASE_STATES; from++) {
            const struct lease_rule rule = lease_rule_of((enum lease_event)event, (enum lease_state)from);
            char cell[16] = "";
            if ((int)rule.next != from && rule.after_ms)
                snprintf(cell, sizeof cell, "%g s", rule.after_ms / 1e3);
            else if ((int)rule.next != from)
                snprintf(cell, sizeof cell, "%s", rule.loss ? "lost" : states[rule.next]);
            buf_printf(&table, " %-6s |", cell);
        }
    }
    buf_puts(&table, "\n");
    if (!strstr(page.data, table.data)) print_error("PROTOCOL.md lacks the table\n%s", table.data);
    assert_non_null(strstr(page.data, table.data));
}
