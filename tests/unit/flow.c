// What one replica tells the stages before and behind it about groups. This file stands in for the wire: it makes the
// events and records what is sent.
#include "tests/unit/unit.h"

#include "shared/stage/flow.h"

// ---- the wire: rollout-1 between frames-1, frames-2 and reward-1

enum { FRAMES_1, FRAMES_2, REWARD_1, PEERS };

// A peer, and the last message that was sent to it: `kind` is 0: nothing.
struct recorder {
    struct wire_peer peer;
    struct wire_message last;
    bool rejected;
};

static struct recorder peers[PEERS];
static int64_t now_ms;

int64_t wire_now_ms(const struct wire *wire) {
    (void)wire;
    return now_ms;
}

static struct wire_peer *first_peer_from(int index, bool clients) {
    while (index < PEERS && (peers[index].peer.client != clients || !peers[index].peer.open)) index++;
    return index < PEERS ? &peers[index].peer : NULL;
}

struct wire_peer *wire_first_peer(struct wire *wire, const char *purpose, bool clients) {
    (void)wire;
    return strcmp(purpose, "flow") ? NULL : first_peer_from(0, clients);
}

struct wire_peer *wire_next_peer(struct wire_peer *peer) {
    return first_peer_from((int)((struct recorder *)peer - peers) + 1, peer->client);
}

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    (void)wire;
    if (gone) *gone = false;
    ((struct recorder *)peer)->last = *message;
    return OK;
}

status wire_reject(struct wire *wire, struct wire_peer *peer, const char *reason) {
    (void)wire;
    ((struct recorder *)peer)->rejected = true;
    assert_string_equal(reason, "not a group");
    return OK;
}

// ---- helpers

static const char *readers[] = {"reward"};
static const struct node_config config = {.stage = "rollout", .from = "frames", .readers = readers, .reader_count = 1};

static void happen(struct flow *flow, int peer, enum wire_event_kind kind) {
    const struct wire_event event = {.kind = kind, .peer = &peers[peer].peer};
    assert_int_equal(flow_on_peer(flow, &event), OK);
}

static void send_to(struct flow *flow, int peer, struct wire_message message) {
    static status (*const handlers[MESSAGE_KINDS])(struct flow *, struct wire_peer *, const struct wire_message *) = {
        [MESSAGE_AVAILABLE] = flow_on_available, [MESSAGE_GROUP] = flow_on_answer,  [MESSAGE_CREDIT] = flow_on_credit,
        [MESSAGE_HAVE] = flow_on_have,           [MESSAGE_SYNCED] = flow_on_synced,
    };
    assert_int_equal(handlers[message.kind](flow, &peers[peer].peer, &message), OK);
}

// Makes a flow whose peers are all there, and which has capacity for many groups.
static struct flow *make_flow(void) {
    struct flow *flow;
    peers[FRAMES_1].peer = (struct wire_peer){.name = "frames", .replica = 1, .incarnation = 1};
    peers[FRAMES_2].peer = (struct wire_peer){.name = "frames", .replica = 2, .incarnation = 2};
    peers[REWARD_1].peer = (struct wire_peer){.name = "reward", .replica = 1, .client = true, .incarnation = 3};
    now_ms = 1000000;
    assert_int_equal(flow_new(&flow, &config, NULL, false), OK);
    flow->capacity = 8;
    for (int i = 0; i < PEERS; i++) {
        peers[i].peer.open = true;
        happen(flow, i, WIRE_JOINED);
    }
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_SYNCED});
    assert_int_equal(flow_send_pending(flow), OK);
    return flow;
}

static void forget_what_was_sent(void) {
    for (int i = 0; i < PEERS; i++) peers[i].last = (struct wire_message){0};
}

static void assert_sent(int peer, enum message_kind kind, int64_t seq) {
    assert_int_equal(peers[peer].last.kind, kind);
    assert_int_equal(peers[peer].last.seq, seq);
}

// A replica of frames gives a group with issue 1; forgets what was sent before its arrival.
static void give(struct flow *flow, int peer, int64_t seq, int64_t settled) {
    send_to(flow, peer, (struct wire_message){.kind = MESSAGE_AVAILABLE, .count = 1, .issue = 1});
    assert_int_equal(flow_send_pending(flow), OK);
    assert_int_equal(peers[peer].last.kind, MESSAGE_CREDIT);
    forget_what_was_sent();
    send_to(flow, peer,
            (struct wire_message){
                .kind = MESSAGE_GROUP, .seq = seq, .issue = 1, .settled = settled, .bulk = "group", .bulk_size = 5});
}

