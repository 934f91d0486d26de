// Machines of pipeline files: ranges, groups, stages on several of them, ports, and where mistakes stand.
#include "tests/unit/unit.h"

#include <stdlib.h>

#include "shared/config/pipeline.h"

#define HEAD "run: /r\nmodel: /\nstages:\n  - source: {data: /dev/null}\n"
#define TAIL "  - rollout: {replicas: 4, on: samplers}\n  - refscore: {}\n  - reward: {}\n  - optim: {on: trainer}\n"

static status parse(struct pipeline **out, const char *text, const char *const *sets, size_t count,
                    struct buf *mistakes) {
    return pipeline_parse(out, "/p.yaml", false, text, strlen(text), sets, count, mistakes);
}

static struct pipeline *parse_good(const char *text, const char *const *sets, size_t count) {
    struct pipeline *pipeline;
    SCOPED(struct buf, buf_release) mistakes = {0};
    if (parse(&pipeline, text, sets, count, &mistakes) != OK) assert_string_equal(mistakes.data, "");
    return pipeline;
}

static const char cluster[] = HEAD "  - frames: {replicas: 2, on: [cpu1, samplers]}\n" TAIL "machines:\n"
                                   "  trainer: {address: 10.0.0.1}\n"
                                   "  cpu1: {address: 10.0.0.2, port: 7000, bind: 10.0.0.2}\n"
                                   "  gpu[01-16]: {address: \"10.0.1.[1-16]\", key: shared}\n"
                                   "machine_groups:\n"
                                   "  samplers: \"gpu[01-16]\"\n";

static void check_cluster(const struct pipeline *pipeline) {
    assert_int_equal(pipeline->machine_count, 18);
    assert_string_equal(pipeline->machines[1].bind, "10.0.0.2");
    assert_null(pipeline->machines[0].bind);
    assert_string_equal(pipeline->machines[2].name, "gpu01");
    assert_string_equal(pipeline->machines[2].address, "10.0.1.1");
    assert_string_equal(pipeline->machines[17].name, "gpu16");
    assert_string_equal(pipeline->machines[17].address, "10.0.1.16");
    assert_string_equal(pipeline->machines[17].key, "shared");
    const struct pipeline_stage *frames = &pipeline->stages[1], *rollout = &pipeline->stages[2];
    assert_int_equal(frames->machine_count, 17);
    assert_int_equal(frames->machines[0], 1);
    assert_int_equal(frames->machines[16], 17);
    assert_int_equal(rollout->machine_count, 16);
    assert_int_equal(rollout->machines[15], 17);
    assert_int_equal(rollout->replicas, 4);
    assert_true(pipeline_stage_runs_on(rollout, 2));
    assert_false(pipeline_stage_runs_on(rollout, 1));
    assert_true(pipeline_stage_runs_on(&pipeline->stages[3], 0)); // refscore names none
    assert_int_equal(pipeline_stage_machine_count(&pipeline->stages[3]), 1);
}

TEST(a_cluster_is_read_and_written_back) {
    SCOPED(struct buf, buf_release) text = {0}, again = {0};
    SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(cluster, NULL, 0);
    check_cluster(pipeline);
    assert_int_equal(pipeline_write(pipeline, &text), OK);
    pipeline_text(pipeline, &again);
    assert_non_null(strstr(again.data, "rollout x4 on each of 16 machines"));
    pipeline_free(&pipeline);
    pipeline = parse_good(text.data, NULL, 0);
    check_cluster(pipeline);
    buf_clear(&again);
    assert_int_equal(pipeline_write(pipeline, &again), OK);
    assert_string_equal(again.data, text.data);
}

TEST(an_address_is_a_name_or_a_number) {
    static const char *const addresses[] = {"gpu1",    "gpu-1.example.org", "10.0.0.1",
                                            "\"::1\"", "\"2001:db8::7\"",   "\"fe80::1%eth0\""};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        SCOPED(struct buf, buf_release) text = {0};
        buf_printf(&text, HEAD "  - rollout: {}\nmachines: {a: {address: %s}}\n", addresses[i]);
        SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(text.data, NULL, 0);
        assert_non_null(pipeline->machines[0].address);
    }
}

