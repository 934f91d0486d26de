// Transfers in pieces over a simulated network: of clips from replicas of frames, of weights from optim. Peers that
// lie, lack the file or die cost nobody else anything.
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/rng.h"
#include "shared/stage/node.h"
#include "shared/stage/requests.h"
#include "tests/support/fake_network.h"

enum {
    PROCESSES_MAX = 8,
    PIECES = 11,
    SIZE = (PIECES - 1) * WIRE_PIECE_BYTES + 17,
    HASH = 0x77, // of the first version
    STEPS = 6,
    LIMIT_MS = 120000, // of simulated time
};

// How a process answers GET.
enum manner { HONEST, LACKS_IT, SHORT_PIECES, WRONG_OFFSET, OTHER_TOTAL, TOO_LATE };

struct process {
    struct run *run;
    struct node_config config;
    const char *listen[1];
    char address[32], machine[16], dir[96];
    struct transport *transport;
    struct node node; // its `io` is NULL: dead; a publisher: of optim
    enum manner manner;
    int answered;  // pieces sent
    int published; // messages WEIGHTS that have come
    int lost[3];   // clients gone, by replica
    struct transfer transfer;
    struct buf received;
    bool began, ended;
};

struct run {
    struct fake_network *network;
    struct process processes[PROCESSES_MAX];
    struct node_endpoint endpoints[PROCESSES_MAX];
    size_t count;
    char dir[64];
    char content[SIZE];
};

// ---- servers

static status answer_get(void *self, struct wire_peer *peer, const struct wire_message *get) {
    struct process *process = self;
    struct wire_message reply = {
        .kind = MESSAGE_RECORD, .id = get->id, .offset = get->offset, .total = SIZE, .bulk = process->run->content};
    TRY(message_check_range(get));
    if (get->offset >= SIZE) return fail(DATAERR, "GET: offset");
    if (process->manner == LACKS_IT) reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = get->id};
    reply.bulk = process->run->content + get->offset;
    reply.bulk_size = (size_t)(get->size < SIZE - get->offset ? get->size : SIZE - get->offset);
    if (process->manner == SHORT_PIECES) reply.bulk_size--;
    if (process->manner == WRONG_OFFSET) reply.offset = -reply.offset - 1;
    if (process->manner == OTHER_TOTAL && get->offset) reply.total++;
    if (process->manner == TOO_LATE && get->offset) return OK;
    process->answered++;
    return io_thread_reply(process->node.io, peer, &reply);
}

static status on_fetch(void *self, struct wire_peer *peer, const struct wire_message *message) {
    struct process *process = self;
    process->answered++;
    return process->node.publisher ? weights_publisher_fetch(&process->node, peer, message) : OK;
}

static status on_weights(void *self, struct wire_peer *peer, const struct wire_message *message) {
    struct process *process = self;
    (void)peer, (void)message;
    process->published++;
    return OK;
}

static status on_joined(void *self, struct wire_peer *peer) {
    struct process *process = self;
    return process->node.publisher ? weights_publisher_joined(&process->node, peer) : OK;
}

static status on_gone(void *self, struct wire_peer *peer) {
    struct process *process = self;
    if (peer->replica < 3) process->lost[peer->replica]++;
    return process->node.publisher ? weights_publisher_gone(&process->node, peer) : OK;
}

static status on_tick(void *self) {
    struct process *process = self;
    return process->node.publisher ? weights_publisher_tick(&process->node) : OK;
}

static const struct io_hooks hooks = {
    .peers = {{.purpose = "weights", .clients = true, .joined = on_joined, .gone = on_gone},
              {.purpose = "frames", .clients = true, .gone = on_gone}},
    .messages = {[MESSAGE_GET] = answer_get, [MESSAGE_FETCH] = on_fetch, [MESSAGE_WEIGHTS] = on_weights},
    .tick = on_tick,
};

// ---- the run

