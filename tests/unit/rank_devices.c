// Tensors between the GPUs of ranks. The ranks are threads, their GPUs two of the emulator's devices, between which its
// NCCL moves bytes: late, in any order between pairs, or not at all.
#include "tests/unit/unit.h"

#include <dlfcn.h>
#include <pthread.h>

#include "shared/base/memory.h"
#include "shared/model/rank_devices.h"
#include "tests/support/ranks_memory.h"

enum { MOST = 4, NUMBERS = 5000, ROUNDS = 5 };

static char plugin[4096];

struct rank {
    pthread_t thread;
    const char *device;
    status (*task)(struct rank *rank);
    struct ranks *ranks;
    struct backend *backend;
    struct rank_devices *devices;
    status result;
    char text[400];
};

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) return fail(BAD_SAMPLE, "line %d: %s", __LINE__, #condition);                                \
    } while (0)

static int setup(void **state) {
    const char *dir = getenv("CARAVAN_LIB");
    (void)state;
    snprintf(plugin, sizeof plugin, "%s/libcaravan-emulated.so", dir ? dir : ".");
    if (!dlopen(plugin, RTLD_NOW | RTLD_LOCAL)) *plugin = 0; // not built for the thread sanitizer
    return 0;
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    rank->result = backend_open(&rank->backend, &(struct backend_options){.device = rank->device, .threads = 1});
    if (rank->result == OK) rank->result = rank_devices_open(&rank->devices, rank->backend, rank->ranks);
    if (rank->result == OK) rank->result = rank->task(rank);
    if (rank->result != OK) ranks_fail(rank->ranks, rank->result);
    snprintf(rank->text, sizeof rank->text, "%s", rank->result == OK ? "" : fail_text());
    rank_devices_free(&rank->devices);
    backend_close(&rank->backend);
    ranks_free(&rank->ranks);
    return NULL;
}

// Lets ranks do a task on a device. $CARAVAN_NCCL is `library`; NULL: as it is.
static void run_with(const char *library, const char *faults, const char *device, int count,
                     status (*task)(struct rank *), struct rank *out) {
    struct ranks *ranks[MOST];
    if (library && !*plugin) skip();
    if (library) setenv("CARAVAN_NCCL", library, 1);
    setenv("CARAVAN_EMULATED_NCCL", faults, 1);
    ranks_memory_open(count, ranks);
    for (int r = 0; r < count; r++) {
        out[r] = (struct rank){.device = device, .task = task, .ranks = ranks[r]};
        if (!strcmp(device, "emulated:0 and cpu")) out[r].device = r ? "cpu" : "emulated:0";
        assert_int_equal(pthread_create(&out[r].thread, NULL, rank_run, &out[r]), 0);
    }
    for (int r = 0; r < count; r++) pthread_join(out[r].thread, NULL);
}

static void run(const char *faults, const char *device, int count, status (*task)(struct rank *), struct rank *out) {
    run_with(plugin, faults, device, count, task, out);
}

static void expect(const struct rank *rank, status result, const char *text) {
    if (rank->result != result || !strstr(rank->text, text)) print_error("%d: %s\n", (int)rank->result, rank->text);
    assert_int_equal(rank->result, result);
    assert_non_null(strstr(rank->text, text));
}

// ---- one GPU ----

static status join_alone(struct rank *rank) {
    HOLDS(rank->devices && rank_devices_end(rank->devices) == OK);
    return rank_devices_begin(rank->devices, NULL, 0, NULL, 0) == OK ? rank_devices_end(rank->devices)
                                                                     : fail(BAD_SAMPLE, "%s", fail_text());
}

// With NCCL itself on MODEL_DEVICE: two processes cannot use it on one GPU.
TEST(a_gpu_joins_alone) {
    const char *device = getenv("MODEL_DEVICE");
    struct rank alone;
    run_with(device ? NULL : plugin, "", device ? device : "emulated:0", 1, join_alone, &alone);
    expect(&alone, OK, "");
}

// ---- exchanges ----

