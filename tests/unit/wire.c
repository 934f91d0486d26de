// Messages and conversations: what is encoded is decoded again, malformed messages are named, peers join, talk, die and
// come back, and machines without an admitted key are refused.
#include "tests/unit/unit.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/group/group.h"
#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

static struct wire_message full_message(int kind) {
    return (struct wire_message){
        .kind = (enum message_kind)kind,
        .protocol = 1,
        .schema = 2,
        .run = "run",
        .name = "rollout",
        .replica = 3,
        .machine = "",
        .purpose = "flow",
        .reason = "because",
        .id = "e0-000017",
        .count = 5,
        .per_step = 6,
        .step = -1,
        .seq = INT64_MAX,
        .reference = 1,
        .policy = 7,
        .version = 8,
        .hash = INT64_MIN,
        .path = "/a/b",
        .offset = 9,
        .size = 10,
        .total = 13,
        .code = 65,
        .counters = {.taken = 11, .busy = 0.5, .given_stage = "rollout", .state = "works", .pid = 12}};
}

TEST(every_kind_survives_encoding) {
    for (int kind = 1; kind < MESSAGE_KINDS; kind++) {
        struct wire_message in = full_message(kind), out;
        SCOPED(struct buf, buf_release) first = {0}, second = {0};
        SCOPED(struct arena, arena_release) arena = {0};
        assert_int_equal(message_encode(&in, &first), OK);
        assert_int_equal(message_decode(&out, &arena, first.data, first.size), OK);
        assert_int_equal(out.kind, kind);
        assert_int_equal(message_encode(&out, &second), OK);
        assert_int_equal(first.size, second.size);
        assert_memory_equal(first.data, second.data, first.size);
        for (size_t size = 0; size < first.size; size++)
            assert_int_equal(message_decode(&out, &arena, first.data, size), DATAERR);
        buf_append(&first, "", 1);
        assert_int_equal(message_decode(&out, &arena, first.data, first.size), DATAERR);
    }
}

TEST(malformed_messages_are_named) {
    struct wire_message out;
    SCOPED(struct arena, arena_release) arena = {0};
    assert_int_equal(message_decode(&out, &arena, "\x91\x7f", 2), DATAERR);
    assert_string_equal(fail_text(), "the message is of an unknown kind");
    assert_int_equal(message_decode(&out, &arena, "\x94\x07\xa1x\x01\x01", 6), DATAERR);
    assert_string_equal(fail_text(), "AVAILABLE: count is not an integer");
    assert_int_equal(message_decode(&out, &arena, "\x93\x07\x01\x02", 4), DATAERR);
    assert_string_equal(fail_text(), "AVAILABLE: 2 fields instead of 3");
    assert_int_equal(message_decode(&out, &arena,
                                    "\x92\x03\xa3"
                                    "a\0b",
                                    6),
                     DATAERR);
    assert_string_equal(fail_text(), "REFUSED: reason has a NUL");
    struct wire_message unset = {.kind = MESSAGE_REFUSED};
    SCOPED(struct buf, buf_release) bytes = {0};
    assert_int_equal(message_encode(&unset, &bytes), BUG);
}

struct pair {
    struct wire *server, *client;
    struct wire_peer *peer;
    char endpoint[128];
};

// Opens a wire over ZeroMQ.
static struct wire *open_wire(const char *name, const char *machine, const char *run,
                              const struct wire_security *security) {
    const struct wire_self self = {.run = run, .name = name, .replica = 1, .machine = machine};
    struct transport *transport;
    struct wire *wire;
    assert_int_equal(zmq_transport_open(&transport, security), OK);
    wire_open(&wire, &self, transport);
    return wire;
}

static void open_server(struct pair *pair, const char *run, const struct wire_security *security) {
    pair->server = open_wire("frames", "", run, security);
    assert_int_equal(wire_bind(pair->server, pair->endpoint), OK);
}

static void open_client(struct pair *pair, const char *run, const struct wire_security *security, const char *key) {
    pair->client = open_wire("rollout", "", run, security);
    assert_int_equal(wire_connect(pair->client, pair->endpoint, key, "flow", &pair->peer), OK);
}

