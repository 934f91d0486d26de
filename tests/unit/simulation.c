// A run in one thread: the nodes of all its processes over a simulated network and clock, from their I/O threads to the
// channels of their stages, and stages that only pass groups on. In half of the schedules rollout follows optim's
// weights. Processes are killed, paused and cut off at moments that follow from a seed; then every group must have been
// trained once, in order. A failure prints its seed: SEED=N repeats it. SCHEDULES=N tries N seeds, from SEED or 100 on,
// and prints a hash of all that became of them: two versions of the code with the same hash have sent as many messages
// at the same times.
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/rng.h"
#include "shared/stage/node.h"
#include "shared/store/lmdb_env.h"
#include "tests/support/fake_network.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SCHEDULES = 25 };
#else
enum { SCHEDULES = 100 };
#endif

enum {
    TOTAL = 24,      // groups
    TOTAL_MAX = 400, // more than a source without optim has in flight
    PER_STEP = 4,    // groups of a step
    SAVE_STEPS = 2,  // steps of a checkpoint
    REPLICAS_MAX = 2,
    STAGES = 5,
    PROCESSES_MAX = STAGES * REPLICAS_MAX,
    HELD_MAX = 4,
    STEPS = 6,            // events that a process handles between two looks at its groups
    BAD_GROUP = 9,        // is always quarantined by the second stage
    SOON_MS = 100,        // after groups were settled, while the others may know more than is on the source's disk
    LIMIT_MS = 30 * 60000 // of simulated time
};

// What is simulated.
struct schedule {
    uint64_t seed;
    bool trains;   // with optim; otherwise the last stage tells the source what is done
    int64_t total; // groups
    int replicas;
    int64_t staleness;
    int faults;
    bool loses_ledgers;   // the source's ledger is removed now and then
    int bad_percent;      // of the groups, besides BAD_GROUP
    uint64_t pause_ms;    // between two faults, at most
    uint64_t restart_ms;  // until a process that was killed is started again, at most
    uint64_t same_victim; // of 8 faults, so many have the victim of the one before
    int64_t delay_ms;     // a message takes so long at most
    uint64_t work_ms;     // a stage works on a group so long at most
    bool follows;         // rollout computes with the weights that optim publishes
};

// What became of it.
struct outcome {
    int64_t over;     // 1: every group was settled
    int64_t right;    // 1: and if there is optim, it has trained what it must
    uint64_t trained; // a hash of that, in order
    int64_t works;    // groups that a stage has finished
    int64_t took;     // ms of simulated time
    int64_t sent;     // messages
    int64_t encodings;
};

static const char *const stage_names[STAGES] = {"source", "frames", "rollout", "reward", "optim"};

struct simulation;

// A group that a process works on.
struct work {
    struct held_group *held;
    int64_t until; // ms
};

struct process {
    struct simulation *simulation;
    int stage, replica;
    struct node node; // its `io` is NULL: dead
    struct io_hooks hooks;
    struct node_endpoint endpoints[PROCESSES_MAX];
    const char *listen[1], *readers[1];
    struct transport *transport;
    int64_t restart_at; // ms
    int crashes;        // so often it is killed again, soon after its start
    int64_t crash_at;   // ms; 0: it is not
    int64_t resume_at;  // ms; 0: not paused
    struct stage_context context;
    struct work held[HELD_MAX];
    size_t held_count;
    bool finished;
    bool has_given[TOTAL_MAX];      // groups that it has given on since its start
    struct message_status counters; // as it reported them last
};

struct simulation {
    struct fake_network *network;
    char dir[64];
    struct source_options options;
    struct process processes[PROCESSES_MAX];
    size_t count;
    const struct schedule *schedule;
    bool bad[TOTAL_MAX];           // is quarantined by the second stage
    bool lost[TOTAL_MAX];          // was quarantined, because a process was lost with it too often
    int64_t saved_step, saved_seq; // optim's checkpoint; -1: none
    int64_t step, next;            // optim's state in memory
    uint64_t weights, saved_weights;
    struct held_group *batch[PER_STEP];
    size_t batch_count;
    size_t victim; // of the last fault
    struct transport *cut_a, *cut_b;
    int64_t mend_at;
    int64_t works; // groups that a stage has finished
};