static struct run *open_run(uint64_t seed) {
    static int number;
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->network = fake_network_new(seed);
    for (size_t i = 0; i < SIZE; i++) run->content[i] = (char)(i * 2654435761U >> 13);
    snprintf(run->dir, sizeof run->dir, "/tmp/caravan-unit-transfers-%d-%d", (int)getpid(), number++);
    return run;
}

static void start_process(struct process *process) {
    process->transport = fake_network_add_process(process->run->network);
    assert_int_equal(io_thread_open(&process->node.io, &process->config, &hooks, process, process->transport), OK);
}

// Adds a process of a stage on a machine of its own, or on that of `beside`; it is started by start_run.
static struct process *add_process(struct run *run, const char *stage, int replica, const struct process *beside) {
    struct process *process = &run->processes[run->count];
    process->run = run;
    snprintf(process->address, sizeof process->address, "sim://%zu", run->count);
    snprintf(process->machine, sizeof process->machine, "m%zu", run->count);
    if (beside) memcpy(process->machine, beside->machine, sizeof process->machine);
    char dir[sizeof process->dir];
    snprintf(dir, sizeof dir, "%s/%s", run->dir, process->machine);
    assert_int_equal(dir_make(dir), OK);
    memcpy(process->dir, dir, sizeof dir);
    process->listen[0] = process->address;
    run->endpoints[run->count++] = (struct node_endpoint){
        .stage = stage, .replica = replica, .machine = process->machine, .address = process->address};
    process->config = (struct node_config){.run = "run",
                                           .run_dir = run->dir,
                                           .stage = stage,
                                           .replica = replica,
                                           .machine = process->machine,
                                           .from = "",
                                           .last_stage = "optim",
                                           .listen = process->listen,
                                           .listen_count = 1,
                                           .endpoints = run->endpoints};
    return process;
}

static void start_run(struct run *run) {
    for (size_t i = 0; i < run->count; i++) run->processes[i].config.endpoint_count = run->count;
    for (size_t i = 0; i < run->count; i++) start_process(&run->processes[i]);
}

static void kill_process(struct process *process) {
    fake_network_kill(process->transport);
    if (process->began) io_thread_end_transfer(process->node.io, &process->transfer);
    process->began = false;
    io_thread_close(&process->node.io);
}

static void close_run(struct run *run) {
    for (size_t i = 0; i < run->count; i++) {
        struct process *process = &run->processes[i];
        if (process->node.io) kill_process(process);
        weights_publisher_free(&process->node.publisher);
        buf_release(&process->node.bulk);
        buf_release(&process->received);
    }
    fake_network_free(&run->network);
    assert_int_equal(dir_remove(run->dir), OK);
    free(run);
}

static void begin_transfer(struct process *process, struct transfer transfer) {
    process->transfer = transfer;
    process->began = true;
    process->ended = false;
    buf_clear(&process->received);
    io_thread_begin_transfer(process->node.io, &process->transfer);
}

static void get_clip(struct process *process) {
    begin_transfer(
        process,
        (struct transfer){.stage = "frames", .purpose = "frames", .kind = MESSAGE_GET, .id = "clip", .total = -1});
}

static void fetch_weights(struct process *process) {
    begin_transfer(
        process,
        (struct transfer){
            .stage = "optim", .purpose = "weights", .kind = MESSAGE_FETCH, .hash = HASH, .id = "", .total = SIZE});
}

// One turn of every process that lives.
static void turn(struct run *run) {
    SCOPED(struct buf, buf_release) bytes = {0};
    for (size_t i = 0; i < run->count; i++) {
        struct process *process = &run->processes[i];
        if (!process->node.io) continue;
        for (int k = 0; k < STEPS; k++) assert_int_equal(io_thread_step(process->node.io, 0), OK);
        if (!process->began || process->ended) continue;
        assert_int_equal(io_thread_take_bytes(process->node.io, &process->transfer, 0, &bytes, &process->ended), OK);
        assert_true(bytes.size <= 8 * WIRE_PIECE_BYTES);
        buf_append(&process->received, bytes.data, bytes.size);
    }
    fake_network_advance(run->network, 20);
}

