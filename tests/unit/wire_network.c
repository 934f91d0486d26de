// Conversations over a simulated network: connections that break, are cut off and deliver late, processes that die, are
// restarted or stopped at any moment, peers that break the protocol. A failed schedule prints its seed.
#include "tests/unit/unit.h"

#include "shared/wire/wire.h"
#include "tests/support/fake_network.h"

enum { SERVER, CLIENT, OTHER, PROCESSES };

// One of the processes: a server, and two clients that are connected to it.
struct node {
    struct transport *transport;
    struct wire *wire;
    int incarnation;         // how often it was started
    bool paused;             // it is not polled
    struct wire_event event; // the last one
};

struct world {
    struct fake_network *network;
    struct node nodes[PROCESSES];
};

static void start(struct world *world, int who, const char *run) {
    struct node *node = &world->nodes[who];
    const struct wire_self self = {
        .run = run, .name = who == SERVER ? "frames" : "rollout", .replica = who == OTHER ? 2 : 1, .machine = ""};
    node->transport = fake_network_add_process(world->network);
    node->incarnation++;
    node->paused = false;
    wire_open(&node->wire, &self, node->transport);
    if (who == SERVER)
        assert_int_equal(wire_bind(node->wire, "server"), OK);
    else
        assert_int_equal(wire_connect(node->wire, "server", NULL, "flow", NULL), OK);
}

static struct world open_world(uint64_t seed, int processes) {
    struct world world = {.network = fake_network_new(seed)};
    for (int i = 0; i < processes; i++) start(&world, i, "r");
    return world;
}

static void close_world(struct world *world) {
    for (int i = PROCESSES - 1; i >= 0; i--) wire_close(&world->nodes[i].wire);
    fake_network_free(&world->network);
}

static void end(struct world *world, int who, bool told) {
    if (told) fake_network_kill(world->nodes[who].transport);
    if (!told) fake_network_vanish(world->nodes[who].transport);
    wire_close(&world->nodes[who].wire);
}

static void pause_node(struct world *world, int who, bool paused) {
    world->nodes[who].paused = paused;
    fake_network_pause(world->nodes[who].transport, paused);
}

// Polls the processes in turn until one has an event, at node->event, or max_ms have passed. Returns the process, or
// -1.
static int next_event(struct world *world, int64_t max_ms) {
    const int64_t until = fake_network_now(world->network) + max_ms;
    for (;;) {
        for (int i = 0; i < PROCESSES; i++) {
            struct node *node = &world->nodes[i];
            if (!node->wire || node->paused) continue;
            assert_int_equal(wire_poll(node->wire, 0, &node->event), OK);
            if (node->event.kind != WIRE_TIMEOUT) return i;
        }
        const int64_t left = until - fake_network_now(world->network);
        if (left <= 0) return -1;
        fake_network_advance(world->network, left < 100 ? left : 100);
    }
}

// Returns how many milliseconds pass until a process has an event of that kind, -1 if it has none for a minute.
static int64_t until(struct world *world, int who, enum wire_event_kind kind) {
    enum { MINUTE = 60000 };
    const int64_t began = fake_network_now(world->network);
    for (int at = 0; at >= 0;) {
        at = next_event(world, began + MINUTE - fake_network_now(world->network));
        if (at == who && world->nodes[at].event.kind == kind) return fake_network_now(world->network) - began;
    }
    return -1;
}

static void assert_quiet(struct world *world, int64_t ms) {
    assert_int_equal(next_event(world, ms), -1);
}

static void settle(struct world *world) {
    while (next_event(world, 300) >= 0) continue;
}

// ---- single faults ----

