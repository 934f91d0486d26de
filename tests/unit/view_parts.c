// The page's routes of one group, of two sources beside each other and of the times, and where the tokens' texts end.
#include "tests/unit/unit.h"

#include <math.h>

#include "shared/base/json.h"
#include "shared/store/frame_store.h"
#include "tests/support/groups.h"
#include "tools/view/view.h"

// ---- tokens ----

// Returns the token that is this one byte.
static int64_t byte_token(const struct tokenizer *tokenizer, unsigned char byte) {
    for (int64_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, id, &size);
        if (size == 1 && (unsigned char)*piece == byte && !tokenizer_is_special(tokenizer, id)) return id;
    }
    assert_true(false);
    return -1;
}

TEST(a_token_ends_where_its_last_whole_character_does) {
    SCOPED(struct tokenizer *, tokenizer_free) tokenizer = NULL;
    MUST(tokenizer_open(&tokenizer, "tests/data/tokenizer/files"));
    const int64_t special = tokenizer_token_to_id(tokenizer, "<|im_end|>"), none = tokenizer_vocab_size(tokenizer) + 9;
    assert_true(special >= 0);
    // a, an e with an accent, an emoji that is two units of UTF-16, a special token in between, the beginning of a
    // character that does not go on, an id without a token, b, a beginning at the very end, a special token.
    static const unsigned char bytes[] = {'a', 0xC3, 0xA9, 0xF0, 0x9F, 0, 0x98, 0x80, 0xE2, 1, 'b', 0xE2, 0};
    static const int64_t wanted[] = {1, 1, 2, 2, 2, 2, 2, 4, 5, 5, 6, 7, 7};
    enum { COUNT = sizeof bytes };
    int64_t tokens[COUNT], cuts[COUNT];
    for (int i = 0; i < COUNT; i++)
        tokens[i] = bytes[i] == 0 ? special : bytes[i] == 1 ? none : byte_token(tokenizer, bytes[i]);
    struct completion completion = {.tokens = {tokens, COUNT},
                                    .text = string_of("a\xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBD"
                                                      "b\xEF\xBF\xBD")};
    assert_true(token_cuts_find(tokenizer, &completion, cuts));
    for (int i = 0; i < COUNT; i++) assert_int_equal(cuts[i], wanted[i]);
}

