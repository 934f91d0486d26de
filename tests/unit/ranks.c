// Ranks: the same tests for threads in memory and for links over ZeroMQ, with and without CURVE; then what only happens
// between processes: ranks that are killed, stopped or hang, that break the protocol or belong elsewhere.
#include "tests/unit/unit.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/memory.h"
#include "shared/base/signals.h"
#include "shared/wire/ranks_link.h"
#include "tests/support/ranks_memory.h"

enum { MOST = 8, MIB = 1 << 20 };
enum kind { IN_MEMORY, OVER_IPC, OVER_TCP, OVER_CURVE, KINDS };

// What a rank found; in memory that processes share.
struct outcome {
    status result;
    char text[500];
    double at; // clock_monotonic() of the end
};

// The ranks of a test.
struct crew {
    enum kind kind;
    int count;
    char endpoints[MOST][200], publics[MOST][WIRE_KEY];
    const char *addresses[MOST], *keys[MOST], *run[MOST], *machines[MOST];
    double timeout[MOST];
    struct wire_security security[MOST]; // of each rank's machine
};

// What a rank does. Returns OK, or what fails as the test expects; other mistakes are BAD_SAMPLE.
typedef status rank_task(struct ranks *ranks, void *context);

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) return fail(BAD_SAMPLE, "line %d: %s", __LINE__, #condition);                                \
    } while (0)

static void crew_make(struct crew *crew, enum kind kind, int count) {
    static int serial;
    *crew = (struct crew){.kind = kind, .count = count};
    serial++;
    for (int rank = 0; rank < count; rank++) {
        if (kind == OVER_IPC)
            snprintf(crew->endpoints[rank], sizeof *crew->endpoints, "ipc://%s/%d-%d", unit_directory(), serial, rank);
        else // an address that no other process uses
            snprintf(crew->endpoints[rank], sizeof *crew->endpoints, "tcp://127.%d.%d.%d:%d", 1 + getpid() / 250 % 250,
                     1 + getpid() % 250, 1 + rank, 20000 + serial);
        crew->addresses[rank] = crew->endpoints[rank];
        crew->run[rank] = "a run";
        crew->machines[rank] = "";
        crew->timeout[rank] = 60;
        if (kind != OVER_CURVE) continue;
        assert_int_equal(wire_key_make(&crew->security[rank]), OK);
        memcpy(crew->publics[rank], crew->security[rank].public, WIRE_KEY);
        crew->keys[rank] = crew->publics[rank];
    }
    for (int rank = 0; rank < count * count && kind == OVER_CURVE; rank++)
        wire_admit(&crew->security[rank / count], crew->keys[rank % count]);
}

static void crew_release(struct crew *crew) {
    for (int rank = 0; rank < crew->count; rank++) wire_security_release(&crew->security[rank]);
}

static status crew_open(const struct crew *crew, int rank, struct ranks **out) {
    struct node_endpoint ranks[MOST];
    for (int r = 0; r < crew->count; r++)
        ranks[r] = (struct node_endpoint){"optim", r + 1, crew->machines[r], crew->addresses[r], crew->keys[r]};
    return ranks_link_open(out, &(struct ranks_link_options){.own = rank,
                                                             .count = crew->count,
                                                             .run = crew->run[rank],
                                                             .ranks = ranks,
                                                             .listen = &crew->addresses[rank],
                                                             .listen_count = 1,
                                                             .security = &crew->security[rank],
                                                             .timeout = crew->timeout[rank]});
}

static atomic_int *joined; // shared by processes: ranks that have met all others

// Opens a rank unless it is there, does the task and frees it.
static void crew_work(const struct crew *crew, int rank, struct ranks *ranks, rank_task *task, void *context,
                      struct outcome *out) {
    status result = ranks ? OK : crew_open(crew, rank, &ranks);
    if (result == OK && joined) atomic_fetch_add(joined, 1);
    if (result == OK) result = task(ranks, context);
    snprintf(out->text, sizeof out->text, "%s", result == OK ? "" : fail_text());
    out->at = clock_monotonic();
    out->result = result;
    ranks_free(&ranks);
}

// ---- ranks as threads ----

struct thread_rank {
    pthread_t thread;
    const struct crew *crew;
    int rank;
    struct ranks *ranks;
    rank_task *task;
    void *context;
    struct outcome *out;
};

static void *thread_run(void *argument) {
    struct thread_rank *own = argument;
    crew_work(own->crew, own->rank, own->ranks, own->task, own->context, own->out);
    return NULL;
}

static void run_threads(const struct crew *crew, rank_task *task, void *context, struct outcome *out) {
    struct thread_rank threads[MOST];
    struct ranks *ranks[MOST] = {NULL};
    if (crew->kind == IN_MEMORY) ranks_memory_open(crew->count, ranks);
    for (int rank = 0; rank < crew->count; rank++) {
        threads[rank] = (struct thread_rank){
            .crew = crew, .rank = rank, .ranks = ranks[rank], .task = task, .context = context, .out = &out[rank]};
        assert_int_equal(pthread_create(&threads[rank].thread, NULL, thread_run, &threads[rank]), 0);
    }
    for (int rank = 0; rank < crew->count; rank++) pthread_join(threads[rank].thread, NULL);
}

// Every rank of every kind and count must do the task without failure.
static void run_all(rank_task *task, void *context) {
    static const struct {
        enum kind kind;
        int count;
    } crews[] = {{IN_MEMORY, 1}, {IN_MEMORY, 2}, {IN_MEMORY, 3}, {IN_MEMORY, 8}, {OVER_IPC, 1},
                 {OVER_IPC, 2},  {OVER_IPC, 4},  {OVER_IPC, 8},  {OVER_TCP, 3},  {OVER_CURVE, 3}};
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++) {
        SCOPED(struct crew, crew_release) crew;
        struct outcome out[MOST] = {0};
        crew_make(&crew, crews[i].kind, crews[i].count);
        run_threads(&crew, task, context, out);
        for (int rank = 0; rank < crew.count; rank++)
            if (out[rank].result != OK)
                print_error("kind %d, rank %d of %d: %s\n", (int)crew.kind, rank, crew.count, out[rank].text);
        for (int rank = 0; rank < crew.count; rank++) assert_int_equal(out[rank].result, OK);
    }
}

// ---- ranks as processes ----

static struct outcome *outcomes; // shared
static atomic_int *over;         // shared: gather_many ends, and so does what a rank hangs in
static atomic_int *signalled;    // shared: ranks that handle signals
static atomic_int *held;         // shared: links whose thread stands still
static pid_t processes[MOST];

static void processes_start(const struct crew *crew, int count, rank_task *task, void *context) {
    if (!outcomes)
        outcomes = mmap(NULL, (MOST + 1) * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(outcomes != MAP_FAILED);
    memset(outcomes, 0, (MOST + 1) * sizeof *outcomes);
    over = (atomic_int *)(void *)(outcomes + MOST);
    joined = over + 1;
    signalled = over + 2;
    held = over + 3;
    for (int rank = 0; rank < count; rank++) {
        outcomes[rank].result = END; // it has not ended
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank]) continue;
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || signals_open() != OK) _exit(1);
        atomic_fetch_add(signalled, 1);
        while (atomic_load(signalled) < count) usleep(1000); // the timeout is not for the start of a process
        crew_work(crew, rank, NULL, task, context, &outcomes[rank]);
        _exit(0);
    }
}

