// What the supervisor and `caravan top` conclude from the reports, over a clock of this file: rates of the last minute,
// time left, who is slow, restarts, and the metrics, byte for byte as in tests/data/metrics/metrics.prom, which
// Prometheus' own parsers have read (tests/parity/prometheus_compare.py). METRICS=DIR writes that file anew.
#include "tests/unit/unit.h"

#include <limits.h>
#include <math.h>

#include "shared/base/file.h"
#include "tools/run/run_status.h"

enum { SOURCE, ROLLOUT, ROLLOUT_2, OPTIM, REPLICAS, SUPERVISORS = 2 };

static struct pipeline_stage stages[] = {
    {.name = "source", .kind = &stage_kinds[STAGE_SOURCE]},
    {.name = "rollout", .kind = &stage_kinds[STAGE_ROLLOUT]},
    {.name = "optim", .kind = &stage_kinds[STAGE_OPTIM]},
};
static struct pipeline_machine machines[] = {{.name = "gpu0"}, {.name = "gpu1"}};
static struct pipeline pipeline = {.name = "care \"7B\" in C:\\runs\nagain",
                                   .stages = stages,
                                   .stage_count = 3,
                                   .machines = machines,
                                   .machine_count = 2};
static struct replica replicas[SUPERVISORS + REPLICAS] = {
    {.number = 1},
    {.number = 2, .machine = 1},
    {.stage = &stages[0], .name = "source", .number = 1},
    {.stage = &stages[1], .name = "rollout", .number = 1},
    {.stage = &stages[1], .name = "rollout-2", .number = 2, .machine = 1},
    {.stage = &stages[2], .name = "optim", .number = 1},
};
static const struct deployment deployment = {
    .pipeline = &pipeline, .replicas = replicas, .count = SUPERVISORS + REPLICAS, .machines = 2};

static struct run_status *open_status(void) {
    struct run_status *run_status;
    run_status_new(&run_status, &deployment);
    assert_int_equal(run_status_count(run_status), REPLICAS);
    return run_status;
}

// A replica that has just started.
static struct message_status counters(int index) {
    return (struct message_status){.pid = 100 + index,
                                   .state = "working",
                                   .given_stage = "",
                                   .given_seq = -1,
                                   .done_age = -1,
                                   .oldest_seq = -1,
                                   .oldest_age = -1,
                                   .reward = NAN,
                                   .accuracy = NAN};
}

static void report(struct run_status *run_status, int index, const struct message_status *given, double now) {
    const struct replica *replica = &replicas[SUPERVISORS + index];
    const struct wire_message message = {.kind = MESSAGE_STATUS,
                                         .name = replica->stage->name,
                                         .replica = replica->number,
                                         .machine = "",
                                         .counters = *given};
    run_status_update(run_status, &message, now);
}

static struct replica_status look(const struct run_status *run_status, int index, double now) {
    struct replica_status replica;
    run_status_replica(run_status, (size_t)index, now, &replica);
    return replica;
}

static void assert_within(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) print_error("%.9g is not %.9g\n", got, want);
    assert_true(fabs(got - want) <= tolerance);
}

static void assert_near(double got, double want) {
    assert_within(got, want, 1e-6 * (1 + fabs(want)));
}

// Reports twice a second from `from` until `to`, in which a group of 100 tokens takes `seconds` (0: none is done).
static void work(struct run_status *run_status, int index, struct message_status *now, double from, double to,
                 double seconds) {
    double next = from + seconds;
    for (int half = 1; half <= (int)(2 * (to - from)); half++) {
        const double time = from + 0.5 * half;
        now->up += 0.5;
        if (seconds > 0) now->busy += 0.5;
        for (; seconds > 0 && next <= time; next += seconds) {
            now->done++;
            now->worked++;
            now->work_seconds += seconds;
            now->tokens += 100;
        }
        report(run_status, index, now, time);
    }
}