TEST(a_restarted_server_is_found_at_once) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        SCOPED(struct world, close_world) world = open_world(seed, 2);
        assert_in_range(until(&world, CLIENT, WIRE_JOINED), 0, 200);
        const int64_t incarnation = world.nodes[CLIENT].event.peer->incarnation;
        end(&world, SERVER, true);
        assert_in_range(until(&world, CLIENT, WIRE_GONE), 0, 200);
        assert_quiet(&world, 20000);
        start(&world, SERVER, "r");
        assert_in_range(until(&world, CLIENT, WIRE_JOINED), 0, 200);
        assert_int_not_equal(world.nodes[CLIENT].event.peer->incarnation, incarnation);
    }
}

TEST(a_restarted_client_is_told_apart) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        SCOPED(struct world, close_world) world = open_world(seed, 2);
        assert_true(until(&world, SERVER, WIRE_JOINED) >= 0);
        const int64_t incarnation = world.nodes[SERVER].event.peer->incarnation;
        end(&world, CLIENT, seed % 2);
        start(&world, CLIENT, "r");
        assert_in_range(until(&world, SERVER, WIRE_GONE), 0, 200);
        assert_false(world.nodes[SERVER].event.orderly);
        assert_int_equal(world.nodes[SERVER].event.peer->incarnation, incarnation);
        assert_int_equal(next_event(&world, 0), SERVER);
        assert_int_equal(world.nodes[SERVER].event.kind, WIRE_JOINED);
        assert_int_not_equal(world.nodes[SERVER].event.peer->incarnation, incarnation);
    }
}

TEST(a_client_that_does_not_come_back_is_gone) {
    SCOPED(struct world, close_world) world = open_world(1, 2);
    settle(&world);
    end(&world, CLIENT, true);
    assert_in_range(until(&world, SERVER, WIRE_GONE), 0, 1200); // the next heartbeat does not reach it
    close_world(&world);
    world = open_world(1, 2);
    settle(&world);
    end(&world, CLIENT, false);
    assert_in_range(until(&world, SERVER, WIRE_GONE), 9000, 11000);
}

TEST(a_broken_connection_is_no_restart) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        SCOPED(struct world, close_world) world = open_world(seed, 2);
        settle(&world);
        fake_network_break(world.nodes[CLIENT].transport, world.nodes[SERVER].transport);
        assert_in_range(until(&world, SERVER, WIRE_JOINED), 0, 300);
        settle(&world);
        assert_true(wire_first_peer(world.nodes[CLIENT].wire, "flow", false) != NULL);
        struct wire_peer *client = wire_first_peer(world.nodes[SERVER].wire, "flow", true);
        assert_non_null(client);
        assert_null(wire_next_peer(client));
    }
}

TEST(a_cut_ends_at_once) {
    static const int64_t cuts[] = {500, 3000, 9000, 11000, 30000, 60000};
    for (uint64_t seed = 0; seed < 60; seed++) {
        SCOPED(struct world, close_world) world = open_world(seed, 2);
        settle(&world);
        const int64_t length = cuts[seed % (sizeof cuts / sizeof *cuts)];
        fake_network_cut(world.nodes[CLIENT].transport, world.nodes[SERVER].transport, true);
        while (next_event(&world, length) >= 0) continue;
        fake_network_cut(world.nodes[CLIENT].transport, world.nodes[SERVER].transport, false);
        if (length > 10000) assert_in_range(until(&world, CLIENT, WIRE_JOINED), 0, 1200);
        settle(&world);
        // The connections that were stuck deliver what they have, and end nothing.
        while (next_event(&world, 60000) >= 0) assert_true(length > 1000 && length < 10000);
        assert_non_null(wire_first_peer(world.nodes[CLIENT].wire, "flow", false));
        assert_non_null(wire_first_peer(world.nodes[SERVER].wire, "flow", true));
    }
}

