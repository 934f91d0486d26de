// The issuer without sockets: this file stands in for the I/O thread.
#include "tests/unit/unit.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/stage/node.h"
#include "shared/store/ledger.h"

// ---- the I/O thread: records what is put into the flow and what is sent

enum { SEQS_MAX = 96 };

struct io_thread {
    int64_t put[SEQS_MAX], policy[SEQS_MAX]; // of each group that was put into the flow: its seq, the version it needs
    size_t put_count;
    struct wire_message last; // strings are not kept
    char name[16], reason[256];
    int broadcasts, replies;
    int64_t issue, settled;
    bool supervised;
};

bool io_thread_is_supervised(struct io_thread *io) {
    return io->supervised;
}

void io_thread_set_issue(struct io_thread *io, int64_t issue, int64_t settled) {
    io->issue = issue;
    io->settled = settled;
}

void io_thread_put(struct io_thread *io, const struct group *group) {
    assert_in_range(io->put_count, 0, SEQS_MAX - 1);
    assert_true(group->requires.present);
    io->policy[io->put_count] = group->requires.policy;
    io->put[io->put_count++] = group->requires.order;
}

status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message) {
    SCOPED(struct buf, buf_release) frame = {0};
    assert_string_equal(purpose, "report");
    assert_int_equal(message_encode(message, &frame), OK); // every string is set
    snprintf(io->name, sizeof io->name, "%s", message->name ? message->name : "");
    snprintf(io->reason, sizeof io->reason, "%s", message->reason);
    io->last = *message;
    io->broadcasts++;
    return OK;
}

status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    assert_non_null(peer);
    io->last = *message;
    io->replies++;
    return OK;
}

// ---- the source

enum { TOTAL = 10, PER_STEP = 2 };
static int64_t total = TOTAL;

static status source_describe(void *state, int64_t *count, uint64_t *hash, struct buf *data) {
    (void)data;
    (void)state;
    *count = total;
    *hash = 0;
    return OK;
}

static status source_group_at(void *state, int64_t seq, struct group **out, size_t *line) {
    (void)line;
    char id[32];
    (void)state;
    snprintf(id, sizeof id, "e0-%06lld", (long long)seq);
    group_new(out);
    group_string(*out, &(*out)->id, id, strlen(id));
    return OK;
}

static const struct stage source = {.name = "source", .describe = source_describe, .group_at = source_group_at};

const void *stage_options(const struct stage_context *context) {
    return context->options.values;
}

static struct wire_peer supervisor = {.purpose = "report", .name = "caravan"},
                        optim = {.client = true, .purpose = "ledger", .name = "optim"};

struct fixture {
    char dir[64];
    struct source_options options;
    struct stage_context context;
    struct node node;
    struct io_thread io;
};

// `trains`: the run has optim.
static void open_issuer_of(struct fixture *fixture, bool trains, int64_t max_staleness, int64_t max_steps) {
    static int number;
    *fixture = (struct fixture){0};
    snprintf(fixture->dir, sizeof fixture->dir, "/tmp/caravan-unit-issuer-%d-%d", (int)getpid(), number++);
    fixture->options.groups_per_step = PER_STEP;
    fixture->options.max_staleness = max_staleness;
    fixture->options.max_steps = max_steps;
    fixture->node.context = &fixture->context;
    fixture->node.io = &fixture->io;
    fixture->context.stage = &source;
    fixture->context.options.values = &fixture->options;
    fixture->node.config.run_dir = fixture->dir;
    fixture->node.config.trains = trains;
    assert_int_equal(dir_make(fixture->dir), OK);
    assert_int_equal(source_role.open(&fixture->node), OK);
}

static void open_issuer(struct fixture *fixture, int64_t max_staleness) {
    open_issuer_of(fixture, true, max_staleness, 0);
}

static void close_issuer(struct fixture *fixture) {
    source_role.close(&fixture->node);
    assert_int_equal(dir_remove(fixture->dir), OK);
}

static status message_from(struct node *node, const struct wire_message *message) {
    return source_role.hooks.messages[message->kind](node, NULL, message);
}

static status join(struct node *node, struct wire_peer *peer) {
    const struct io_peer_hook *hooks = source_role.hooks.peers;
    node->io->supervised |= !strcmp(peer->purpose, "report");
    return hooks[strcmp(hooks[0].purpose, peer->purpose) != 0].joined(node, peer);
}