// Waits until the ranks have met; none has ended.
static void processes_meet(int count) {
    do {
        usleep(1000);
        for (int rank = 0; rank < count; rank++) assert_int_equal(outcomes[rank].result, END);
    } while (atomic_load(joined) < count);
}

static void processes_wait(int count) {
    for (int rank = 0; rank < count; rank++) assert_int_equal(waitpid(processes[rank], NULL, 0), processes[rank]);
}

static void assert_text(int rank, status result, const char *text) {
    if (outcomes[rank].result != result || !strstr(outcomes[rank].text, text))
        print_error("rank %d: status %d, %s\n", rank, (int)outcomes[rank].result, outcomes[rank].text);
    assert_int_equal(outcomes[rank].result, result);
    assert_non_null(strstr(outcomes[rank].text, text));
}

// Rank 1 of 3 gathers until something is done to it; the others notice.
static status gather_for_ever(struct ranks *ranks, void *context) {
    char all[MOST] = {0};
    (void)context;
    for (;;) TRY(ranks_gather(ranks, all, 1));
}

static status send_for_ever(struct ranks *ranks, void *context) {
    enum { BYTES = 20 * MIB };
    char *data = calloc((size_t)ranks->count, BYTES);
    status result;
    (void)context;
    do {
        result = ranks_gather(ranks, data, BYTES);
    } while (result == OK);
    free(data);
    return result;
}

// In small exchanges and in the midst of large ones, over Unix sockets and encrypted.
TEST(a_killed_rank_is_missed_by_all_at_once) {
    for (int i = 0; i < 6; i++) {
        SCOPED(struct crew, crew_release) crew;
        crew_make(&crew, i % 2 ? OVER_CURVE : OVER_IPC, 3);
        processes_start(&crew, 3, i / 2 % 2 ? send_for_ever : gather_for_ever, NULL);
        processes_meet(3);
        usleep(50000 + 37000 * (unsigned)i);
        const double killed_at = clock_monotonic();
        for (int rank = 0; rank < 3; rank++) assert_int_equal(outcomes[rank].result, END);
        assert_int_equal(kill(processes[i % 3], SIGKILL), 0);
        processes_wait(3);
        for (int rank = 0; rank < 3; rank++) {
            char text[40];
            snprintf(text, sizeof text, "rank %d is gone: its connection", i % 3);
            if (rank == i % 3) continue;
            assert_text(rank, UNAVAILABLE, text);
            assert_true(outcomes[rank].at - killed_at < 30); // the timeout is a minute
        }
    }
}

TEST(a_stopped_rank_is_named_after_the_timeout) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 3);
    for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = 4;
    processes_start(&crew, 3, send_for_ever, NULL);
    processes_meet(3);
    const double stopped_at = clock_monotonic();
    assert_int_equal(kill(processes[1], SIGSTOP), 0);
    processes_wait(1);
    assert_true(outcomes[0].at - stopped_at > 1 && outcomes[0].at - stopped_at < 40);
    assert_text(0, UNAVAILABLE, "rank 1 has done nothing for 4 s");
    assert_int_equal(waitpid(processes[2], NULL, 0), processes[2]);
    assert_text(2, UNAVAILABLE, "rank 1 has done nothing for 4 s");
    assert_int_equal(kill(processes[1], SIGCONT), 0);
    assert_int_equal(waitpid(processes[1], NULL, 0), processes[1]);
    assert_text(1, UNAVAILABLE, "rank ");
}

static status gather_many(struct ranks *ranks, void *context) {
    enum { BYTES = 100000 };
    static char all[3 * BYTES];
    (void)context;
    for (int64_t i = 0;; i++) {
        memset(all + ranks->own * BYTES, (int)(i % 100), BYTES);
        TRY(ranks_gather(ranks, all, BYTES));
        for (int at = 0; at < 3 * BYTES; at += 997) HOLDS(all[at] == i % 100);
        char ends[3] = {(char)atomic_load(over)}; // the leader's word counts
        TRY(ranks_gather(ranks, ends, 1));
        if (ends[0]) return OK;
    }
}

TEST(a_rank_that_was_stopped_for_a_while_goes_on) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 3);
    for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = 20;
    processes_start(&crew, 3, gather_many, NULL);
    for (int i = 0; i < 3; i++) {
        usleep(300000);
        assert_int_equal(kill(processes[i], SIGSTOP), 0);
        usleep(300000);
        assert_int_equal(kill(processes[i], SIGCONT), 0);
    }
    atomic_store(over, 1);
    processes_wait(3);
    for (int rank = 0; rank < 3; rank++) assert_text(rank, OK, "");
}

// Rank 1 hangs until it is over.
static status come_late(struct ranks *ranks, void *context) {
    char all[2] = {0};
    (void)context;
    while (ranks->own == 1 && !atomic_load(over)) usleep(1000);
    return ranks_gather(ranks, all, 1);
}

// It hangs in the work between two exchanges.
TEST(a_rank_that_hangs_is_named_though_it_answers) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    crew.timeout[0] = 4;
    processes_start(&crew, 2, come_late, NULL);
    processes_wait(1);
    atomic_store(over, 1);
    assert_int_equal(waitpid(processes[1], NULL, 0), processes[1]);
    assert_text(
        0, UNAVAILABLE,
        "rank 1 has done nothing for 4 s, and exchange 0 awaits it: 0 of 1 bytes have come from it, it has 0 of "
        "1; its process answers");
    assert_text(1, UNAVAILABLE, "rank 0 has failed: rank 1 has done nothing for 4 s");
}

// Waits for the others elsewhere.
static status check_for_ever(struct ranks *ranks, void *context) {
    const double began = clock_monotonic();
    status result = OK;
    (void)context;
    while (result == OK) {
        result = ranks_check(ranks, clock_monotonic() - began);
        HOLDS(ranks->failed == (result != OK));
        usleep(5000);
    }
    return result;
}

TEST(a_rank_that_waits_elsewhere_learns_who_is_missing) {
    static const struct {
        int signal;
        const char *text;
    } cases[] = {{SIGKILL, "rank 1 is gone: its connection"},
                 {SIGSTOP, " s nothing has come from rank 1; its process is silent"},
                 {0, " s nothing has come from rank 1 or another rank; all processes answer"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct crew, crew_release) crew;
        crew_make(&crew, OVER_IPC, 3);
        crew.timeout[0] = 4;
        processes_start(&crew, 3, check_for_ever, NULL);
        processes_meet(3);
        if (cases[i].signal) assert_int_equal(kill(processes[1], cases[i].signal), 0);
        processes_wait(1);
        assert_text(0, UNAVAILABLE, cases[i].text);
        // It looks later than it wants to on a busy machine, and says how long it has waited.
        if (cases[i].signal != SIGKILL) assert_true(atoi(strstr(outcomes[0].text, "for ") + strlen("for ")) >= 4);
        assert_int_equal(waitpid(processes[2], NULL, 0), processes[2]);
        assert_text(2, UNAVAILABLE, cases[i].signal == SIGKILL ? cases[i].text : "rank 0 has failed: for ");
        if (cases[i].signal == SIGSTOP) assert_int_equal(kill(processes[1], SIGCONT), 0);
        assert_int_equal(waitpid(processes[1], NULL, 0), processes[1]);
    }
}