// A HELLO that arrives after that of a newer connection, of the same process or of the one started in its place.
TEST(a_late_opening_ends_nothing) {
    for (int at = 0; at < 200; at += 2)
        for (int restarted = 0; restarted < 2; restarted++) {
            SCOPED(struct world, close_world) world = open_world((uint64_t)at, 2);
            settle(&world);
            fake_network_break(world.nodes[CLIENT].transport, world.nodes[SERVER].transport);
            const int64_t began = fake_network_now(world.network);
            while (fake_network_now(world.network) < began + at) next_event(&world, 1);
            fake_network_cut(world.nodes[CLIENT].transport, world.nodes[SERVER].transport, true);
            if (restarted) fake_network_kill(world.nodes[CLIENT].transport);
            struct wire *dead = restarted ? world.nodes[CLIENT].wire : NULL;
            struct transport *first = world.nodes[CLIENT].transport;
            if (restarted) start(&world, CLIENT, "r");
            if (restarted) fake_network_cut(world.nodes[CLIENT].transport, world.nodes[SERVER].transport, true);
            while (next_event(&world, 15000) >= 0) continue;
            fake_network_cut(world.nodes[CLIENT].transport, world.nodes[SERVER].transport, false);
            fake_network_cut(first, world.nodes[SERVER].transport, false);
            assert_true(until(&world, CLIENT, WIRE_JOINED) >= 0);
            assert_int_equal(next_event(&world, 300), SERVER);
            assert_int_equal(world.nodes[SERVER].event.kind, WIRE_JOINED);
            assert_quiet(&world, 30000);
            wire_close(&dead);
        }
}

// A process that was stopped for nearly as long as makes it dead finds nobody dead itself.
TEST(a_short_pause_changes_nothing) {
    for (int who = SERVER; who <= CLIENT; who++)
        for (int phase = 0; phase < 1000; phase += 50) {
            SCOPED(struct world, close_world) world = open_world((uint64_t)who, 2);
            settle(&world);
            while (next_event(&world, phase) >= 0) continue;
            pause_node(&world, who, true);
            const bool lost = next_event(&world, 9700) >= 0;
            pause_node(&world, who, false);
            if (!lost) assert_quiet(&world, 20000);
        }
}

// Its peers' heartbeats are queued: a stopped process finds nobody dead. But it was dead for them.
TEST(a_long_pause_is_over_at_once) {
    for (int who = SERVER; who <= CLIENT; who++) {
        SCOPED(struct world, close_world) world = open_world((uint64_t)who, 2);
        settle(&world);
        pause_node(&world, who, true);
        assert_in_range(until(&world, who == SERVER ? CLIENT : SERVER, WIRE_GONE), 8000, 11000);
        assert_quiet(&world, 30000);
        pause_node(&world, who, false);
        assert_in_range(until(&world, CLIENT, WIRE_JOINED), 0, 300);
        settle(&world);
        assert_quiet(&world, 20000);
    }
}

TEST(only_the_first_refusal_is_an_event) {
    SCOPED(struct world, close_world) world = open_world(1, 1);
    start(&world, CLIENT, "another");
    assert_true(until(&world, CLIENT, WIRE_REFUSED) >= 0);
    assert_non_null(strstr(world.nodes[CLIENT].event.message.reason, "belongs to another run"));
    assert_in_range(until(&world, CLIENT, WIRE_REFUSED), 2900, 3300); // it is asked again
    end(&world, CLIENT, true);
    start(&world, CLIENT, "r");
    assert_true(until(&world, CLIENT, WIRE_JOINED) >= 0);
    end(&world, SERVER, true);
    assert_true(until(&world, CLIENT, WIRE_GONE) >= 0);
    start(&world, SERVER, "another");
    assert_quiet(&world, 30000);
    end(&world, SERVER, true);
    assert_quiet(&world, 1000);
    start(&world, SERVER, "r");
    assert_in_range(until(&world, CLIENT, WIRE_JOINED), 0, 3300);
}