// ---- encoding, which is counted: each stage encodes a group once

static int64_t encodings;

status __real_group_to_msgpack(const struct group *group, struct buf *out);
status __wrap_group_to_msgpack(const struct group *group, struct buf *out);

status __wrap_group_to_msgpack(const struct group *group, struct buf *out) {
    encodings++;
    return __real_group_to_msgpack(group, out);
}

// ---- the clocks, which are the network's, and the disk, on which a process that is killed writes nothing more

static const struct fake_network *clock_of; // of the present simulation
static bool killed;                         // the process that ends was killed

double __wrap_clock_monotonic(void);
double __wrap_clock_realtime(void);
int64_t __wrap_clock_realtime_ns(void);
status __real_lmdb_txn_begin_write(struct lmdb_env *env, struct lmdb_txn **out);
status __wrap_lmdb_txn_begin_write(struct lmdb_env *env, struct lmdb_txn **out);

double __wrap_clock_monotonic(void) {
    return (double)fake_network_now(clock_of) / 1e3;
}

double __wrap_clock_realtime(void) {
    return (double)fake_network_now(clock_of) / 1e3;
}

int64_t __wrap_clock_realtime_ns(void) {
    return fake_network_now(clock_of) * 1000000;
}

status __wrap_lmdb_txn_begin_write(struct lmdb_env *env, struct lmdb_txn **out) {
    *out = NULL;
    return killed ? fail(UNAVAILABLE, "killed") : __real_lmdb_txn_begin_write(env, out);
}

// ---- the source

static status source_describe(void *state, int64_t *count, uint64_t *hash, struct buf *data) {
    (void)data;
    *count = ((const struct simulation *)state)->schedule->total;
    *hash = 0;
    return OK;
}

static status source_group_at(void *state, int64_t seq, struct group **out, size_t *line) {
    (void)line;
    char json[128];
    (void)state;
    snprintf(json, sizeof json, "{\"id\":\"e0-%06lld\",\"prompt\":{\"messages\":[],\"solution\":\"\"}}",
             (long long)seq);
    return group_from_json(out, json, strlen(json));
}

static const struct stage source = {.name = "source", .describe = source_describe, .group_at = source_group_at};

// ---- optim: its weights are a hash of everything that was trained, in order

static status optim_position(void *state, int64_t *step, int64_t *seq) {
    const struct simulation *simulation = state;
    *step = simulation->saved_step > 0 ? simulation->saved_step : 0;
    *seq = simulation->saved_seq;
    return OK;
}

static const struct stage optim = {.name = "optim", .position = optim_position};

static void publish_weights(struct process *process) {
    const struct simulation *simulation = process->simulation;
    const struct stage_weights weights = {.version = simulation->step, .hash = simulation->weights};
    assert_int_equal(weights_publish(process->node.publisher, process->node.io, &weights), OK);
}

static void deliver(struct process *process, struct held_group *held) {
    const struct channel channel = node_channel(&process->node);
    process->has_given[held->seq] = process->stage < STAGES - 1;
    assert_int_equal(channel.deliver(channel.self, held, OK), OK);
}

static void train(struct simulation *simulation, struct process *process, struct held_group *held) {
    simulation->batch[simulation->batch_count++] = held;
    if (simulation->batch_count < PER_STEP) return;
    simulation->step++;
    for (size_t i = 0; i < PER_STEP; i++) {
        struct group *trained = simulation->batch[i]->group;
        simulation->weights = simulation->weights * 0x9e3779b97f4a7c15U + (uint64_t)trained->requires.order + 1;
        trained->trained.present = true;
        trained->trained.step = simulation->step;
        simulation->next = trained->requires.order + 1;
    }
    if (simulation->saved_seq < 0) simulation->saved_seq = 0; // its directory shows that it has trained
    if (simulation->step % SAVE_STEPS == 0) {
        simulation->saved_step = simulation->step;
        simulation->saved_seq = simulation->next;
        simulation->saved_weights = simulation->weights;
    }
    publish_weights(process);
    for (size_t i = 0; i < PER_STEP; i++) deliver(process, simulation->batch[i]);
    simulation->batch_count = 0;
}