// A pair that will meet at a Unix socket.
static struct pair make_pair(void) {
    static int number;
    struct pair pair = {0};
    snprintf(pair.endpoint, sizeof pair.endpoint, "ipc:///tmp/caravan-unit-%d-%d", (int)getpid(), number++);
    return pair;
}

// Polls both sides until `who` has an event of that kind. Returns false after about a minute.
static bool until(struct pair *pair, struct wire *who, enum wire_event_kind kind, struct wire_event *event) {
    for (int i = 0; i < 6000; i++) {
        struct wire *both[2] = {pair->server, pair->client};
        for (int k = 0; k < 2; k++) {
            struct wire_event got;
            if (!both[k]) continue;
            assert_int_equal(wire_poll(both[k], 5, &got), OK);
            if (both[k] == who && got.kind == kind) {
                *event = got;
                return true;
            }
        }
    }
    return false;
}

static void close_pair(struct pair *pair) {
    wire_close(&pair->client);
    wire_close(&pair->server);
    if (!strncmp(pair->endpoint, "ipc://", 6)) unlink(pair->endpoint + 6);
}

TEST(peers_talk_both_ways) {
    SCOPED(struct pair, close_pair) pair = make_pair();
    struct wire_event event;
    open_client(&pair, "r", NULL, NULL); // before there is a server
    open_server(&pair, "r", NULL);
    assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
    assert_string_equal(pair.peer->name, "frames");
    struct wire_message credit = {.kind = MESSAGE_CREDIT},
                        group = {.kind = MESSAGE_GROUP, .bulk = "\0\1\2", .bulk_size = 3};
    bool gone = true;
    assert_int_equal(wire_send(pair.client, pair.peer, &credit, &gone), OK);
    assert_false(gone);
    assert_true(until(&pair, pair.server, WIRE_MESSAGE, &event));
    assert_int_equal(event.message.kind, MESSAGE_CREDIT);
    assert_string_equal(event.peer->name, "rollout");
    assert_string_equal(event.peer->purpose, "flow");
    assert_int_equal(wire_send(pair.server, event.peer, &group, &gone), OK);
    assert_true(until(&pair, pair.client, WIRE_MESSAGE, &event));
    assert_int_equal(event.message.kind, MESSAGE_GROUP);
    assert_int_equal(event.message.bulk_size, 3);
    assert_memory_equal(event.message.bulk, "\0\1\2", 3);
    wire_close(&pair.client);
    assert_true(until(&pair, pair.server, WIRE_GONE, &event));
    // A socket that is closed while libzmq's thread does not run may lose its last message.
    for (int tries = 0; tries < 10 && !event.orderly; tries++) {
        open_client(&pair, "r", NULL, NULL);
        assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
        assert_true(until(&pair, pair.server, WIRE_JOINED, &event));
        wire_close(&pair.client);
        assert_true(until(&pair, pair.server, WIRE_GONE, &event));
    }
    assert_true(event.orderly);
}

TEST(what_a_client_sent_before_it_left_is_heard_later) {
    SCOPED(struct pair, close_pair) pair = make_pair();
    const struct wire_message credit = {.kind = MESSAGE_CREDIT};
    struct wire_event event;
    int heard = 0;
    open_server(&pair, "r", NULL);
    for (int tries = 0; tries < 10 && heard < 3; tries++) { // the last messages may be lost: see above
        open_client(&pair, "r", NULL, NULL);
        assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
        assert_true(until(&pair, pair.server, WIRE_JOINED, &event));
        for (int i = 0; i < 3; i++) assert_int_equal(wire_send(pair.client, pair.peer, &credit, NULL), OK);
        wire_close(&pair.client);
        usleep(1500000); // a heartbeat of the server is due
        heard = 0;
        do {
            assert_int_equal(wire_poll(pair.server, 5, &event), OK);
            heard += event.kind == WIRE_MESSAGE;
        } while (event.kind != WIRE_GONE);
    }
    assert_int_equal(heard, 3);
}