TEST(tokens_that_do_not_give_the_text_have_no_cuts) {
    SCOPED(struct tokenizer *, tokenizer_free) tokenizer = NULL;
    MUST(tokenizer_open(&tokenizer, "tests/data/tokenizer/files"));
    int64_t tokens[] = {byte_token(tokenizer, 'a'), byte_token(tokenizer, 'b')}, cuts[2];
    static const struct {
        const char *text;
        size_t count;
        bool same;
    } cases[] = {{"ab", 2, true}, {"ac", 2, false}, {"a", 2, false}, {"abc", 2, false},
                 {"", 2, false},  {"", 0, true},    {NULL, 2, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct completion completion = {.tokens = {tokens, cases[i].count}};
        if (cases[i].text) completion.text = string_of(cases[i].text);
        assert_int_equal(token_cuts_find(tokenizer, &completion, cuts), cases[i].same);
    }
    struct completion bare = {.text = string_of("ab")};
    assert_false(token_cuts_find(tokenizer, &bare, cuts));
}

// ---- routes ----

enum { SOURCES = 2 };

// A view of two stores of their own.
struct seen {
    struct group_store *stores[SOURCES]; // to write
    struct view view;
    struct view_source sources[SOURCES];
    struct arena arena; // of the answers
    int parts;          // in which the last one was made
};

static void seen_open(struct seen *seen) {
    static const char *const names[SOURCES] = {"one", "two"};
    *seen = (struct seen){0};
    seen->view = (struct view){.sources = seen->sources, .source_count = SOURCES};
    for (int i = 0; i < SOURCES; i++) {
        char *directory = unit_new_directory();
        seen->sources[i] = (struct view_source){.name = names[i], .path = directory, .kind = VIEW_STORE};
        MUST(group_store_open(&seen->stores[i], directory, false));
        MUST(view_groups_open(&seen->sources[i]));
    }
}

static void seen_close(struct seen *seen) {
    view_group_close(&seen->view);
    view_compare_close(&seen->view);
    for (int i = 0; i < SOURCES; i++) {
        view_groups_close(&seen->sources[i].groups);
        group_store_close(&seen->stores[i]);
    }
    arena_release(&seen->view.arena);
    arena_release(&seen->arena);
}

static void save(struct group_store *store, struct group *group) {
    const struct group_record record = {.group = group, .section = -1};
    MUST(group_store_save_all(store, &record, 1));
    group_free(&group);
}

#define SAVE(store, ...) save((store), group_of_format(__VA_ARGS__))

// Calls a route with pairs of names and values, the last one NULL. Returns what it answers; NULL: it has failed.
static const struct json *ask(struct seen *seen, view_route *route, const char *rest, const char *const *pairs) {
    struct http_argument arguments[8];
    struct json *answer = NULL;
    size_t count = 0;
    for (; pairs && pairs[2 * count]; count++)
        arguments[count] = (struct http_argument){pairs[2 * count], pairs[2 * count + 1]};
    struct view_call call = {.view = &seen->view,
                             .source = &seen->sources[0],
                             .rest = rest,
                             .arguments = arguments,
                             .argument_count = count,
                             .column = -1};
    for (int i = 0; i < SOURCES; i++) MUST(view_groups_refresh(&seen->sources[i].groups));
    status result;
    seen->parts = 0;
    do { // `until` is over at once
        call.unfinished = false;
        result = route(&call);
        seen->parts++;
    } while (result == OK && call.unfinished);
    if (result == OK) MUST(json_parse(&answer, &seen->arena, call.out.data, call.out.size));
    view_call_release(&call);
    return answer;
}

#define PAIRS(...)                                                                                                     \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, NULL                                                                                              \
    }

// Checks the text of the value of a key, or of an element or a member of it: "scores.0.a".
static void check(const struct json *answer, const char *path, const char *wanted) {
    SCOPED(struct buf, buf_release) text = {0};
    char key[64];
    assert_non_null(answer);
    for (const char *at = path; *at;) {
        const size_t size = strcspn(at, ".");
        snprintf(key, sizeof key, "%.*s", (int)size, at);
        answer = answer->type == JSON_ARRAY ? json_item(answer, (size_t)atoi(key)) : json_at(answer, key);
        at += size + (at[size] == '.');
    }
    json_print(&text, answer);
    if (strcmp(text.data, wanted) != 0) print_error("%s\n", path);
    assert_string_equal(text.data, wanted);
}

static const char prompt[] = "\"prompt\":{\"messages\":[],\"problem_type\":\"multiple choice\",\"solution\":"
                             "\"<answer>B</answer>\",\"question\":\"q\",\"options\":[\"red\",\"green\"]}";