static void work_of_optim(struct process *process) {
    const struct channel channel = node_channel(&process->node);
    struct simulation *simulation = process->simulation;
    struct held_group *held = NULL;
    const status result = channel.receive(channel.self, 1, 0, &held);
    if (held) simulation->lost[held->seq] = false; // optim may have gone back
    if (held && held->group->quarantine.present) {
        if (!simulation->bad[held->seq]) {
            assert_int_equal(strncmp(held->group->quarantine.reason.data, "lost ", 5), 0);
            simulation->lost[held->seq] = true;
        }
        deliver(process, held);
    } else if (held) {
        train(simulation, process, held);
    }
    if (result != END || process->finished) return;
    process->finished = true;
    for (size_t i = 0; i < simulation->batch_count; i++) deliver(process, simulation->batch[i]); // they fill no step
    simulation->batch_count = 0;
    simulation->saved_step = simulation->step;
    simulation->saved_seq = simulation->schedule->total;
    simulation->saved_weights = simulation->weights;
    assert_int_equal(optim_role.finish(&process->node), OK);
}

// ---- a stage in the middle

static status load_weights(void *state, const struct stage_weights *weights) {
    (void)state, (void)weights;
    return OK;
}

static const struct stage passing = {.name = "passing"};
static const struct stage rollout = {.name = "rollout", .follows = FOLLOWS_POLICY, .load_weights = load_weights};

static void work_of_stage(struct process *process) {
    const struct channel channel = node_channel(&process->node);
    struct simulation *simulation = process->simulation;
    const int64_t now = fake_network_now(simulation->network);
    struct held_group *held = NULL;
    for (size_t i = 0; i < process->held_count; i++) {
        struct work *work = &process->held[i];
        if (work->until > now) continue;
        if (process->stage == 1 && simulation->bad[work->held->seq])
            group_quarantine(work->held->group, "frames", "the clip is cut off");
        deliver(process, work->held);
        simulation->works++;
        *work = process->held[--process->held_count];
        break;
    }
    if (process->held_count == HELD_MAX) return;
    assert_int_equal(channel.receive(channel.self, (int)(HELD_MAX - process->held_count), 0, &held), OK);
    if (!held) return;
    process->held[process->held_count++] =
        (struct work){held, now + (int64_t)fake_network_random(simulation->network, simulation->schedule->work_ms)};
}

// ---- hooks

static void on_report(void *self, struct message_status *counters) {
    struct process *process = (void *)((char *)self - offsetof(struct process, node));
    if (process->node.role->hooks.report) process->node.role->hooks.report(self, counters);
    process->counters = *counters;
}

// ---- processes

static void start_process(struct process *process) {
    struct simulation *simulation = process->simulation;
    static const struct role *const roles[STAGES] = {&source_role, &middle_role, &middle_role, &middle_role,
                                                     &optim_role};
    static const struct stage *const stages[STAGES] = {&source, &passing, &rollout, &passing, &optim};
    struct node *node = &process->node;
    process->context = (struct stage_context){
        .stage = stages[process->stage], .options.values = &simulation->options, .state = simulation, .node = node};
    if (process->context.stage == &rollout && !simulation->schedule->follows) process->context.stage = &passing;
    node->context = &process->context;
    node->role = node->config.last && !simulation->schedule->trains ? &last_role : roles[process->stage];
    process->hooks = node->role->hooks;
    process->hooks.report = on_report;
    process->crash_at = 0;
    if (process->crashes && process->crashes--)
        process->crash_at =
            fake_network_now(simulation->network) + 1 + (int64_t)fake_network_random(simulation->network, 1500);
    process->held_count = 0;
    process->finished = false;
    memset(process->has_given, 0, sizeof process->has_given);
    process->counters = (struct message_status){.state = ""};
    assert_int_equal(weights_follower_open(&node->weights, &process->context), OK);
    if (process->stage == STAGES - 1) {
        simulation->step = simulation->saved_step > 0 ? simulation->saved_step : 0;
        simulation->weights = simulation->saved_weights;
        simulation->batch_count = 0;
        weights_publisher_new(&node->publisher);
        publish_weights(process);
    }
    if (node->role->open) assert_int_equal(node->role->open(node), OK);
    process->transport = fake_network_add_process(simulation->network);
    assert_int_equal(io_thread_open(&node->io, &node->config, &process->hooks, node, process->transport), OK);
    if (stage_follows_optim(&process->context)) assert_int_equal(io_thread_connect(node->io, "optim", "weights"), OK);
}