// A TCP address that no other process uses, also while the server is away.
static void name_tcp_endpoint(struct pair *pair) {
    snprintf(pair->endpoint, sizeof pair->endpoint, "tcp://127.%d.%d.250:20000", 1 + getpid() / 250 % 250,
             1 + getpid() % 250);
}

// Over a Unix socket, and over TCP with CURVE.
TEST(a_server_that_comes_back_is_joined_again) {
    SCOPED(struct wire_security, wire_security_release) keys = {0};
    assert_int_equal(wire_key_make(&keys), OK);
    wire_admit(&keys, keys.public);
    for (int tcp = 0; tcp < 2; tcp++) {
        const struct wire_security *security = tcp ? &keys : NULL;
        SCOPED(struct pair, close_pair) pair = make_pair();
        struct wire_event event;
        if (tcp) name_tcp_endpoint(&pair);
        open_server(&pair, "r", security);
        open_client(&pair, "r", security, keys.public);
        assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
        // A socket that is closed with unread input resets its connection, and its last messages may be lost.
        bool orderly = false;
        for (int tries = 0; tries < 10 && !orderly; tries++) {
            const int64_t incarnation = pair.peer->incarnation;
            assert_true(until(&pair, pair.server, WIRE_JOINED, &event));
            wire_close(&pair.server);
            assert_true(until(&pair, pair.client, WIRE_GONE, &event));
            orderly = event.orderly;
            open_server(&pair, "r", security);
            assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
            assert_int_not_equal(pair.peer->incarnation, incarnation);
        }
        assert_true(orderly);
    }
}

TEST(other_settings_and_other_runs_are_refused_by_name) {
    static const struct {
        const char *server, *client, *reason;
    } cases[] = {
        {"form source=1 rollout=2", "form source=1 rollout=22",
         "rollout's settings differ between rollout-1 and frames-1"},
        {"form source=1 rollout=2 optim=3", "form source=1 rollout=2", ""},
        {"form source=1 rollout=2", "other source=1 rollout=2", "belongs to another run"},
        {"one", "other", "belongs to another run"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct pair, close_pair) pair = make_pair();
        struct wire_event event;
        open_server(&pair, cases[i].server, NULL);
        open_client(&pair, cases[i].client, NULL, NULL);
        assert_true(until(&pair, pair.client, WIRE_REFUSED, &event));
        assert_non_null(strstr(event.message.reason, cases[i].reason));
    }
}

// The reason that the server sends is cut to fit a message.
TEST(a_long_name_is_refused) {
    static char name[4000]; // one that fits HELLO, with its NUL
    SCOPED(struct pair, close_pair) pair = make_pair();
    struct wire_event event;
    memset(name, 'x', sizeof name - 1);
    open_server(&pair, "form source=1", NULL);
    const char *runs[] = {"other", "form source=2"};
    for (int i = 0; i < 2; i++) {
        pair.client = open_wire(name, name, runs[i], NULL);
        assert_int_equal(wire_connect(pair.client, pair.endpoint, NULL, "flow", &pair.peer), OK);
        assert_true(until(&pair, pair.client, WIRE_REFUSED, &event));
        assert_true(strlen(event.message.reason) < 1024);
        wire_close(&pair.client);
    }
}

TEST(a_descriptor_wakes) {
    struct wire *wire = open_wire("x", "", "r", NULL);
    struct wire_event event;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    wire_add_fd(wire, ends[0]);
    assert_int_equal(wire_poll(wire, 0, &event), OK);
    assert_int_equal(event.kind, WIRE_TIMEOUT);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(wire_poll(wire, 1000, &event), OK);
    assert_int_equal(event.kind, WIRE_READABLE);
    assert_int_equal(event.fd, ends[0]);
    wire_close(&wire);
    close(ends[0]);
    close(ends[1]);
}