static struct message_status report(struct fixture *fixture) {
    struct message_status counters = {0};
    source_role.hooks.report(&fixture->node, &counters);
    return counters;
}

static void tell(struct fixture *fixture, struct wire_message message) {
    assert_int_equal(message_from(&fixture->node, &message), OK);
}

static void tell_position(struct fixture *fixture, int64_t step, int64_t seq) {
    tell(fixture, (struct wire_message){.kind = MESSAGE_POSITION, .step = step, .seq = seq});
}

static void tick(struct fixture *fixture) {
    assert_int_equal(source_role.hooks.tick(&fixture->node), OK);
}

// Opens the issuer with a supervisor and with an optim that begins to train.
static void open_supervised_issuer(struct fixture *fixture) {
    open_issuer(fixture, 0);
    assert_int_equal(join(&fixture->node, &supervisor), OK);
    tell_position(fixture, 0, 0);
    tick(fixture);
}

// Optim reports that the group at `seq` was trained.
static void tell_trained(struct fixture *fixture, int64_t seq) {
    tell(fixture, (struct wire_message){.kind = MESSAGE_TRAINED, .seq = seq, .id = "", .step = seq / PER_STEP + 1});
}

// Frames has quarantined the group at `seq`.
static void tell_quarantined(struct fixture *fixture, int64_t seq) {
    char id[32];
    snprintf(id, sizeof id, "e0-%06lld", (long long)seq);
    tell(fixture, (struct wire_message){
                      .kind = MESSAGE_QUARANTINED, .seq = seq, .id = id, .name = "frames", .reason = "no such clip"});
}

TEST(nothing_is_issued_before_the_position) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 0);
    assert_string_equal(report(&fixture).state, "waits for optim");
    assert_int_equal(report(&fixture).held, 0);
    tell_position(&fixture, 0, -1);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, PER_STEP); // a step, since no staleness is allowed
    assert_int_equal(fixture.io.put[0], 0);
    assert_int_equal(fixture.io.put[1], 1);
    assert_int_equal(report(&fixture).held, PER_STEP);
    assert_int_equal(report(&fixture).total, TOTAL);
}

TEST(staleness_bounds_the_groups_in_flight) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 1);
    tell_position(&fixture, 0, 0);
    tick(&fixture);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 2 * PER_STEP);
    for (int64_t seq = 0; seq < PER_STEP; seq++) tell_trained(&fixture, seq);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 3 * PER_STEP);
    assert_int_equal(fixture.io.policy[0], 0);
    assert_int_equal(fixture.io.policy[2 * PER_STEP], 1); // the third step may use weights that are one step old
}

// What is in flight is issued again with the same number when optim is where it was: the stages drop what they have.
TEST(the_number_of_the_issue_rises_when_optim_goes_back) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    tell_position(&fixture, 0, 0);
    tick(&fixture);
    const int64_t first = fixture.io.issue;
    assert_true(first > 0);
    tell_trained(&fixture, 0);
    tell_trained(&fixture, 1);
    tick(&fixture);
    assert_int_equal(fixture.io.issue, first);
    assert_int_equal(fixture.io.put_count, 2 * PER_STEP);
    tell_position(&fixture, 1, 2);
    tick(&fixture);
    assert_int_equal(fixture.io.issue, first);
    assert_int_equal(fixture.io.settled, 2);
    assert_int_equal(fixture.io.put_count, 3 * PER_STEP);
    assert_int_equal(fixture.io.put[2 * PER_STEP], 2);
    tell_position(&fixture, 0, 0);
    tick(&fixture);
    assert_int_equal(fixture.io.issue, first + 1);
    assert_int_equal(fixture.io.settled, 0);
    assert_int_equal(fixture.io.put[3 * PER_STEP], 0);
    assert_int_equal(report(&fixture).held, PER_STEP);
}

