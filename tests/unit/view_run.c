// What `caravan view` reads of a run's files: metrics as bins, events, counters, reasons, settings.
#include "tests/unit/unit.h"

#include <math.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "tools/view/metric_table.h"
#include "tools/view/run_files.h"

static char *path_in(const char *dir, const char *name) {
    char *path;
    NEW(&path, 4096);
    snprintf(path, 4096, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *path, const char *text) {
    MUST(file_write_atomic(path, text, strlen(text)));
}

static void free_path(char **path) {
    free(*path);
}

// The table's JSON must be this.
static void expect(const struct metric_table *table, int64_t from, int64_t to, size_t points, const char *json) {
    SCOPED(struct buf, buf_release) out = {0};
    metric_table_print(table, from, to, points, NULL, 0, &out);
    assert_string_equal(out.data, json);
}

TEST(a_bin_has_the_last_lowest_highest_and_mean_number) {
    SCOPED(struct metric_table, metric_table_release) table = {0};
    static const char lines[] =
        "{\"step\": 1, \"a\": 4, \"b\": null, \"device\": \"cpu\"}\n"
        "{\"step\": 2, \"a\": 1, \"b\": 0.5, \"device\": \"cpu\"}\n"
        "no metrics\n"
        "{\"step\": 3, \"a\": null, \"b\": null, \"device\": \"a \\\"GPU\\\"\"}\n"
        "{\"step\": 4, \"a\": 3, \"b\": null}\n"
        "{\"step\": 5, \"a\": 1e400, \"b\": null, \"c\": {\"d\": [1, 2]}, \"device\": \"cuda\"}\n";
    metric_table_add(&table, lines, strlen(lines));
    assert_int_equal(table.count, 5);
    assert_string_equal(table.device, "cuda");
    expect(&table, 1, 5, 2,
           "{\"step\": [2, 5], \"first\": [1, 3], "
           "\"a\": {\"last\": [1, 3], \"min\": [1, 3], \"max\": [4, 3], \"mean\": [2.5, 3]}, "
           "\"b\": {\"last\": [0.5, null], \"min\": [0.5, null], \"max\": [0.5, null], \"mean\": [0.5, null]}}");
    // Without bins, a part of the steps, in which b has no number.
    expect(&table, 3, 4, 400,
           "{\"step\": [3, 4], \"first\": [3, 4], "
           "\"a\": {\"last\": [null, 3], \"min\": [null, 3], \"max\": [null, 3], \"mean\": [null, 3]}}");
    double none[] = {NAN, NAN, NAN, NAN, NAN};
    const struct metric_column more = {"added", none};
    SCOPED(struct buf, buf_release) out = {0};
    metric_table_print(&table, 5, 5, 400, &more, 1, &out);
    assert_string_equal(out.data, "{\"step\": [5], \"first\": [5], \"added\": "
                                  "{\"last\": [null], \"min\": [null], \"max\": [null], \"mean\": [null]}}");
    expect(&table, 6, 9, 400, "{\"step\": [], \"first\": []}");
    expect(&table, 4, 3, 400, "{\"step\": [], \"first\": []}");
}

TEST(bins_cover_every_step_once) {
    SCOPED(struct metric_table, metric_table_release) table = {0};
    SCOPED(struct buf, buf_release) lines = {0};
    SCOPED(struct buf, buf_release) out = {0};
    for (int step = 1; step <= 1003; step++) buf_printf(&lines, "{\"step\": %d, \"a\": 1}\n", step);
    metric_table_add(&table, lines.data, lines.size);
    metric_table_print(&table, 0, INT64_MAX, 400, NULL, 0, &out);
    const char *last = strstr(out.data, "\"step\": [") + 9, *first = strstr(out.data, "\"first\": [") + 10;
    long expected = 1;
    for (int bin = 0; bin < 400; bin++) {
        char *end;
        assert_int_equal(strtol(first, &end, 10), expected);
        first = end + 2;
        expected = strtol(last, &end, 10) + 1;
        last = end + 2;
    }
    assert_int_equal(expected, 1004);
}

TEST(a_key_that_comes_late_has_no_numbers_before) {
    SCOPED(struct metric_table, metric_table_release) table = {0};
    SCOPED(struct buf, buf_release) lines = {0};
    for (int step = 1; step <= 300; step++) buf_printf(&lines, "{\"step\": %d}\n", step);
    for (int step = 301; step <= 600; step++) buf_printf(&lines, "{\"late\": %d, \"step\": %d}\n", 2 * step, step);
    metric_table_add(&table, lines.data, lines.size);
    const double *late = metric_table_find(&table, "late");
    assert_non_null(late);
    assert_null(metric_table_find(&table, "step"));
    for (size_t i = 0; i < 600; i++) assert_true(i < 300 ? isnan(late[i]) : late[i] == 2 * ((double)i + 1));
}

TEST(a_step_that_comes_again_replaces_those_from_it_on) {
    SCOPED(struct metric_table, metric_table_release) table = {0};
    static const char lines[] = "{\"step\": 1, \"a\": 1}\n{\"step\": 2, \"a\": 2}\n{\"step\": 3, \"a\": 3}\n"
                                "{\"step\": 2, \"a\": 7}\n";
    metric_table_add(&table, lines, strlen(lines));
    expect(&table, 0, 9, 400,
           "{\"step\": [1, 2], \"first\": [1, 2], "
           "\"a\": {\"last\": [1, 7], \"min\": [1, 7], \"max\": [1, 7], \"mean\": [1, 7]}}");
}

TEST(only_new_whole_lines_are_read_and_a_new_file_from_its_beginning) {
    SCOPED(struct metric_table, metric_table_release) table = {0};
    SCOPED(char *, free_path) path = path_in(unit_new_directory(), "metrics.jsonl");
    MUST(metric_table_read(&table, path)); // it is missing
    assert_int_equal(table.count, 0);
    write_file(path, "{\"step\": 1, \"a\": 1}\n{\"step\": 2, \"a\"");
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.count, 1);
    const int64_t at = table.file.at;
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.file.at, at);
    MUST(file_append(path, ": 2}\n", 5));
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.count, 2);
    assert_true(metric_table_find(&table, "a")[1] == 2);
    // Another file, which is longer and has later steps.
    write_file(path, "{\"step\": 4, \"a\": 5, \"device\": \"a longer line\"}\n");
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.count, 1);
    assert_true(metric_table_find(&table, "a")[0] == 5);
    assert_int_equal(truncate(path, 0), 0);
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.count, 0);
    unlink(path);
    MUST(metric_table_read(&table, path));
    assert_int_equal(table.count, 0);
}

