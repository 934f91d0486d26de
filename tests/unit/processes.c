// A machine's stage processes: which replica gets which GPU, and what follows when one ends.
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/wire/node_config.h"
#include "shared/wire/transport.h"
#include "tools/run/processes.h"

// Returns the value of an option in a command line, "" for none.
static const char *value_of(const struct process *process, const char *option) {
    for (char **word = process->argv; *word; word++)
        if (!strncmp(*word, option, strlen(option))) return *word + strlen(option);
    return "";
}

// Rollout's replicas on a machine (NULL: there is only one) must have these values of an option ("--device="), with a
// space behind each.
static void check_values(const char *source, const char *options, const char *machine, const char *option,
                         const char *want) {
    const char *dir = unit_new_directory();
    char nodes[64], text[1024], key[64];
    SCOPED(struct pipeline *, pipeline_free) pipeline = NULL;
    struct deployment deployment;
    SCOPED(struct processes, processes_release) processes = {0};
    SCOPED(struct wire_security, wire_security_release) keys = {0};
    SCOPED(struct buf, buf_release) mistakes = {0}, got = {0};
    snprintf(nodes, sizeof nodes, "%s/nodes", dir);
    assert_int_equal(dir_make(nodes), OK);
    snprintf(key, sizeof key, "%s/key", dir);
    assert_int_equal(wire_key_make(&keys), OK);
    assert_int_equal(wire_key_write(&keys, key), OK);
    const char *const known = keys.public; // both machines have one key
    int size = snprintf(text, sizeof text,
                        "run: %s\nmodel: /\nstages:\n  - source: {data: /dev/null%s}\n  - frames: {}\n"
                        "  - rollout: {%s}\n  - refscore: {}\n  - reward: {}\n  - optim: {device: cpu}\n",
                        dir, source, options);
    if (machine)
        size += snprintf(
            text + size, sizeof text - (size_t)size,
            "machines:\n  a: {address: 127.0.0.1, key: '%s'}\n  b: {address: 127.0.0.1, port: 7000, key: '%s'}\n",
            known, known);
    if (pipeline_parse(&pipeline, "/p.yaml", false, text, (size_t)size, NULL, 0, &mistakes) != OK)
        assert_string_equal(mistakes.data, "");
    assert_int_equal(deployment_init(&deployment, pipeline, machine, key), OK);
    assert_int_equal(processes_init(&processes, &deployment), OK);
    for (size_t i = 0; i < processes.count; i++)
        if (!strcmp(processes.list[i].replica->stage->name, "rollout"))
            buf_printf(&got, "%s ", value_of(&processes.list[i], option));
    assert_string_equal(got.data, want);
    deployment_release(&deployment);
}

static void check_devices(const char *options, const char *machine, const char *want) {
    check_values("", options, machine, "--device=", want);
}

TEST(replicas_take_the_gpus_of_the_list) {
    check_devices("replicas: 2", NULL, "  ");
    check_devices("replicas: 3, device: 'cuda:1'", NULL, "cuda:1 cuda:1 cuda:1 ");
    check_devices("replicas: 4, device: 'cuda:[0-3]'", NULL, "cuda:0 cuda:1 cuda:2 cuda:3 ");
    check_devices("replicas: 5, device: 'cuda:[4-5,7]'", NULL, "cuda:4 cuda:5 cuda:7 cuda:4 cuda:5 ");
    check_devices("replicas: 1, device: 'cuda:[2]'", NULL, "cuda:2 ");
}

TEST(each_machine_begins_anew) {
    check_devices("replicas: 2, device: 'cuda:[0-2]', on: [a, b]", "a", "cuda:0 cuda:1 ");
    check_devices("replicas: 2, device: 'cuda:[0-2]', on: [a, b]", "b", "cuda:0 cuda:1 ");
}

// A machine that is sent frames needs no media.
TEST(the_media_of_the_source_may_be_missing_elsewhere) {
    static const char option[] = "--media_root=";
    check_values(", media_root: /none", "on: [a, b]", "a", option, "/none ");
    check_values(", media_root: /none", "on: [a, b]", "b", option, " ");
    check_values(", media_root: /dev", "on: b", "b", option, "/dev ");
    check_values(", media_root: /none", "on: b, media_root: /other", "b", option, "/other ");
}

// ---- what follows when a process ends ----

// A pipeline whose first stage is a shell command, and what its process says as it ends.
struct ending {
    char dir[32];
    struct pipeline *pipeline;
    struct deployment deployment;
    struct processes processes;
    char shell[8], option[4], command[64];
    char *argv[4];
    struct process *process;
    double now; // as the supervisor sees it
    const char *how;
};