// Returns what a source that is started now would find: the ledger in a copy of the file. The caller closes it.
static struct ledger *open_copy(const struct fixture *fixture) {
    const struct ledger_config config = {.groups_per_step = PER_STEP};
    char path[128], copy[128];
    SCOPED(struct buf, buf_release) bytes = {0};
    struct ledger *ledger;
    snprintf(path, sizeof path, "%s/ledger.lmdb", fixture->dir);
    snprintf(copy, sizeof copy, "%s/copy.lmdb", fixture->dir);
    assert_int_equal(file_read(path, &bytes), OK);
    assert_int_equal(file_write_atomic(copy, bytes.data, bytes.size), OK);
    assert_int_equal(ledger_open(&ledger, copy, &config), OK);
    return ledger;
}

// The stages drop what they take for settled, and optim forgets what became of it, also when the source is killed and
// the next one's ledger lacks it. Each second group is quarantined.
TEST(nobody_is_told_what_the_ledger_on_the_disk_lacks) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    tell_position(&fixture, 0, 0);
    for (int64_t seq = 0; seq < TOTAL; seq++) {
        tick(&fixture);
        if (seq % 2)
            tell_quarantined(&fixture, seq);
        else
            tell_trained(&fixture, seq);
        tick(&fixture);
        assert_int_equal(join(&fixture.node, &optim), OK);
        assert_int_equal(fixture.io.last.kind, MESSAGE_RUN_INFO);
        SCOPED(struct ledger *, ledger_close) ledger = open_copy(&fixture);
        assert_in_range(fixture.io.settled, 0, ledger->settled);
        assert_in_range(fixture.io.last.seq, 0, ledger->settled);
        assert_int_equal(ledger_rewind_to(ledger, seq + 1), OK); // POSITION makes the others TRAINED
        assert_true(ledger->counts[LEDGER_QUARANTINED] >= fixture.io.last.seq / 2);
    }
    for (int i = 0; i < 60000 && fixture.io.settled < TOTAL; i++) {
        usleep(1000);
        tick(&fixture);
    }
    assert_int_equal(fixture.io.settled, TOTAL);
}

TEST(an_optim_that_lost_its_directory_is_refused) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_supervised_issuer(&fixture);
    for (int64_t seq = 0; seq < PER_STEP; seq++) tell_trained(&fixture, seq);
    tell_position(&fixture, 0, -1);
    tick(&fixture);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, PER_STEP);
    assert_int_equal(fixture.io.broadcasts, 1);
    assert_int_equal(fixture.io.last.kind, MESSAGE_END);
    assert_int_equal(fixture.io.last.code, DATAERR);
    assert_non_null(strstr(fixture.io.reason, "optim's directory is empty, but the ledger has 1 trained steps"));
}

TEST(an_older_checkpoint_is_trained_again_with_a_notice) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_supervised_issuer(&fixture);
    for (int64_t seq = 0; seq < 2 * PER_STEP; seq++) {
        tick(&fixture);
        tell_trained(&fixture, seq);
    }
    tell_position(&fixture, 1, PER_STEP);
    fixture.io.put_count = 0;
    tick(&fixture);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    assert_string_equal(fixture.io.name, "source");
    assert_int_equal(fixture.io.last.replica, 1);
    assert_non_null(strstr(fixture.io.reason, "optim goes back from step 2 to step 1"));
    assert_int_equal(fixture.io.put_count, PER_STEP);
    assert_int_equal(fixture.io.put[0], PER_STEP);
    assert_int_equal(fixture.io.policy[0], 1);
}

TEST(the_end_is_told_once_everything_is_settled) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    assert_int_equal(join(&fixture.node, &supervisor), OK);
    assert_int_equal(join(&fixture.node, &optim), OK);
    assert_int_equal(fixture.io.last.kind, MESSAGE_RUN_INFO);
    assert_int_equal(fixture.io.last.count, TOTAL);
    assert_int_equal(fixture.io.last.per_step, PER_STEP);
    tell_position(&fixture, 0, 0);
    for (int64_t seq = 0; seq < TOTAL; seq++) {
        tick(&fixture);
        assert_int_equal(fixture.io.broadcasts, seq > 8);
        if (seq == 8) {
            tell_quarantined(&fixture, seq);
            tick(&fixture);
            assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
        } else if (seq == 9) {
            tell(&fixture, (struct wire_message){.kind = MESSAGE_UNUSED, .seq = seq, .id = ""});
        } else {
            tell_trained(&fixture, seq);
        }
    }
    tick(&fixture);
    tick(&fixture);
    assert_int_equal(fixture.io.broadcasts, 2);
    assert_int_equal(fixture.io.last.kind, MESSAGE_END);
    assert_int_equal(fixture.io.last.code, 0);
    assert_string_equal(fixture.io.reason, "4 steps, 8 groups trained, 1 quarantined, 1 left over: they did not fill a "
                                           "step of 2");
}