// The spellings of `on` mean the same machines in the same order.
TEST(the_spellings_of_on_mean_the_same_machines) {
    static const struct {
        const char *on, *machines;
    } cases[] = {
        {"b", "1"},          {"[b]", "1"},          {"[c, a]", "2 0"},
        {"\"c, a\"", "2 0"}, {"two", "1 2"},        {"[two, a]", "1 2 0"},
        {"one", "0"},        {"\"x[1-2]\"", "3 4"}, {"[\"x[2,1]\", b]", "4 3 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) text = {0}, found = {0};
        buf_printf(&text,
                   HEAD "  - frames: {on: %s}\n  - rollout: {}\nmachines: {a: {address: a}, b: "
                        "{address: b}, c: {address: c}, \"x[1-2]\": {address: \"x[1-2].net\"}}\n"
                        "machine_groups: {two: [b, c], one: a}\n",
                   cases[i].on);
        SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(text.data, NULL, 0);
        const struct pipeline_stage *frames = &pipeline->stages[1];
        for (size_t k = 0; k < frames->machine_count; k++)
            buf_printf(&found, "%s%d", k ? " " : "", frames->machines[k]);
        assert_string_equal(found.data, cases[i].machines);
        assert_string_equal(pipeline->machines[4].address, "x2.net");
    }
    static const char *const sets[] = {"frames.on=cpu1,trainer"};
    SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(cluster, sets, 1);
    assert_int_equal(pipeline->stages[1].machine_count, 2);
    assert_int_equal(pipeline->stages[1].machines[1], 0);
}

// Where a file has several machines, each needs what its own stages name; which those are is known later.
TEST(a_file_of_several_machines_may_name_what_is_not_here) {
#define MISSING                                                                                                        \
    "run: /r\nmodel: /none\nstages:\n  - source: {data: /none/a}\n  - mine: {program: /none/b}\n  - rollout: {}\n"
    struct pipeline *none;
    SCOPED(struct buf, buf_release) mistakes = {0};
    SCOPED(struct pipeline *, pipeline_free)
    pipeline = parse_good(MISSING "machines: {a: {address: a}, b: {address: b}}\n", NULL, 0);
    assert_string_equal(pipeline_value(&pipeline->stages[0], "data"), "/none/a");
    assert_string_equal(pipeline->stages[1].program, "/none/b");
    assert_int_equal(parse(&none, MISSING "machines: {a: {address: a}}\n", NULL, 0, &mistakes), DATAERR);
    assert_non_null(strstr(mistakes.data, ":2:8: pipeline: model: /none: No such file"));
    assert_non_null(strstr(mistakes.data, ":4:20: source: data: /none/a: No such file"));
    assert_non_null(strstr(mistakes.data, ":5:21: mine: program: /none/b: No such file"));
#undef MISSING
}

TEST(ports_depend_on_no_other_stage) {
    static const char *const sets[] = {"frames.replicas=64", "rollout.on=gpu01"};
    SCOPED(struct buf, buf_release) text = {0};
    for (size_t more = 0; more < 3; more++) { // the ports of rollout do not depend on frames, nor on its own machines
        struct pipeline *pipeline = parse_good(cluster, sets, more);
        const struct pipeline_machine *gpu01 = &pipeline->machines[2];
        assert_int_equal(pipeline_port(pipeline, gpu01, NULL), 5600);
        assert_int_equal(pipeline_port(pipeline, gpu01, &pipeline->stages[2]), 5600 + 3 * 64);
        assert_int_equal(pipeline_port(pipeline, &pipeline->machines[1], &pipeline->stages[1]), 7000 + 2 * 64);
        pipeline_free(&pipeline);
    }
    SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(cluster, NULL, 0);
    pipeline_ports_text(pipeline, &text);
    assert_non_null(strstr(text.data, "machine  address    TCP ports\n"
                                      "trainer  10.0.0.1   5600, 5664, 5856, 5920, 5984\n"
                                      "cpu1     10.0.0.2   7000, 7128-7129\n"
                                      "gpu01    10.0.1.1   5600, 5728-5729, 5792-5795\n"));
    pipeline_free(&pipeline);
    // Two machines with one address are fine as long as no port is that of both.
    pipeline = parse_good(HEAD "  - frames: {on: b, replicas: 20}\n  - rollout: {}\n"
                               "machines: {a: {address: h}, b: {address: h, port: 5620}}\n",
                          NULL, 0);
}

// Rank 0 has a port for the flow, and each rank one for the others where they are on several machines.
TEST(ranks_have_ports_of_their_own) {
    static const struct {
        const char *on, *a, *b, *c;
        int ranks;
    } cases[] = {{"a", "5600, 5664, 5728, 5792, 5856, 5920\n", "5600\n", "5600\n", 3},
                 {"[b, a]", "5600, 5664, 5728, 5792, 5856, 5921-5923\n", "5600, 5920-5923\n", "5600\n", 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) text = {0}, out = {0};
        SCOPED(struct arena, arena_release) arena = {0};
        buf_printf(&text,
                   HEAD "  - rollout: {}\n  - refscore: {}\n  - reward: {}\n  - optim: {ranks: 3, on: %s}\n"
                        "machines: {a: {address: a}, b: {address: b}, c: {address: c}}\n",
                   cases[i].on);
        SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(text.data, NULL, 0);
        assert_int_equal(pipeline_stage_ranks(pipeline_optim(pipeline)), cases[i].ranks);
        pipeline_ports_text(pipeline, &out);
        assert_string_equal(out.data, arena_printf(&arena,
                                                   "machine  address  TCP ports\na        a        %sb        b        "
                                                   "%sc        c        %s",
                                                   cases[i].a, cases[i].b, cases[i].c));
    }
}

TEST(a_mistake_has_its_place) {
#define MACHINES "machines: {a: {address: a}, b: {address: b}}\n"
    static const struct {
        const char *text, *said;
    } cases[] = {
        {HEAD "  - rollout: {}\nmachines: {a: {address: 10.0.0.1:5600}}\n",
         ":6:25: a: address: '10.0.0.1:5600' is no host name and no IP address; a port is the key `port`"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: tcp://a}}\n", ":6:25: a: address: 'tcp://a' is no host name"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: me@a}}\n", ":6:25: a: address: 'me@a' is no host name"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: a b}}\n", ":6:25: a: address: 'a b' is no host name"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: \"[::1]\"}}\n", ":6:25: a: address: '[::1]' is no host name"},
        {HEAD "  - frames: {on: [a, c1]}\n  - rollout: {}\n" MACHINES, ":5:22: frames: on: no machine is named c1"},
        {HEAD "  - frames:\n      on:\n        - a\n        - a\n  - rollout: {}\n" MACHINES,
         ":8:11: frames: on: a is named twice"},
        {HEAD "  - frames: {on: [two, b]}\n  - rollout: {}\n" MACHINES "machine_groups: {two: [a, b]}\n",
         ":5:24: frames: on: b is named twice"},
        {HEAD "  - frames: {on: twoo}\n  - rollout: {}\n" MACHINES "machine_groups: {two: [a, b]}\n",
         ":5:18: frames: on: no machine is named twoo; did you mean two?"},
        {HEAD "  - frames: {on: []}\n  - rollout: {}\n" MACHINES, ":5:18: on: the array is empty"},
        {HEAD "  - frames: {on: [[a]]}\n  - rollout: {}\n" MACHINES, ":5:19: on: expected a name, not an array"},
        {HEAD "  - frames: {on: {a: b}}\n  - rollout: {}\n" MACHINES, ":5:18: on: expected a value, not a mapping"},
        {HEAD "  - frames: {on: \"a[1-\"}\n  - rollout: {}\n" MACHINES,
         ":5:18: frames: on: 'a[1-': a bracket is not closed"},
        {HEAD "  - frames: {fps: [1]}\n  - rollout: {}\n" MACHINES, ":5:19: fps: expected a value, not an array"},
        {HEAD "  - rollout: {on: [a, b]}\n" MACHINES, ":5:19: rollout: on: the last stage runs on one machine"},
        {"run: /r\nmodel: /\nstages:\n  - source: {data: /dev/null, on: [a, b]}\n  - rollout: {}\n" MACHINES,
         ":4:35: source: on: it runs on one machine"},
        {HEAD "  - rollout: {}\n  - refscore: {}\n  - reward: {}\n  - optim: {on: [a, b], ranks: 64}\n" MACHINES,
         ":8:32: optim: ranks: 64 is out of range: 1 to 63 where they run on several machines"},
        {HEAD "  - rollout: {}\n  - refscore: {}\n  - reward: {}\n  - optim: {on: a, ranks: 64}\n" MACHINES, ""},
        {HEAD "  - frames: {replicas: 65}\n  - rollout: {}\n" MACHINES,
         ":5:24: frames: replicas: 65 is out of range: 1 to 64 where the file has several machines"},
        {HEAD "  - rollout: {}\n" MACHINES "machine_groups: {a: b}\n",
         ":7:18: machine_groups: a: a machine has this name"},
        {HEAD "  - rollout: {}\n" MACHINES "machine_groups: {c: [a, d]}\n",
         ":7:25: machine_groups: c: no machine is named d"},
        {HEAD "  - rollout: {}\n" MACHINES "machine_groups: {c: [a], d: c}\n",
         ":7:29: machine_groups: d: no machine is named c"},
        {HEAD "  - rollout: {}\n" MACHINES "machine_groups: [a]\n",
         ":7:17: machine_groups: expected a mapping of keys, not an array"},
        {HEAD "  - rollout: {}\n" MACHINES "machine_groups: {}\nmachine_groups: {}\n",
         ":8:1: machine_groups is given twice"},
        {HEAD "  - rollout: {}\nmachines: {a/b: {address: a}}\n", ":6:12: a/b: a machine's name has no spaces"},
        {HEAD "  - rollout: {}\nmachines: {\"a[1-\": {address: a}}\n", ":6:12: machines: 'a[1-': a bracket is not"},
        {HEAD "  - rollout: {}\nmachines: {\"a[1-2]\": {}}\n", ":6:12: a1: missing: address"},
        {HEAD "  - rollout: {}\nmachines: {\"a[1-2]\": {address: \"a[1-3]\"}}\n",
         ":6:32: a[1-2]: address: 3 addresses for 2 machines"},
        {HEAD "  - rollout: {}\nmachines: {\"a[1-2]\": {address: \"a[1-2]\"}, a2: {address: b}}\n",
         ":6:43: a2: a second machine with this name"},
        {HEAD "  - rollout: {}\nmachines: {\"a[1-2]\": {address: \"b,c\", port: 0}}\n",
         ":6:45: a1: port: 0 is out of range"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: h}, b: {address: h}}\n",
         ":6:29: b: port 5600 is one of a, which has the same address"},
        {HEAD "  - frames: {on: b, replicas: 21}\n  - rollout: {}\n"
              "machines: {a: {address: h, port: 5748}, b: {address: h, port: 5600}}\n",
         ":7:63: b: port 5748 is one of a, which has the same address"},
        {HEAD "  - rollout: {}\nmachines: {a: {address: a}, b: {address: b, port: 65000}}\n", ""},
        {HEAD
         "  - frames: {}\n  - rollout: {}\n  - refscore: {}\n  - reward: {}\n  - p: {program: cat}\n"
         "  - q: {program: cat}\n  - r: {program: cat}\nmachines: {a: {address: a}, b: {address: b, port: 65000}}\n",
         ":12:51: b: port: the stages need the ports from 65000 to 65575, and the last one is 65535"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pipeline *pipeline;
        SCOPED(struct buf, buf_release) mistakes = {0};
        const status result = parse(&pipeline, cases[i].text, NULL, 0, &mistakes);
        if (!*cases[i].said) {
            assert_int_equal(result, OK);
            pipeline_free(&pipeline);
            continue;
        }
        assert_int_equal(result, DATAERR);
        if (!strstr(mistakes.data, cases[i].said)) assert_string_equal(mistakes.data, cases[i].said);
        if (!strstr(fail_text(), "1 mistake")) assert_string_equal(mistakes.data, "one mistake");
    }
}

#define SLURM_HEAD "run: /r\nmodel: /\nmachines: slurm\nstages:\n  - source: {data: /dev/null}\n"

// `on` of frames, and the indices of its machines among those of `nodes`.
TEST(a_slurm_jobs_nodes_are_its_machines) {
    static const struct {
        const char *nodes, *on, *machines;
    } cases[] = {
        {"n[1-3],m7", "first", "0"},
        {"n[1-3],m7", "rest", "1 2 3"},
        {"n[1-3],m7", "all", "0 1 2 3"},
        {"n[1-3],m7", "3", "2"},
        {"n[1-3],m7", "[4, 1]", "3 0"},
        {"n[1-3],m7", "\"[2-4]\"", "1 2 3"},
        {"n[1-3],m7", "pool", "1 3"},
        {"n1", "rest", "0"},
        {"n1", "first", "0"},
        {"n1", "all", "0"},
        {NULL, "rest", "0"},
        {NULL, "pool", ""},
        {NULL, "[first, 2, \"[3-9]\"]", "0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) text = {0}, found = {0};
        if (cases[i].nodes)
            setenv("SLURM_JOB_NODELIST", cases[i].nodes, 1);
        else
            unsetenv("SLURM_JOB_NODELIST");
        buf_printf(&text, SLURM_HEAD "  - frames: {on: %s}\n  - rollout: {}\n%s", cases[i].on,
                   !strcmp(cases[i].on, "pool") ? "machine_groups: {pool: [2, 4]}\n" : "");
        SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(text.data, NULL, 0);
        const struct pipeline_stage *frames = &pipeline->stages[1];
        assert_true(pipeline->slurm);
        assert_int_equal(pipeline->slurm_job, cases[i].nodes != NULL);
        buf_puts(&found, "");
        for (size_t k = 0; k < frames->machine_count; k++)
            buf_printf(&found, "%s%d", k ? " " : "", frames->machines[k]);
        assert_string_equal(found.data, cases[i].machines);
    }
    unsetenv("SLURM_JOB_NODELIST");
}

// The ranges of ports of a job's nodes differ, and so do those of the next job.
TEST(the_ports_of_slurm_jobs_differ) {
    setenv("SLURM_JOB_NODELIST", "n[08-09]", 1);
    setenv("SLURM_JOB_ID", "41", 1);
    SCOPED(struct pipeline *, pipeline_free) pipeline = parse_good(SLURM_HEAD "  - rollout: {}\n", NULL, 0);
    assert_string_equal(pipeline->machines[1].name, "n09");
    assert_string_equal(pipeline->machines[1].address, "n09");
    assert_int_equal(pipeline->machines[0].port, 10000 + 1024 * 7);
    assert_int_equal(pipeline->machines[1].port, 10000 + 1024 * 8);
    pipeline_free(&pipeline);
    setenv("SLURM_JOB_ID", "42", 1);
    pipeline = parse_good(SLURM_HEAD "  - rollout: {}\n", NULL, 0);
    assert_int_equal(pipeline->machines[0].port, 10000 + 1024 * 14);
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_NODELIST");
}

TEST(a_mistake_in_a_slurm_job_has_its_place) {
    static const struct {
        const char *nodes, *on, *said;
    } cases[] = {
        {"n[1-3", "first", ":3:11: machines: SLURM_JOB_NODELIST: 'n[1-3': a bracket is not closed"},
        {"n[1-3]", "4", ":6:18: frames: on: 4: the job's nodes have the numbers from 1 to 3"},
        {"n[1-3]", "0", ":6:18: frames: on: 0: the job's nodes have the numbers from 1 to 3"},
        {NULL, "0", ":6:18: frames: on: 0: the job's nodes have the numbers from 1 to 1"},
        {"n[1-3]", "n1", ":6:18: frames: on: no machine is named n1"},
        {"n[1-3]", "frist", ":6:18: frames: on: no machine is named frist; did you mean first?"},
        {"n[1-3]", "[rest, 2]", ":6:25: frames: on: n2 is named twice"},
        {"n1,n1", "first", ":3:11: n1: a second machine with this name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pipeline *pipeline;
        SCOPED(struct buf, buf_release) text = {0}, mistakes = {0};
        if (cases[i].nodes)
            setenv("SLURM_JOB_NODELIST", cases[i].nodes, 1);
        else
            unsetenv("SLURM_JOB_NODELIST");
        buf_printf(&text, SLURM_HEAD "  - frames: {on: %s}\n  - rollout: {}\n", cases[i].on);
        assert_int_equal(parse(&pipeline, text.data, NULL, 0, &mistakes), DATAERR);
        if (!strstr(mistakes.data, cases[i].said)) assert_string_equal(mistakes.data, cases[i].said);
    }
    unsetenv("SLURM_JOB_NODELIST");
}