TEST(rates_are_those_of_the_last_minute) {
    struct run_status *run_status = open_status();
    struct message_status now = counters(ROLLOUT);
    struct replica_status replica = look(run_status, ROLLOUT, 0);
    assert_string_equal(replica.state, "starting");
    assert_null(replica.report);
    assert_near(replica.typical, -1);
    work(run_status, ROLLOUT, &now, 1000, 1020, 2); // in its first minute, since its start
    replica = look(run_status, ROLLOUT, 1020);
    assert_near(replica.rate, 0.5);
    assert_near(replica.busy, 1);
    assert_near(replica.tokens_rate, 50);
    assert_near(replica.typical, 2);
    work(run_status, ROLLOUT, &now, 1020, 1620, 10); // slower than at its start
    replica = look(run_status, ROLLOUT, 1620);
    assert_within(replica.rate, 0.1, 0.02); // a group more or less in a minute and two seconds
    assert_within(replica.tokens_rate, 10, 2);
    assert_near(replica.typical, 10);
    work(run_status, ROLLOUT, &now, 1620, 1650, 0); // it waits for half a minute, then for a minute
    assert_within(look(run_status, ROLLOUT, 1650).busy, 0.5, 0.02);
    work(run_status, ROLLOUT, &now, 1650, 1682, 0);
    replica = look(run_status, ROLLOUT, 1682);
    assert_near(replica.rate, 0);
    assert_near(replica.busy, 0);
    assert_near(replica.tokens_rate, 0);
    assert_int_equal(replica.report->done, 70); // the totals stay
    assert_near(replica.typical, (10 * 2 + 60 * 10) / 70.);
    run_status_free(&run_status);
    assert_null(run_status);
}

TEST(a_silent_replica_does_nothing) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now = counters(ROLLOUT);
    work(run_status, ROLLOUT, &now, 0, 120, 1);
    assert_string_equal(look(run_status, ROLLOUT, 125).state, "working");
    struct replica_status replica = look(run_status, ROLLOUT, 150);
    assert_string_equal(replica.state, "silent");
    assert_int_equal(replica.alive, 0);
    assert_within(replica.rate, 0.5, 0.03);
    assert_within(look(run_status, ROLLOUT, 500).rate, 0, 0.01);
}

// The supervisor of another machine, or caravan top, which begins to listen in the middle of the run.
TEST(a_late_listener_knows_the_last_minute) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status(), late = open_status();
    struct message_status now = counters(ROLLOUT_2), source = counters(SOURCE);
    struct wire_message message;
    struct run_summary run;
    work(run_status, ROLLOUT_2, &now, 0, 600, 2);
    work(run_status, ROLLOUT_2, &now, 600, 680, 10);
    for (source.up = 2; source.up <= 680; source.up += 2) {
        source.held = 4;
        source.total = 1000;
        source.run_quarantined = 7;
        source.done = (int64_t)source.up / 4;
        report(run_status, SOURCE, &source, source.up);
    }
    assert_false(run_status_replay(run_status, OPTIM, 680, &message));
    assert_true(run_status_replay(run_status, ROLLOUT_2, 680, &message));
    assert_string_equal(message.name, "rollout");
    assert_string_equal(message.machine, "gpu1");
    run_status_update(late, &message, 680);
    assert_true(run_status_replay(run_status, SOURCE, 680, &message));
    run_status_update(late, &message, 680);
    work(late, ROLLOUT_2, &now, 680, 680.5, 0);
    source.up = 680.5;
    report(late, SOURCE, &source, 680.5);
    assert_within(look(late, ROLLOUT_2, 680.5).rate, 0.1, 0.02);
    assert_near(look(late, ROLLOUT_2, 680.5).typical, 10);
    // One that is silent is shown as such at once.
    now.oldest_seq = 90;
    now.oldest_age = 3;
    report(run_status, ROLLOUT_2, &now, 681);
    assert_true(run_status_replay(run_status, ROLLOUT_2, 700, &message));
    run_status_update(late, &message, 700);
    assert_string_equal(look(late, ROLLOUT_2, 700).state, "silent");
    assert_near(look(late, ROLLOUT_2, 700).oldest_age, 22);
    run_status_summary(late, 680.5, &run);
    assert_within(run.rate, 0.25, 0.02);
}

