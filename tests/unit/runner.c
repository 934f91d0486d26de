// The runner over --stdio, with stages made for the test, each in a process of its own.
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/stage.h"
#include "shared/store/group_store.h"

// ---- the stages: sample_id says what happens to a group

struct test_options {
    struct common_options common;
    int64_t seed;
};

static const struct option test_options[] = {
    {.name = "seed",
     .offset = offsetof(struct test_options, seed),
     .type = OPTION_INT,
     .default_value = "42",
     .high = 1e9,
     .help = "changes what is computed"},
    {0},
};
static const struct option_table test_table = {.program = "caravan-test",
                                               .help = "a stage for tests",
                                               .options = test_options,
                                               .common = common_options,
                                               .size = sizeof(struct test_options)};

static status open_nothing(void **state, struct stage_context *context) {
    const struct test_options *options = stage_options(context);
    *state = (void *)(intptr_t)options->seed;
    return OK;
}

static status set_advantage(struct group *group, double value) {
    GROUP_ARRAY(group, &group->advantages, 1);
    group->advantages.data[0] = value;
    return OK;
}

// Tells child_await that a slow group has been taken.
static void tell_slow(const struct group *group) {
    if (string_equals(group->sample_id, "slow")) assert_int_equal(write(STDERR_FILENO, "\1", 1), 1);
}

static status act_on(void *state, struct group *group) {
    tell_slow(group);
    if (string_equals(group->sample_id, "defect")) return fail(BAD_SAMPLE, "the clip is cut off");
    if (string_equals(group->sample_id, "input")) return fail(DATAERR, "not a group for me");
    if (string_equals(group->sample_id, "service")) return fail(UNAVAILABLE, "the device is gone");
    if (string_equals(group->sample_id, "slow")) usleep(300000);
    return set_advantage(group, (double)(intptr_t)state);
}

static const struct stage simple = {
    .name = "reward", .table = &test_table, .section = SECTION_REWARD, .open = open_nothing, .work = act_on};

// Holds up to three groups and hands back the last one first.
static struct group *held[3];
static int held_count;

static int hold_capacity(void *state) {
    (void)state;
    return 3 - held_count;
}

static status hold_submit(void *state, struct group *group) {
    (void)state;
    tell_slow(group);
    held[held_count++] = group;
    return OK;
}

static status hold_poll(void *state, bool draining, struct group **done) {
    if (held_count == 0 || (held_count < 3 && !draining)) return END;
    *done = held[--held_count];
    return act_on(state, *done);
}

static const struct stage holding = {.name = "reward",
                                     .table = &test_table,
                                     .section = -1,
                                     .open = open_nothing,
                                     .capacity = hold_capacity,
                                     .submit = hold_submit,
                                     .poll = hold_poll};

// Returns one held group per call, although the stage could hold more.
static status hurry_poll(void *state, bool draining, struct group **done) {
    (void)draining;
    if (held_count == 0) return END;
    usleep(20000);
    *done = held[--held_count];
    return act_on(state, *done);
}

static const struct stage hurrying = {.name = "reward",
                                      .table = &test_table,
                                      .section = -1,
                                      .open = open_nothing,
                                      .capacity = hold_capacity,
                                      .submit = hold_submit,
                                      .poll = hurry_poll};

#define GROUP(id, sample)                                                                                              \
    "{\"v\":1,\"id\":\"" id "\",\"sample_id\":\"" sample "\",\"prompt\":{\"messages\":[{\"role\":\"user\","            \
    "\"content\":[{\"type\":\"text\",\"text\":\"?\"}]}],\"problem_type\":\"free-form\",\"solution\":\"x\"}}\n"

static status source_describe(void *state, int64_t *count, uint64_t *hash, struct buf *data) {
    (void)data;
    (void)state;
    *count = 3;
    *hash = 0;
    return OK;
}

static status source_group_at(void *state, int64_t seq, struct group **out, size_t *line) {
    (void)line;
    (void)state;
    (void)seq;
    static const char text[] = GROUP("s", "made");
    return group_from_json(out, text, sizeof text - 2);
}

static const struct stage source = {.name = "source",
                                    .table = &test_table,
                                    .section = -1,
                                    .open = open_nothing,
                                    .describe = source_describe,
                                    .group_at = source_group_at};

