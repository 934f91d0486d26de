// The collector without sockets: this file stands in for the I/O thread.
#include "tests/unit/unit.h"

#include <malloc.h>

#include "shared/stage/node.h"

// ---- the I/O thread: gives the groups of `incoming` in order, records what is sent

struct io_thread {
    int64_t incoming, incoming_end;
    struct held_group *held;  // of what came
    struct wire_message last; // strings are not kept
    char last_strings[3][64];
    int64_t broadcasts, replies, sent, dropped, nudges;
    int64_t first_reply_seq, last_reply_seq, position_seq, position_at, position_count;
};

static struct group *make_group(int64_t seq) {
    struct group *group;
    char id[64];
    group_new(&group);
    snprintf(id, sizeof id, "e0-%06lld", (long long)seq);
    group_string(group, &group->id, id, strlen(id));
    group->requires.present = true;
    group->requires.order = seq;
    return group;
}

status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct held_group **out) {
    (void)capacity;
    (void)timeout_ms;
    *out = NULL;
    if (io->incoming == io->incoming_end) return END;
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    **out = (struct held_group){
        .next = io->held, .seq = io->incoming, .state = HELD_WAITING, .group = make_group(io->incoming)};
    io->held = *out;
    // Every seventh group is quarantined.
    if (io->incoming % 7 == 3) group_quarantine((*out)->group, "frames", "the clip is cut off");
    io->incoming++;
    return OK;
}

struct held_group *io_thread_next_held(struct io_thread *io, const struct held_group *after, enum held_state state) {
    struct held_group *held = after ? after->next : io->held;
    while (held && held->state != state) held = held->next;
    return held;
}

void io_thread_set_state(struct io_thread *io, struct held_group *held, enum held_state state) {
    (void)io;
    held->state = state;
}

static void free_held(struct io_thread *io, struct held_group *held) {
    struct held_group **link = &io->held;
    while (*link != held) link = &(*link)->next;
    *link = held->next;
    group_free(&held->group);
    free(held);
}

void io_thread_send(struct io_thread *io, struct held_group *held) {
    free_held(io, held);
    io->sent++;
}

void io_thread_drop(struct io_thread *io, struct held_group *held) {
    free_held(io, held);
    io->dropped++;
}

void io_thread_nudge(struct io_thread *io) {
    io->nudges++;
}

int64_t io_thread_settled(struct io_thread *io) {
    (void)io;
    return 0;
}

static void keep_message(struct io_thread *io, const struct wire_message *message) {
    const char *strings[3] = {message->id, message->name, message->reason};
    io->last = *message;
    for (int i = 0; i < 3; i++) snprintf(io->last_strings[i], 64, "%s", strings[i] ? strings[i] : "");
}

status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message) {
    assert_string_equal(purpose, "ledger");
    io->broadcasts++;
    keep_message(io, message);
    return OK;
}

status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    (void)peer;
    SCOPED(struct buf, buf_release) frame = {0};
    assert_int_equal(message_encode(message, &frame), OK); // every string is set
    if (message->kind == MESSAGE_POSITION) {
        io->position_seq = message->seq;
        io->position_count = message->count;
        io->position_at = io->replies;
        return OK;
    }
    if (io->replies++ == 0) io->first_reply_seq = message->seq;
    io->last_reply_seq = message->seq;
    keep_message(io, message);
    return OK;
}

// ---- the last stage

static status position(void *state, int64_t *step, int64_t *seq) {
    *step = *seq = *(int64_t *)state;
    return OK;
}

static const struct stage trainer = {.name = "optim", .position = position};

static int64_t start_at;
static struct stage_context context = {.stage = &trainer, .state = &start_at};

static const int64_t no_position = -2;

// Makes the node of optim over an I/O thread.
static struct node open_optim(struct io_thread *io) {
    struct node node = {.context = &context, .io = io};
    assert_int_equal(optim_role.open(&node), OK);
    return node;
}