static void quarantine_row(struct fixture *fixture, int64_t begin, int64_t end) {
    for (int64_t seq = begin; seq < end; seq++) {
        tell_quarantined(fixture, seq);
        tick(fixture);
    }
}

TEST(a_training_ends_when_many_samples_fail_in_a_row) {
    struct fixture fixture;
    total = 80;
    open_supervised_issuer(&fixture);
    quarantine_row(&fixture, 0, 31);
    tell_trained(&fixture, 31); // in the order of issue: it does not matter when it is told
    quarantine_row(&fixture, 40, 63);
    quarantine_row(&fixture, 32, 39);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    quarantine_row(&fixture, 63, 64);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    quarantine_row(&fixture, 39, 40);
    assert_int_equal(fixture.io.last.kind, MESSAGE_END);
    assert_int_equal(fixture.io.last.code, DATAERR);
    assert_non_null(
        strstr(fixture.io.reason, "32 samples in a row failed, the last one: group e0-000039: no such clip"));
    close_issuer(&fixture);
    // An evaluation goes on.
    open_issuer_of(&fixture, false, 0, 0);
    assert_int_equal(join(&fixture.node, &supervisor), OK);
    tick(&fixture);
    quarantine_row(&fixture, 0, 60);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    close_issuer(&fixture);
    total = TOTAL;
}

// The stages may work before the supervisor answers the source.
TEST(a_supervisor_that_joins_late_hears_of_each_quarantined_sample) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    tell_position(&fixture, 0, 0);
    quarantine_row(&fixture, 0, 2);
    assert_int_equal(fixture.io.broadcasts, 0);
    assert_int_equal(join(&fixture.node, &supervisor), OK);
    for (int i = 0; i < 2; i++) tick(&fixture); // told once
    assert_int_equal(fixture.io.broadcasts, 2);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    assert_int_equal(fixture.io.last.replica, 0);
    assert_string_equal(fixture.io.name, "frames");
    assert_string_equal(fixture.io.reason, "group e0-000001: no such clip");
}

// QUARANTINED may carry as long a string as the notice, in which more stands before it.
TEST(a_long_reason_is_cut) {
    enum { LONGEST = 4000 };
    char reason[LONGEST + 1];
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_supervised_issuer(&fixture);
    memset(reason, 'x', LONGEST);
    reason[LONGEST] = 0;
    tell(&fixture, (struct wire_message){
                       .kind = MESSAGE_QUARANTINED, .seq = 0, .id = "e0-000000", .name = "mine", .reason = reason});
    tick(&fixture);
    assert_int_equal(fixture.io.last.kind, MESSAGE_NOTICE);
    assert_non_null(strstr(fixture.io.reason, "group e0-000000: xxx"));
}

TEST(a_group_that_does_not_exist_is_an_error) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    const struct wire_message message = {.kind = MESSAGE_TRAINED, .seq = TOTAL, .id = "", .step = 1};
    open_issuer(&fixture, 0);
    assert_int_equal(message_from(&fixture.node, &message), DATAERR);
    assert_string_equal(fail_text(), "optim reported group 10, but the data set has 10");
}