TEST(only_admitted_machines_come_in) {
    SCOPED(struct wire_security, wire_security_release) inside = {0}, outside = {0};
    struct wire_event event;
    assert_int_equal(wire_key_make(&inside), OK);
    assert_int_equal(wire_key_make(&outside), OK);
    wire_admit(&inside, inside.public);
    SCOPED(struct pair, close_pair) pair = make_pair();
    open_server(&pair, "r", &inside);
    open_client(&pair, "r", &inside, inside.public);
    assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
    wire_close(&pair.client);
    open_client(&pair, "r", &outside, inside.public);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(wire_poll(pair.client, 10, &event), OK);
        assert_int_not_equal(event.kind, WIRE_JOINED);
    }
}

// ---- names and keys ----

static struct node_endpoint endpoints_of_two[] = {
    {"caravan", 1, "one", "", "key1"},
    {"caravan", 2, "two", "", "key2"},
    {"rollout", 1, "two", "", "key2"},
    {"optim", 1, "one", "", "key1"},
};

TEST(only_the_run_s_processes_are_admitted) {
    static const struct {
        const char *name;
        int replica;
        const char *machine, *purpose, *key, *mistake;
    } cases[] = {
        {"rollout", 1, "two", "flow", "key2", NULL},
        {"rollout", 1, "two", "flow", NULL, NULL}, // on a machine without keys
        {"optim", 1, "one", "ledger", "key1", NULL},
        {"caravan", 2, "two", "ledger", "key2", "only the last stage settles groups"},
        {"caravan", 2, "two", "report", "key2", NULL},
        {"top", 4711, "two", "watch", "key2", NULL},
        {"rollout", 1, "two", "flow", "key1", "its key is another machine's"},
        {"optim", 1, "one", "ledger", "key2", "its key is another machine's"},
        {"top", 4711, "two", "watch", "key1", "its key is another machine's"},
        {"rollout", 1, "one", "flow", "key1", "the run has no such process there"},
        {"rollout", 2, "two", "flow", "key2", "the run has no such process there"},
        {"frames", 1, "one", "flow", "key1", "the run has no such process there"},
        {"top", 1, "two", "report", "key2", "the run has no such process there"},
        {"rollout", 1, "two", "ledger", "key2", "only the last stage settles groups"},
    };
    const struct node_config config = {.last_stage = "optim", .endpoints = endpoints_of_two, .endpoint_count = 4};
    const struct wire_self self = {.run = "r", .name = "source", .replica = 1, .machine = "one", .config = &config};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct wire_message hello = {.kind = MESSAGE_HELLO,
                                           .protocol = WIRE_PROTOCOL,
                                           .schema = WIRE_SCHEMA,
                                           .run = "r",
                                           .name = cases[i].name,
                                           .replica = cases[i].replica,
                                           .machine = cases[i].machine,
                                           .purpose = cases[i].purpose};
        assert_int_equal(wire_admits(&self, &hello, cases[i].key), cases[i].mistake ? DATAERR : OK);
        if (cases[i].mistake) assert_non_null(strstr(fail_text(), cases[i].mistake));
    }
}

// A machine of the run with the name of another one.
TEST(a_name_is_bound_to_its_key) {
    SCOPED(struct wire_security, wire_security_release) one = {0}, two = {0};
    struct wire_event event;
    SCOPED(struct pair, close_pair) pair = make_pair();
    assert_int_equal(wire_key_make(&one), OK);
    assert_int_equal(wire_key_make(&two), OK);
    wire_admit(&one, one.public);
    wire_admit(&one, two.public);
    struct node_endpoint endpoints[] = {{"frames", 1, "one", "", one.public}, {"rollout", 1, "two", "", two.public}};
    const struct node_config config = {.last_stage = "optim", .endpoints = endpoints, .endpoint_count = 2};
    const struct wire_self self = {.run = "r", .name = "frames", .replica = 1, .machine = "one", .config = &config};
    struct transport *transport;
    assert_int_equal(zmq_transport_open(&transport, &one), OK);
    wire_open(&pair.server, &self, transport);
    assert_int_equal(wire_bind(pair.server, pair.endpoint), OK);
    pair.client = open_wire("rollout", "two", "r", &one);
    assert_int_equal(wire_connect(pair.client, pair.endpoint, one.public, "flow", &pair.peer), OK);
    assert_true(until(&pair, pair.client, WIRE_REFUSED, &event));
    assert_string_equal(event.message.reason, "rollout-1 on two: its key is another machine's");
    wire_close(&pair.client);
    pair.client = open_wire("rollout", "two", "r", &two);
    assert_int_equal(wire_connect(pair.client, pair.endpoint, one.public, "flow", &pair.peer), OK);
    assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
}