static void close_optim(struct node *node) {
    optim_role.close(node);
    while (node->io->held) free_held(node->io, node->io->held);
}

static int64_t max_steps; // of the run

static void send_run_info(struct node *node, int64_t total, int64_t settled) {
    struct io_thread *io = node->io;
    const struct wire_message run_info = {
        .kind = MESSAGE_RUN_INFO, .count = total, .per_step = 1, .max_steps = max_steps, .seq = settled};
    io->replies = io->position_at = 0;
    io->position_seq = no_position;
    io->first_reply_seq = io->last_reply_seq = -1;
    assert_int_equal(optim_role.hooks.messages[MESSAGE_RUN_INFO](node, NULL, &run_info), OK);
}

// Trains every group that comes, one per step.
static void train(struct node *node, int64_t end) {
    node->io->incoming_end = end;
    for (;;) {
        struct held_group *held = NULL;
        if (optim_role.receive(node, -1, &held) == END) return;
        assert_non_null(held);
        held->group->trained.present = !held->group->quarantine.present;
        held->group->trained.step = held->group->requires.order + 1;
        assert_int_equal(optim_role.deliver(node, held), OK);
    }
}

static size_t used_memory(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

TEST(memory_stays_small) {
    enum { GROUPS = 20000, FIRST = 1000, GROWTH_MAX = 1 << 20 };
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = open_optim(&io);
    send_run_info(&node, 2 * GROUPS, 0);
    assert_int_equal(io.position_seq, 0);
    train(&node, FIRST);
    size_t before = used_memory();
    train(&node, GROUPS);
    assert_int_equal(io.broadcasts, GROUPS);
    assert_true(used_memory() < before + GROWTH_MAX);
}

TEST(a_restarted_source_gets_only_what_it_lacks) {
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = open_optim(&io);
    send_run_info(&node, 1000, 0);
    train(&node, 100);
    send_run_info(&node, 1000, 90);
    assert_int_equal(io.replies, 10);
    assert_int_equal(io.first_reply_seq, 90);
    assert_int_equal(io.last_reply_seq, 99);
    assert_int_equal(io.position_seq, 100);
    assert_int_equal(io.position_at, 10); // a source forgets what is from POSITION on
    send_run_info(&node, 1000, 95);
    assert_int_equal(io.replies, 5);
    send_run_info(&node, 1000, 50); // what was dropped stays dropped
    assert_int_equal(io.replies, 5);
    assert_int_equal(io.first_reply_seq, 95);
    train(&node, 200);
    send_run_info(&node, 1000, 200);
    assert_int_equal(io.replies, 0);
    assert_int_equal(io.position_seq, 200);
}

// The source then refuses to forget steps that it knows to be trained.
TEST(position_tells_that_no_step_was_ever_trained) {
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = {0};
    start_at = -1;
    node = open_optim(&io);
    start_at = 0;
    send_run_info(&node, 10, 0);
    assert_int_equal(io.position_seq, -1);
    send_run_info(&node, 10, 6);
    assert_int_equal(io.position_seq, -1);
    assert_int_equal(io.replies, 0);
    train(&node, 2);
    send_run_info(&node, 10, 2);
    assert_int_equal(io.position_seq, 2);
}

TEST(a_quarantine_keeps_its_strings) {
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = open_optim(&io);
    send_run_info(&node, 1000, 0);
    train(&node, 4); // 0 to 2 are trained, 3 is quarantined
    for (int i = 0; i < 2; i++) {
        assert_int_equal(io.last.kind, MESSAGE_QUARANTINED);
        assert_int_equal(io.last.seq, 3);
        assert_string_equal(io.last_strings[0], "e0-000003");
        assert_string_equal(io.last_strings[1], "frames");
        assert_string_equal(io.last_strings[2], "the clip is cut off");
        memset(&io.last, 0, sizeof io.last);
        send_run_info(&node, 1000, 3);
    }
}

TEST(what_is_settled_ahead_follows_the_position) {
    struct io_thread io = {0};
    struct held_group *held[4] = {NULL};
    SCOPED(struct node, close_optim) node = open_optim(&io);
    send_run_info(&node, 1000, 0);
    io.incoming_end = 4;
    for (int i = 0; i < 4; i++) assert_int_equal(optim_role.receive(&node, -1, &held[i]), OK);
    assert_int_equal(optim_role.deliver(&node, held[3]), OK); // it is quarantined
    send_run_info(&node, 1000, 0);
    assert_int_equal(io.position_seq, 0);
    assert_int_equal(io.position_at, 0);
    assert_int_equal(io.replies, 1);
    assert_int_equal(io.first_reply_seq, 3);
}

TEST(the_last_group_waits_for_the_end) {
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = open_optim(&io);
    send_run_info(&node, 3, 0);
    train(&node, 3);
    assert_int_equal(io.broadcasts, 2);
    assert_int_equal(io.sent, 2);
    send_run_info(&node, 3, 0);
    assert_int_equal(io.replies, 2);
    assert_int_equal(io.position_seq, 2);
    assert_int_equal(optim_role.finish(&node), OK);
    assert_int_equal(io.broadcasts, 3);
    assert_int_equal(io.last.kind, MESSAGE_TRAINED);
    assert_int_equal(io.last.seq, 2);
    assert_int_equal(io.last.step, 3);
}

TEST(it_begins_at_the_checkpoint_and_takes_each_seq_once) {
    struct io_thread io = {0};
    SCOPED(struct node, close_optim) node = {0};
    start_at = 5;
    node = open_optim(&io);
    start_at = 0;
    send_run_info(&node, 1000, 8); // the source is ahead of the checkpoint
    assert_int_equal(io.position_seq, 5);
    train(&node, 10);
    assert_int_equal(io.dropped, 5);
    assert_int_equal(io.broadcasts, 5);
    io.incoming = 0;
    train(&node, 12);
    assert_int_equal(io.dropped, 15);
    assert_int_equal(io.broadcasts, 7);
}

// Every step trains one group, and groups 3 and 10 are quarantined: two more groups make ten steps.
TEST(max_steps_counts_what_is_trained) {
    struct io_thread io = {0};
    struct node node;
    struct message_status counters = {0};
    max_steps = 10;
    node = open_optim(&io);
    send_run_info(&node, 1000, 0);
    assert_int_equal(io.position_count, 10);
    train(&node, 5);
    send_run_info(&node, 1000, 2); // a source that is restarted
    assert_int_equal(io.position_seq, 5);
    assert_int_equal(io.position_count, 11);
    train(&node, 1000);
    assert_int_equal(io.incoming, 12);
    optim_role.hooks.report(&node, &counters);
    assert_int_equal(counters.total, 12);
    assert_int_equal(io.broadcasts, 11); // all but the last one, which waits for the stage
    assert_int_equal(optim_role.finish(&node), OK);
    assert_int_equal(io.last.seq, 11);
    close_optim(&node);

    // From a checkpoint of five steps.
    io = (struct io_thread){0};
    start_at = 5;
    node = open_optim(&io);
    send_run_info(&node, 1000, 5);
    assert_int_equal(io.position_count, 10);
    train(&node, 1000);
    assert_int_equal(io.incoming, 10);
    close_optim(&node);

    // More steps than the data have; and as many as were trained before.
    for (start_at = 0; start_at <= 10; start_at += 10) {
        io = (struct io_thread){.incoming_end = 1000};
        max_steps = start_at ? 10 : INT64_MAX;
        node = open_optim(&io);
        send_run_info(&node, 20, start_at);
        train(&node, 1000);
        assert_int_equal(io.incoming, start_at ? 0 : 20);
        close_optim(&node);
    }
    max_steps = start_at = 0;
}