TEST(a_restarted_process_begins_anew) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    const struct replica *rollout = &replicas[SUPERVISORS + ROLLOUT];
    struct message_status now = counters(ROLLOUT);
    work(run_status, ROLLOUT, &now, 0, 100, 20);
    assert_near(look(run_status, ROLLOUT, 100).typical, 20);
    run_status_forget(run_status, rollout);
    run_status_restarted(run_status, rollout);
    assert_string_equal(look(run_status, ROLLOUT, 100).state, "starting");
    assert_int_equal(look(run_status, ROLLOUT, 100).restarts, 1);
    report(run_status, ROLLOUT, &now, 100.1); // it was under way when the process died
    assert_string_equal(look(run_status, ROLLOUT, 100.1).state, "starting");
    assert_int_equal(look(run_status, ROLLOUT, 100.1).report->done, 5);
    now = counters(ROLLOUT);
    now.pid = 1234;
    now.up = 0.5;
    now.restarts = run_status_restarts(run_status, rollout);
    report(run_status, ROLLOUT, &now, 103);
    struct replica_status replica = look(run_status, ROLLOUT, 103);
    assert_int_equal(replica.restarts, 1);
    assert_near(replica.rate, 0);
    assert_near(replica.typical, 20); // known of the process before
    work(run_status, ROLLOUT, &now, 103, 123, 4);
    assert_near(look(run_status, ROLLOUT, 123).typical, 4);
    assert_within(look(run_status, ROLLOUT, 123).rate, 0.25, 0.02);
    // Another machine's supervisor counts by itself.
    now.restarts = 5;
    report(run_status, ROLLOUT, &now, 124);
    assert_int_equal(look(run_status, ROLLOUT, 124).restarts, 5);
    assert_int_equal(run_status_restarts(run_status, &replicas[0]), 0);
}

// Returns the line that is due, "" if none is.
static const char *warning(struct run_status *run_status, double now) {
    static char line[256];
    SCOPED(struct buf, buf_release) text = {0};
    line[0] = 0;
    if (!run_status_warning(run_status, now, &text)) return line;
    snprintf(line, sizeof line, "%s", text.data);
    assert_false(run_status_warning(run_status, now, &text)); // said once
    return line;
}

TEST(a_slow_group_is_said_once_and_when_its_age_has_doubled) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now = counters(ROLLOUT_2);
    work(run_status, ROLLOUT_2, &now, 0, 400, 40);
    now.oldest_seq = 17;
    for (int age = 0; age <= 200; age += 10) {
        now.oldest_age = age;
        now.up = 400 + age;
        report(run_status, ROLLOUT_2, &now, 400 + age);
        assert_string_equal(warning(run_status, 400 + age), "");
    }
    assert_false(run_status_is_slow(run_status, ROLLOUT_2, 600));
    assert_string_equal(warning(run_status, 602), "rollout-2 has had group 17 for 3:22 (typical 0:40)");
    assert_true(run_status_is_slow(run_status, ROLLOUT_2, 602)); // also when it was said
    assert_false(run_status_is_slow(run_status, ROLLOUT, 602));
    assert_string_equal(warning(run_status, 803), "");
    assert_string_equal(warning(run_status, 804),
                        "rollout-2 has had group 17 for 6:44 (typical 0:40)"); // silent, too
    now.oldest_seq = 18;
    now.up = 900;
    report(run_status, ROLLOUT_2, &now, 900);
    assert_string_equal(warning(run_status, 900), "");
    assert_string_equal(warning(run_status, 4600), "rollout-2 has had group 18 for 1:05:00 (typical 0:40)");
}