// ---- running them

struct child {
    pid_t pid;
    int in, out, log;
};

static struct child child_start(const struct stage *stage, const char *option, const char *value) {
    int in[2], out[2], log[2];
    assert_int_equal(pipe(in) | pipe(out) | pipe(log), 0);
    struct child child = {.pid = fork(), .in = in[1], .out = out[0], .log = log[0]};
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        char name[] = "test", stdio[] = "--stdio";
        char *argv[] = {name, stdio, option ? mem_strdup(option) : NULL, value ? mem_strdup(value) : NULL, NULL};
        dup2(in[0], 0), dup2(out[1], 1), dup2(log[1], 2);
        close(in[1]), close(out[0]), close(log[0]), close(in[0]), close(out[1]), close(log[1]);
        _exit(stage_main(stage, option ? (value ? 4 : 3) : 2, argv));
    }
    close(in[0]), close(out[1]), close(log[1]);
    return child;
}

static void child_write(const struct child *child, const char *text) {
    assert_int_equal(write(child->in, text, strlen(text)), strlen(text));
}

// Reads a descriptor to its end.
static void child_drain(int fd, struct buf *out) {
    char chunk[4096];
    ssize_t got;
    while ((got = read(fd, chunk, sizeof chunk)) > 0) buf_append(out, chunk, (size_t)got);
    buf_puts(out, "");
    close(fd);
}

static int child_finish(struct child *child, struct buf *out, struct buf *log) {
    int code;
    if (child->in >= 0) close(child->in);
    child_drain(child->out, out);
    child_drain(child->log, log);
    assert_int_equal(waitpid(child->pid, &code, 0), child->pid);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -WTERMSIG(code);
}

// One line from the child; waits a minute for each byte.
static char *child_read_line(const struct child *child) {
    static char line[4096];
    size_t size = 0;
    struct pollfd fd = {.fd = child->out, .events = POLLIN};
    while (size < sizeof line - 1 && (size == 0 || line[size - 1] != '\n')) {
        assert_int_equal(poll(&fd, 1, 60000), 1);
        assert_int_equal(read(child->out, line + size, 1), 1);
        size++;
    }
    line[size] = 0;
    return line;
}

// Waits until so many slow groups have been taken, up to a minute for each.
static void child_await(const struct child *child, int count) {
    char byte;
    for (struct pollfd fd = {.fd = child->log, .events = POLLIN}; count > 0; count -= byte == 1) {
        assert_int_equal(poll(&fd, 1, 60000), 1);
        assert_int_equal(read(child->log, &byte, 1), 1);
    }
}

static int run(const struct stage *stage, const char *option, const char *value, const char *input, struct buf *out,
               struct buf *log) {
    struct child child = child_start(stage, option, value);
    child_write(&child, input);
    return child_finish(&child, out, log);
}

// The ids of the lines, in order: "a b c ".
static char *ids(const struct buf *out) {
    static char text[512];
    size_t used = 0;
    text[0] = 0;
    for (const char *at = out->data; (at = strstr(at, "\"id\":\"")); at++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%.*s ", (int)strcspn(at + 6, "\""), at + 6);
    return text;
}

static void expect(const struct stage *stage, const char *input, int code, const char *order, const char *logged) {
    SCOPED(struct buf, buf_release) out = {0}, log = {0};
    assert_int_equal(run(stage, NULL, NULL, input, &out, &log), code);
    assert_string_equal(out.data ? ids(&out) : "", order);
    if (logged) assert_non_null(log.data);
    if (logged && !strstr(log.data, logged)) assert_string_equal(log.data, logged);
}

TEST(the_order_is_kept) {
    static const char input[] = GROUP("a", "") GROUP("b", "") "\n  \n" GROUP("c", "") GROUP("d", "") GROUP("e", "");
    expect(&simple, input, 0, "a b c d e ", "5 groups, 0 quarantined");
    expect(&holding, input, 0, "a b c d e ", "5 groups, 0 quarantined");
    expect(&hurrying, input, 0, "a b c d e ", "5 groups, 0 quarantined");
    expect(&simple, "", 0, "", NULL);
    expect(&simple, "\n\n", 0, "", NULL);
}