static void on_signal(int number) {
    (void)number;
}

// Every thread of this process gets a signal that interrupts the system call in which it waits.
static void interrupt_all_threads(void) {
    struct sigaction interrupt = {.sa_handler = on_signal};
    DIR *threads = opendir("/proc/self/task");
    assert_non_null(threads);
    assert_int_equal(sigaction(SIGUSR1, &interrupt, NULL), 0);
    for (struct dirent *entry; (entry = readdir(threads));)
        if (atoi(entry->d_name) > 0) syscall(SYS_tgkill, getpid(), atoi(entry->d_name), SIGUSR1);
    closedir(threads);
}

TEST(a_signal_does_not_end_authentication) {
    SCOPED(struct wire_security, wire_security_release) inside = {0};
    struct wire_event event;
    SCOPED(struct pair, close_pair) pair = make_pair();
    assert_int_equal(wire_key_make(&inside), OK);
    wire_admit(&inside, inside.public);
    open_server(&pair, "r", &inside);
    for (int i = 0; i < 5; i++) {
        usleep(20000);
        interrupt_all_threads();
    }
    open_client(&pair, "r", &inside, inside.public);
    assert_true(until(&pair, pair.client, WIRE_JOINED, &event));
}

static int thread_count(void) {
    DIR *threads = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(threads);
    for (struct dirent *entry; (entry = readdir(threads));) count += atoi(entry->d_name) > 0;
    closedir(threads);
    return count;
}

// A second SIGTERM may come while a stage closes its sockets.
TEST(closing_survives_signals) {
    const struct sigaction interrupt = {.sa_handler = on_signal};
    const struct itimerval often = {{0, 20}, {0, 20}}, never = {{0, 0}, {0, 0}};
    const int before = thread_count();
    assert_int_equal(sigaction(SIGALRM, &interrupt, NULL), 0);
    for (int i = 0; i < 50; i++) {
        struct pair pair = make_pair();
        open_server(&pair, "r", NULL);
        assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
        close_pair(&pair);
        assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    }
    // A thread that was joined may be listed for a moment more, one of the test before when it was counted, too.
    for (int turn = 0; turn < 6000 && thread_count() > before; turn++) usleep(10000);
    assert_in_range(thread_count(), 1, before);
}

TEST(key_files_are_private) {
    char path[64];
    SCOPED(struct wire_security, wire_security_release) made = {0}, read = {0};
    snprintf(path, sizeof path, "/tmp/caravan-unit-key-%d", (int)getpid());
    assert_int_equal(wire_key_make(&made), OK);
    assert_int_equal(wire_key_write(&made, path), OK);
    assert_int_equal(wire_key_write(&made, path), USAGE);
    assert_int_equal(wire_key_read(&read, path), OK);
    assert_string_equal(read.secret, made.secret);
    assert_string_equal(read.public, made.public);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(wire_key_read(&read, path), DATAERR);
    unlink(path);
    assert_int_equal(wire_key_read(&read, path), DATAERR);
}