static void ending_open(struct ending *ending, const char *command) {
    char text[256], path[64];
    SCOPED(struct buf, buf_release) mistakes = {0};
    *ending = (struct ending){.dir = "/tmp/caravan-ending-XXXXXX", .shell = "/bin/sh", .option = "-c"};
    snprintf(ending->command, sizeof ending->command, "%s", command);
    ending->argv[0] = ending->shell;
    ending->argv[1] = ending->option;
    ending->argv[2] = ending->command;
    assert_non_null(mkdtemp(ending->dir));
    snprintf(path, sizeof path, "%s/nodes", ending->dir);
    assert_int_equal(dir_make(path), OK);
    const int size = snprintf(
        text, sizeof text, "run: %s\nstages:\n  - source: {data: /dev/null}\n  - last: {program: cat}\n", ending->dir);
    if (pipeline_parse(&ending->pipeline, "/p.yaml", false, text, (size_t)size, NULL, 0, &mistakes) != OK)
        assert_string_equal(mistakes.data, "");
    assert_int_equal(deployment_init(&ending->deployment, ending->pipeline, NULL, NULL), OK);
    assert_int_equal(processes_init(&ending->processes, &ending->deployment), OK);
    assert_int_equal(ending->processes.count, 2);
    ending->process = &ending->processes.list[0];
    ending->processes.list[1].start_after = INFINITY; // it is not started
    free(ending->process->argv);
    ending->process->argv = ending->argv;
}

static void ending_close(struct ending *ending) {
    ending->process->argv = NULL;
    processes_release(&ending->processes);
    deployment_release(&ending->deployment);
    pipeline_free(&ending->pipeline);
    assert_int_equal(dir_remove(ending->dir), OK);
}

// Starts the process, which it must be time for, and returns what follows from its end.
static status ending_next(struct ending *ending, int64_t settled) {
    struct process *ended = NULL;
    status result = OK;
    ending->now = ending->process->start_after;
    assert_int_equal(processes_start(&ending->processes, ending->now), OK);
    while (!ended) result = processes_reap(&ending->processes, ending->now, settled, &ended, &ending->how);
    return result;
}

TEST(repeated_kills_pause_longer_and_end_the_run) {
    enum { KILLS = 15 };
    SCOPED(struct ending, ending_close) ending = {0};
    double paused = 0;
    ending_open(&ending, "kill -9 $$");
    for (int kill = 1; kill < KILLS; kill++) {
        assert_int_equal(ending_next(&ending, 7), OK);
        const double pause = ending.process->start_after - ending.now;
        assert_true(pause > 0.05 && pause < 60.5 && pause > paused - 0.5);
        assert_true((strstr(ending.how, "is it the memory (see dmesg)?") != NULL) == (kill > 2));
        paused = pause;
    }
    assert_true(paused > 59.5);
    assert_int_equal(ending_next(&ending, 7), UNAVAILABLE);
    assert_non_null(strstr(fail_text(), "source was killed by signal 9 (Killed) 15 times without a group done"));
}

TEST(a_group_done_ends_a_series_of_kills) {
    SCOPED(struct ending, ending_close) ending = {0};
    ending_open(&ending, "kill -9 $$");
    for (int64_t settled = 0; settled < 40; settled++) {
        assert_int_equal(ending_next(&ending, settled), OK);
        assert_string_equal(ending.how, "was killed by signal 9 (Killed); starting it again");
    }
}

TEST(a_failure_is_said_once_and_names_the_log) {
    SCOPED(struct ending, ending_close) ending = {0};
    char want[256];
    ending_open(&ending, "echo first; echo caravan: no device; exit 69");
    snprintf(want, sizeof want, "ended with exit code 69: caravan: no device (see %s/logs/source.log)", ending.dir);
    assert_int_equal(ending_next(&ending, 7), OK);
    assert_memory_equal(ending.how, want, strlen(want));
    assert_string_equal(ending.how + strlen(want), "; starting it again");
    ending.processes.ending = true;
    assert_int_equal(ending_next(&ending, 7), OK);
    assert_string_equal(ending.how, want);
    ending.processes.ending = false;
    for (int i = 2; i < 5; i++) {
        assert_int_equal(ending_next(&ending, 7), OK);
        assert_non_null(strstr(ending.how, "failed in the same way"));
    }
    assert_int_equal(ending_next(&ending, 7), UNAVAILABLE);
    assert_non_null(strstr(fail_text(), want));
    // A process that says nothing has not said what the one before it did.
    snprintf(ending.command, sizeof ending.command, "exit 70");
    ending.process->failures = 0;
    assert_int_equal(ending_next(&ending, 7), OK);
    assert_non_null(strstr(ending.how, "ended with exit code 70: it has logged nothing (see "));
}