static status leave_or_check(struct ranks *ranks, void *context) {
    return ranks->own == 1 ? OK : check_for_ever(ranks, context);
}

TEST(a_rank_that_waits_elsewhere_does_not_wait_for_one_that_has_left) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    processes_start(&crew, 2, leave_or_check, NULL);
    processes_wait(2);
    assert_text(0, UNAVAILABLE, "rank 1 has left, but this rank waits for it");
}

// Rank 0 awaits the others, who come late: all of them, or never.
static status await_late(struct ranks *ranks, void *context) {
    struct rank_exchange *exchange;
    char out = (char)(1 + ranks->own), in[3] = {0};
    const struct rank_piece send = {0, &out, 1}, receives[] = {{1, &in[1], 1}, {2, &in[2], 1}};
    if (ranks->own) usleep(*(const unsigned *)context);
    TRY(ranks_begin(ranks, &send, ranks->own != 0, receives, ranks->own ? 0 : 2, &exchange));
    const status result = ranks->own ? ranks_end(ranks, &exchange) : ranks_await(ranks, &exchange);
    HOLDS(!exchange && ranks->failed == (result != OK));
    HOLDS(result != OK || ranks->own || (in[1] == 2 && in[2] == 3));
    if (result != OK) return result;
    if (!ranks->own) usleep(*(const unsigned *)context);
    in[ranks->own] = out;
    TRY(ranks_await_all(ranks, in, 1));
    HOLDS(in[0] == 1 && in[1] == 2 && in[2] == 3);
    return OK;
}

TEST(a_rank_is_awaited_however_late_it_comes) {
    for (enum kind kind = IN_MEMORY; kind < KINDS; kind++) {
        SCOPED(struct crew, crew_release) crew;
        struct outcome out[MOST] = {0};
        unsigned late = kind == IN_MEMORY ? 100000 : 3300000; // there is no timeout
        crew_make(&crew, kind, 3);
        for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = 2.5;
        run_threads(&crew, await_late, &late, out);
        for (int rank = 0; rank < 3; rank++) {
            if (out[rank].result != OK) print_error("kind %d, rank %d: %s\n", (int)kind, rank, out[rank].text);
            assert_int_equal(out[rank].result, OK);
        }
    }
}

TEST(a_rank_that_is_awaited_is_missed_when_it_is_stopped_or_killed) {
    static const struct {
        int signal;
        const char *text;
    } cases[] = {{SIGSTOP, "rank 2 has done nothing for 4 s"}, {SIGKILL, "rank 2 is gone"}};
    for (size_t i = 0; i < 2; i++) {
        SCOPED(struct crew, crew_release) crew;
        unsigned late = 60000000;
        crew_make(&crew, OVER_IPC, 3);
        for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = 4;
        processes_start(&crew, 3, await_late, &late);
        processes_meet(3);
        const double begun = clock_monotonic();
        assert_int_equal(kill(processes[2], cases[i].signal), 0);
        assert_int_equal(waitpid(processes[0], NULL, 0), processes[0]);
        assert_text(0, UNAVAILABLE, cases[i].text);
        if (cases[i].signal == SIGSTOP) assert_text(0, UNAVAILABLE, "its process is silent");
        assert_true(outcomes[0].at - begun < 40); // the others come after a minute
        for (int rank = 1; rank < 3; rank++) {
            kill(processes[rank], SIGKILL);
            assert_int_equal(waitpid(processes[rank], NULL, 0), processes[rank]);
        }
    }
}

// Rank 2 waits for rank 0, which waits for rank 1, which hangs.
static status wait_in_a_row(struct ranks *ranks, void *context) {
    struct rank_exchange *exchanges[2];
    char out = 1, in[2] = {0};
    (void)context;
    const struct rank_piece one = {1, &out, 1}, two = {2, &out, 1}, from = {0, &in[0], 1}, last = {0, &in[1], 1};
    while (ranks->own == 1 && !atomic_load(over)) usleep(1000);
    TRY(ranks_begin(ranks, &one, ranks->own == 0, &from, ranks->own == 1, &exchanges[0]));
    status result = ranks_end(ranks, &exchanges[0]);
    if (result == OK) result = ranks_begin(ranks, &two, ranks->own == 0, &last, ranks->own == 2, &exchanges[1]);
    return result == OK ? ranks_end(ranks, &exchanges[1]) : result;
}

TEST(a_rank_that_waits_itself_is_not_blamed) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 3);
    crew.timeout[0] = 4;
    crew.timeout[2] = 3.2;
    processes_start(&crew, 3, wait_in_a_row, NULL);
    processes_wait(1);
    assert_int_equal(waitpid(processes[2], NULL, 0), processes[2]);
    atomic_store(over, 1);
    assert_int_equal(waitpid(processes[1], NULL, 0), processes[1]);
    assert_text(0, UNAVAILABLE, "rank 1 has done nothing for 4 s, and exchange 0 awaits it");
    assert_text(2, UNAVAILABLE, "rank 0 has failed: rank 1 has done nothing for 4 s");
}

// Rank 0 is stopped for longer than its own timeout.
TEST(a_rank_that_was_stopped_itself_blames_nobody) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    crew.timeout[0] = 5;
    processes_start(&crew, 2, come_late, NULL);
    processes_meet(2);
    usleep(200000); // it waits for rank 1
    assert_int_equal(kill(processes[0], SIGSTOP), 0);
    usleep(6000000);
    assert_int_equal(kill(processes[0], SIGCONT), 0);
    usleep(500000); // it looks at the clock
    atomic_store(over, 1);
    processes_wait(2);
    for (int rank = 0; rank < 2; rank++) assert_text(rank, OK, "");
}

static status send_and_die(struct ranks *ranks, void *context) {
    enum { BYTES = 3 * MIB + 5 };
    struct rank_exchange *exchange;
    char *data = malloc(BYTES);
    (void)context;
    const struct rank_piece piece = {!ranks->own, mem_checked(data), BYTES};
    memset(data, ranks->own ? 7 : 0, BYTES);
    TRY(ranks_begin(ranks, &piece, ranks->own == 1, &piece, ranks->own == 0, &exchange));
    if (ranks->own == 0) usleep(200000);
    TRY(ranks_end(ranks, &exchange));
    if (ranks->own == 1) kill(getpid(), SIGKILL);
    for (int i = 0; i < BYTES; i++) HOLDS(data[i] == 7);
    free(data);
    return OK;
}