// Goes on until all transfers have ended.
static void finish(struct run *run) {
    const int64_t begin = fake_network_now(run->network);
    for (bool busy = true; busy;) {
        assert_true(fake_network_now(run->network) - begin < LIMIT_MS);
        turn(run);
        busy = false;
        for (size_t i = 0; i < run->count; i++) busy |= run->processes[i].began && !run->processes[i].ended;
    }
}

static void check_content(const struct process *process) {
    assert_true(process->ended && !process->transfer.absent);
    assert_int_equal(process->received.size, SIZE);
    assert_memory_equal(process->received.data, process->run->content, SIZE);
}

static void turns(struct run *run, int count) {
    for (int i = 0; i < count; i++) turn(run);
}

// A server publishes the run's content as a version of the weights, and tells those that are there if `tell`.
static void publish(struct run *run, struct process *server, int version, uint64_t hash, bool tell) {
    char path[160];
    snprintf(path, sizeof path, "%s/policy-%d", server->dir, version);
    assert_int_equal(file_write_atomic(path, run->content, SIZE), OK);
    const struct stage_weights weights = {.version = version, .hash = hash, .path = path};
    if (!server->node.publisher) weights_publisher_new(&server->node.publisher);
    assert_int_equal(weights_publish(server->node.publisher, tell ? server->node.io : NULL, &weights), OK);
}

// ---- clips

TEST(a_clip_comes_in_pieces) {
    struct run *run = open_run(1);
    struct process *frames = add_process(run, "frames", 1, NULL), *optim = add_process(run, "optim", 1, NULL);
    start_run(run);
    get_clip(optim);
    finish(run);
    check_content(optim);
    assert_int_equal(frames->answered, PIECES);
    close_run(run);
}

TEST(a_transfer_goes_on_at_another_replica) {
    for (uint64_t seed = 1; seed < 8; seed++) {
        struct run *run = open_run(seed);
        struct process *frames[2] = {add_process(run, "frames", 1, NULL), add_process(run, "frames", 2, NULL)};
        struct process *optim = add_process(run, "optim", 1, NULL);
        start_run(run);
        get_clip(optim);
        const uint64_t pieces = 1 + fake_network_random(run->network, PIECES - 1);
        for (int i = 0; i < 1000 && optim->received.size < pieces * WIRE_PIECE_BYTES; i++) turn(run);
        if (!optim->ended) kill_process(frames[frames[0]->answered ? 0 : 1]);
        finish(run);
        check_content(optim);
        assert_true(frames[0]->answered + frames[1]->answered <= PIECES + 8); // only what was under way came twice
        close_run(run);
    }
}

TEST(who_lacks_the_clip_or_lies_is_passed_over) {
    for (enum manner manner = LACKS_IT; manner <= OTHER_TOTAL; manner++) {
        struct run *run = open_run(3);
        struct process *frames[2] = {add_process(run, "frames", 1, NULL), add_process(run, "frames", 2, NULL)};
        struct process *optim = add_process(run, "optim", 1, NULL);
        frames[0]->manner = frames[1]->manner = manner;
        start_run(run);
        assert_int_equal(io_thread_connect(optim->node.io, "frames", "frames"), OK);
        turns(run, 20);
        get_clip(optim);
        finish(run);
        assert_true(optim->transfer.absent); // nobody has it
        assert_true(frames[0]->answered > 0 && frames[1]->answered > 0);
        frames[0]->manner = HONEST;
        io_thread_end_transfer(optim->node.io, &optim->transfer);
        turns(run, 500); // those that lied are admitted again
        get_clip(optim);
        finish(run);
        check_content(optim);
        close_run(run);
    }
}