static struct tensor numbers(struct buffer *buffer, int first, int count) {
    return (struct tensor){buffer, (size_t)first * sizeof(int32_t), ELEMENT_I32, 1, count, count};
}

static int32_t number_of(int from, int to, int round, int i) {
    return ((from * MOST + to) * ROUNDS + round) * NUMBERS + i;
}

// Each rank sends each other one NUMBERS numbers in two pieces, which are other ones in each round, and computes
// beside that. What was sent and received is overwritten at once. buffers: sent, received, computed.
static status exchange_rounds(struct rank *rank, struct buffer **buffers, int32_t *values) {
    const struct operations *ops = rank->backend->ops;
    const int own = rank->ranks->own, count = rank->ranks->count, all = MOST * NUMBERS;
    struct comm_piece sends[2 * MOST], receives[2 * MOST];
    HOLDS(rank->devices);
    for (int i = 0; i < 3; i++) TRY(ops->buffer_new(rank->backend, (size_t)all * sizeof *values, &buffers[i]));
    for (int round = 0; round < ROUNDS; round++) {
        const int first = round * 997 % NUMBERS; // 0 in the first round
        for (int i = 0; i < all; i++) values[i] = number_of(own, i / NUMBERS, round, i % NUMBERS);
        TRY(ops->upload(rank->backend, numbers(buffers[0], 0, all), values, ELEMENT_I32));
        for (int i = 0; i < 2 * count; i++) {
            const int at = i / 2 * NUMBERS + (i % 2 ? first : 0), size = i % 2 ? NUMBERS - first : first;
            sends[i] = (struct comm_piece){i / 2, numbers(buffers[0], at, size)};
            receives[i] = (struct comm_piece){i / 2, numbers(buffers[1], at, size)};
        }
        TRY(rank_devices_begin(rank->devices, sends, 2 * (size_t)count, receives, 2 * (size_t)count));
        TRY(ops->copy(rank->backend, numbers(buffers[2], 0, all), numbers(buffers[0], 0, all)));
        TRY(rank_devices_end(rank->devices));
        TRY(ops->zero(rank->backend, numbers(buffers[0], 0, all)));
        TRY(ops->download(rank->backend, values, ELEMENT_I32, numbers(buffers[1], 0, all)));
        for (int i = 0; i < count * NUMBERS; i++)
            HOLDS(i / NUMBERS == own || values[i] == number_of(i / NUMBERS, own, round, i % NUMBERS));
        TRY(ops->zero(rank->backend, numbers(buffers[1], 0, all)));
    }
    return OK;
}

static status exchange_numbers(struct rank *rank) {
    struct buffer *buffers[3] = {NULL};
    int32_t *values;
    NEW(&values, (size_t)MOST * NUMBERS);
    const status result = exchange_rounds(rank, buffers, values);
    for (int i = 0; i < 3; i++) rank->backend->ops->buffer_free(rank->backend, &buffers[i]);
    free(values);
    return result;
}

TEST(what_comes_from_other_gpus_is_there_when_the_exchange_has_ended) {
    static const char *const devices[] = {"emulated:0", "emulated:1"}, *const faults[] = {"", "delay=30"};
    struct rank ranks[MOST];
    for (int i = 0; i < 4; i++) {
        for (int count = 2; count <= MOST; count++) {
            run(faults[i / 2], devices[i % 2], count, exchange_numbers, ranks);
            for (int r = 0; r < count; r++) expect(&ranks[r], OK, "");
        }
    }
}

// Rank 1 expects a number less.
static status exchange_unequal(struct rank *rank) {
    struct buffer *buffer;
    TRY(rank->backend->ops->buffer_new(rank->backend, 2 * NUMBERS * sizeof(int32_t), &buffer));
    const struct comm_piece send = {!rank->ranks->own, numbers(buffer, 0, NUMBERS)},
                            receive = {!rank->ranks->own, numbers(buffer, NUMBERS, NUMBERS - rank->ranks->own)};
    status result = rank_devices_begin(rank->devices, &send, 1, &receive, 1);
    if (result == OK) result = rank_devices_end(rank->devices);
    if (result != BUG || rank_devices_end(rank->devices) != OK) return fail(BAD_SAMPLE, "%d", (int)result);
    if (rank_devices_begin(rank->devices, &send, 1, &receive, 1) != BUG) return fail(BAD_SAMPLE, "it goes on");
    rank->backend->ops->buffer_free(rank->backend, &buffer);
    return rank->ranks->own ? fail(BUG, "%s", "as rank 0") : OK;
}