TEST(what_a_rank_has_ended_is_there_though_it_dies_at_once) {
    for (int i = 0; i < 6; i++) {
        SCOPED(struct crew, crew_release) crew;
        crew_make(&crew, i % 2 ? OVER_CURVE : OVER_IPC, 2);
        processes_start(&crew, 2, send_and_die, NULL);
        processes_wait(2);
        assert_text(0, OK, "");
        assert_int_equal(outcomes[1].result, END);
    }
}

// Returns a figure of this process in KiB: VmHWM, the most memory that it had, or VmRSS.
static long memory_kib(const char *name) {
    char line[200];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && value < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) value = atol(line + strlen(name) + 1);
    if (file) fclose(file);
    return value;
}

// Rank 1 takes part a second later in exchanges that rank 0 has begun long ago.
static status send_much(struct ranks *ranks, void *context) {
    enum { EXCHANGES = 8, BYTES = 16 * MIB };
    struct rank_exchange *exchanges[EXCHANGES];
    char *data = malloc(BYTES);
    (void)context;
    const struct rank_piece piece = {!ranks->own, mem_checked(data), BYTES};
    memset(data, ranks->own, BYTES);
    const long before = memory_kib("VmRSS");
    while (ranks->own == 1 && !atomic_load(over)) usleep(1000);
    if (ranks->own == 1) usleep(1000000);
    for (int i = 0; i < EXCHANGES; i++)
        TRY(ranks_begin(ranks, &piece, ranks->own == 0, &piece, ranks->own == 1, &exchanges[i]));
    if (ranks->own == 0) atomic_store(over, 1); // it waits from now on
    for (int i = 0; i < EXCHANGES; i++) TRY(ranks_end(ranks, &exchanges[i]));
    const long after = memory_kib("VmHWM");
    free(data);
#ifndef __SANITIZE_ADDRESS__ // which keeps memory that was freed
    if (after - before > 60 * 1024) return fail(BAD_SAMPLE, "%ld KiB more", after - before);
#endif
    HOLDS(before > 0 && after > 0);
    HOLDS(ranks->own == 1 || ranks->waited > 0.5);
    HOLDS(ranks->sent == (ranks->own == 0 ? (uint64_t)EXCHANGES * BYTES : 0));
    return OK;
}

TEST(a_rank_that_lags_behind_costs_no_memory) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    processes_start(&crew, 2, send_much, NULL);
    processes_wait(2);
    for (int rank = 0; rank < 2; rank++) assert_text(rank, OK, "");
}

// ---- all kinds of ranks ----

static unsigned char byte_of(uint64_t seed, int from, int to, uint64_t at) {
    return (unsigned char)((at * 31 + at / 4096 + seed * 17 + (uint64_t)from * 5 + (uint64_t)to * 3) & 0xff);
}

// An exchange with random sizes, in random pieces that differ on both sides; all ranks draw the same sizes.
struct parcel {
    struct rank_exchange *exchange;
    uint64_t seed, sent;
    size_t sizes[MOST][MOST];
    unsigned char *in[MOST], *out[MOST];
};

static uint64_t drawn(uint64_t seed, uint64_t a, uint64_t b) {
    return seed * 1000003 + a * 7919 + b * 104729;
}

static uint64_t draw(uint64_t key, uint64_t bound) {
    key = (key ^ key >> 31) * 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 29) * 0xbf58476d1ce4e5b9u;
    return (key ^ key >> 32) % bound;
}

// Cuts data[0..size) into up to three pieces and leaves an empty one.
static size_t cut(struct rank_piece *pieces, int rank, unsigned char *data, size_t size, uint64_t key) {
    const size_t first = size ? draw(key, size + 1) : 0, second = size > first ? draw(key + 1, size - first + 1) : 0;
    pieces[0] = (struct rank_piece){rank, data, first};
    pieces[1] = (struct rank_piece){rank, NULL, 0};
    pieces[2] = (struct rank_piece){rank, data + first, second};
    pieces[3] = (struct rank_piece){rank, data + first + second, size - first - second};
    return 4;
}

static status parcel_begin(struct parcel *parcel, struct ranks *ranks, uint64_t seed, size_t most) {
    struct rank_piece sends[4 * MOST], receives[4 * MOST];
    size_t send_count = 0, receive_count = 0;
    *parcel = (struct parcel){.seed = seed};
    for (int from = 0; from < ranks->count; from++)
        for (int to = 0; to < ranks->count; to++) {
            const uint64_t key = drawn(seed, (uint64_t)from, (uint64_t)to);
            const size_t size = draw(key, 3) ? draw(key + 1, draw(key + 2, 2) ? most : 20) : 0;
            parcel->sizes[from][to] = size;
            if (from == ranks->own && to != from) {
                parcel->sent += size;
                parcel->out[to] = mem_checked(malloc(size + 1));
                for (size_t i = 0; i < size; i++) parcel->out[to][i] = byte_of(seed, from, to, i);
                send_count += cut(sends + send_count, to, parcel->out[to], size, key + 3);
            }
            if (to == ranks->own) {
                parcel->in[from] = mem_checked(calloc(1, size + 1));
                receive_count += cut(receives + receive_count, from, parcel->in[from], size, key + 5);
            }
        }
    // Those to the rank itself are left out, whatever their size.
    sends[send_count++] = (struct rank_piece){ranks->own, parcel->in[ranks->own], 1};
    return ranks_begin(ranks, sends, send_count, receives, receive_count, &parcel->exchange);
}

static status parcel_end(struct parcel *parcel, struct ranks *ranks) {
    TRY(ranks_end(ranks, &parcel->exchange));
    HOLDS(!parcel->exchange);
    for (int from = 0; from < ranks->count; from++) {
        for (size_t i = 0; i < parcel->sizes[from][ranks->own] && from != ranks->own; i++)
            HOLDS(parcel->in[from][i] == byte_of(parcel->seed, from, ranks->own, i));
        HOLDS(from == ranks->own || parcel->in[from][parcel->sizes[from][ranks->own]] == 0);
        free(parcel->in[from]);
        free(parcel->out[from]);
    }
    return OK;
}

static status exchange_one_by_one(struct ranks *ranks, void *context) {
    static const size_t sizes[] = {100, 3 * MIB + 77, 40000, 1};
    uint64_t sent = 0;
    (void)context;
    for (uint64_t i = 0; i < 8; i++) {
        struct parcel parcel;
        TRY(parcel_begin(&parcel, ranks, i, sizes[i % 4]));
        TRY(parcel_end(&parcel, ranks));
        sent += parcel.sent;
        HOLDS(ranks->sent == sent && ranks->begun == i + 1);
    }
    return OK;
}

TEST(pieces_of_all_sizes_come_as_they_were_sent) {
    run_all(exchange_one_by_one, NULL);
}

// Ends them in an order of each rank's own.
static status exchange_many_at_once(struct ranks *ranks, void *context) {
    enum { MANY = 40 };
    static _Thread_local struct parcel parcels[MANY];
    int order[MANY];
    (void)context;
    for (int i = 0; i < MANY; i++) {
        const int other = (int)draw((uint64_t)i + 100 * (uint64_t)ranks->own, (uint64_t)i + 1);
        order[i] = order[other];
        order[other] = i;
        TRY(parcel_begin(&parcels[i], ranks, (uint64_t)i, i % 10 ? 3000 : 1 * MIB));
    }
    for (int i = 0; i < MANY; i++) TRY(parcel_end(&parcels[order[i]], ranks));
    return OK;
}