static void end_process(struct process *process) {
    struct simulation *simulation = process->simulation;
    struct node *node = &process->node;
    if (!node->io) return;
    io_thread_close(&node->io);
    if (node->part) node->role->close(node);
    weights_publisher_free(&node->publisher);
    buf_release(&node->bulk);
    weights_follower_close(&node->weights);
    node->weights = (struct weights_follower){0};
    if (process->stage == STAGES - 1) simulation->batch_count = 0;
    process->held_count = 0;
    process->transport = NULL;
    process->resume_at = 0;
}

static const char *endpoint_of(int stage, int replica) {
    static const char *const names[STAGES][REPLICAS_MAX] = {{"sim://source-1", ""},
                                                            {"sim://frames-1", "sim://frames-2"},
                                                            {"sim://rollout-1", "sim://rollout-2"},
                                                            {"sim://reward-1", "sim://reward-2"},
                                                            {"sim://optim-1", ""}};
    return names[stage][replica - 1];
}

static void make_processes(struct simulation *simulation) {
    const int stages = simulation->schedule->trains ? STAGES : STAGES - 1;
    for (int stage = 0; stage < stages; stage++) {
        const int replicas = stage > 0 && stage < STAGES - 1 ? simulation->schedule->replicas : 1;
        for (int replica = 1; replica <= replicas; replica++) {
            struct process *process = &simulation->processes[simulation->count++];
            *process = (struct process){.simulation = simulation, .stage = stage, .replica = replica};
        }
    }
    for (size_t i = 0; i < simulation->count; i++) {
        struct process *process = &simulation->processes[i];
        const int stage = process->stage;
        process->listen[0] = endpoint_of(stage, process->replica);
        process->readers[0] = stage < STAGES - 1 ? stage_names[stage + 1] : "";
        process->node.config = (struct node_config){.run = "simulation",
                                                    .run_dir = simulation->dir,
                                                    .stage = stage_names[stage],
                                                    .replica = process->replica,
                                                    .machine = "",
                                                    .from = stage ? stage_names[stage - 1] : "",
                                                    .last = stage == stages - 1,
                                                    .last_stage = stage_names[stages - 1],
                                                    .trains = simulation->schedule->trains,
                                                    .listen = process->listen,
                                                    .listen_count = 1,
                                                    .readers = process->readers,
                                                    .reader_count = stage < stages - 1,
                                                    .endpoints = process->endpoints,
                                                    .endpoint_count = simulation->count};
        for (size_t k = 0; k < simulation->count; k++) {
            const struct process *other = &simulation->processes[k];
            process->endpoints[k] = (struct node_endpoint){.stage = stage_names[other->stage],
                                                           .replica = other->replica,
                                                           .machine = "",
                                                           .address = endpoint_of(other->stage, other->replica)};
        }
    }
}

// ---- faults

static void kill_process(struct process *victim) {
    struct simulation *simulation = victim->simulation;
    if (!victim->node.io) return;
    fake_network_kill(victim->transport);
    if (simulation->cut_a == victim->transport || simulation->cut_b == victim->transport) simulation->cut_a = NULL;
    killed = true;
    end_process(victim);
    killed = false;
    victim->restart_at = fake_network_now(simulation->network) +
                         (int64_t)fake_network_random(simulation->network, simulation->schedule->restart_ms);
}