TEST(an_impossible_request_costs_its_peer_the_connection) {
    static const int64_t ranges[][2] = {
        {-1, 100}, {0, 0}, {0, -5}, {0, WIRE_PIECE_BYTES + 1}, {SIZE, 100}, {INT64_MIN, INT64_MAX}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int fetch = 0; fetch < 2; fetch++) {
            struct run *run = open_run(i);
            struct process *server = add_process(run, fetch ? "optim" : "frames", 1, NULL);
            struct process *good = add_process(run, "rollout", 1, NULL), *bad = add_process(run, "rollout", 2, NULL);
            if (fetch) publish(run, server, 1, HASH, false);
            start_run(run);
            assert_int_equal(io_thread_connect(bad->node.io, fetch ? "optim" : "frames", fetch ? "weights" : "frames"),
                             OK);
            fetch ? fetch_weights(good) : get_clip(good);
            turns(run, 20);
            const struct wire_message wrong = {.kind = fetch ? MESSAGE_FETCH : MESSAGE_GET,
                                               .id = "clip",
                                               .hash = HASH,
                                               .offset = ranges[i][0],
                                               .size = ranges[i][1]};
            assert_int_equal(io_thread_broadcast(bad->node.io, fetch ? "weights" : "frames", &wrong), OK);
            turns(run, 20);
            finish(run);
            check_content(good);
            assert_int_equal(server->lost[1], 0);
            assert_int_equal(server->lost[2], 1);
            close_run(run);
        }
}

// ---- weights

// A run of optim, which has published the file, and replicas on machines of their own.
static struct run *weights_run(uint64_t seed, int replicas) {
    struct run *run = open_run(seed);
    publish(run, add_process(run, "optim", 1, NULL), 1, HASH, false);
    for (int i = 0; i < replicas; i++) add_process(run, "rollout", i + 1, NULL);
    start_run(run);
    return run;
}

TEST(every_machine_gets_the_weights_from_optim_once) {
    enum { MACHINES = 7 };
    struct run *run = weights_run(1, MACHINES);
    for (int i = 1; i <= MACHINES; i++) fetch_weights(&run->processes[i]);
    finish(run);
    for (int i = 1; i <= MACHINES; i++) check_content(&run->processes[i]);
    assert_int_equal(run->processes[0].answered, MACHINES * PIECES);
    close_run(run);
}

// Whoever follows the weights hears of a version that the worker publishes before what it broadcasts next, also one
// that joins later.
TEST(a_publication_goes_to_all_that_follow) {
    struct run *run = weights_run(1, 3);
    for (int i = 1; i <= 2; i++) assert_int_equal(io_thread_connect(run->processes[i].node.io, "optim", "weights"), OK);
    turns(run, 20);
    publish(run, &run->processes[0], 2, HASH, true);
    turns(run, 20);
    assert_int_equal(io_thread_connect(run->processes[3].node.io, "optim", "weights"), OK);
    turns(run, 20);
    for (int i = 1; i <= 3; i++) assert_int_equal(run->processes[i].published, i < 3 ? 2 : 1);
    close_run(run);
}

TEST(nobody_waits_for_slow_downloads) {
    struct run *run = weights_run(5, 3);
    fetch_weights(&run->processes[1]);
    fetch_weights(&run->processes[2]);
    while (!run->processes[1].received.size || !run->processes[2].received.size) turn(run);
    fake_network_pause(run->processes[1].transport, true); // they stop, but are not dead yet
    fake_network_pause(run->processes[2].transport, true);
    fetch_weights(&run->processes[3]);
    const int64_t begin = fake_network_now(run->network);
    while (!run->processes[3].ended) turn(run);
    check_content(&run->processes[3]);
    assert_true(fake_network_now(run->network) - begin < 5000);
    fake_network_pause(run->processes[1].transport, false);
    fake_network_pause(run->processes[2].transport, false);
    finish(run);
    close_run(run);
}

// ---- one download a machine

struct download_thread {
    pthread_t thread;
    struct process *process;
    struct remote_weights remote;
    bool whole;
    status result;
    atomic_bool done;
};

