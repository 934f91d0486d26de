// A replay: what differs between two groups (which values, under which paths, and how a person and a program are told),
// and a stage's program as a filter (what it is given, and how it is waited for).
#include "tests/unit/unit.h"

#include <signal.h>

#include "shared/base/signals.h"
#include "tools/groups/difference.h"
#include "tools/groups/replay_process.h"

struct two_trees {
    struct arena arena;
    struct differences found;
    struct buf out;
};

static void two_trees_release(struct two_trees *it) {
    differences_release(&it->found);
    arena_release(&it->arena);
    buf_release(&it->out);
}

static void compare(struct two_trees *it, const char *then, const char *now) {
    struct json *a, *b;
    MUST(json_parse_object(&a, &it->arena, then, strlen(then), "then"));
    MUST(json_parse_object(&b, &it->arena, now, strlen(now), "now"));
    differences_release(&it->found);
    buf_clear(&it->out);
    buf_puts(&it->out, "");
    differences_find(&it->found, a, b);
}

static void expect_json(const char *then, const char *now, const char *wanted) {
    SCOPED(struct two_trees, two_trees_release) it = {0};
    compare(&it, then, now);
    differences_json(&it.found, &it.out);
    assert_string_equal(it.out.data, wanted);
}

static void expect_text(const char *then, const char *now, size_t completions, const char *wanted) {
    SCOPED(struct two_trees, two_trees_release) it = {0};
    compare(&it, then, now);
    differences_text(&it.found, completions, 80, &it.out);
    assert_string_equal(it.out.data, wanted);
}

TEST(equal_groups_have_no_difference) {
    expect_json("{\"a\":[1,{\"b\":null}],\"c\":true}", "{\"c\":true,\"a\":[1,{\"b\":null}]}", "[]");
    expect_json("{\"a\":null}", "{\"b\":null}", "[]"); // absent is null
    expect_json("{\"a\":{\"b\":null}}", "{}", "[]");
    expect_text("{\"a\":1}", "{\"a\":1}", 2, "");
}

TEST(each_value_has_its_path) {
    expect_json("{\"a\":{\"b\":[1,0.1,3]},\"c\":[{\"d\":[1]},{\"d\":[2]}],\"e\":\"x\",\"f\":true}",
                "{\"a\":{\"b\":[1,0.10000000000000002,3]},\"c\":[{\"d\":[1]},{\"d\":[4]}],\"e\":null,\"f\":false}",
                "[{\"path\":\"a.b[1]\",\"then\":0.1,\"now\":0.10000000000000002},"
                "{\"path\":\"c[1].d[0]\",\"then\":2,\"now\":4},{\"path\":\"e\",\"then\":\"x\",\"now\":null},"
                "{\"path\":\"f\",\"then\":true,\"now\":false}]");
}

TEST(what_only_one_has_is_a_difference) {
    expect_json("{\"a\":[1,2],\"q\":1}", "{\"a\":[1],\"b\":[3],\"o\":{\"r\":\"x\"}}",
                "[{\"path\":\"a[1]\",\"then\":2,\"now\":null},{\"path\":\"q\",\"then\":1,\"now\":null},"
                "{\"path\":\"b\",\"then\":null,\"now\":[3]},{\"path\":\"o.r\",\"then\":null,\"now\":\"x\"}]");
    expect_json("{\"a\":[{\"b\":1}]}", "{\"a\":[]}", "[{\"path\":\"a[0]\",\"then\":{\"b\":1},\"now\":null}]");
    expect_json("{\"a\":1}", "{\"a\":\"1\"}", "[{\"path\":\"a\",\"then\":1,\"now\":\"1\"}]");
    expect_json("{\"a\":[]}", "{}", "[{\"path\":\"a\",\"then\":[],\"now\":null}]");
}

TEST(values_of_completions_make_a_table) {
    expect_text("{\"rewards\":{\"bonus\":[0.5,0,null]},\"advantages\":[1,0.25,-1.25]}",
                "{\"rewards\":{\"bonus\":[0,0,0.5]},\"advantages\":[1,0.2500001,-1.25]}", 3,
                "  completion  rewards.bonus  advantages\n"
                "           0  0.5 -> 0\n"
                "           1                 0.25 -> 0.2500001\n"
                "           2  - -> 0.5\n");
}

TEST(a_table_goes_on_below_where_it_is_too_wide) {
    expect_text("{\"a\":{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\":[1,1],\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\":[1,1],"
                "\"ccccccccccccccccccccccccc\":[1,1]}}",
                "{\"a\":{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\":[2,1],\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\":[1,2],"
                "\"ccccccccccccccccccccccccc\":[1,3]}}",
                2,
                "  completion  a.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  a.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n"
                "           0  1 -> 2\n"
                "           1                                    1 -> 2\n"
                "  completion  a.ccccccccccccccccccccccccc\n"
                "           1  1 -> 3\n");
}