TEST(the_last_line_needs_no_newline) {
    char input[] = GROUP("a", "") GROUP("b", "");
    input[strlen(input) - 1] = 0;
    expect(&simple, input, 0, "a b ", NULL);
}

TEST(a_bad_line_ends_the_filter_after_what_was_before) {
    static const char input[] = GROUP("a", "") GROUP("b", "") "\n{\"v\":1}\n" GROUP("c", "");
    expect(&simple, input, 65, "a b ", "caravan-test: line 4: ");
    expect(&holding, input, 65, "a b ", "caravan-test: line 4: ");
    expect(&simple, "nonsense\n", 65, "", "caravan-test: line 1: ");
    expect(&simple, "[]\n", 65, "", "caravan-test: line 1: ");
}

TEST(a_line_that_the_stage_refuses_ends_the_filter) {
    static const char input[] = GROUP("a", "") GROUP("b", "") GROUP("c", "input") GROUP("d", "") GROUP("e", "");
    expect(&simple, input, 65, "a b ", "caravan-test: line 3: not a group for me");
    expect(&holding, input, 65, "a b ", "caravan-test: line 3: not a group for me");
    expect(&hurrying, input, 65, "a b ", "caravan-test: line 3: not a group for me");
}

TEST(a_device_that_is_gone_ends_the_filter) {
    expect(&simple, GROUP("a", "") GROUP("b", "service") GROUP("c", ""), 69, "a ", "caravan-test: the device is gone");
}

TEST(needs_are_checked) {
    struct stage picky = simple;
    picky.needs = NEED_COMPLETIONS;
    expect(&picky, GROUP("a", ""), 65, "", "caravan-test: line 1: not a group");
}

TEST(a_bad_sample_is_quarantined) {
    SCOPED(struct buf, buf_release) out = {0}, log = {0};
    assert_int_equal(run(&simple, NULL, NULL, GROUP("a", "defect") GROUP("b", ""), &out, &log), 0);
    assert_string_equal(ids(&out), "a b ");
    assert_non_null(strstr(out.data, "\"quarantine\":{\"stage\":\"reward\",\"reason\":\"the clip is cut off\"}"));
    assert_non_null(strstr(log.data, "2 groups, 1 quarantined"));
    assert_non_null(strstr(out.data, "\"times\":{\"reward\":["));
}

TEST(a_quarantined_group_passes_untouched) {
    static const char line[] =
        "{\"v\":1, \"id\":\"a\",\"zeta\": 1.50,\"sample_id\":\"service\",\"prompt\":{\"messages\":[],"
        "\"problem_type\":\"free-form\",\"solution\":\"x\"},\"quarantine\":{\"stage\":\"frames\",\"reason\":\"cut\"}}"
        "\n";
    SCOPED(struct buf, buf_release) out = {0}, log = {0};
    assert_int_equal(run(&simple, NULL, NULL, line, &out, &log), 0);
    assert_string_equal(out.data, line);
    assert_int_equal(run(&holding, NULL, NULL, line, &out, &log), 0);
}

TEST(each_line_leaves_at_once) {
    const struct stage *stages[] = {&simple, &hurrying};
    for (int i = 0; i < 2; i++) {
        struct child child = child_start(stages[i], NULL, NULL);
        SCOPED(struct buf, buf_release) out = {0}, log = {0};
        child_write(&child, GROUP("a", ""));
        assert_non_null(strstr(child_read_line(&child), "\"id\":\"a\""));
        child_write(&child, GROUP("b", ""));
        assert_non_null(strstr(child_read_line(&child), "\"id\":\"b\""));
        assert_int_equal(child_finish(&child, &out, &log), 0);
    }
}

TEST(sigterm_lets_what_is_held_finish) {
    const struct stage *stages[] = {&simple, &holding};
    for (int i = 0; i < 2; i++) {
        struct child child = child_start(stages[i], NULL, NULL);
        SCOPED(struct buf, buf_release) out = {0}, log = {0};
        child_write(&child, GROUP("a", "slow") GROUP("b", "slow"));
        child_await(&child, i + 1);
        const int signals[] = {SIGTERM, SIGTERM, SIGINT, SIGINT}; // however often they come
        for (int k = 0; k < 4; k++) {
            assert_int_equal(kill(child.pid, signals[k]), 0);
            usleep(5000);
        }
        int in = child.in;
        child.in = -1; // the input stays open: it is the signal that ends the program
        assert_int_equal(child_finish(&child, &out, &log), 0);
        assert_non_null(strstr(ids(&out), "a "));
        if (i == 1) assert_string_equal(ids(&out), "a b ");
        close(in);
    }
}