// The worker takes a group, which must be `seq`.
static struct held_group *take(struct flow *flow, int64_t seq) {
    struct held_group *held = flow_take(flow);
    assert_non_null(held);
    assert_int_equal(held->seq, seq);
    return held;
}

static void finish(struct flow *flow, struct held_group *held) {
    struct buf data = {0};
    buf_puts(&data, "group");
    flow_finish(flow, held, &data);
    forget_what_was_sent();
    assert_int_equal(flow_send_pending(flow), OK);
}

// ---- tests

// Rollout was restarted, and reward has a group of which it knows nothing. Frames gives it again; reward is not sent
// it.
TEST(what_a_reader_has_is_not_sent_to_it_again) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    forget_what_was_sent();
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_HAVE, .seq = 10, .issue = 1, .passed = 1});
    assert_int_equal(flow_send_pending(flow), OK);
    for (int i = 0; i < PEERS; i++) assert_int_equal(peers[i].last.kind, 0); // rollout cannot give it
    give(flow, FRAMES_2, 10, 0);
    finish(flow, take(flow, 10));
    assert_int_equal(peers[REWARD_1].last.kind, 0);
    assert_sent(FRAMES_2, MESSAGE_HAVE, 10);
    assert_int_equal(peers[FRAMES_2].last.passed, 1);
    give(flow, FRAMES_1, 10, 0); // a copy
    assert_null(flow_next(flow, NULL, HELD_QUEUED));
    assert_sent(FRAMES_1, MESSAGE_HAVE, 10);
}

// The same, but reward says so only when rollout has made the group again.
TEST(the_giver_hears_of_a_reader_that_has_the_group_already) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    give(flow, FRAMES_2, 10, 0);
    finish(flow, take(flow, 10));
    forget_what_was_sent();
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_HAVE, .seq = 10, .issue = 1});
    assert_sent(FRAMES_2, MESSAGE_HAVE, 10);
    assert_int_equal(peers[FRAMES_2].last.passed, 1);
}

// A group that was lost twice is given out alone: whoever has it gets no other, and must hear when that has changed.
TEST(a_refused_replica_hears_when_the_group_given_alone_is_settled) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    for (int64_t seq = 0; seq < 2; seq++) {
        give(flow, FRAMES_1, seq, 0);
        finish(flow, take(flow, seq));
    }
    for (int loss = 0; loss < 2; loss++) {
        send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_CREDIT});
        assert_sent(REWARD_1, MESSAGE_GROUP, 0);
        happen(flow, REWARD_1, WIRE_GONE);
        peers[REWARD_1].peer.incarnation++;
        happen(flow, REWARD_1, WIRE_JOINED);
    }
    for (int i = 0; i < 2; i++) send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_CREDIT});
    assert_int_equal(peers[REWARD_1].last.kind, MESSAGE_EMPTY);
    assert_int_equal(flow_send_pending(flow), OK);
    give(flow, FRAMES_1, 9, 1); // below 1 all is settled
    assert_int_equal(flow_send_pending(flow), OK);
    assert_sent(REWARD_1, MESSAGE_AVAILABLE, 0);
    assert_int_equal(peers[REWARD_1].last.count, 1);
}

// Frames does not know yet that it is settled. It must learn that the group goes no further: one that was lost twice is
// given out alone, and rollout would get no other.
TEST(the_giver_of_a_settled_group_is_told) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    for (int64_t seq = 0; seq < 4; seq++) give(flow, FRAMES_1, seq, 0);
    struct held_group *taken[3];
    for (int64_t seq = 0; seq < 3; seq++) taken[seq] = take(flow, seq);
    finish(flow, taken[0]);
    assert_sent(REWARD_1, MESSAGE_AVAILABLE, 0);
    assert_int_equal(peers[REWARD_1].last.count, 1);
    give(flow, FRAMES_2, 9, 4); // below 4 all is settled
    assert_int_equal(flow_send_pending(flow), OK);
    assert_sent(FRAMES_1, MESSAGE_HAVE, 0); // reward had not taken it
    assert_int_equal(peers[FRAMES_1].last.passed, 1);
    finish(flow, taken[1]);
    assert_sent(FRAMES_1, MESSAGE_HAVE, 1);
    assert_int_equal(peers[FRAMES_1].last.passed, 1);
    assert_int_equal(peers[REWARD_1].last.kind, 0); // it is not offered to reward
    forget_what_was_sent();
    flow_forget(flow, taken[2]); // the worker does not begin it
    assert_int_equal(flow_send_pending(flow), OK);
    assert_sent(FRAMES_1, MESSAGE_HAVE, 2);
    give(flow, FRAMES_1, 3, 0);
    assert_sent(FRAMES_1, MESSAGE_HAVE, 3);
    assert_int_equal(peers[FRAMES_1].last.passed, 1);
}