static void *download(void *argument) {
    struct download_thread *thread = argument;
    do { // again while another replica makes the copy, or as weights_follower_prepare when optim has it no more
        thread->result = weights_fetch(thread->process->node.io, thread->process->dir, thread->whole, &thread->remote);
        if (thread->result == BAD_SAMPLE) usleep(10000);
    } while (thread->result == BAD_SAMPLE);
    atomic_store(&thread->done, true);
    return NULL;
}

// Downloads what WEIGHTS says at the same time with `count` replicas. The files are those of the run's content.
static void download_version(struct run *run, struct process **processes, int count, bool whole,
                             const struct wire_message *weights) {
    struct download_thread threads[2] = {0};
    for (int i = 0; i < count; i++) {
        threads[i].process = processes[i];
        threads[i].whole = whole;
        remote_weights_set(&threads[i].remote, weights);
        assert_int_equal(pthread_create(&threads[i].thread, NULL, download, &threads[i]), 0);
    }
    while (!atomic_load(&threads[0].done) || (count > 1 && !atomic_load(&threads[1].done))) {
        for (size_t i = 0; i < run->count; i++)
            if (run->processes[i].node.io) assert_int_equal(io_thread_step(run->processes[i].node.io, 0), OK);
        fake_network_advance(run->network, 1);
    }
    for (int i = 0; i < count; i++) {
        SCOPED(struct buf, buf_release) copy = {0};
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
        assert_int_equal(threads[i].result, OK);
        assert_true(threads[i].remote.copied);
        assert_int_equal(file_read(threads[i].remote.local, &copy), OK);
        assert_int_equal(copy.size, SIZE);
        assert_memory_equal(copy.data, run->content, SIZE);
    }
}

static const struct wire_message first_weights = {
    .kind = MESSAGE_WEIGHTS, .policy = 1, .version = 1, .hash = HASH, .size = SIZE, .path = "/elsewhere"};

static void download_with(struct run *run, struct process **processes, int count) {
    download_version(run, processes, count, false, &first_weights);
}

// Starts a run of optim and of two replicas on one machine.
static struct run *machine_run(struct process *replicas[2]) {
    struct run *run = weights_run(1, 1);
    replicas[0] = &run->processes[1];
    replicas[1] = add_process(run, "rollout", 2, replicas[0]);
    for (size_t i = 0; i < run->count; i++) run->processes[i].config.endpoint_count = run->count;
    start_process(replicas[1]);
    return run;
}

// Names a file of the first machine with rollout.
static const char *copy_path(const struct run *run, int64_t hash, const char *suffix) {
    static char path[160];
    snprintf(path, sizeof path, "%s/pulled-policy-%016llx%s", run->processes[1].dir, (unsigned long long)hash, suffix);
    return path;
}

TEST(a_machine_downloads_once_and_goes_on_where_it_stopped) {
    struct process *replicas[2];
    struct run *run = machine_run(replicas);
    struct process *optim = &run->processes[0];
    char path[4][160];
    static const char *const names[4] = {"pulled-policy-0000000000000001", "pulled-policy-0000000000000002",
                                         "pulled-policy-0000000000000003.part", "pulled-reference-0000000000000001"};
    for (int i = 0; i < 4; i++) { // of earlier versions
        snprintf(path[i], sizeof path[i], "%s/%s", replicas[0]->dir, names[i]);
        assert_int_equal(file_write_atomic(path[i], "x", 1), OK);
        const struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        assert_int_equal(utimensat(AT_FDCWD, path[i], times, 0), 0);
    }
    download_with(run, replicas, 2);
    assert_int_equal(optim->answered, PIECES);
    assert_false(path_exists(path[0]));
    assert_true(path_exists(path[1])); // the one before this one stays
    assert_false(path_exists(path[2]));
    assert_true(path_exists(path[3])); // of another kind
    const char *copy = copy_path(run, HASH, "");
    char part[168];
    snprintf(part, sizeof part, "%s.part", copy);
    assert_false(path_exists(part));
    assert_int_equal(unlink(copy), 0);
    assert_int_equal(file_write_atomic(part, run->content, 3 * WIRE_PIECE_BYTES + 5), OK);
    optim->answered = 0;
    download_with(run, replicas, 1);
    assert_int_equal(optim->answered, PIECES - 3);
    assert_int_equal(unlink(copy), 0);
    assert_int_equal(file_write_atomic(part, run->content, SIZE), OK); // it lacked only its name
    optim->answered = 0;
    download_with(run, replicas, 1);
    assert_int_equal(optim->answered, 0);
    close_run(run);
}