// Dies or starts at each millisecond of an opening.
TEST(peers_die_at_every_point_of_the_opening) {
    for (int at = 0; at < 120; at++)
        for (int who = SERVER; who <= CLIENT; who++) {
            SCOPED(struct world, close_world) world = open_world((uint64_t)at, 2);
            while (fake_network_now(world.network) < 100000 + at) next_event(&world, 1);
            end(&world, who, at % 3);
            start(&world, who, "r");
            settle(&world);
            if (at % 3 == 0) // the other one was not told
                while (next_event(&world, 15000) >= 0) continue;
            struct wire_peer *client = wire_first_peer(world.nodes[SERVER].wire, "flow", true);
            assert_non_null(client);
            assert_null(wire_next_peer(client));
            assert_non_null(wire_first_peer(world.nodes[CLIENT].wire, "flow", false));
        }
}

// ---- peers that break the protocol ----

TEST(a_rejected_peer_alone_is_gone) {
    for (int who = SERVER; who <= CLIENT; who++) {
        SCOPED(struct world, close_world) world = open_world(3, PROCESSES);
        settle(&world);
        struct wire_peer *peer = wire_first_peer(world.nodes[who].wire, "flow", who == SERVER);
        while (peer && who == SERVER && peer->replica != 1) peer = wire_next_peer(peer);
        assert_non_null(peer);
        assert_int_equal(wire_reject(world.nodes[who].wire, peer, "no such group"), OK);
        assert_false(peer->open);
        bool gone[PROCESSES] = {false};
        const int64_t began = fake_network_now(world.network);
        for (int i; (i = next_event(&world, 2000)) >= 0;) {
            assert_int_equal(world.nodes[i].event.kind, WIRE_GONE);
            gone[i] = true;
        }
        assert_true(gone[SERVER] && gone[CLIENT] && !gone[OTHER]);
        assert_true(until(&world, CLIENT, WIRE_JOINED) >= 0);
        assert_in_range(fake_network_now(world.network) - began, 2900, 3500);
    }
}

static void send_raw(struct transport *transport, struct transport_link *link, const char *head, size_t head_size,
                     int count) {
    const struct transport_frames frames = {
        .count = count, .head = head, .head_size = head_size, .bulk = "b", .bulk_size = 1};
    bool gone;
    assert_int_equal(transport->calls->send(transport, link, NULL, &frames, &gone), OK);
    assert_false(gone);
}

static void send_message(struct transport *transport, struct transport_link *link, const struct wire_message *message) {
    SCOPED(struct buf, buf_release) head = {0};
    assert_int_equal(message_encode(message, &head), OK);
    send_raw(transport, link, head.data, head.size, 1);
}

// Lets time pass until a process without a wire gets a message. Returns its kind.
static enum message_kind receive_raw(struct world *world, struct transport *transport, struct wire_message *message,
                                     struct arena *arena) {
    for (int i = 0; i < 1000; i++) {
        struct transport_event event;
        assert_int_equal(transport->calls->receive(transport, 0, &event), OK);
        if (event.kind == TRANSPORT_MESSAGE) {
            assert_int_equal(message_decode(message, arena, event.frames.head, event.frames.head_size), OK);
            return message->kind;
        }
        if (next_event(world, 10) < 0) continue;
        assert_true(world->nodes[SERVER].event.kind == WIRE_JOINED || world->nodes[SERVER].event.kind == WIRE_GONE);
        assert_string_equal(world->nodes[SERVER].event.peer->name, "evil");
    }
    return 0;
}