// A reader may still have a group that is settled, and wait for weights that will not come.
TEST(readers_hear_within_a_second_what_is_settled) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    give(flow, FRAMES_1, 3, 0);
    finish(flow, take(flow, 3));
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_CREDIT});
    send_to(flow, FRAMES_1, (struct wire_message){.kind = MESSAGE_AVAILABLE, .count = 0, .issue = 1, .settled = 4});
    forget_what_was_sent();
    now_ms += 999;
    assert_int_equal(flow_send_pending(flow), OK);
    assert_int_equal(peers[REWARD_1].last.kind, 0);
    now_ms += 1;
    assert_int_equal(flow_send_pending(flow), OK);
    assert_int_equal(peers[REWARD_1].last.kind, MESSAGE_AVAILABLE);
    assert_int_equal(peers[REWARD_1].last.count, 0);
    assert_int_equal(peers[REWARD_1].last.settled, 4);
}

// A replica that has not given a group is told of it while the one that has is away. It would count the group among
// those that this process has for ever, if only the other one heard what became of it.
TEST(whoever_was_told_of_a_group_hears_that_it_is_passed_on) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    give(flow, FRAMES_2, 1, 0);
    struct held_group *held = take(flow, 1);
    peers[FRAMES_2].peer.open = false;
    happen(flow, FRAMES_2, WIRE_GONE);
    assert_int_equal(flow_send_pending(flow), OK);
    peers[FRAMES_2].peer.open = true;
    happen(flow, FRAMES_2, WIRE_JOINED);
    finish(flow, held);
    forget_what_was_sent();
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_CREDIT});
    for (int i = FRAMES_1; i <= FRAMES_2; i++) {
        assert_sent(i, MESSAGE_HAVE, 1);
        assert_int_equal(peers[i].last.passed, 1);
    }
}

// Two replicas have sent nonsense before the I/O thread comes to it: both lose the connection, so that both give their
// groups again.
TEST(every_giver_of_nonsense_is_rejected) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    for (int i = 0; i < PEERS; i++) peers[i].rejected = false;
    give(flow, FRAMES_1, 1, 0);
    give(flow, FRAMES_2, 2, 0);
    flow_reject(flow, take(flow, 1), "not a group");
    flow_reject(flow, take(flow, 2), "not a group");
    assert_int_equal(flow_send_pending(flow), OK);
    assert_true(peers[FRAMES_1].rejected && peers[FRAMES_2].rejected && !peers[REWARD_1].rejected);
    peers[FRAMES_1].rejected = false;
    assert_int_equal(flow_send_pending(flow), OK);
    assert_false(peers[FRAMES_1].rejected);
}

// What STATUS says of the group that this stage waits for: the lowest that its reader has not passed on.
TEST(a_report_says_who_was_given_the_lowest_group) {
    SCOPED(struct flow *, flow_free) flow = make_flow();
    struct message_status report = {0};
    flow_report(flow, 0, &report);
    assert_int_equal(report.given_seq, -1);
    assert_string_equal(report.given_stage, "");
    for (int64_t seq = 0; seq < 2; seq++) {
        give(flow, FRAMES_1, seq, 0);
        finish(flow, take(flow, seq));
    }
    flow_report(flow, 0, &report);
    assert_int_equal(report.given_seq, 0);
    assert_string_equal(report.given_stage, "reward");
    assert_int_equal(report.given_replica, 0); // nobody has taken it
    for (int i = 0; i < 2; i++) send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_CREDIT});
    flow_report(flow, 0, &report);
    assert_int_equal(report.given_seq, 0);
    assert_int_equal(report.given_replica, 1);
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_HAVE, .seq = 0, .issue = 1, .passed = 1});
    flow_report(flow, 0, &report);
    assert_int_equal(report.given_seq, 1);
    assert_int_equal(report.given_replica, 1);
    send_to(flow, REWARD_1, (struct wire_message){.kind = MESSAGE_HAVE, .seq = 1, .issue = 1, .passed = 1});
    flow_report(flow, 0, &report);
    assert_int_equal(report.given_seq, -1);
}