TEST(a_long_file_is_read_in_parts_of_whole_lines) {
    enum { LINES = 200 };
    SCOPED(struct metric_table, metric_table_release) table = {0};
    SCOPED(char *, free_path) path = path_in(unit_new_directory(), "metrics.jsonl");
    SCOPED(struct buf, buf_release) lines = {0};
    for (int i = 0; i < LINES; i++) // one is longer than a part
        buf_printf(&lines, "{\"step\": %d, \"a\": %d, \"text\": \"%*s\"}\n", i, i,
                   i == 100 ? 2 * LINE_FILE_PIECE : LINE_FILE_PIECE / 20, "");
    write_file(path, lines.data);
    size_t count = 0, parts = 0;
    do {
        MUST(metric_table_read(&table, path));
        assert_true(table.count > count);
        count = table.count;
        parts++;
    } while (table.file.more);
    assert_int_equal(count, LINES);
    assert_true(parts >= 9 && parts <= 14);
    assert_true(metric_table_find(&table, "a")[LINES - 1] == LINES - 1);
}

static void expect_reason(const char *reason, const char *plain) {
    SCOPED(struct buf, buf_release) out = {0};
    quarantine_reason(reason, &out);
    assert_string_equal(out.data ? out.data : "", plain);
}

TEST(reasons_that_differ_in_paths_and_numbers_are_the_same) {
    expect_reason("/data/my clips/a 1.mp4: the file is truncated: 3 of its 16 frames are missing",
                  "the file is truncated: N of its N frames are missing");
    expect_reason("clip.webm: cannot be decoded", "cannot be decoded");
    expect_reason("/x/y: a.png: the file is empty", "the file is empty");
    expect_reason("media_root: /x/y: No such file or directory", "media_root: …: No such file or directory");
    expect_reason("prompt too long: 17000 tokens, max_prompt_tokens is 16384",
                  "prompt too long: N tokens, max_prompt_tokens is N");
    expect_reason("lost 3 times; last held by rollout-2", "lost N times; last held by rollout-N");
    expect_reason("start -0.5 is negative; see (/tmp/x), mp4 or utf8", "start N is negative; see …), mp4 or utf8");
    expect_reason("FFmpeg has no decoder for its video", "FFmpeg has no decoder for its video");
    expect_reason("", "");
}