TEST(a_malformed_message_costs_its_sender_the_conversation) {
    static const struct {
        const char *bytes;
        size_t size;
        int count;
        const char *reason;
    } mistakes[] = {
        {"x", 1, 1, "the message is not an array"},
        {"\x91\x7f", 2, 1, "the message is of an unknown kind"},
        {"\x94\x07\x01\x01\x00", 5, 1, "AVAILABLE does not come from a client"},
        {"\x94\x09\x01\x01\x00", 5, 1, "GROUP: no bulk"},
        {"\x91\x08", 2, 2, "CREDIT: one frame too many"},
        {"\x92\x08\x01", 3, 1, "CREDIT: 1 fields instead of 0"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        SCOPED(struct world, close_world) world = {0};
        SCOPED(struct arena, arena_release) arena = {0};
        struct wire_message message;
        struct transport_link *link;
        world = open_world(i, 2);
        settle(&world);
        struct transport *raw = fake_network_add_process(world.network);
        assert_int_equal(raw->calls->connect(raw, "server", NULL, raw, &link), OK);
        assert_int_equal(receive_raw(&world, raw, &message, &arena), MESSAGE_UNKNOWN_PEER);
        const struct wire_message hello = {.kind = MESSAGE_HELLO,
                                           .protocol = WIRE_PROTOCOL,
                                           .schema = WIRE_SCHEMA,
                                           .run = "r",
                                           .name = "evil",
                                           .replica = 1,
                                           .machine = "",
                                           .purpose = "flow",
                                           .incarnation = 5};
        send_message(raw, link, &hello);
        assert_int_equal(receive_raw(&world, raw, &message, &arena), MESSAGE_WELCOME);
        send_message(raw, link, &hello); // a second one is answered, too
        assert_int_equal(receive_raw(&world, raw, &message, &arena), MESSAGE_WELCOME);
        const struct wire_message answer = {.kind = MESSAGE_HEARTBEAT};
        send_message(raw, link, &answer);
        send_raw(raw, link, mistakes[i].bytes, mistakes[i].size, mistakes[i].count);
        assert_int_equal(receive_raw(&world, raw, &message, &arena), MESSAGE_REFUSED);
        assert_string_equal(message.reason, mistakes[i].reason);
        struct wire_peer *client = wire_first_peer(world.nodes[SERVER].wire, "flow", true);
        assert_string_equal(client->name, "rollout");
        assert_null(wire_next_peer(client));
        assert_non_null(wire_first_peer(world.nodes[CLIENT].wire, "flow", false));
        raw->calls->free(raw);
    }
}

// ---- schedules ----

// What one side knows of its conversation with the other, and the numbers of the next messages. In a conversation the
// messages arrive in order and without a gap, from its beginning on.
struct side {
    struct wire_peer *peer; // NULL: no conversation
    int64_t sent, received;
};

struct schedule {
    struct world world;
    struct side at_server[PROCESSES], at_client[PROCESSES];
    int lives_seen[PROCESSES]; // by the server, as of node.incarnation
};

static void schedule_start(struct schedule *schedule, int who) {
    for (int i = CLIENT; i < PROCESSES; i++) {
        if (who == SERVER) schedule->at_server[i] = (struct side){0};
        if (who == i) schedule->at_client[i] = (struct side){0};
    }
    start(&schedule->world, who, "r");
}

static void schedule_on_event(struct schedule *schedule, int who) {
    const struct wire_event *event = &schedule->world.nodes[who].event;
    const int client = who == SERVER ? event->peer->replica == 1 ? CLIENT : OTHER : who;
    struct side *side = who == SERVER ? &schedule->at_server[client] : &schedule->at_client[client];
    switch (event->kind) {
    case WIRE_JOINED:
        assert_null(side->peer);
        *side = (struct side){.peer = event->peer};
        break;
    case WIRE_GONE:
        assert_ptr_equal(side->peer, event->peer);
        side->peer = NULL;
        break;
    case WIRE_MESSAGE:
        assert_ptr_equal(side->peer, event->peer);
        assert_int_equal(event->message.kind, who == SERVER ? MESSAGE_POSITION : MESSAGE_AVAILABLE);
        assert_int_equal(who == SERVER ? event->message.seq : event->message.count, side->received);
        side->received++;
        break;
    default:
        assert_int_equal(event->kind, WIRE_TIMEOUT);
    }
}

// Sends one message in some conversation.
static void schedule_send(struct schedule *schedule) {
    const int client = fake_network_random(schedule->world.network, 2) ? CLIENT : OTHER;
    const int from = fake_network_random(schedule->world.network, 2) ? SERVER : client;
    struct side *side = from == SERVER ? &schedule->at_server[client] : &schedule->at_client[client];
    const struct wire_message message = {
        .kind = from == SERVER ? MESSAGE_AVAILABLE : MESSAGE_POSITION, .seq = side->sent, .count = side->sent};
    bool gone;
    if (!side->peer || schedule->world.nodes[from].paused) return;
    assert_int_equal(wire_send(schedule->world.nodes[from].wire, side->peer, &message, &gone), OK);
    side->sent += !gone;
}

// Lets time pass; messages are sent all the while.
static void schedule_run(struct schedule *schedule, int64_t ms) {
    const int64_t until_ms = fake_network_now(schedule->world.network) + ms;
    for (int64_t left = ms; left > 0; left = until_ms - fake_network_now(schedule->world.network)) {
        const int who = next_event(&schedule->world, left < 400 ? left : 400);
        if (who >= 0) schedule_on_event(schedule, who);
        if (who < 0) schedule_send(schedule);
    }
}

static void schedule_fault(struct schedule *schedule) {
    struct world *world = &schedule->world;
    struct fake_network *network = world->network;
    const int who = (int)fake_network_random(network, PROCESSES);
    struct transport *server = world->nodes[SERVER].transport;
    struct transport *client = world->nodes[fake_network_random(network, 2) ? CLIENT : OTHER].transport;
    switch (fake_network_random(network, 6)) {
    case 0:
    case 1:
        end(world, who, fake_network_random(network, 2));
        schedule_start(schedule, who);
        break;
    case 2:
        pause_node(world, who, !world->nodes[who].paused);
        break;
    case 3:
        fake_network_break(server, client);
        break;
    default:
        fake_network_cut(server, client, fake_network_random(network, 2));
    }
}

static uint64_t schedule_seed;

static void schedule_check(uint64_t seed) {
    struct schedule schedule = {0};
    struct world *world = &schedule.world;
    schedule_seed = seed;
    world->network = fake_network_new(seed);
    for (int i = 0; i < PROCESSES; i++) schedule_start(&schedule, i);
    for (int i = 0; i < 12; i++) {
        const uint64_t bound = fake_network_random(world->network, 3) ? 500 : 15000;
        schedule_run(&schedule, (int64_t)fake_network_random(world->network, bound));
        schedule_fault(&schedule);
    }
    for (int i = 0; i < PROCESSES; i++) {
        pause_node(world, i, false);
        if (i != SERVER) fake_network_cut(world->nodes[SERVER].transport, world->nodes[i].transport, false);
    }
    schedule_run(&schedule, 16000);
    for (int i = CLIENT; i < PROCESSES; i++) {
        assert_non_null(schedule.at_server[i].peer);
        assert_non_null(schedule.at_client[i].peer);
    }
    // All is well again: what is sent now arrives.
    int64_t sent = 0;
    for (int i = CLIENT; i < PROCESSES; i++) sent += schedule.at_client[i].sent;
    schedule_run(&schedule, 2000);
    for (int i = CLIENT; i < PROCESSES; i++) {
        sent -= schedule.at_server[i].received;
        assert_true(schedule.at_server[i].peer->open);
        assert_true(schedule.at_client[i].peer->open);
    }
    assert_true(sent <= 0);
    close_world(world);
    schedule_seed = 0;
}

static int print_seed(void **state) {
    (void)state;
    if (schedule_seed) print_error("the schedule of SEED=%llu failed\n", (unsigned long long)schedule_seed);
    return 0;
}

TEST_BETWEEN(conversations_survive_every_schedule, NULL, print_seed) {
    const char *given = getenv("SEED");
    const uint64_t first = given ? strtoull(given, NULL, 10) : 1, count = given ? 1 : 1000;
    for (uint64_t seed = first; seed < first + count; seed++) schedule_check(seed);
}