TEST(another_replica_goes_on_when_the_one_that_downloads_dies) {
    enum { CAME = 3 }; // pieces, before it dies
    struct process *replicas[2];
    struct run *run = machine_run(replicas);
    struct process *optim = &run->processes[0];
    struct download_thread thread = {.process = replicas[0]};
    char lock[160];
    snprintf(lock, sizeof lock, "%s/fetching-policy", replicas[0]->dir);
    int go[2];
    assert_int_equal(pipe(go), 0);
    const pid_t dies = fork(); // a third replica
    if (!dies) {
        const int fd = open(lock, O_RDWR | O_CREAT, 0644);
        const bool ready =
            fd >= 0 && !flock(fd, LOCK_EX) &&
            file_write_atomic(copy_path(run, HASH, ".part"), run->content, CAME * WIRE_PIECE_BYTES) == OK;
        _exit(write(go[1], ready ? "y" : "n", 1) == 1 && pause());
    }
    char ready = 0;
    assert_int_equal(read(go[0], &ready, 1), 1);
    assert_int_equal(ready, 'y');
    remote_weights_set(&thread.remote, &first_weights);
    assert_int_equal(pthread_create(&thread.thread, NULL, download, &thread), 0);
    for (int i = 0; i < 100; i++) {
        turn(run);
        usleep(1000);
    }
    assert_int_equal(optim->answered, 0); // it waits
    assert_int_equal(kill(dies, SIGKILL), 0);
    assert_int_equal(waitpid(dies, NULL, 0), dies);
    while (!atomic_load(&thread.done)) turn(run);
    assert_int_equal(pthread_join(thread.thread, NULL), 0);
    assert_int_equal(thread.result, OK);
    assert_int_equal(optim->answered, PIECES - CAME);
    close(go[0]), close(go[1]);
    download_with(run, replicas, 2); // it is there
    assert_int_equal(optim->answered, PIECES - CAME);
    close_run(run);
}

// ---- differences

// Optim publishes the next version: the content with one byte of `every` changed. Returns what WEIGHTS says of it.
static struct wire_message publish_next(struct run *run, int version, size_t every) {
    struct process *optim = &run->processes[0];
    SCOPED(struct arena, arena_release) arena = {0};
    struct wire_message message;
    for (size_t i = (size_t)version; i < SIZE; i += every) run->content[i] ^= (char)(rng_bits(3, i, 0) | 1);
    publish(run, optim, version, HASH + (uint64_t)version, false);
    assert_true(weights_publisher_describe(optim->node.publisher, false, &message, &arena));
    assert_true(message.base && message.difference);
    message.path = "/elsewhere";
    for (size_t i = 0; i < run->count; i++) run->processes[i].answered = 0;
    return message;
}

// Publishes the first file as a later version; returns whether a difference is offered.
static bool offers_difference(struct run *run) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct wire_message message;
    char path[160];
    struct weights_publisher *publisher = run->processes[0].node.publisher;
    snprintf(path, sizeof path, "%s/policy-1", run->processes[0].dir);
    const struct stage_weights weights = {.version = 9, .hash = HASH, .path = path};
    assert_int_equal(weights_publish(publisher, NULL, &weights), OK);
    assert_true(weights_publisher_describe(publisher, false, &message, &arena));
    return message.difference != 0;
}