TEST(long_arrays_are_summed_up) {
    expect_text("{\"c\":[{\"p\":[-1,-2,-3,-4.5,0],\"t\":[1,2,3,4],\"x\":[1,2]}]}",
                "{\"c\":[{\"p\":[-1.5,-2.5,-3.25,-4,0],\"t\":[4,3,2,1],\"x\":[1,5]}]}", 2,
                "  c[0].p  4 of 5 differ by up to 0.5\n"
                "  c[0].t  4 of 4 differ\n"
                "  c[0].x[1]  2 -> 5\n");
    expect_text("{\"c\":[{\"p\":[-1,-2,-3]}]}", "{\"c\":[{\"p\":[-1,-2.5]}]}", 2,
                "  c[0].p  3 -> 2 elements, 1 of 2 differ by up to 0.5\n");
    expect_text("{\"c\":[{\"p\":1},{\"p\":1}]}", "{\"c\":[{\"p\":1}]}", 2, "  c  2 -> 1 elements\n");
}

TEST(long_texts_are_shown_where_they_differ) {
    expect_text("{\"s\":\"eos\"}", "{\"s\":\"length\"}", 2, "  s  \"eos\" -> \"length\"\n");
    expect_text("{\"s\":\"The first words of both are the same, so that only what follows says B.\"}",
                "{\"s\":\"The first words of both are the same, so that only what follows says C.\\n\\u007f\"}", 2,
                "  s  then ...\"at follows says B.\"\n"
                "     now  ...\"at follows says C.\\n?\"\n");
    // Nothing is cut inside a character.
    expect_text("{\"s\":\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 0123456789 "
                "0123456789 "
                "0123456789 0123456789 0123456789\"}",
                "{\"s\":\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9_0123456789 "
                "0123456789 "
                "0123456789 0123456789 0123456789 012345678\xC3\xA9\xC3\xA9\"}",
                2,
                "  s  then ...\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 0123456789 0123456789 "
                "0123456789 0123456789 0123456789\"\n"
                "     now  ...\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9_0123456789 0123456789 "
                "0123456789 0123456789 0123456789...\n");
}

// ---- the program ----

// Starts a script of the shell.
static void start(struct replay_process *process, const char *script) {
    static char shell[] = "sh", option[] = "-c";
    static char text[256];
    snprintf(text, sizeof text, "%s", script);
    MUST(replay_process_start(process, (char *const[]){shell, option, text, NULL}, NULL));
}

TEST(what_a_program_has_read_is_not_kept) {
    enum { LINES = 300, AHEAD = 4, LINE_SIZE = 100000 }; // more than a pipe has room for
    SCOPED(struct replay_process, replay_process_stop) process = {0};
    SCOPED(struct buf, buf_release) line = {0};
    start(&process, "exec cat");
    for (int i = 0; i < LINE_SIZE; i++) buf_puts(&line, "x");
    for (int given = 0, answered = 0; answered < LINES; answered++) {
        const char *answer;
        size_t size;
        for (; given < answered + AHEAD; given++) {
            line.data[0] = (char)('a' + given % 26);
            replay_process_add(&process, &line);
        }
        MUST(replay_process_next(&process, 60, &answer, &size));
        assert_non_null(answer);
        assert_int_equal(size, LINE_SIZE);
        assert_int_equal(answer[0], 'a' + answered % 26);
    }
    assert_true(process.input.capacity < 2 << 20);
}

TEST(a_program_without_output_ends_with_its_input) {
    SCOPED(struct replay_process, replay_process_stop) process = {0};
    const char *answer = "";
    size_t size;
    start(&process, "exec >&-; while read -r line; do :; done; exit 3");
    MUST(replay_process_next(&process, 60, &answer, &size));
    assert_null(answer);
    assert_int_equal(replay_process_wait(&process), UNAVAILABLE);
    assert_string_equal(fail_text(), "it ended with exit code 3");
}

// The last test: the request to stop stays.
TEST(a_program_that_does_not_end_is_not_waited_for_when_this_one_is_to_stop) {
    SCOPED(struct replay_process, replay_process_stop) process = {0};
    const char *answer = "";
    size_t size;
    MUST(signals_open());
    start(&process, "exec >&-; exec sleep 20");
    MUST(replay_process_next(&process, 60, &answer, &size));
    assert_null(answer);
    raise(SIGTERM);
    assert_int_equal(replay_process_wait(&process), STOPPED);
}