TEST(node_config_survives_writing) {
    char path[64];
    const char *listen[] = {"ipc:///tmp/a b/x"}, *readers[] = {"rollout"}, *command[] = {"/x/y", "--k", ""},
               *rank_listen[] = {"ipc:///r/1", "tcp://*:7"};
    struct node_endpoint ranks[] = {{"frames", 1, "", "ipc:///r/1", NULL},
                                    {"frames", 2, "gpu1", "tcp://h:7", "0123456789012345678901234567890123456789"}};
    struct node_endpoint endpoints[] = {{"frames", 2, "", "ipc:///tmp/a b/y", NULL}};
    struct node_config in = {.run = "r",
                             .run_dir = "/runs/a run",
                             .stage = "frames",
                             .replica = 2,
                             .machine = "",
                             .from = "source",
                             .last_stage = "optim",
                             .last = true,
                             .trains = true,
                             .settings = "5",
                             .program_dir = "/h",
                             .command = command,
                             .command_count = 3,
                             .listen = listen,
                             .listen_count = 1,
                             .readers = readers,
                             .reader_count = 1,
                             .ranks = ranks,
                             .rank_count = 2,
                             .rank_listen = rank_listen,
                             .rank_listen_count = 2,
                             .endpoints = endpoints,
                             .endpoint_count = 1};
    struct node_config out;
    SCOPED(struct buf, buf_release) text = {0};
    snprintf(path, sizeof path, "/tmp/caravan-unit-node-%d", (int)getpid());
    assert_int_equal(node_config_write(&in, &text), OK);
    assert_int_equal(file_write_atomic(path, text.data, text.size), OK);
    assert_int_equal(node_config_read(&out, path), OK);
    assert_string_equal(out.run_dir, "/runs/a run");
    assert_string_equal(out.from, "source");
    assert_string_equal(out.last_stage, "optim");
    assert_true(out.last);
    assert_true(out.trains);
    assert_string_equal(out.settings, "5");
    assert_string_equal(out.command[2], "");
    assert_string_equal(out.endpoints[0].address, "ipc:///tmp/a b/y");
    assert_int_equal(out.endpoints[0].replica, 2);
    assert_null(out.endpoints[0].key);
    assert_int_equal(out.rank_count, 2);
    assert_string_equal(out.ranks[1].address, "tcp://h:7");
    assert_string_equal(out.ranks[1].machine, "gpu1");
    assert_string_equal(out.ranks[1].key, ranks[1].key);
    assert_null(out.ranks[0].key);
    assert_int_equal(out.rank_listen_count, 2);
    assert_string_equal(out.rank_listen[1], "tcp://*:7");
    node_config_release(&out);
    buf_clear(&text);
    in.replica = 3;
    assert_int_equal(node_config_write(&in, &text), OK);
    assert_int_equal(file_write_atomic(path, text.data, text.size), OK);
    assert_int_equal(node_config_read(&out, path), DATAERR);
    assert_non_null(strstr(fail_text(), "rank 2 of 2"));
    static const char unknown[] = "caravan-node 1\nrun r\nwhat x\n";
    assert_int_equal(file_write_atomic(path, unknown, strlen(unknown)), OK);
    assert_int_equal(node_config_read(&out, path), DATAERR);
    assert_non_null(strstr(fail_text(), "line 3: unknown key 'what'"));
    in.run_dir = "/runs/two\nlines";
    assert_int_equal(node_config_write(&in, &text), USAGE);
    unlink(path);
}

// ---- PROTOCOL.md ----

// The page, every run of white space as one space if `flat`.
static void read_protocol(struct buf *page, bool flat) {
    assert_int_equal(file_read("shared/wire/PROTOCOL.md", page), OK);
    buf_puts(page, "");
    if (!flat) return;
    size_t size = 0;
    for (size_t i = 0; i < page->size; i++) {
        char c = page->data[i] == '\n' ? ' ' : page->data[i];
        if (c != ' ' || (size && page->data[size - 1] != ' ')) page->data[size++] = c;
    }
    page->data[size] = 0;
    page->size = size;
}

// Cuts a row of a Markdown table into its cells, without the spaces around them. Returns how many there are.
static int split_row(char *line, const char **cells, int cells_max) {
    int count = 0;
    if (*line != '|') return 0;
    for (char *end; (end = strchr(++line, '|')); line = end) {
        char *last = end;
        while (*line == ' ') line++;
        while (last > line && last[-1] == ' ') last--;
        *last = 0;
        if (count < cells_max) cells[count] = line;
        count++;
    }
    return count;
}