TEST(ranks_that_disagree_about_an_exchange_find_out) {
    struct rank ranks[2];
    run("hang=1:2", "emulated:0", 2, exchange_unequal, ranks); // or the emulator would find out
    expect(&ranks[0], OK, "");
    expect(&ranks[1], BUG, "as rank 0");
}

// ---- failures ----

TEST(a_failure_of_nccl_ends_all_ranks) {
    static const char *const faults[] = {"error=1:0", "error=1:1", "error=1:3"}; // joins, connects, exchanges
    struct rank ranks[2];
    for (int i = 0; i < 3; i++) {
        run(faults[i], i == 1 ? "emulated:1" : "emulated:0", 2, exchange_numbers, ranks);
        expect(&ranks[0], UNAVAILABLE, "rank 1 has failed: the GPUs of rank 1 and the others: NCCL: remote process");
        expect(&ranks[1], UNAVAILABLE, "the GPUs of rank 1 and the others: NCCL: remote process exited");
    }
}

TEST(a_gpu_that_hangs_is_given_up) {
    static const char *const faults[] = {"hang=1:0", "hang=1:1", "hang=1:3"};
    struct rank ranks[2];
    const double timeout = ranks_memory_timeout;
    ranks_memory_timeout = 1;
    for (int i = 0; i < 3; i++) {
        run(faults[i], i == 1 ? "emulated:1" : "emulated:0", 2, exchange_numbers, ranks);
        for (int r = 0; r < 2; r++) expect(&ranks[r], UNAVAILABLE, "has waited too long for another one");
    }
    ranks_memory_timeout = timeout;
}

// ---- ranks that are not there yet ----

static bool awaited; // however long they take

static void begin_nothing(struct ranks *ranks, struct rank_exchange *exchange) {
    (void)ranks, (void)exchange;
}

static status end_nothing(struct ranks *ranks, struct rank_exchange *exchange, bool patient) {
    (void)ranks, (void)exchange;
    awaited = patient;
    return OK;
}

// The others may still read the model, which a slow disk holds up for longer than a rank may hang.
TEST(ranks_that_read_the_model_are_awaited) {
    static const struct ranks_calls calls = {.begin = begin_nothing, .end = end_nothing};
    struct ranks ranks = {.calls = &calls, .own = 0, .count = 2};
    struct rank_devices *devices;
    struct backend *backend;
    MUST(backend_open(&backend, &(struct backend_options){.device = "cpu", .threads = 1}));
    MUST(rank_devices_open(&devices, backend, &ranks));
    assert_null(devices);
    assert_true(awaited);
    backend_close(&backend);
}

// ---- without NCCL ----

static status lack_devices(struct rank *rank) {
    HOLDS(!rank->devices);
    return OK;
}

TEST(without_nccl_on_each_rank_none_uses_it) {
    struct rank ranks[2];
    run_with("none", "", "emulated:0", 2, lack_devices, ranks);
    for (int r = 0; r < 2; r++) expect(&ranks[r], OK, "");
    run("", "emulated:0 and cpu", 2, lack_devices, ranks);
    for (int r = 0; r < 2; r++) expect(&ranks[r], OK, "");
}

TEST(an_nccl_that_is_named_must_be_there) {
    static const char *const names[] = {"/nowhere/libnccl.so.2", "libc.so.6"};
    struct rank ranks[2];
    for (int i = 0; i < 2; i++) {
        run_with(names[i], "", "emulated:0", 2, lack_devices, ranks);
        for (int r = 0; r < 2; r++) expect(&ranks[r], UNAVAILABLE, names[i]);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return unit_run(setup, NULL);
}