TEST(values_of_secrets_are_hidden_and_counts_of_tokens_are_not) {
    static const char *const secret[] = {"api_key", "KEYFILE",  "my_secret", "Password",
                                         "token",   "hf_token", "apiToken"};
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++) assert_true(setting_is_secret(secret[i], "12"));
    assert_true(setting_is_secret("tokens", "hf_abc"));
    assert_false(setting_is_secret("max_new_tokens", "768"));
    assert_false(setting_is_secret("prompt_tokens", "16384"));
    assert_false(setting_is_secret("temperature", "1.0"));
}

TEST(settings_say_which_of_them_are_the_default) {
    static const char text[] = "name: p\nrun: /tmp/r\nmodel: /m\nstages:\n"
                               "  - source: {data: /d.jsonl, seed: 7, epochs: 1}\n"
                               "  - rollout: {temperature: 1}\n"
                               "  - judge-it: {program: /bin/judge, api_key: abc, hf_tokens: xyz, weight: 0.5}\n";
    SCOPED(struct pipeline *, pipeline_free) pipeline = NULL;
    SCOPED(struct buf, buf_release) diagnostics = {0};
    SCOPED(struct buf, buf_release) out = {0};
    MUST(pipeline_parse(&pipeline, "p.yaml", true, text, strlen(text), NULL, 0, &diagnostics));
    run_print_settings(pipeline, &out);
    static const char *const parts[] = {
        "{\"source\": {",
        "\"data\": [\"/d.jsonl\", false]",
        "\"seed\": [\"7\", false]",
        "\"epochs\": [\"1\", true]",
        "\"shuffle\": [\"true\", true]",
        "\"store\": [\"/tmp/r/store\", true]",
        "\"model\": [\"/m\", false]",
        "\"temperature\": [\"1\", true]",
        "\"max_new_tokens\": [\"768\", true]",
        "\"judge-it\": {\"program\": [\"/bin/judge\", false], \"api_key\": [\"(hidden)\", false]",
        "\"hf_tokens\": [\"(hidden)\", false], \"weight\": [\"0.5\", false]}}"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assert_non_null(strstr(out.data, parts[i]));
    assert_null(strstr(out.data, "abc"));
    assert_null(strstr(out.data, "stdio"));
    assert_null(strstr(out.data, "null"));
}

// The file is what the supervisor's code writes: tests/unit/run_status.c compares them.
TEST(counters_of_a_run_that_is_over_are_read_from_its_metrics) {
    SCOPED(struct run_counters, run_counters_release) counters = {0};
    SCOPED(struct buf, buf_release) text = {0};
    MUST(file_read("tests/data/metrics/metrics.prom", &text));
    run_counters_parse(&counters, text.data);
    const struct replica_counters *rollout = run_counters_find(&counters, "rollout", 1),
                                  *silent = run_counters_find(&counters, "rollout", 2);
    assert_non_null(rollout);
    assert_non_null(silent);
    assert_null(run_counters_find(&counters, "rollout", 3));
    assert_true(rollout->up == 90 && rollout->done == 30);
    assert_true(isnan(silent->up));
    assert_true(counters.done == 24 && counters.quarantined == 3 && counters.unused == 0);
    assert_true(counters.in_flight == 4 && counters.unissued == 369);
    run_counters_release(&counters);
    run_counters_parse(&counters,
                       "caravan_groups{state=\"tra\ncaravan_groups{x} 3\ncaravan_trained_steps{run=\"a}\"} 4");
    assert_true(isnan(counters.done));
    assert_true(counters.step == 4);
}

TEST(events_of_several_machines_are_in_the_order_of_their_times) {
    struct pipeline_machine machines[] = {{.name = "a"}, {.name = "b"}};
    const struct pipeline pipeline = {.run = unit_new_directory(), .machines = machines, .machine_count = 2};
    SCOPED(struct run_events, run_events_release) events = {0};
    SCOPED(char *, free_path) a = path_in(pipeline.run, "events-a.jsonl");
    SCOPED(char *, free_path) b = path_in(pipeline.run, "events-b.jsonl");
    int64_t seq = 10;
    bool more;
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_false(events.found);
    write_file(a, "{\"time\": 5, \"kind\": \"started\", \"name\": \"a\", \"text\": \"started\"}\n"
                  "{\"time\": 8, \"kind\": \"restarted\", \"name\": \"rollout-2\", \"text\": \"x\"}\nnothing\n");
    write_file(
        b, "{\"time\": 6, \"kind\": \"slow\", \"name\": \"\", \"text\": \"nothing\"}\n{\"time\": 9, \"kind\": \"do");
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_true(events.found);
    assert_int_equal(events.count, 3);
    assert_int_equal(seq, 13);
    assert_string_equal(events.list[1].kind, "slow");
    assert_null(events.list[1].name);
    assert_string_equal(events.list[2].name, "rollout-2");
    assert_int_equal(events.list[2].seq, 13);
    assert_int_equal(events.start_count, 1);
    assert_false(events.done);
    MUST(file_append(b, "ne\", \"name\": \"\", \"text\": \"done\"}\n", 34));
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_int_equal(events.count, 4);
    assert_true(events.done);
    assert_true(events.last == 9);
    // The run's directory was removed, and another run was started there.
    write_file(b, "{\"time\": 1, \"kind\": \"started\", \"name\": \"b\", \"text\": \"started\"}\n");
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_int_equal(events.count, 3);
    assert_int_equal(events.start_count, 2);
    assert_false(events.done);
    assert_int_equal(seq, 17);
    // A file that is read in parts: its events come before one of the other machine, which was read first.
    SCOPED(struct buf, buf_release) lines = {0};
    for (int i = 0; i < 9; i++)
        buf_printf(&lines, "{\"time\": %d, \"kind\": \"slow\", \"name\": \"\", \"text\": \"%*s\"}\n", 20 + i,
                   LINE_FILE_PIECE / 4, "");
    MUST(file_append(a, "{\"time\": 50, \"kind\": \"done\", \"name\": \"\", \"text\": \"done\"}\n", 57));
    MUST(file_append(b, lines.data, lines.size));
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_true(more);
    assert_int_equal(seq, 17);
    while (more) MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_int_equal(events.count, 13);
    assert_int_equal(seq, 27);
    assert_true(events.done);
    assert_true(events.list[12].time == 50 && events.list[12].seq == 27);
}

TEST(a_run_whose_clock_was_set_back_before_its_end_is_done) {
    const struct pipeline pipeline = {.run = unit_new_directory()};
    SCOPED(struct run_events, run_events_release) events = {0};
    SCOPED(char *, free_path) path = path_in(pipeline.run, "events.jsonl");
    int64_t seq = 0;
    bool more;
    write_file(path, "{\"time\": 5000, \"kind\": \"started\", \"name\": \"\", \"text\": \"started\"}\n"
                     "{\"time\": 1400, \"kind\": \"done\", \"name\": \"\", \"text\": \"done\"}\n");
    MUST(run_events_read(&events, &pipeline, &seq, &more));
    assert_string_equal(events.list[1].kind, "done");
    assert_true(events.list[1].time == 1400);
    assert_true(events.done);
}