TEST(the_protocol_page_lists_every_field) {
    static const char *types[] = {[FIELD_INT] = "int", [FIELD_REAL] = "real", [FIELD_STRING] = "string"};
    enum { CELLS = 6 };
    const char *cells[CELLS];
    SCOPED(struct buf, buf_release) page = {0};
    int kind = 0;
    bool bulk = false;
    static const struct message_field end = {.type = FIELD_END};
    const struct message_field *field = &end;
    char *rest = NULL;
    read_protocol(&page, false);
    char *line = strtok_r(strstr(page.data, "\n## Messages"), "\n", &rest);
    for (; line && strcmp(line, "## Grammar") != 0; line = strtok_r(NULL, "\n", &rest)) {
        char name[64];
        if (split_row(line, cells, CELLS) != CELLS || !strcmp(cells[0], "#") || *cells[0] == '-') continue;
        if (*cells[0]) {
            assert_int_equal(field->type, FIELD_END); // the kind before is complete
            assert_int_equal(bulk, message_has_bulk((enum message_kind)kind));
            assert_int_equal(atoi(cells[0]), ++kind);
            assert_string_equal(cells[1], message_name((enum message_kind)kind));
            const struct message_field *fields = message_fields((enum message_kind)kind);
            assert_non_null(fields);
            field = fields ? fields : &end;
            bulk = false;
            assert_int_equal(message_comes_from((enum message_kind)kind, true), strchr(cells[2], 'C') != NULL);
            assert_int_equal(message_comes_from((enum message_kind)kind, false), strchr(cells[2], 'S') != NULL);
        }
        if (!strcmp(cells[3], "`bulk`")) {
            assert_string_equal(cells[4], "bytes");
            bulk = true;
        } else if (*cells[3]) {
            assert_int_not_equal(field->type, FIELD_END);
            snprintf(name, sizeof name, "`%s`", field->name);
            assert_string_equal(cells[3], name);
            assert_string_equal(cells[4], types[field->type]);
            field++;
        }
    }
    assert_int_equal(kind, MESSAGE_KINDS - 1);
    assert_int_equal(field->type, FIELD_END);
    assert_int_equal(bulk, message_has_bulk((enum message_kind)kind));
    assert_null(message_fields(MESSAGE_KINDS));
}

// " WORD xx xx ...", as the example in the page.
static void append_hex(struct buf *out, const char *word, const struct buf *bytes) {
    buf_printf(out, " %s", word);
    for (size_t i = 0; i < bytes->size; i++) buf_printf(out, " %02x", (uint8_t)bytes->data[i]);
}

TEST(the_protocol_page_shows_the_bytes) {
    SCOPED(struct group *, group_free) group = NULL;
    SCOPED(struct buf, buf_release) page = {0}, bulk = {0}, expected = {0};
    group_new(&group);
    group_string(group, &group->id, "e0-000000", strlen("e0-000000"));
    group_to_msgpack(group, &bulk);
    const struct wire_message messages[] = {
        {.kind = MESSAGE_UNKNOWN_PEER},
        {.kind = MESSAGE_HELLO,
         .protocol = WIRE_PROTOCOL,
         .schema = WIRE_SCHEMA,
         .run = "5f0c",
         .name = "rollout",
         .replica = 1,
         .machine = "",
         .purpose = "flow",
         .incarnation = 7},
        {.kind = MESSAGE_WELCOME, .name = "frames", .replica = 1, .machine = "", .incarnation = 8},
        {.kind = MESSAGE_HEARTBEAT},
        {.kind = MESSAGE_SYNCED},
        {.kind = MESSAGE_AVAILABLE, .count = 1, .issue = 1},
        {.kind = MESSAGE_CREDIT},
        {.kind = MESSAGE_GROUP, .issue = 1},
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        SCOPED(struct buf, buf_release) frame = {0};
        assert_int_equal(message_encode(&messages[i], &frame), OK);
        append_hex(&expected, message_name(messages[i].kind), &frame);
    }
    append_hex(&expected, "bulk", &bulk);
    read_protocol(&page, true);
    if (!strstr(page.data, expected.data)) print_error("PROTOCOL.md lacks the example%s\n", expected.data);
    assert_non_null(strstr(page.data, expected.data));
}