// What was on a machine is lost: the second replicas or the first ones, and perhaps the source and optim.
static void kill_machine(struct simulation *simulation) {
    const int replica = 1 + (int)fake_network_random(simulation->network, REPLICAS_MAX);
    for (size_t i = 0; i < simulation->count; i++) {
        struct process *process = &simulation->processes[i];
        const bool alone = process->stage == 0 || process->stage == STAGES - 1;
        if (alone ? fake_network_random(simulation->network, 2) : process->replica == replica) kill_process(process);
    }
}

// `settled`: some groups were just settled. Returns false if nothing was broken, because the process that was drawn is
// dead.
static bool break_something(struct simulation *simulation, bool settled) {
    struct fake_network *network = simulation->network;
    const bool same = simulation->processes[simulation->victim].node.io &&
                      fake_network_random(network, 8) < simulation->schedule->same_victim;
    if (!same) simulation->victim = fake_network_random(network, simulation->count);
    struct process *victim = &simulation->processes[simulation->victim];
    struct process *other = &simulation->processes[fake_network_random(network, simulation->count)];
    const int64_t now = fake_network_now(network);
    char path[128];
    if (!victim->node.io) return false;
    uint64_t kind = fake_network_random(network, simulation->schedule->loses_ledgers ? 9 : 8);
    if (settled && fake_network_random(network, 2)) kind = 5;
    switch (kind) {
    case 0:
    case 1: // a process is killed, and started again
        kill_process(victim);
        break;
    case 2: // it crashes several times
        victim->crashes = (int)fake_network_random(network, 3);
        kill_process(victim);
        break;
    case 3: // it is stopped for a while
        fake_network_pause(victim->transport, true);
        victim->resume_at = now + (int64_t)fake_network_random(network, 20000);
        break;
    case 4:
        if (other->node.io && other != victim) fake_network_break(victim->transport, other->transport);
        break;
    case 5: // the source and the last process, which together know what is settled
        kill_process(&simulation->processes[0]);
        kill_process(&simulation->processes[simulation->count - 1]);
        break;
    case 6:
        kill_machine(simulation);
        break;
    case 8: // the source's ledger is removed before it is started again
        kill_process(&simulation->processes[0]);
        snprintf(path, sizeof path, "%s/ledger.lmdb", simulation->dir);
        assert_true(!unlink(path) || errno == ENOENT); // another such fault was just before
        break;
    default: // two are cut off from each other for a while
        if (!other->node.io || other == victim || simulation->cut_a) break;
        fake_network_cut(victim->transport, other->transport, true);
        simulation->cut_a = victim->transport;
        simulation->cut_b = other->transport;
        simulation->mend_at = now + (int64_t)fake_network_random(network, 40000);
    }
    return true;
}

static void mend_what_is_due(struct simulation *simulation) {
    const int64_t now = fake_network_now(simulation->network);
    if (simulation->cut_a && simulation->mend_at <= now) {
        fake_network_cut(simulation->cut_a, simulation->cut_b, false);
        simulation->cut_a = NULL;
    }
    for (size_t i = 0; i < simulation->count; i++) {
        struct process *process = &simulation->processes[i];
        if (!process->node.io && process->restart_at <= now) start_process(process);
        if (process->node.io && process->crash_at && process->crash_at <= now) kill_process(process);
        if (!process->resume_at || process->resume_at > now) continue;
        process->resume_at = 0;
        fake_network_pause(process->transport, false);
    }
}

// ---- a run that hangs

// Returns the seq below which every group is settled, as the source knows; 0 while that is dead.
static int64_t settled_below(struct simulation *simulation) {
    struct message_status counters = {0};
    struct node *node = &simulation->processes[0].node;
    if (node->part) source_role.hooks.report(node, &counters);
    return counters.settled;
}