TEST(who_waits_for_groups_is_not_slow) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now = counters(OPTIM);
    struct run_summary run;
    work(run_status, OPTIM, &now, 0, 10, 1);
    now.oldest_seq = 4;
    now.oldest_age = 1000;
    now.state = "waits for groups"; // for the rest of the step
    report(run_status, OPTIM, &now, 11);
    assert_string_equal(warning(run_status, 11), "");
    run_status_summary(run_status, 11, &run);
    assert_near(run.oldest.oldest_age, -1);
    now.state = "waits for weights";
    report(run_status, OPTIM, &now, 11);
    assert_string_equal(warning(run_status, 11), "optim has had group 4 for 16:40 (typical 1.0 s)");
    run_status_summary(run_status, 11, &run);
    assert_string_equal(run.oldest.name, "optim");
}

TEST(a_run_that_stands_still_says_who_has_the_group_that_all_wait_for) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now[REPLICAS];
    for (int i = 0; i < REPLICAS; i++) now[i] = counters(i);
    for (int i = 1; i < REPLICAS; i++) now[i].state = "waits for groups";
    now[SOURCE].state = "all issued";
    now[SOURCE].settled = 4;
    now[SOURCE].total = 6;
    for (int i = 0; i < REPLICAS; i++) {
        assert_string_equal(warning(run_status, 100), ""); // not all are there
        report(run_status, i, &now[i], 0);
    }
    assert_string_equal(warning(run_status, 30), "");
    for (int i = 0; i < REPLICAS; i++) {
        now[i].up = 30;
        report(run_status, i, &now[i], 30);
    }
    assert_string_equal(
        warning(run_status, 31), // no stage has finished a group yet
        "nothing has been done for 0:31: group 4 is not settled, and no stage reports it; source: all issued");
    // Rollout gave group 4 to optim, which waits for group 5, and that is in a replica of rollout.
    now[ROLLOUT].done_age = 15;
    now[ROLLOUT].given_seq = 4;
    now[ROLLOUT].given_stage = "optim";
    now[ROLLOUT].given_replica = 1;
    now[SOURCE].given_seq = 5;
    now[SOURCE].given_stage = "rollout";
    now[SOURCE].given_replica = 2;
    for (int i = 0; i < REPLICAS; i++) report(run_status, i, &now[i], 45);
    assert_string_equal(warning(run_status, 60), "");
    now[ROLLOUT].done_age = 45;
    for (int i = 0; i < REPLICAS; i++) report(run_status, i, &now[i], 75);
    assert_string_equal(warning(run_status, 75),
                        "nothing has been done for 0:45: source gave group 5 to rollout-2, which waits for groups");
    // Once more when the time has doubled: both are lost meanwhile.
    now[SOURCE].given_replica = 0;
    report(run_status, SOURCE, &now[SOURCE], 119);
    run_status_forget(run_status, &replicas[SUPERVISORS + ROLLOUT]);
    assert_string_equal(warning(run_status, 119), "");
    assert_string_equal(warning(run_status, 121),
                        "nothing has been done for 1:31: source has group 5, which no replica of rollout has taken: "
                        "rollout is starting, rollout-2 is silent");
    // Who is at work may take its time. What it has reported before it is stopped may not be so any more.
    now[ROLLOUT_2].state = "working";
    now[ROLLOUT_2].given_seq = 5;
    now[ROLLOUT_2].given_stage = "optim";
    report(run_status, ROLLOUT_2, &now[ROLLOUT_2], 1000);
    assert_string_equal(warning(run_status, 1000), "");
    report(run_status, SOURCE, &now[SOURCE], 1009);
    assert_string_equal(warning(run_status, 1010), // it is stopped
                        "nothing has been done for 16:20: source has group 5, which no replica of rollout has taken: "
                        "rollout is starting, rollout-2 is silent");
    // Optim has all of the step and does not train it. Rollout does not know yet that group 3 is settled.
    now[ROLLOUT].given_seq = 3;
    now[ROLLOUT_2].given_seq = -1;
    now[ROLLOUT_2].state = now[ROLLOUT].state = "waits for groups";
    now[SOURCE].given_seq = -1;
    now[ROLLOUT].pid = 1000; // it was started again
    for (int i = 0; i < REPLICAS; i++) report(run_status, i, &now[i], 2085);
    assert_string_equal(warning(run_status, 2065), "");
    assert_string_equal(warning(run_status, 2086),
                        "nothing has been done for 0:46: rollout gave group 4 to optim, which waits for groups");
    // A run that is over does not stand still.
    now[SOURCE].settled = 6;
    report(run_status, SOURCE, &now[SOURCE], 3000);
    assert_string_equal(warning(run_status, 3000), "");
}