TEST(many_exchanges_are_under_way_and_end_in_any_order) {
    run_all(exchange_many_at_once, NULL);
}

static status gather_sizes(struct ranks *ranks, void *context) {
    static const size_t sizes[] = {0, 1, 8, 100000, 2 * MIB + 1};
    const size_t count = (size_t)ranks->count;
    (void)context;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t bytes = sizes[i];
        unsigned char *all = mem_checked(calloc(count, bytes + 1));
        for (size_t at = 0; at < bytes; at++) all[(size_t)ranks->own * bytes + at] = byte_of(i, ranks->own, 0, at);
        TRY(ranks_gather(ranks, all, bytes));
        for (size_t at = 0; at < count * bytes; at++) HOLDS(all[at] == byte_of(i, (int)(at / bytes), 0, at % bytes));
        free(all);
    }
    return OK;
}

TEST(a_gather_gives_all_to_all) {
    run_all(gather_sizes, NULL);
}

static atomic_int arrived;

static status meet_often(struct ranks *ranks, void *context) {
    (void)context;
    char all[MOST] = {0};
    for (int i = 1; i <= 20; i++) {
        atomic_fetch_add(&arrived, 1);
        TRY(ranks_gather(ranks, all, 1));
        HOLDS(atomic_load(&arrived) >= i * ranks->count);
        TRY(ranks_gather(ranks, all, 1));
    }
    atomic_fetch_sub(&arrived, 20);
    return OK;
}

TEST(a_gather_waits_for_all) {
    run_all(meet_often, NULL);
}

static atomic_int ahead;

// Rank 0 has no pieces, and is through with its exchanges before the others begin theirs.
static status run_ahead(struct ranks *ranks, void *context) {
    char data[MOST] = {0};
    (void)context;
    while (ranks->own > 0 && !atomic_load(&ahead)) usleep(1000);
    for (int i = 0; i < 100; i++) {
        struct rank_exchange *exchange;
        const int next = ranks->own + 1 < ranks->count ? ranks->own + 1 : 1,
                  last = ranks->own > 1 ? ranks->own - 1 : ranks->count - 1;
        char out = (char)i, in = -1;
        const struct rank_piece send = {next, &out, 1}, receive = {last, &in, 1};
        const size_t count = ranks->own > 0;
        TRY(ranks_begin(ranks, &send, count, &receive, count, &exchange));
        TRY(ranks_end(ranks, &exchange));
        HOLDS(in == (count && next != ranks->own ? out : -1));
    }
    if (ranks->own == 0) atomic_store(&ahead, 1);
    TRY(ranks_gather(ranks, data, 1));
    if (ranks->own == 0) atomic_store(&ahead, 0);
    return OK;
}

TEST(a_rank_without_pieces_does_not_wait) {
    run_all(run_ahead, NULL);
}

// A gradient of which each rank owns a part, and then weights: what a reduce-scatter and an all-gather in a ring send.
static status train_a_turn(struct ranks *ranks, void *context) {
    enum { BYTES = 840 * 1000 }; // divisible by 1 .. 8
    const size_t count = (size_t)ranks->count, part = BYTES / count;
    char *grads = mem_checked(calloc(1, BYTES)), *leaves = mem_checked(calloc(1, BYTES)),
         *weights = mem_checked(calloc(1, BYTES));
    struct rank_piece sends[MOST], receives[MOST];
    struct rank_exchange *exchange;
    (void)context;
    for (size_t rank = 0; rank < count; rank++) {
        sends[rank] = (struct rank_piece){(int)rank, grads + rank * part, part};
        receives[rank] = (struct rank_piece){(int)rank, leaves + rank * part, part};
    }
    TRY(ranks_begin(ranks, sends, count, receives, count, &exchange));
    TRY(ranks_end(ranks, &exchange));
    HOLDS(ranks->sent == BYTES / count * (count - 1));
    TRY(ranks_gather(ranks, weights, part));
    HOLDS(ranks->sent == 2 * (BYTES / count * (count - 1)));
    free(grads);
    free(leaves);
    free(weights);
    return OK;
}

TEST(a_rank_sends_as_many_bytes_as_in_a_ring) {
    run_all(train_a_turn, NULL);
}

static status name_no_rank(struct ranks *ranks, void *context) {
    char data[MOST] = {0};
    struct rank_exchange *exchange;
    (void)context;
    for (int rank = -1; rank <= ranks->count; rank += ranks->count + 1) {
        const struct rank_piece piece = {rank, data, 1};
        HOLDS(ranks_begin(ranks, &piece, 1, NULL, 0, &exchange) == BUG && !exchange);
        HOLDS(ranks_begin(ranks, NULL, 0, &piece, 1, &exchange) == BUG && !exchange);
        HOLDS(strstr(fail_text(), "exchange 0: rank "));
    }
    HOLDS(ranks_end(ranks, &exchange) == OK);
    return ranks_gather(ranks, data, 1);
}

TEST(a_piece_for_no_rank_is_refused_and_nothing_has_begun) {
    run_all(name_no_rank, NULL);
}

// *context: what rank 0 sends to rank 1, and what rank 1 expects.
static status disagree(struct ranks *ranks, void *context) {
    const size_t *sizes = context;
    static char data[2][100];
    char all[MOST] = {0};
    struct rank_exchange *exchange;
    TRY(ranks_gather(ranks, all, 1));
    const struct rank_piece send = {1, data[0], sizes[0]}, receive = {0, data[1], sizes[1]};
    TRY(ranks_begin(ranks, &send, ranks->own == 0, &receive, ranks->own == 1, &exchange));
    TRY(ranks_end(ranks, &exchange));
    return ranks_gather(ranks, all, 1);
}

TEST(ranks_that_disagree_about_a_size_fail_and_say_so) {
    static size_t cases[][2] = {{10, 20}, {20, 10}, {10, 0}, {0, 10}};
    for (enum kind kind = IN_MEMORY; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            SCOPED(struct crew, crew_release) crew;
            struct outcome out[MOST] = {0};
            char text[100];
            crew_make(&crew, kind, 3);
            run_threads(&crew, disagree, cases[i], out);
            snprintf(text, sizeof text, "exchange 1: rank 0 sends %zu bytes to rank 1, which expects %zu", cases[i][0],
                     cases[i][1]);
            for (int rank = 0; rank < 3; rank++) {
                if (out[rank].result != BUG || !strstr(out[rank].text, text))
                    print_error("kind %d, case %zu, rank %d: %s\n", (int)kind, i, rank, out[rank].text);
                assert_int_equal(out[rank].result, BUG);
                assert_non_null(strstr(out[rank].text, text));
            }
        }
}