TEST(a_group_is_shown_with_its_neighbours_and_its_sample) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    for (int i = 0; i < 120; i++)
        SAVE(seen.stores[0],
             "{\"id\":\"g%d\",\"sample_id\":\"%s\",%s,\"prompt_tokens\":[1,2,3],\"completions\":["
             "{\"tokens\":[1,2],\"logprobs\":[-1,-2],\"versions\":[0,0],\"text\":\"<answer>green</"
             "answer>\",\"finish\":\"eos\"},"
             "{\"text\":\"x\",\"finish\":\"eos\"}],\"rewards\":{\"accuracy\":[1,null],\"total\":[1,0]},\"trained\":{"
             "\"step\":%d},"
             "\"times\":{\"source\":[100,100.5],\"rollout\":[102,103],\"optim\":[102.5,104]}}",
             i, i == 1 ? "b" : "a", prompt, i + 1);
    const struct json *answer = ask(&seen, view_group_show, "g100", NULL);
    check(answer, "number", "100");
    check(answer, "position", "101");
    check(answer, "previous", "\"g99\"");
    check(answer, "next", "\"g101\"");
    check(answer, "prompt_tokens", "3");
    check(answer, "lengths", "[2,null]");
    check(answer, "cuts", "[null,null]");
    check(answer, "chosen", "[\"B\",null]");
    check(answer, "solution", "\"B\"");
    check(answer, "marks", "[1,null]");
    check(answer, "waits", "{\"source\":[0,0.5],\"rollout\":[1.5,1],\"optim\":[0,1.5]}");
    // What is long and not shown is not in the group; the rest is.
    check(answer, "group.completions.0",
          "{\"logprobs\":[-1,-2],\"text\":\"<answer>green</answer>\",\"finish\":\"eos\"}");
    check(answer, "group.prompt_tokens", "null");
    // Fifty of the same sample, the last ones, with this one among them.
    const struct json *same = json_at(answer, "same");
    assert_int_equal(json_count(same), 50);
    check(same, "0.id", "\"g70\"");
    check(same, "30", "{\"id\":\"g100\",\"step\":101,\"marks\":[1,0],\"reward\":0.5}");
    same = json_at(ask(&seen, view_group_show, "g0", NULL), "same");
    check(same, "0.id", "\"g0\"");
    check(same, "1.id", "\"g2\"");
    check(ask(&seen, view_group_show, "g0", NULL), "previous", "null");
    check(ask(&seen, view_group_show, "g119", NULL), "next", "null");
    assert_null(ask(&seen, view_group_show, "g120", NULL));
}

TEST(only_the_address_of_a_frame_is_one) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    static const char *const cases[] = {"",
                                        "/",
                                        "0.png",
                                        "00112233445566778899aabbccddeeff",
                                        "../../etc/passwd",
                                        "00112233445566778899aabbccddeeff/0.png/",
                                        "00112233445566778899AABBCCDDEEFF/0.png",
                                        "00112233445566778899aabbccddeeff/00.png",
                                        "00112233445566778899aabbccddeeff/-1.png",
                                        "00112233445566778899aabbccddeeff/99999999999.png",
                                        "00112233445566778899aabbccddeef/0.png"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct view_call call = {.view = &seen.view, .source = &seen.sources[0], .rest = cases[i]};
        assert_int_equal(view_group_frame(&call), END);
        assert_int_equal(strncmp(fail_text(), "not KEY/N.png", 13), 0);
    }
    struct view_call call = {
        .view = &seen.view, .source = &seen.sources[0], .rest = "00112233445566778899aabbccddeeff/0.png"};
    assert_int_equal(view_group_frame(&call), END);
    assert_non_null(strstr(fail_text(), "are not here"));
}