TEST(without_a_typical_time_five_minutes_are_slow) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now = counters(ROLLOUT);
    now.oldest_seq = 0;
    now.oldest_age = 299;
    report(run_status, ROLLOUT, &now, 299);
    assert_string_equal(warning(run_status, 299), "");
    assert_string_equal(warning(run_status, 301), "rollout has had group 0 for 5:01 (it has finished none yet)");
}

// Steps of four groups that take 400 s each, after ten quick ones.
TEST(the_time_left_is_from_the_last_steps) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status now = counters(SOURCE);
    struct run_summary run;
    SCOPED(struct buf, buf_release) line = {0};
    now.total = 400;
    now.held = 4;
    run_status_summary(run_status, 0, &run);
    assert_null(run.source);
    for (now.up = 0; now.up <= 3000; now.up += 10) {
        now.step = now.up <= 200 ? (int64_t)(now.up / 20) : 10 + (int64_t)((now.up - 200) / 400);
        now.done = 4 * now.step;
        report(run_status, SOURCE, &now, now.up);
        run_status_summary(run_status, now.up, &run);
        if (now.up == 200) {
            assert_near(run.rate, 0.2);
            assert_near(run.left, 360 / 0.2);
        }
        if (now.up == 2600) assert_near(run.rate, 0.01);
        if (now.up == 2600) assert_near(run.left, (400 - 64) / 0.01);
    }
    assert_int_equal(run.source->step, 17);
    // If it stands still, the time left grows.
    run_status_summary(run_status, 10000, &run);
    assert_true(run.left > 2 * 33600);
    now.up = 3010;
    now.done = 390;
    now.run_quarantined = 8;
    now.run_unused = 2;
    report(run_status, SOURCE, &now, 3010);
    run_status_summary(run_status, 3010, &run);
    assert_near(run.left, -1);
    run_status_line(run_status, 3010, &line);
    assert_non_null(strstr(line.data, "step 17, "));
    assert_non_null(strstr(line.data, ", 8 quarantined, 400 of 400 groups; rollout starting; optim starting"));
}

// A run in the middle: the second rollout has not reported yet.
static struct run_status *open_example(void) {
    struct run_status *run_status = open_status();
    struct message_status source = counters(SOURCE), rollout = counters(ROLLOUT), optim = counters(OPTIM);
    work(run_status, ROLLOUT, &rollout, 0, 90, 3);
    rollout.taken = 31;
    rollout.found = 2;
    rollout.dropped = 1;
    rollout.quarantined = 3;
    rollout.held = rollout.waiting = 1;
    rollout.oldest_seq = 30;
    rollout.oldest_age = 12.25;
    rollout.restarts = 2;
    report(run_status, ROLLOUT, &rollout, 90.5);
    source.up = 91;
    source.total = 400;
    source.done = 24;
    source.held = 4;
    source.step = 6;
    source.run_quarantined = 3;
    source.reissued = 5;
    source.state = "waits for a step";
    report(run_status, SOURCE, &source, 91);
    optim.up = 91;
    optim.reward = 1.625;
    optim.accuracy = 0.5;
    optim.failed_saves = 2;
    optim.state = "waits for groups";
    report(run_status, OPTIM, &optim, 91);
    return run_status;
}