TEST(wrong_input_is_not_tried_again) {
    SCOPED(struct ending, ending_close) ending = {0};
    ending_open(&ending, "echo caravan-source: no such file; exit 65");
    assert_int_equal(ending_next(&ending, -1), DATAERR);
    assert_non_null(strstr(fail_text(), "source ended with exit code 65: caravan-source: no such file (see "));
}

// ---- ranks ----

// A pipeline whose optim has three ranks, each of which is a shell command; the other stages are not started.
struct ranked {
    char dir[32];
    struct pipeline *pipeline;
    struct deployment deployment;
    struct processes processes;
    struct process *ranks; // three
    char shell[8], option[4], commands[3][64];
    char *argv[3][4];
    const char *how;
};

static void ranked_open(struct ranked *ranked, const char *first, const char *second, const char *third) {
    const char *const commands[] = {first, second, third};
    char text[300], path[64];
    SCOPED(struct buf, buf_release) mistakes = {0};
    *ranked = (struct ranked){.dir = "/tmp/caravan-ranked-XXXXXX", .shell = "/bin/sh", .option = "-c"};
    assert_non_null(mkdtemp(ranked->dir));
    snprintf(path, sizeof path, "%s/nodes", ranked->dir);
    assert_int_equal(dir_make(path), OK);
    const int size =
        snprintf(text, sizeof text,
                 "run: %s\nmodel: /\nstages:\n  - source: {data: /dev/null}\n  - frames: {}\n  - rollout: {}\n"
                 "  - refscore: {}\n  - reward: {}\n  - optim: {ranks: 3, device: 'cuda:[0-2]'}\n",
                 ranked->dir);
    if (pipeline_parse(&ranked->pipeline, "/p.yaml", false, text, (size_t)size, NULL, 0, &mistakes) != OK)
        assert_string_equal(mistakes.data, "");
    assert_int_equal(deployment_init(&ranked->deployment, ranked->pipeline, NULL, NULL), OK);
    assert_int_equal(processes_init(&ranked->processes, &ranked->deployment), OK);
    struct processes *processes = &ranked->processes;
    assert_int_equal(processes->count, 8);
    ranked->ranks = &processes->list[5];
    for (int i = 0; i < 5; i++) processes->list[i].start_after = INFINITY;
    for (int rank = 0; rank < 3; rank++) {
        snprintf(ranked->commands[rank], sizeof *ranked->commands, "%s", commands[rank]);
        char *const own[] = {ranked->shell, ranked->option, ranked->commands[rank], NULL};
        memcpy(ranked->argv[rank], own, sizeof own);
        free(ranked->ranks[rank].argv);
        ranked->ranks[rank].argv = ranked->argv[rank];
    }
}

static void ranked_close(struct ranked *ranked) {
    for (int rank = 0; rank < 3; rank++) ranked->ranks[rank].argv = NULL;
    processes_release(&ranked->processes);
    deployment_release(&ranked->deployment);
    pipeline_free(&ranked->pipeline);
    assert_int_equal(dir_remove(ranked->dir), OK);
}

// Waits for the next end, which must be that of a rank.
static int ranked_reap(struct ranked *ranked, double now, status *result) {
    struct process *ended = NULL;
    while (!ended) *result = processes_reap(&ranked->processes, now, 7, &ended, &ranked->how);
    return (int)(ended - ranked->ranks);
}

TEST(the_end_of_a_rank_is_the_end_of_all_and_counts_once) {
    enum { KILLS = 15 };
    SCOPED(struct ranked, ranked_close) ranked = {0};
    double now = 0;
    ranked_open(&ranked, "sleep 100", "kill -9 $$", "sleep 100");
    for (int kill = 1; kill <= KILLS; kill++) {
        status result = OK;
        assert_int_equal(processes_start(&ranked.processes, now), OK);
        assert_int_equal(ranked_reap(&ranked, now, &result), 1);
        assert_int_equal(result, kill < KILLS ? OK : UNAVAILABLE);
        assert_non_null(ranked.how);
        assert_true(ranked.ranks[1].failed);
        const struct process *ended = &ranked.ranks[1];
        // Those that were started later stay.
        assert_int_equal(processes_end_ranks(&ranked.processes, ended->replica->stage, now - 1, 0), 0);
        assert_int_equal(processes_end_ranks(&ranked.processes, ended->replica->stage, INFINITY, ended->start_after),
                         2);
        for (int others = 0; others < 2; others++) { // they were killed, and nobody hears of it
            assert_true(ranked_reap(&ranked, now, &result) != 1);
            assert_int_equal(result, OK);
            assert_null(ranked.how);
        }
        assert_int_equal(processes_running(&ranked.processes), 0);
        assert_int_equal(ranked.ranks[0].kills, kill);
        for (int rank = 0; rank < 3; rank++) {
            assert_true(ranked.ranks[rank].start_after == ranked.ranks[1].start_after);
            assert_int_equal(ranked.ranks[rank].failures, 0);
        }
        now = ranked.ranks[1].start_after;
    }
    assert_non_null(strstr(fail_text(), "optim-2 was killed by signal 9 (Killed) 15 times without a group done"));
}