// *context: the status with which rank 1 fails, between two exchanges. What it says afterwards counts for nothing.
static status give_up(struct ranks *ranks, void *context) {
    const status *code = context;
    char all[MOST] = {0};
    TRY(ranks_gather(ranks, all, 1));
    HOLDS(!ranks->failed);
    if (ranks->own != 1) {
        const status result = ranks_gather(ranks, all, 1);
        HOLDS(result != OK && ranks->failed);
        char first[400];
        snprintf(first, sizeof first, "%s", fail_text());
        HOLDS(ranks_fail(ranks, fail(DATAERR, "too late")) == DATAERR);
        HOLDS(ranks_gather(ranks, all, 1) == result && !strcmp(fail_text(), first));
        return result;
    }
    HOLDS(ranks_fail(ranks, fail(*code, "the reason")) == *code && ranks->failed);
    HOLDS(!strcmp(fail_text(), "the reason"));
    HOLDS(ranks_fail(ranks, fail(USAGE, "another cause")) == USAGE);
    HOLDS(ranks_gather(ranks, all, 1) != OK && strstr(fail_text(), "the reason"));
    return fail(*code, "the reason");
}

TEST(a_rank_that_gives_up_tells_the_others_why) {
    static status codes[] = {DATAERR, BUG, UNAVAILABLE, BAD_SAMPLE},
                  others[] = {DATAERR, BUG, UNAVAILABLE, UNAVAILABLE};
    for (enum kind kind = IN_MEMORY; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
            SCOPED(struct crew, crew_release) crew;
            struct outcome out[MOST] = {0};
            crew_make(&crew, kind, 3);
            run_threads(&crew, give_up, &codes[i], out);
            for (int rank = 0; rank < 3; rank++) {
                const status want = rank == 1 ? codes[i] : others[i];
                const char *text = rank == 1 ? "the reason" : "rank 1 has failed: the reason";
                if (out[rank].result != want || !strstr(out[rank].text, text))
                    print_error("kind %d, case %zu, rank %d: %s\n", (int)kind, i, rank, out[rank].text);
                assert_int_equal(out[rank].result, want);
                assert_non_null(strstr(out[rank].text, text));
            }
        }
}

// The thread that gets the signal is not scheduled until it is over.
static void hold_thread(int number) {
    (void)number;
    atomic_fetch_add(held, 1);
    while (!atomic_load(over)) poll(NULL, 0, 1);
}

// Rank 1 fails while the thread of rank 0's link, the only one there that takes the signal, is held.
static status fail_unseen(struct ranks *ranks, void *context) {
    struct rank_exchange *exchange;
    char out = 1, in = 0;
    const struct rank_piece send = {1, &out, 1}, receive = {1, &in, 1};
    sigset_t set;
    (void)context;
    while (ranks->own == 1 && !atomic_load(held)) usleep(1000);
    if (ranks->own == 1) return ranks_fail(ranks, fail(UNAVAILABLE, "the reason"));
    TRY(ranks_begin(ranks, &send, 1, &receive, 1, &exchange));
    if (ranks->own == 0) {
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        usleep(100000); // the thread waits for its sockets
        HOLDS(signal(SIGUSR1, hold_thread) != SIG_ERR && !pthread_sigmask(SIG_BLOCK, &set, NULL));
        HOLDS(!kill(getpid(), SIGUSR1));
    }
    return ranks_end(ranks, &exchange);
}

TEST(rank_0_learns_why_another_one_has_failed_and_ended_though_it_was_not_scheduled) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 3);
    processes_start(&crew, 3, fail_unseen, NULL);
    for (int rank = 1; rank < 3; rank++) assert_int_equal(waitpid(processes[rank], NULL, 0), processes[rank]);
    usleep(300000); // what they have sent comes, and the ends of their connections
    atomic_store(over, 1);
    assert_int_equal(waitpid(processes[0], NULL, 0), processes[0]);
    assert_text(0, UNAVAILABLE, "rank 1 has failed: the reason");
}

static status leave_early(struct ranks *ranks, void *context) {
    char all[MOST] = {0};
    (void)context;
    for (int i = 0; i < 3 + (ranks->own != 1); i++) TRY(ranks_gather(ranks, all, 1));
    return OK;
}

TEST(a_rank_that_leaves_is_missed_by_those_that_await_it) {
    for (enum kind kind = IN_MEMORY; kind < KINDS; kind++) {
        SCOPED(struct crew, crew_release) crew;
        struct outcome out[MOST] = {0};
        crew_make(&crew, kind, 3);
        run_threads(&crew, leave_early, NULL, out);
        assert_int_equal(out[1].result, OK);
        for (int rank = 0; rank < 3; rank += 2) {
            assert_int_equal(out[rank].result, UNAVAILABLE);
            assert_non_null(strstr(out[rank].text, "rank 1 has left, but "));
        }
    }
}

// Rank 1 has gone when the others exchange for seconds.
static status go_on_without(struct ranks *ranks, void *context) {
    char all[MOST] = {0};
    (void)context;
    TRY(ranks_gather(ranks, all, 1));
    for (int i = 0; i < 25 && ranks->own != 1; i++) {
        struct rank_exchange *exchange;
        char out = (char)i, in = 0;
        const struct rank_piece send = {2 - ranks->own, &out, 1}, receive = {2 - ranks->own, &in, 1};
        usleep(100000);
        TRY(ranks_begin(ranks, &send, 1, &receive, 1, &exchange));
        TRY(ranks_end(ranks, &exchange));
        HOLDS(in == out);
    }
    return OK;
}

TEST(a_rank_may_leave_when_nobody_awaits_it) {
    for (enum kind kind = IN_MEMORY; kind <= OVER_IPC; kind++) {
        SCOPED(struct crew, crew_release) crew;
        struct outcome out[MOST] = {0};
        crew_make(&crew, kind, 3);
        run_threads(&crew, go_on_without, NULL, out);
        for (int rank = 0; rank < 3; rank++) {
            if (out[rank].result != OK) print_error("kind %d, rank %d: %s\n", (int)kind, rank, out[rank].text);
            assert_int_equal(out[rank].result, OK);
        }
    }
}

// ---- who may join ----

static status gather_once(struct ranks *ranks, void *context) {
    char all[MOST] = {0};
    (void)context;
    return ranks_gather(ranks, all, 1);
}

TEST(a_rank_that_does_not_join_is_named) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 3);
    for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = 4;
    processes_start(&crew, 2, gather_once, NULL);
    processes_wait(2);
    assert_text(0, UNAVAILABLE, "rank 2 has not joined within 4 s");
    assert_text(1, UNAVAILABLE, "rank 2 has not joined within 4 s");
}

static status do_nothing(struct ranks *ranks, void *context) {
    (void)ranks, (void)context;
    return OK;
}

TEST(a_rank_that_is_asked_to_stop_does_not_wait_for_the_others) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    processes_start(&crew, 1, do_nothing, NULL); // rank 1 does not come
    while (!atomic_load(signalled)) usleep(1000);
    const double begun = clock_monotonic();
    usleep(300000);
    assert_int_equal(kill(processes[0], SIGTERM), 0);
    processes_wait(1);
    assert_text(0, END, "asked to stop before all ranks were there");
    assert_true(outcomes[0].at - begun < 30); // the timeout is a minute
}