TEST(only_the_difference_travels) {
    struct run *run = weights_run(1, 2);
    struct process *replicas[] = {&run->processes[1], &run->processes[2]};
    struct process *optim = &run->processes[0];
    download_with(run, replicas, 2);
    for (int version = 2; version <= 5; version++) {
        const struct wire_message weights = publish_next(run, version, 3000);
        download_version(run, replicas, 2, false, &weights); // both machines wait for one difference
        assert_int_equal(optim->answered, 2);
        assert_false(path_exists(copy_path(run, weights.difference, ".difference"))); // needed no more
        assert_true(path_exists(copy_path(run, HASH + version - (version > 2), "")));
    }
    close_run(run);
}

TEST(who_cannot_use_a_difference_gets_the_whole_file) {
    enum reason { NO_BASE, TOO_LARGE, WHOLE_WANTED, BASE_RECYCLED, OTHER_BASE, DAMAGED, UNKNOWN, REASONS };
    for (enum reason reason = 0; reason < REASONS; reason++) {
        struct run *run = weights_run(reason, 2);
        struct process *replicas[] = {&run->processes[1]}, *other = &run->processes[2];
        download_with(run, replicas, 1);
        if (reason == NO_BASE) assert_int_equal(unlink(copy_path(run, HASH, "")), 0);
        if (reason == OTHER_BASE) assert_int_equal(file_write_atomic(copy_path(run, HASH, ""), "short", 5), OK);
        struct wire_message weights = publish_next(run, 2, reason == TOO_LARGE ? 1 : 3000);
        if (reason == UNKNOWN) weights.difference++; // as after a restart of optim
        if (reason == DAMAGED) {                     // as another machine has asked for it
            char path[160];
            begin_transfer(other, (struct transfer){.stage = "optim",
                                                    .purpose = "weights",
                                                    .kind = MESSAGE_FETCH,
                                                    .hash = weights.difference,
                                                    .id = "",
                                                    .total = -1});
            finish(run);
            snprintf(path, sizeof path, "%s/policy-2.difference", run->processes[0].dir);
            assert_true(path_exists(path));
            assert_int_equal(file_write_atomic(path, "damage", 6), OK);
            run->processes[0].answered = 0;
        }
        if (reason == BASE_RECYCLED) {
            char path[160];
            publish_next(run, 3, 3000); // the third, so that the first one's turn to be written over comes
            snprintf(path, sizeof path, "%s/next", run->processes[0].dir);
            weights_recycle(run->processes[0].node.publisher, false, path);
            for (size_t i = 3; i < SIZE; i += 3000) run->content[i] ^= (char)(rng_bits(3, i, 0) | 1); // version 2
        }
        download_version(run, replicas, 1, reason == WHOLE_WANTED, &weights);
        assert_true(run->processes[0].answered >= PIECES);
        assert_false(path_exists(copy_path(run, weights.difference, ".difference")));
        if (reason == TOO_LARGE) assert_false(offers_difference(run)); // for some versions
        close_run(run);
    }
}

TEST(a_request_behind_a_difference_harms_nobody) {
    struct run *run = weights_run(1, 2);
    struct process *bad = &run->processes[2], *replicas[] = {&run->processes[1]};
    download_with(run, replicas, 1);
    const struct wire_message weights = publish_next(run, 2, 3000);
    assert_int_equal(io_thread_connect(bad->node.io, "optim", "weights"), OK);
    turns(run, 20);
    for (int k = 0; k < 2; k++) { // before there is a difference, and then
        const struct wire_message wrong = {
            .kind = MESSAGE_FETCH, .hash = weights.difference, .offset = SIZE, .size = 100};
        assert_int_equal(io_thread_broadcast(bad->node.io, "weights", &wrong), OK);
        turns(run, 20);
        if (!k) download_version(run, replicas, 1, false, &weights);
    }
    assert_int_equal(run->processes[0].lost[1], 0);
    assert_int_equal(run->processes[0].lost[2], 1);
    close_run(run);
}