// One after another fails; they are one training.
TEST(failures_of_different_ranks_are_counted_together) {
    SCOPED(struct ranked, ranked_close) ranked = {0};
    status result = OK;
    double now = 0;
    ranked_open(&ranked, "sleep 100", "sleep 100", "sleep 100");
    for (int turn = 0; turn < 5; turn++) {
        for (int rank = 0; rank < 3; rank++)
            snprintf(ranked.commands[rank], sizeof *ranked.commands, rank == turn % 3 ? "exit 69" : "sleep 100");
        assert_int_equal(result, OK);
        assert_int_equal(processes_start(&ranked.processes, now), OK);
        assert_int_equal(ranked_reap(&ranked, now, &result), turn % 3);
        now = ranked.ranks[turn % 3].start_after;
        processes_end_ranks(&ranked.processes, ranked.ranks->replica->stage, INFINITY, now);
        for (int others = 0; others < 2; others++) {
            status of_other;
            (void)ranked_reap(&ranked, now, &of_other);
        }
    }
    assert_int_equal(result, UNAVAILABLE);
}

TEST(a_rank_that_ends_well_has_not_failed_and_rank_0_says_why) {
    SCOPED(struct ranked, ranked_close) ranked = {0};
    status result = OK;
    double now = 0;
    ranked_open(&ranked, "sleep 100", "sleep 100", "true");
    for (int turn = 0; turn < 20; turn++) {
        assert_int_equal(processes_start(&ranked.processes, now), OK);
        assert_int_equal(ranked_reap(&ranked, now, &result), 2);
        assert_int_equal(result, OK);
        assert_null(ranked.how);
        now = ranked.ranks[2].start_after;
    }
    assert_int_equal(ranked.ranks[0].failures, 0);
    processes_end_ranks(&ranked.processes, ranked.ranks->replica->stage, INFINITY, now);
    for (int others = 0; others < 2; others++) (void)ranked_reap(&ranked, now, &result);
}

// A rank that follows hears of its supervisor and of the ranks; the others hear of it in nothing but these.
TEST(ranks_know_each_other_and_the_flow_knows_the_first) {
    SCOPED(struct ranked, ranked_close) ranked = {0};
    char path[64];
    ranked_open(&ranked, "true", "true", "true");
    static const struct {
        const char *name;
        size_t ranks;
        bool flows;
    } cases[] = {{"reward", 0, true}, {"optim", 3, true}, {"optim-3", 3, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct node_config config;
        snprintf(path, sizeof path, "%s/nodes/%s", ranked.dir, cases[i].name);
        assert_int_equal(node_config_read(&config, path), OK);
        assert_int_equal(config.rank_count, cases[i].ranks);
        if (config.rank_count) assert_non_null(strstr(config.ranks[2].address, "/sockets/optim-3.ranks"));
        assert_int_equal(*config.from != 0, cases[i].flows);
        assert_int_equal(config.last, !strcmp(cases[i].name, "optim"));
        int optims = 0, supervisors = 0;
        for (size_t k = 0; k < config.endpoint_count; k++) {
            optims += !strcmp(config.endpoints[k].stage, "optim");
            supervisors += !strcmp(config.endpoints[k].stage, SUPERVISOR_NAME);
        }
        assert_int_equal(optims, 1);
        assert_int_equal(supervisors, 1);
        node_config_release(&config);
    }
    // The supervisor lets all of them report.
    int optims = 0;
    struct node_config config;
    snprintf(path, sizeof path, "%s/nodes/caravan", ranked.dir);
    assert_int_equal(deployment_write_config(&ranked.deployment, &ranked.deployment.replicas[0], path), OK);
    assert_int_equal(node_config_read(&config, path), OK);
    for (size_t k = 0; k < config.endpoint_count; k++) optims += !strcmp(config.endpoints[k].stage, "optim");
    assert_int_equal(optims, 3);
    node_config_release(&config);
}