TEST(the_table_has_a_row_for_each_replica) {
    SCOPED(struct run_status *, run_status_free) run_status = open_example();
    SCOPED(struct buf, buf_release) text = {0};
    run_status_table(run_status, 91, INT_MAX, INT_MAX, &text);
    const char *table = strstr(text.data, "again: ");
    assert_non_null(table);
    assert_string_equal(
        table,
        "again: step 6, 27 of 400 groups\n"
        "bottleneck: rollout, at work for 50 % of the last minute\n"
        "4 in flight, 5 issued again, 3 quarantined, 0 left over\n"
        "last step: reward 1.625, accuracy 0.500\n"
        "no checkpoint could be written in the last 2 attempts (see optim.log)\n"
        "oldest: group 30, in rollout for 0:12 (typical 3.0 s)\n"
        "stage         groups/min    done stored dropped  held queue   busy tokens/s  typical  oldest restarts  state\n"
        "source               0.0      24      0       0     4     0     0%                 -       -        0  waits "
        "for a step\n"
        "rollout             20.0      30      2       1     1     1    99%       34    3.0 s    0:12        2  "
        "working\n"
        "rollout-2                                                                                           0  "
        "starting\n"
        "optim                0.0       0      0       0     0     0     0%                 -       -        0  waits "
        "for groups\n");
}

// In 80 columns the less important ones are left out; in few rows the replicas of a stage have one.
TEST(the_table_fits_a_terminal) {
    SCOPED(struct run_status *, run_status_free) run_status = open_example();
    struct message_status second = counters(ROLLOUT_2);
    SCOPED(struct buf, buf_release) text = {0};
    work(run_status, ROLLOUT_2, &second, 61, 91, 10);
    run_status_table(run_status, 91, 80, 12, &text);
    const char *table = strstr(text.data, "bottleneck: ");
    assert_non_null(table);
    assert_string_equal(table, "bottleneck: rollout, at work for 100 % of the last minute\n"
                               "4 in flight, 5 issued again, 3 quarantined, 0 left over\n"
                               "last step: reward 1.625, accuracy 0.500\n"
                               "no checkpoint could be written in the last 2 attempts (see optim.log)\n"
                               "oldest: group 30, in rollout for 0:12 (typical 3.0 s)\n"
                               "stage         groups/min  held queue   busy  typical  oldest  state\n"
                               "source               0.0     4     0     0%        -       -  waits for a step\n"
                               "rollout             20.0     1     1    99%    3.0 s    0:12  working\n"
                               "rollout-2            6.0     0     0   100%     0:10       -  working\n"
                               "optim                0.0     0     0     0%        -       -  waits for groups\n");
    buf_clear(&text);
    run_status_table(run_status, 91, 64, 9, &text);
    table = strstr(text.data, "stage ");
    assert_non_null(table);
    assert_string_equal(table, "stage         groups/min   busy  typical  state\n"
                               "source               0.0     0%        -  waits for a step\n"
                               "rollout x 2         26.0   100%     0:10  working\n"
                               "optim                0.0     0%        -  waits for groups\n");
}

// While one stage is at work, the others wait. Of a stage with several replicas their mean counts.
TEST(the_bottleneck_is_the_stage_at_work) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    struct message_status first = counters(ROLLOUT), second = counters(ROLLOUT_2), optim = counters(OPTIM);
    struct run_summary run;
    SCOPED(struct buf, buf_release) line = {0};
    run_status_summary(run_status, 0, &run);
    assert_null(run.bottleneck);
    work(run_status, ROLLOUT, &first, 0, 30, 1);
    work(run_status, ROLLOUT_2, &second, 0, 30, 0);
    work(run_status, OPTIM, &optim, 0, 20, 1);
    work(run_status, OPTIM, &optim, 20, 30, 0);
    run_status_summary(run_status, 30, &run);
    assert_string_equal(run.bottleneck, "optim");
    assert_near(run.bottleneck_busy, 20. / 30);
    assert_string_equal(run.next, "rollout");
    assert_near(run.next_busy, 0.5);
    work(run_status, ROLLOUT_2, &second, 30, 60, 1);
    work(run_status, ROLLOUT, &first, 30, 60, 1);
    work(run_status, OPTIM, &optim, 30, 60, 0);
    run_status_summary(run_status, 60, &run);
    assert_string_equal(run.bottleneck, "rollout");
    assert_string_equal(run.next, "optim");
    run_status_line(run_status, 60, &line);
    assert_non_null(strstr(line.data, "starting, bottleneck rollout; rollout working"));
}