TEST(a_closed_output_ends_the_filter_cleanly) {
    struct child child = child_start(&simple, NULL, NULL);
    SCOPED(struct buf, buf_release) log = {0};
    int code;
    close(child.out);
    child_write(&child, GROUP("a", "") GROUP("b", ""));
    assert_int_equal(waitpid(child.pid, &code, 0), child.pid);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), 0);
    close(child.in);
    child_drain(child.log, &log);
}

TEST(a_source_writes_its_groups) {
    expect(&source, "", 0, "s s s ", "3 groups");
}

TEST(wrong_options_are_refused_by_name) {
    static const struct {
        const char *option, *value, *logged;
        int code;
    } cases[] = {
        {"--sed", "1", "caravan-test: --sed: no such option; did you mean --seed?", 64},
        {"--seed", "-1", "caravan-test: seed: -1 is out of range", 64},
        {"--config", "/nowhere", "caravan-test: config: /nowhere: No such file", 65},
        {"--store", "/proc/no", "caravan-test: /proc/no: cannot make the directory", 69},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) out = {0}, log = {0};
        assert_int_equal(run(&simple, cases[i].option, cases[i].value, "", &out, &log), cases[i].code);
        assert_non_null(strstr(log.data, cases[i].logged));
        assert_int_equal(out.size, 0);
    }
}

// The second run finds its sections; another seed does not.
TEST(what_the_store_has_is_not_computed_again) {
    const char *dir = unit_new_directory();
    char option[64];
    snprintf(option, sizeof option, "--store=%s", dir);
    const char *seeds[] = {"--seed=1", "--seed=1", "--seed=2"};
    const char *logged[] = {"0 found", "2 found", "0 found"};
    for (int i = 0; i < 3; i++) {
        SCOPED(struct buf, buf_release) out = {0}, log = {0};
        assert_int_equal(run(&simple, option, seeds[i], GROUP("a", "") GROUP("b", ""), &out, &log), 0);
        assert_string_equal(ids(&out), "a b ");
        assert_non_null(strstr(log.data, logged[i]));
        assert_non_null(strstr(out.data, i == 2 ? "\"advantages\":[2" : "\"advantages\":[1"));
    }
}

static status count_group(void *context, const struct group *group) {
    int *counts = context; // whole groups, quarantined ones
    counts[0] += group->advantages.count == 1 && group->unknown.first;
    counts[1] += group->quarantine.present;
    return OK;
}

// What is found and what was quarantined before is kept, too, as it left: here with an unknown key and a section.
TEST(the_last_stages_store_has_whole_groups) {
    static const char *const inputs[] = {
        GROUP("a", ""),
        "{\"id\":\"a\",\"sample_id\":\"\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"?\"}]}],\"problem_type\":\"free-form\",\"solution\":\"x\"},\"mine\":1}\n",
        "{\"id\":\"b\",\"prompt\":{\"messages\":[],\"solution\":\"\"},\"quarantine\":{\"stage\":\"frames\",\"reason\":"
        "\"cut\"}}\n",
    };
    const char *dir = unit_new_directory();
    char option[64];
    SCOPED(struct group_store *, group_store_close) store = NULL;
    int counts[2] = {0};
    snprintf(option, sizeof option, "--store=%s", dir);
    for (int i = 0; i < 3; i++) {
        SCOPED(struct buf, buf_release) out = {0}, log = {0};
        assert_int_equal(run(&simple, option, NULL, inputs[i], &out, &log), 0);
        if (i == 1) assert_non_null(strstr(log.data, "1 found"));
    }
    assert_int_equal(group_store_open(&store, dir, true), OK);
    assert_int_equal(group_store_each(store, count_group, counts), OK);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1], 1);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    return unit_run(NULL, NULL);
}