TEST(a_rank_of_another_run_does_not_join_and_both_say_why) {
    SCOPED(struct crew, crew_release) crew;
    crew_make(&crew, OVER_IPC, 2);
    crew.run[1] = "a run, another";
    for (int rank = 0; rank < 2; rank++) crew.timeout[rank] = 4 + rank;
    processes_start(&crew, 2, gather_once, NULL);
    processes_wait(2);
    assert_text(0, UNAVAILABLE,
                "rank 1 has not joined within 4 s; a process that calls itself rank 1 was refused: it "
                "belongs to another run");
    assert_text(1, UNAVAILABLE,
                "rank 0 has not joined within 5 s; rank 0 refuses this rank: it belongs to another run");
}

// Rank 2 is stopped while the others are killed, and all start again.
TEST(what_is_left_of_an_earlier_start_ends_and_disturbs_no_later_one) {
    for (int i = 0; i < 2; i++) {
        SCOPED(struct crew, crew_release) crew;
        crew_make(&crew, i ? OVER_CURVE : OVER_IPC, 3);
        processes_start(&crew, 3, gather_for_ever, NULL);
        processes_meet(3);
        const pid_t left = processes[2];
        assert_int_equal(kill(left, SIGSTOP), 0);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(kill(processes[rank], SIGKILL), 0);
            assert_int_equal(waitpid(processes[rank], NULL, 0), processes[rank]);
        }
        processes_start(&crew, 3, gather_many, NULL);
        usleep(500000);
        assert_int_equal(kill(left, SIGCONT), 0);
        assert_int_equal(waitpid(left, NULL, 0), left);
        assert_text(2, UNAVAILABLE, " is gone"); // the later one has not ended
        usleep(200000);
        atomic_store(over, 1);
        processes_wait(3);
        for (int rank = 0; rank < 3; rank++) assert_text(rank, OK, "");
    }
}

TEST(a_rank_with_a_wrong_key_does_not_join) {
    for (int i = 0; i < 3; i++) {
        SCOPED(struct crew, crew_release) crew;
        SCOPED(struct wire_security, wire_security_release) other = {0};
        crew_make(&crew, OVER_CURVE, 3);
        assert_int_equal(wire_key_make(&other), OK);
        for (int rank = 0; rank < 3; rank++) crew.timeout[rank] = rank ? 4.4 : 3.6;
        if (i == 0) { // one that nobody admits
            memcpy(crew.security[1].public, other.public, WIRE_KEY);
            memcpy(crew.security[1].secret, other.secret, WIRE_KEY);
        } else if (i == 1) { // that of another machine of the run
            memcpy(crew.security[1].public, crew.security[2].public, WIRE_KEY);
            memcpy(crew.security[1].secret, crew.security[2].secret, WIRE_KEY);
        } else { // another one than the others expect of a server
            crew.keys[0] = other.public;
        }
        processes_start(&crew, 3, gather_once, NULL);
        processes_wait(3);
        for (int rank = 0; rank < 3; rank++) assert_text(rank, UNAVAILABLE, " has not joined within 4 s");
        if (i == 1) assert_text(0, UNAVAILABLE, "its key is another machine's");
    }
}

TEST(a_rank_needs_the_keys_of_the_others) {
    SCOPED(struct crew, crew_release) crew;
    struct ranks *ranks;
    crew_make(&crew, OVER_CURVE, 2);
    crew.keys[0] = NULL;
    assert_int_equal(crew_open(&crew, 1, &ranks), USAGE);
    assert_null(ranks);
}

// Rank 2 of 4 is stopped; it is on another machine.
static status meet_partners(struct ranks *ranks, void *context) {
    const int *partners = context;
    char all[MOST] = {0};
    HOLDS(ranks->partner && !memcmp(ranks->partner, partners, (size_t)ranks->count * sizeof *partners));
    for (;;) TRY(ranks_gather(ranks, all, 1));
}

TEST(ranks_on_other_machines_have_partners_and_are_named_with_them) {
    static int partners[2][4] = {{0, 1, 0, 1}, {0, 0, 0, 0}};
    for (int i = 0; i < 2; i++) {
        SCOPED(struct crew, crew_release) crew;
        crew_make(&crew, OVER_CURVE, 4);
        crew.timeout[0] = 4;
        for (int rank = 0; rank < 4; rank++) crew.machines[rank] = rank < 2 - i ? "one" : "two";
        processes_start(&crew, 4, meet_partners, partners[i]);
        processes_meet(4);
        assert_int_equal(kill(processes[2], SIGSTOP), 0);
        assert_int_equal(waitpid(processes[0], NULL, 0), processes[0]);
        assert_text(0, UNAVAILABLE, "rank 2 on two has done nothing for 4 s");
        for (int rank = 1; rank < 4; rank++) {
            kill(processes[rank], SIGKILL);
            assert_int_equal(waitpid(processes[rank], NULL, 0), processes[rank]);
        }
    }
}

// ---- other messages than a rank's ----

enum { GREETING = 1, READY, CHUNK, RECEIVED, HEARTBEAT, BYE };

// A process that speaks to rank 0 by itself.
struct stranger {
    struct transport *transport;
    struct transport_link *link;
    uint64_t start; // which it says; that of the last GREETING
};

static struct stranger stranger_open(const char *endpoint) {
    struct stranger stranger = {0};
    assert_int_equal(zmq_transport_open(&stranger.transport, NULL), OK);
    assert_int_equal(stranger.transport->calls->connect(stranger.transport, endpoint, NULL, &ahead, &stranger.link),
                     OK);
    return stranger;
}

// Rank 0 waits for the BYE of one that has joined.
static void stranger_close(struct stranger *stranger) {
    const uint64_t head[5] = {BYE};
    const struct transport_frames frames = {.count = 2, .head = head, .head_size = sizeof head, .bulk = ""};
    bool gone;
    (void)stranger->transport->calls->send(stranger->transport, stranger->link, NULL, &frames, &gone);
    stranger->transport->calls->free(stranger->transport);
}

static void stranger_send(const struct stranger *stranger, const void *head, size_t head_size, const void *bulk,
                          size_t bulk_size) {
    const struct transport_frames frames = {
        .count = bulk ? 2 : 1, .head = head, .head_size = head_size, .bulk = bulk, .bulk_size = bulk_size};
    bool gone = true;
    for (int i = 0; i < 6000 && gone; i++) {
        struct transport_event event;
        assert_int_equal(stranger->transport->calls->send(stranger->transport, stranger->link, NULL, &frames, &gone),
                         OK);
        if (gone) assert_int_equal(stranger->transport->calls->receive(stranger->transport, 10, &event), OK);
    }
    assert_false(gone);
}

static void stranger_say(const struct stranger *stranger, uint64_t kind, uint64_t number, uint64_t at, uint64_t count,
                         const char *bulk, size_t bulk_size) {
    const uint64_t head[5] = {kind, number, at, count, stranger->start};
    stranger_send(stranger, head, sizeof head, bulk, bulk_size);
}