// The first rank speaks for all: a rank that follows it has trained nothing that counts, and waits for it.
TEST(ranks_are_one_stage_at_work) {
    static struct replica ranks[] = {{.number = 1},
                                     {.stage = &stages[0], .name = "source", .number = 1},
                                     {.stage = &stages[2], .name = "optim", .number = 1, .rank = "ipc://1"},
                                     {.stage = &stages[2], .name = "optim-2", .number = 2, .rank = "ipc://2"},
                                     {.stage = &stages[2], .name = "optim-3", .number = 3, .rank = "ipc://3"}};
    static const struct deployment of_ranks = {.pipeline = &pipeline, .replicas = ranks, .count = 5, .machines = 1};
    SCOPED(struct run_status *, run_status_free) run_status = NULL;
    SCOPED(struct buf, buf_release) line = {0};
    struct run_summary run;
    run_status_new(&run_status, &of_ranks);
    for (int rank = 0; rank < 3; rank++) {
        struct wire_message message = {
            .kind = MESSAGE_STATUS, .name = "optim", .replica = rank + 1, .machine = "", .counters = counters(rank)};
        message.counters.state = rank ? "follows" : "working";
        message.counters.up = 60;
        message.counters.busy = rank ? 0 : 60;
        message.counters.reward = rank ? NAN : 0.5;
        message.counters.failed_saves = rank ? 0 : 2;
        run_status_update(run_status, &message, 60);
    }
    run_status_summary(run_status, 60, &run);
    assert_string_equal(run.bottleneck, "optim");
    assert_near(run.bottleneck_busy, 1);
    assert_near(run.reward, 0.5);
    assert_int_equal(run.failed_saves, 2);
    run_status_line(run_status, 60, &line);
    assert_non_null(strstr(line.data, "; optim working"));
    assert_null(strstr(line.data, "optim-2"));
    buf_clear(&line);
    run_status_table(run_status, 60, 120, 20, &line);
    assert_non_null(strstr(line.data, "optim-3"));
    assert_non_null(strstr(line.data, "  follows\n"));
}

TEST(the_metrics_are_openmetrics) {
    SCOPED(struct run_status *, run_status_free) run_status = open_example();
    const char *dir = getenv("METRICS");
    char path[512];
    SCOPED(struct buf, buf_release) got = {0}, want = {0};
    run_metrics(run_status, 91, &got);
    snprintf(path, sizeof path, "%s/metrics.prom", dir ? dir : "tests/data/metrics");
    if (dir) assert_int_equal(file_write_atomic(path, got.data, got.size), OK);
    assert_int_equal(file_read(path, &want), OK);
    assert_string_equal(got.data, want.data);
}

// Before anything is known there are no samples of it, but every family of the replicas.
TEST(metrics_begin_empty) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    SCOPED(struct buf, buf_release) text = {0};
    run_metrics(run_status, 0, &text);
    assert_null(strstr(text.data, "caravan_groups{"));
    assert_null(strstr(text.data, "nan"));
    assert_non_null(strstr(text.data, "stage=\"rollout\",replica=\"2\",machine=\"gpu1\"} 0\n"));
    assert_string_equal(text.data + text.size - 6, "# EOF\n");
}

TEST(an_unknown_replica_is_ignored) {
    SCOPED(struct run_status *, run_status_free) run_status = open_status();
    const struct wire_message message = {
        .kind = MESSAGE_STATUS, .name = "rollout", .replica = 3, .machine = "", .counters = counters(0)};
    run_status_update(run_status, &message, 1);
    run_status_forget(run_status, &replicas[0]);
    run_status_restarted(run_status, &replicas[0]);
    for (int i = 0; i < REPLICAS; i++) assert_null(look(run_status, i, 1).report);
}