// Prints what each process has and waits for. Its counters are half a second old at most.
static void print_state(struct simulation *simulation, uint64_t seed) {
    const int64_t now = fake_network_now(simulation->network), settled = settled_below(simulation);
    print_message("SEED=%llu: after %d minutes %lld of %d groups are settled\n", (unsigned long long)seed,
                  LIMIT_MS / 60000, (long long)settled, (int)simulation->schedule->total);
    for (size_t i = 0; i < simulation->count; i++) {
        const struct process *process = &simulation->processes[i];
        const struct message_status *counters = &process->counters;
        const bool cut = process->transport == simulation->cut_a || process->transport == simulation->cut_b;
        print_message("  %s-%d", stage_names[process->stage], process->replica);
        if (!process->node.io) {
            print_message(": dead for another %lld ms\n", (long long)(process->restart_at - now));
            continue;
        }
        if (process->resume_at) print_message(", stopped for another %lld ms", (long long)(process->resume_at - now));
        if (simulation->cut_a && cut)
            print_message(", cut off for another %lld ms", (long long)(simulation->mend_at - now));
        const bool idle = !process->held_count && !counters->held;
        print_message(": %s; issue %lld, settled below %lld; works on",
                      *counters->state ? counters->state
                      : idle           ? "waits for a group"
                                       : "has groups",
                      (long long)io_thread_issue(process->node.io), (long long)io_thread_settled(process->node.io));
        for (size_t k = 0; k < process->held_count; k++) print_message(" %lld", (long long)process->held[k].held->seq);
        for (size_t k = 0; process->node.role == &optim_role && k < simulation->batch_count; k++)
            print_message(" %lld", (long long)simulation->batch[k]->seq);
        print_message("; has given on");
        for (int64_t seq = settled; seq < simulation->schedule->total; seq++)
            if (process->has_given[seq]) print_message(" %lld", (long long)seq);
        print_message("; %lld in hand or to be begun, %lld for others to take, %lld dropped", (long long)counters->held,
                      (long long)counters->waiting, (long long)counters->dropped);
        if (counters->given_seq >= 0)
            print_message("; %s-%lld has %lld", counters->given_stage, (long long)counters->given_replica,
                          (long long)counters->given_seq);
        print_message("\n");
    }
}

// ---- the run

static uint64_t schedule_seed;
static uint64_t outcomes_hash;      // of all schedules so far
static int64_t all_works, all_took; // of all schedules: groups that a stage has finished, ms
static int log_before = -1;         // where the log went before it was silenced; -1: it is not silenced

// Sends the log to /dev/null, or back to where it went: it has a line for each lost connection.
static void silence_log(bool silent) {
    fflush(stderr);
    if (silent) log_before = dup(STDERR_FILENO);
    const int to = silent ? open("/dev/null", O_WRONLY) : log_before;
    dup2(to, STDERR_FILENO);
    close(to);
    if (!silent) log_before = -1;
}

// What optim trains if nothing is lost.
static uint64_t expected_weights(const struct simulation *simulation) {
    uint64_t weights = 0;
    int64_t trained = 0, good = 0;
    for (int64_t seq = 0; seq < simulation->schedule->total; seq++)
        good += !simulation->bad[seq] && !simulation->lost[seq];
    for (int64_t seq = 0; seq < simulation->schedule->total && trained < good / PER_STEP * PER_STEP; seq++) {
        if (simulation->bad[seq] || simulation->lost[seq]) continue;
        weights = weights * 0x9e3779b97f4a7c15U + (uint64_t)seq + 1;
        trained++;
    }
    return weights;
}