// Receives until a message of that kind is there. Returns its second frame, "" if it has none.
static const char *stranger_hear(struct stranger *stranger, uint64_t kind) {
    static char text[500];
    for (int i = 0; i < 6000; i++) {
        struct transport_event event;
        uint64_t head[5];
        assert_int_equal(stranger->transport->calls->receive(stranger->transport, 10, &event), OK);
        if (event.kind != TRANSPORT_MESSAGE) continue;
        assert_int_equal(event.frames.head_size, sizeof head);
        memcpy(head, event.frames.head, sizeof head);
        if (head[0] != kind) continue;
        if (kind == GREETING) stranger->start = head[4];
        snprintf(text, sizeof text, "%.*s", (int)event.frames.bulk_size,
                 event.frames.count == 2 ? (const char *)event.frames.bulk : "");
        return text;
    }
    assert_true(false);
    return NULL;
}

static status gather_four(struct ranks *ranks, void *context) {
    char all[8] = {0};
    (void)context;
    TRY(ranks_gather(ranks, all, 4));
    return ranks_gather(ranks, all, 4);
}

TEST(a_rank_that_breaks_the_protocol_is_named_with_its_mistake) {
    static const char run[] = "a run";
    static const struct {
        uint64_t kind, number, at;
        const char *bulk;
        size_t size, repeat;
        const char *mistake;
    } cases[] = {
        {READY, 1, 4, NULL, 0, 1, "exchanges in the wrong order (message 2, exchange 1)"},
        {READY, 0, 4, "", 0, 1, "a message with the wrong frames"},
        {READY, 0, 5, NULL, 0, 1, "exchange 0: rank 0 sends 4 bytes to rank 1, which expects 5"},
        {CHUNK, 0, 0, NULL, 0, 1, "a message with the wrong frames"},
        {CHUNK, 1, 0, "abcd", 4, 1, "bytes of an exchange that is not under way"},
        {CHUNK, 0, 1, "abc", 3, 1, "bytes that are not the next ones"},
        {CHUNK, 0, 0, "abcde", 5, 1, "more bytes than are expected"},
        {CHUNK, 0, 0, "", 0, 1, "a chunk of a wrong size"},
        {CHUNK, 0, 0, "abcd", 4, 2, "bytes that are not the next ones"},
        {RECEIVED, 0, 1, NULL, 0, 1, "the receipt of bytes that were not sent"},
        {RECEIVED, 7, 1, NULL, 0, 1, "the receipt of bytes that were not sent"},
        {HEARTBEAT, 0, 0, "", 0, 1, "a message with the wrong frames"},
        {0, 0, 0, NULL, 0, 1, "an unknown message"},
        {99, 0, 0, NULL, 0, 1, "an unknown message"},
        {READY, 0, 4, NULL, 0, 4098, "too many exchanges ahead"},
        {BYE, 0, 0, "because", 7, 1, "rank 1 has failed: because"},
        {BYE, 0, 0, "", 0, 1, "rank 1 has left, but exchange 0 awaits it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct crew, crew_release) crew;
        struct outcome out = {0};
        crew_make(&crew, OVER_IPC, 2);
        struct thread_rank rank = {.crew = &crew, .task = gather_four, .out = &out}; // rank 0; the test plays rank 1
        assert_int_equal(pthread_create(&rank.thread, NULL, thread_run, &rank), 0);
        struct stranger stranger = stranger_open(crew.addresses[0]);
        stranger_say(&stranger, GREETING, 2, 1, 2, run, sizeof run - 1);
        assert_string_equal(stranger_hear(&stranger, GREETING), run);
        stranger_hear(&stranger, READY);
        for (size_t k = 0; k < cases[i].repeat; k++)
            stranger_say(&stranger, cases[i].kind, cases[i].number + (cases[i].repeat > 2 ? k : 0), cases[i].at, 0,
                         cases[i].bulk, cases[i].size);
        const bool leaves = cases[i].kind == BYE;
        if (!leaves) assert_non_null(strstr(stranger_hear(&stranger, BYE), cases[i].mistake));
        if (leaves) pthread_join(rank.thread, NULL); // it has the message, which a socket that closes might lose
        stranger_close(&stranger);
        if (!leaves) pthread_join(rank.thread, NULL);
        assert_int_equal(out.result, cases[i].kind == BYE ? UNAVAILABLE : BUG);
        assert_non_null(strstr(out.text, cases[i].mistake));
    }
}

TEST(what_strangers_say_is_ignored) {
    static const char run[] = "a run";
    SCOPED(struct crew, crew_release) crew;
    char garbage[4096];
    crew_make(&crew, OVER_IPC, 3);
    processes_start(&crew, 3, gather_many, NULL);
    {
        SCOPED(struct stranger, stranger_close) stranger = stranger_open(crew.addresses[0]);
        for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (char)draw(i, 256);
        for (size_t i = 0; i < 300; i++) {
            const size_t head_size = draw(i, 2) ? 40 : draw(i + 1, 100), bulk_size = draw(i + 2, 2000);
            if (draw(i + 3, 2)) garbage[draw(i + 4, 100)] = (char)i;
            stranger_send(&stranger, garbage + draw(i + 5, 100), head_size, draw(i + 6, 2) ? garbage + 50 : NULL,
                          bulk_size);
        }
        for (uint64_t kind = 0; kind < 8; kind++) stranger_say(&stranger, kind, 0, 1, 3, NULL, 0);
        stranger_say(&stranger, HEARTBEAT, 0, 0, 0, NULL, 0);
        assert_non_null(strstr(stranger_hear(&stranger, BYE), "it has lost the connection to this rank"));
    }
    processes_meet(3); // the last greeting below would be taken for rank 1's own
    const struct {
        uint64_t version, rank, count, start;
        const char *run, *mistake;
    } greetings[] = {{1, 1, 3, 0, run, "another version of caravan"},
                     {2, 1, 3, 0, "a ran", "it belongs to another run"},
                     {2, 1, 3, 7, run, "it belongs to another start of the run"},
                     {2, 1, 4, 0, run, "it has another number of ranks"},
                     {2, 0, 3, 0, run, "its number is that of another rank"},
                     {2, 3, 3, 0, run, "its number is that of another rank"},
                     {2, UINT64_MAX, 3, 0, run, "its number is that of another rank"},
                     {2, 1, 3, 0, run, "that rank is here already"}};
    for (size_t i = 0; i < sizeof greetings / sizeof *greetings; i++) {
        SCOPED(struct stranger, stranger_close) stranger = stranger_open(crew.addresses[0]);
        stranger.start = greetings[i].start;
        stranger_say(&stranger, GREETING, greetings[i].version, greetings[i].rank, greetings[i].count, greetings[i].run,
                     strlen(greetings[i].run));
        assert_non_null(strstr(stranger_hear(&stranger, BYE), greetings[i].mistake));
    }
    atomic_store(over, 1);
    processes_wait(3);
    for (int rank = 0; rank < 3; rank++) assert_text(rank, OK, "");
}