// An evaluation: there is no POSITION to wait for, no step and no weights of optim's.
TEST(without_optim_all_are_in_flight_at_once) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    struct wire_peer score = {.client = true, .purpose = "ledger", .name = "score"};
    open_issuer_of(&fixture, false, 0, 0);
    assert_int_equal(join(&fixture.node, &supervisor), OK);
    assert_int_equal(join(&fixture.node, &score), OK);
    assert_int_equal(fixture.io.replies, 0); // no RUN_INFO
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, TOTAL);
    for (int i = 0; i < TOTAL; i++) assert_int_equal(fixture.io.policy[i], 0);
    assert_string_equal(report(&fixture).state, "all issued");
    assert_int_equal(report(&fixture).held, TOTAL);
    // In any order, and twice.
    for (int64_t seq = TOTAL - 1; seq > 0; seq--)
        for (int i = 0; i < 2; i++)
            tell(&fixture, (struct wire_message){.kind = MESSAGE_TRAINED, .seq = seq, .id = "x"});
    tell_position(&fixture, 0, -1); // of nobody: it has no effect
    assert_int_equal(report(&fixture).done, TOTAL - 1);
    assert_int_equal(report(&fixture).step, 0);
    tick(&fixture);
    assert_int_equal(fixture.io.broadcasts, 0);
    tell_quarantined(&fixture, 0);
    tick(&fixture);
    tick(&fixture);
    assert_int_equal(fixture.io.broadcasts, 2); // the notice and the end
    assert_int_equal(fixture.io.last.kind, MESSAGE_END);
    assert_int_equal(fixture.io.last.code, 0);
    assert_string_equal(fixture.io.reason, "9 groups done, 1 quarantined");
    assert_int_equal(fixture.io.put_count, TOTAL);
}

// The last stage tells a new source again what it told the one before, also of groups that the new one has not issued.
// Those before them may have been lost.
TEST(groups_before_one_that_is_settled_already_are_issued) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer(&fixture, 0);
    tell_position(&fixture, 0, 0);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, PER_STEP);
    tell_quarantined(&fixture, 4);
    for (int64_t seq = 0; seq < PER_STEP; seq++) tell_trained(&fixture, seq);
    tick(&fixture);
    assert_int_equal(report(&fixture).held, PER_STEP);
    for (int64_t seq = PER_STEP; seq < 2 * PER_STEP; seq++) tell_trained(&fixture, seq);
    tick(&fixture);
    static const int64_t issued[] = {0, 1, 2, 3, 5, 6};
    assert_int_equal(fixture.io.put_count, 6);
    assert_memory_equal(fixture.io.put, issued, sizeof issued);
}

TEST(without_optim_a_new_source_goes_on_from_the_ledger) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer_of(&fixture, false, 0, 0);
    tick(&fixture);
    for (int64_t seq = 0; seq < TOTAL; seq += 3)
        tell(&fixture, (struct wire_message){.kind = MESSAGE_TRAINED, .seq = seq, .id = "x"});
    source_role.close(&fixture.node);
    fixture.io = (struct io_thread){0};
    fixture.options.groups_per_step = 3; // says nothing here
    assert_int_equal(source_role.open(&fixture.node), OK);
    tick(&fixture);
    static const int64_t again[] = {1, 2, 4, 5, 7, 8};
    assert_int_equal(fixture.io.put_count, 6);
    assert_memory_equal(fixture.io.put, again, sizeof again);
}

// POSITION says how many groups the steps take; each group that is quarantined adds one.
TEST(max_steps_ends_the_run) {
    SCOPED(struct fixture, close_issuer) fixture = {0};
    open_issuer_of(&fixture, true, 4, 2);
    assert_int_equal(join(&fixture.node, &supervisor), OK);
    tell(&fixture, (struct wire_message){.kind = MESSAGE_POSITION, .step = 0, .seq = 0, .count = 4});
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 4);
    for (int64_t seq = 0; seq < 3; seq++) tell_trained(&fixture, seq);
    for (int i = 0; i < 2; i++) // sent twice, it counts once
        tell_quarantined(&fixture, 3);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 5);
    assert_int_equal(report(&fixture).total, 5);
    tell_trained(&fixture, 4);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 5);
    assert_int_equal(fixture.io.last.kind, MESSAGE_END);
    assert_non_null(strstr(fixture.io.reason, "4 groups trained, 1 quarantined"));
    // Optim goes back to where the fourth group was not quarantined yet.
    tell(&fixture, (struct wire_message){.kind = MESSAGE_POSITION, .step = 1, .seq = 2, .count = 4});
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 7);
    close_issuer(&fixture);

    // Without optim, a step is so many groups.
    open_issuer_of(&fixture, false, 0, 2);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, 4);
    close_issuer(&fixture);
    open_issuer_of(&fixture, false, 0, INT64_MAX);
    tick(&fixture);
    assert_int_equal(fixture.io.put_count, TOTAL);
}