TEST(frames_are_found_in_the_store_of_any_source) {
    SCOPED(struct seen, seen_close) seen;
    SCOPED(struct frame_store *, frame_store_close) store = NULL;
    static const char key[] = "00112233445566778899aabbccddeeff";
    static const uint8_t pixels[2 * 2 * 3 * 3] = {[18] = 255};
    static const double timestamps[2] = {0, 1};
    seen_open(&seen);
    const char *directory = seen.sources[1].path;
    MUST(frame_store_open(&store, directory, 0, false));
    const struct frames frames = {.video = true,
                                  .count = 2,
                                  .height = 2,
                                  .width = 3,
                                  .seconds_per_grid = 1,
                                  .timestamps = timestamps,
                                  .pixels = pixels};
    MUST(frame_store_put(store, key, &frames));
    frame_store_close(&store); // a file that is open for writing cannot be opened for reading here
    seen.sources[1].frames = (struct string_list){&directory, 1};
    SCOPED(struct buf, buf_release) first = {0};
    for (int i = 0; i < 3; i++) {
        char rest[64];
        snprintf(rest, sizeof rest, "%s/%d.png", key, i);
        struct view_call call = {.view = &seen.view, .source = &seen.sources[0], .rest = rest};
        assert_int_equal(view_group_frame(&call), i < 2 ? OK : END);
        assert_int_equal(call.immutable, i < 2);
        if (i == 2) break;
        assert_string_equal(call.type, "image/png");
        // The header of a PNG of 3 x 2, and nothing else than one frame.
        assert_memory_equal(call.out.data, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\3\0\0\0\2\10\2", 26);
        if (i) assert_true(call.out.size != first.size || memcmp(call.out.data, first.data, first.size) != 0);
        buf_append(&first, call.out.data, i ? 0 : call.out.size);
        buf_release(&call.out);
    }
}

// Saves an evaluated sample, with one completion a character of `right`: 1 or 0.
static void save_evaluated(struct seen *seen, int source, const char *id, const char *sample, const char *right) {
    SCOPED(struct buf, buf_release) completions = {0}, scores = {0};
    for (const char *at = right; *at; at++) {
        buf_printf(&completions, "%s{\"text\":\"%c\",\"finish\":\"eos\"}", at > right ? "," : "", *at);
        buf_printf(&scores, "%s%c", at > right ? "," : "", *at);
    }
    SAVE(seen->stores[source],
         "{\"id\":\"%s\",\"sample_id\":\"%s\",%s,\"completions\":[%s],\"scores\":{\"accuracy\":[%s],\"letter\":[%s],"
         "\"correct\":[%s],\"parsed\":[%s],\"formatted\":[%s]}}",
         id, sample, prompt, completions.data, scores.data, scores.data, scores.data, scores.data, scores.data);
}

TEST(samples_that_both_have_are_compared) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    save_evaluated(&seen, 0, "a0", "p", "00"); // drawn again below: this one does not count
    save_evaluated(&seen, 0, "a1", "q", "10");
    save_evaluated(&seen, 0, "a2", "p", "01");
    save_evaluated(&seen, 0, "a3", "r", "11");
    save_evaluated(&seen, 0, "a4", "s", "11");
    save_evaluated(&seen, 0, "a5", "only here", "11");
    save_evaluated(&seen, 1, "b1", "p", "11");
    save_evaluated(&seen, 1, "b2", "q", "10");
    save_evaluated(&seen, 1, "b3", "r", "00");
    save_evaluated(&seen, 1, "b5", "only there", "11");
    // A group that could not be evaluated is a wrong one, as in caravan eval.
    SAVE(seen.stores[1],
         "{\"id\":\"b4\",\"sample_id\":\"s\",%s,\"quarantine\":{\"stage\":\"frames\",\"reason\":\"x\"}}", prompt);
    const struct json *answer = ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two"));
    check(answer, "samples", "4");
    check(answer, "repeated", "true");
    check(answer, "better", "1");
    check(answer, "worse", "2");
    check(answer, "alike", "1");
    check(answer, "a", "{\"name\":\"one\",\"kind\":\"store\",\"size\":2,\"groups\":6}");
    check(answer, "matrix", "[[0,0,0],[0,1,1],[2,0,0]]");
    check(answer, "rows.sample", "[\"r\",\"s\",\"p\",\"q\"]");
    check(answer, "rows.a", "[\"a3\",\"a4\",\"a2\",\"a1\"]");
    check(answer, "rows.b", "[\"b3\",\"b4\",\"b1\",\"b2\"]");
    check(answer, "rows.right_b", "[0,0,2,1]");
    check(answer, "rows.change", "[-1,-1,0.5,0]");
    check(answer, "rows.marks_a", "[[3,3],[3,3],[0,3],[3,0]]");
    check(answer, "rows.key", "[null,null,null,null]");
    check(answer, "matched", "4");
    check(answer, "cursor", "null");
    // a: 0.5, 0.5, 1, 1; b: 1, 0.5, 0, 0. The mean, and 1.96 standard errors of it.
    const struct json *score = json_item(json_at(answer, "scores"), 0);
    check(score, "name", "\"accuracy\"");
    const double wanted[3][2] = {
        {0.75, 0.28867513459481287}, {0.375, 0.4787135538781691}, {-0.375, 0.75}}; // mean, deviation
    static const char *const keys[] = {"a", "b", "difference"};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            assert_true(fabs(json_double_or(json_item(json_at(score, keys[i]), (size_t)k), NAN) -
                             (wanted[i][0] + (k == 1 ? -1.96
                                              : k    ? 1.96
                                                     : 0) *
                                                 wanted[i][1] / 2)) < 1e-9);
    // No sample has a bonus, a reward or tokens.
    assert_int_equal(json_count(json_at(answer, "scores")), 3);
    answer = ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", "2,0"));
    check(answer, "rows.sample", "[\"r\",\"s\"]");
    check(answer, "samples", "4");
    check(answer, "matched", "2");
    check(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", "alike")), "rows.sample", "[\"q\"]");
    check(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", "better")), "rows.sample", "[\"p\"]");
    answer = ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", "worse", "limit", "1"));
    check(answer, "rows.sample", "[\"r\"]");
    check(answer, "cursor", "\"1\"");
    answer = ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", "worse", "after", "1"));
    check(answer, "rows.sample", "[\"s\"]");
    // What is saved later is in the next answer.
    save_evaluated(&seen, 1, "b6", "only here", "11");
    check(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two")), "samples", "5");
    static const char *const wrong[] = {"1", "1,", "1,2,3", "-1,0", "best", "1, 2x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_null(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "cell", wrong[i])));
    assert_null(ask(&seen, view_compare_show, "", PAIRS("a", "one")));
    assert_null(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "three")));
}

TEST(scores_of_one_completion_have_the_interval_of_an_evaluation) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    for (int i = 0; i < 10; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        save_evaluated(&seen, 0, id, id, i < 8 ? "1" : "0");
        save_evaluated(&seen, 1, id, id, i == 9 ? "00" : "11");
    }
    const struct json *score =
        json_item(json_at(ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two")), "scores"), 0);
    // Wilson's of 8 of 10; of two completions each the standard error's.
    static const double wanted[] = {0.8, 0.49016247153664294, 0.9433178485456247};
    for (size_t k = 0; k < 3; k++)
        assert_true(fabs(json_double_or(json_item(json_at(score, "a"), k), NAN) - wanted[k]) < 1e-6);
    assert_true(fabs(json_double_or(json_item(json_at(score, "b"), 2), NAN) - 1.0959999999999999) < 1e-6);
}

TEST(very_many_samples_are_sorted_by_their_change_alone) {
    enum { SAMPLES = 10100, AT_ONCE = 1010 };
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    struct group_record records[AT_ONCE];
    for (int i = 0; i < SOURCES * SAMPLES; i++) { // the last ones differ most
        const int number = i % SAMPLES, right = i < SAMPLES || number < SAMPLES - 3 ? 0 : number - (SAMPLES - 4);
        records[i % AT_ONCE] = (struct group_record){
            .group =
                group_of_format("{\"id\":\"g%d\",\"sample_id\":\"s%d\",%s,\"completions\":[{\"text\":\"\"},{\"text\":"
                                "\"\"},{\"text\":\"\"}],\"rewards\":{\"accuracy\":[%d,%d,%d]}}",
                                number, SAMPLES - number, prompt, right > 0, right > 1, right > 2),
            .section = -1};
        if (i % AT_ONCE < AT_ONCE - 1) continue;
        MUST(group_store_save_all(seen.stores[i / SAMPLES], records, AT_ONCE));
        for (int k = 0; k < AT_ONCE; k++) group_free(&records[k].group);
    }
    const struct json *answer = ask(&seen, view_compare_show, "", PAIRS("a", "one", "b", "two", "limit", "6"));
    assert_true(seen.parts > SOURCES * SAMPLES / 4096);
    check(answer, "samples", "10100");
    check(answer, "better", "3");
    check(answer, "alike", "10097");
    check(answer, "rows.right_b", "[3,2,1,0,0,0]");
    check(answer, "rows.a", "[\"g10099\",\"g10098\",\"g10097\",\"g0\",\"g1\",\"g2\"]");
}

// ---- times ----

TEST(a_span_has_the_whole_bars_of_its_groups) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    for (int i = 0; i < 10; i++) // a second each, of which rollout has 0.5 and optim 0.25
        SAVE(seen.stores[0],
             "{\"id\":\"g%d\",%s,\"trained\":{\"step\":%d},\"times\":{\"source\":[%d,%d],\"rollout\":[%d.25,%d.75,%d],"
             "\"optim\":[%d.75,%d,1]}}",
             i, prompt, i / 2 + 1, 1000 + i, 1000 + i, 1000 + i, 1000 + i, i % 2 + 1, 1000 + i, 1001 + i);
    const struct json *answer = ask(&seen, view_trace_show, "", NULL);
    check(answer, "start", "1000");
    check(answer, "end", "1010");
    check(answer, "from", "1000");
    check(answer, "to", "1010");
    check(answer, "stages.name", "[\"source\",\"rollout\",\"optim\"]");
    check(answer, "stages.groups", "[10,10,10]");
    check(answer, "stages.typical", "[0,0.5,0.25]");
    check(answer, "stages.busy", "[0,0.5,0.25]");
    check(answer, "stages.waited", "[0,0.25,0]");
    assert_int_equal(json_count(json_at(json_at(answer, "bars"), "stage")), 30);
    assert_int_equal(json_count(json_at(json_at(answer, "busy"), "time")), 400);
    // Only rollout of the fourth group is in this span, and one optim ends where it begins.
    answer = ask(&seen, view_trace_show, "", PAIRS("from", "1003.5", "to", "1003.6"));
    check(answer, "groups", "{\"number\":[3],\"id\":[\"g3\"],\"step\":[2],\"issued\":[1003]}");
    check(answer, "bars.stage", "[0,1,2]");
    check(answer, "bars.replica", "[null,2,1]");
    check(answer, "bars.from", "[1003,1003.25,1003.75]");
    check(answer, "bars.to", "[1003,1003.75,1004]");
    check(answer, "stages.busy", "[0,1,0]");
    check(answer, "busy.share.1.99", "1");
    // A group in the span that waits all the time has no bar in it.
    answer = ask(&seen, view_trace_show, "", PAIRS("from", "1003.05", "to", "1003.1"));
    check(answer, "groups.id", "[]");
    check(answer, "stages.typical", "[null,null,null]");
    // A span beyond the run is its end.
    check(ask(&seen, view_trace_show, "", PAIRS("from", "2000")), "from", "1010");
    assert_null(ask(&seen, view_trace_show, "", PAIRS("from", "1005", "to", "1004")));
    // Two groups at the same time count once: 1.5 ms of a piece of 2.5 ms.
    SAVE(seen.stores[1], "{\"id\":\"a\",%s,\"times\":{\"rollout\":[10,10.001],\"optim\":[10.5,11]}}", prompt);
    SAVE(seen.stores[1], "{\"id\":\"b\",%s,\"times\":{\"rollout\":[10.0005,10.0015]}}", prompt);
    struct view_source one = seen.sources[0];
    seen.sources[0] = seen.sources[1];
    check(ask(&seen, view_trace_show, "", NULL), "busy.share.0.0", "0.6");
    free(seen.sources[0].groups.list); // the copy has a list of its own by now
    free(seen.sources[0].groups.by_seq);
    view_blocks_free(&seen.sources[0].groups);
    seen.sources[0] = one;
}

TEST(without_groups_there_is_no_time) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    check(ask(&seen, view_trace_show, "", NULL), "start", "null");
    check(ask(&seen, view_trace_show, "", NULL), "bars.from", "[]");
    check(ask(&seen, view_trace_export, "", NULL), "traceEvents.0.args.name", "\"one\"");
}

TEST(a_long_span_is_looked_at_in_windows) {
    enum { GROUPS = 40000, AT_ONCE = 1000 };
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    struct group_record records[AT_ONCE];
    // One begins every 10 ms, so rollout has two at a time. Nine of ten take optim half of the 10 ms; the tenth is
    // late, and there beside another one.
    for (int i = 0; i < GROUPS; i++) {
        const double at = 1000 + 0.01 * i, late = i % 10 ? 0.045 : 0.405;
        records[i % AT_ONCE] = (struct group_record){
            .group = group_of_format(
                "{\"id\":\"g%06d\",%s,\"trained\":{\"step\":%d},\"times\":{\"rollout\":[%f,%f,1],\"optim\":[%f,%f,1]}}",
                i, prompt, i / 4, at, at + 0.02, at + late, at + late + 0.005),
            .section = -1};
        if (i % AT_ONCE < AT_ONCE - 1) continue;
        MUST(group_store_save_all(seen.stores[0], records, AT_ONCE));
        for (int k = 0; k < AT_ONCE; k++) group_free(&records[k].group);
    }
    const struct json *answer = ask(&seen, view_trace_show, "", NULL);
    const double sampled = json_double_or(json_at(answer, "sampled"), NAN);
    assert_true(sampled > 0.03 && sampled < 0.3);
    assert_true(seen.parts > 20);
    check(answer, "bars", "null");
    check(answer, "groups", "null");
    check(answer, "stages.groups", "[40000,40000]");
    check(answer, "stages.typical", "[0.02,0.005]");
    // Of one group in ten that waits 0.385 s, which is more often under way where a piece begins.
    const double waited = json_double_or(json_item(json_at(json_at(answer, "stages"), "waited"), 1), NAN);
    assert_true(fabs(waited - (0.9 * 0.025 + 0.1 * 0.385)) < 0.006);
    const struct json *busy = json_at(json_at(answer, "stages"), "busy");
    assert_true(fabs(json_double_or(json_item(busy, 0), NAN) - 1) < 0.01);
    assert_true(fabs(json_double_or(json_item(busy, 1), NAN) - 0.45) < 0.01);
    // A part of it is read whole.
    answer = ask(&seen, view_trace_show, "", PAIRS("from", "1100", "to", "1150"));
    assert_null(json_at(answer, "sampled"));
    assert_true(json_count(json_at(json_at(answer, "bars"), "stage")) >= 10000);
}

TEST(lanes_of_an_export_have_no_bars_that_overlap) {
    SCOPED(struct seen, seen_close) seen;
    seen_open(&seen);
    seen.sources[0].name = "a \"run\"";
    for (int i = 0; i < 60; i++)
        SAVE(seen.stores[0], "{\"id\":\"g%d\",%s,\"times\":{\"rollout\":[%f,%f,%d],\"optim\":[%f,%f,1]}}", i, prompt,
             1000 + 0.3 * i, 1001 + 0.3 * i + 0.1 * (i % 7), 1 + i % 2, 1003 + 0.3 * i, 1003.3 + 0.3 * i);
    const struct json *events = json_at(ask(&seen, view_trace_export, "", NULL), "traceEvents");
    double until[64] = {0};
    int bars = 0, lanes = 0;
    JSON_EACH(event, events) {
        const int64_t lane = json_int_or(json_at(event, "tid"), 0);
        const double at = json_double_or(json_at(event, "ts"), NAN);
        lanes += string_equals(json_string(json_at(event, "name")), "thread_name");
        if (!string_equals(json_string(json_at(event, "ph")), "X")) continue;
        bars++;
        assert_in_range(lane, 1, 63);
        assert_true(at >= until[lane]);
        until[lane] = at + json_double_or(json_at(event, "dur"), NAN);
    }
    assert_int_equal(bars, 120);
    assert_in_range(lanes, 4, 12);
    assert_string_equal(seen.sources[0].trace_file, "a__run_.trace.json");
}