static void start_simulation(struct simulation *simulation) {
    const struct schedule *schedule = simulation->schedule;
    simulation->saved_seq = -1;
    simulation->options = (struct source_options){.groups_per_step = PER_STEP, .max_staleness = schedule->staleness};
    // The ledger waits for the disk, of which there may be a faster one.
    snprintf(simulation->dir, sizeof simulation->dir, "%s/caravan-unit-simulation-%d",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    assert_int_equal(dir_make(simulation->dir), OK);
    clock_of = simulation->network = fake_network_new(schedule->seed);
    for (int64_t seq = 0; seq < schedule->total; seq++)
        simulation->bad[seq] = (int64_t)fake_network_random(simulation->network, 100) < schedule->bad_percent;
    simulation->bad[BAD_GROUP] = true;
    fake_network_set_delay(simulation->network, schedule->delay_ms);
    make_processes(simulation);
    for (size_t i = 0; i < simulation->count; i++) start_process(&simulation->processes[i]);
}

// Whether all groups were settled, and if there is optim, the right ones were trained.
static struct outcome simulate(const struct schedule *schedule) {
    struct simulation *simulation = calloc(1, sizeof *simulation);
    assert_non_null(simulation);
    simulation->schedule = schedule;
    encodings = 0;
    start_simulation(simulation);
    struct fake_network *network = simulation->network;
    const int64_t begin = fake_network_now(network);
    // A long run has its faults somewhere in the middle.
    const int64_t calm = schedule->total > TOTAL ? (int64_t)fake_network_random(network, (uint64_t)schedule->total) : 0;
    int64_t fault_at = begin, settled = 0;
    int faults = schedule->faults;
    bool soon = false; // the next fault comes just after groups were settled
    while (settled_below(simulation) < schedule->total && fake_network_now(network) - begin < LIMIT_MS) {
        const int64_t now = fake_network_now(network);
        if (faults > 0 && fault_at <= now && settled >= calm && break_something(simulation, soon)) {
            soon = false;
            fault_at = now + (int64_t)fake_network_random(network, schedule->pause_ms);
            faults--;
        }
        if (settled_below(simulation) > settled && fake_network_random(network, 2)) {
            soon = true;
            fault_at = now + (int64_t)fake_network_random(network, SOON_MS);
        }
        settled = settled_below(simulation);
        mend_what_is_due(simulation);
        for (size_t i = 0; i < simulation->count; i++) {
            struct process *process = &simulation->processes[i];
            if (!process->node.io || process->resume_at) continue;
            int64_t received = -1;
            for (int k = 0; k < STEPS && received < fake_network_received(network); k++) {
                received = fake_network_received(network);
                assert_int_equal(io_thread_step(process->node.io, 0), OK);
            }
            if (process->stage == STAGES - 1) work_of_optim(process);
            if (process->stage > 0 && process->stage < STAGES - 1) work_of_stage(process);
        }
        fake_network_advance(network, 20);
    }
    struct outcome outcome = {.over = settled_below(simulation) == schedule->total,
                              .trained = simulation->saved_weights,
                              .works = simulation->works,
                              .took = fake_network_now(network) - begin,
                              .sent = fake_network_sent(network),
                              .encodings = encodings};
    outcome.right = outcome.over && (!schedule->trains || outcome.trained == expected_weights(simulation));
    if (!outcome.over) print_state(simulation, schedule->seed);
    for (size_t i = 0; i < simulation->count; i++) end_process(&simulation->processes[i]);
    fake_network_free(&simulation->network);
    assert_int_equal(dir_remove(simulation->dir), OK);
    free(simulation);
    return outcome;
}

TEST(a_run_without_faults) {
    struct schedule schedule = {
        .seed = 1, .trains = true, .total = TOTAL, .replicas = 1, .delay_ms = 20, .work_ms = 300, .follows = true};
    struct outcome outcome = simulate(&schedule);
    assert_true(outcome.right);
    assert_int_equal(outcome.works, (STAGES - 2) * TOTAL);
    assert_int_equal(outcome.encodings, (STAGES - 1) * TOTAL); // optim passes none on
    schedule.replicas = 2;
    schedule.staleness = 1;
    outcome = simulate(&schedule);
    assert_true(outcome.right);
    assert_int_equal(outcome.works, (STAGES - 2) * TOTAL);
    schedule.trains = false;
    outcome = simulate(&schedule);
    assert_true(outcome.right);
    assert_int_equal(outcome.works, (STAGES - 2) * TOTAL);
}

// What a seed simulates.
static struct schedule schedule_of(uint64_t seed) {
    uint64_t draws = 0;
    const uint64_t stream = 1; // not the network's
    struct schedule schedule = {
        .seed = seed,
        .total = TOTAL,
    };
    schedule.faults = rng_below(seed, stream, draws++, 4) ? 12 : 40;
    schedule.trains = rng_below(seed, stream, draws++, 3) > 0;
    schedule.replicas = 1 + (int)rng_below(seed, stream, draws++, 2);
    schedule.staleness = (int64_t)rng_below(seed, stream, draws++, 2);
    if (!schedule.trains && rng_below(seed, stream, draws++, 8) == 0) schedule.total = TOTAL_MAX;
    schedule.bad_percent = rng_below(seed, stream, draws++, 2) ? 30 : 0;
    schedule.loses_ledgers = rng_below(seed, stream, draws++, 4) == 0;
    schedule.pause_ms = rng_below(seed, stream, draws++, 2) ? 2000 : 400;
    schedule.restart_ms = rng_below(seed, stream, draws++, 2) ? 5000 : 500;
    schedule.same_victim = rng_below(seed, stream, draws++, 8);
    schedule.delay_ms = rng_below(seed, stream, draws++, 2) ? 20 : 500;
    schedule.work_ms = rng_below(seed, stream, draws++, 2) ? 300 : 1500;
    schedule.follows = rng_below(seed, stream, draws++, 2) == 0;
    return schedule;
}

// Whether the run of a seed ends as it must.
static bool try_seed(uint64_t seed, bool silent) {
    const struct schedule schedule = schedule_of(seed);
    schedule_seed = seed;
    if (silent) silence_log(true);
    const struct outcome outcome = simulate(&schedule);
    if (silent) silence_log(false);
    outcomes_hash = XXH3_64bits_withSeed(&outcome, sizeof outcome, outcomes_hash);
    all_works += outcome.works;
    all_took += outcome.took;
    if (!outcome.right)
        print_message("SEED=%llu: the run %s\n", (unsigned long long)seed,
                      outcome.over ? "trained other groups" : "hangs");
    return outcome.right;
}

// After a schedule in which an assertion failed, whose message was not printed.
static int print_seed(void **state) {
    (void)state;
    if (log_before < 0) return 0;
    silence_log(false);
    print_message("SEED=%llu: an assertion failed\n", (unsigned long long)schedule_seed);
    return 0;
}

TEST_BETWEEN(a_seed_repeats_itself, NULL, print_seed) {
    silence_log(true);
    for (uint64_t seed = 100; seed < 106; seed++) {
        const struct schedule schedule = schedule_of(seed);
        schedule_seed = seed;
        const struct outcome first = simulate(&schedule), second = simulate(&schedule);
        assert_memory_equal(&first, &second, sizeof first);
    }
    silence_log(false);
}

// Each of these hung before what is said beside it. Another change of the code, or of the simulation, may let a seed
// simulate something else.
static const uint64_t seeds_that_hung[] = {
    108,   // a new ledger begins with a number above any before
    174,   // the source tells only what its ledger on the disk has
    122,   // who drops a settled group says so
    479,   // a replica hears that the group is settled that it alone was given: at once, and within a second
    372,   // the groups before one that is settled already are issued
    117,   // a group that came early is handed out to optim though the source has gone back since
    10064, // a settled group waits for weights that will not come, until it is heard that it is settled
    299,   // a process takes a group that only its readers have, and says that it has only what it can give again
    9599,  // a replica that was told of a group hears that it is passed on, too
};

TEST_BETWEEN(no_hang_comes_back, NULL, print_seed) {
    uint64_t failures = 0;
    for (size_t i = 0; i < sizeof seeds_that_hung / sizeof *seeds_that_hung; i++)
        failures += !try_seed(seeds_that_hung[i], true);
    assert_int_equal(failures, 0);
}

TEST_BETWEEN(every_group_is_trained_once_whatever_breaks, NULL, print_seed) {
    const char *given = getenv("SEED"), *schedules = getenv("SCHEDULES");
    const uint64_t first = given ? strtoull(given, NULL, 10) : 100;
    const uint64_t count = schedules ? strtoull(schedules, NULL, 10) : given ? 1 : SCHEDULES;
    uint64_t failures = 0;
    outcomes_hash = 0;
    all_works = all_took = 0;
    for (uint64_t seed = first; seed < first + count; seed++) failures += !try_seed(seed, count > 1);
    if (schedules)
        print_message("hash of all outcomes: %016llx; %lld groups worked on, %lld s\n",
                      (unsigned long long)outcomes_hash, (long long)all_works, (long long)all_took / 1000);
    assert_int_equal(failures, 0);
}
