// Pairs of premise and hypothesis: those of a completion, the file of a hypothesis, and which tokens of a long pair are
// left out; and what the training of a consistency model does without the model: the file of pairs, what is held out,
// the schedule, the order of the pairs, and the figures.
#include <unistd.h>
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/data/consistency_pair.h"
#include "shared/data/labelled_pairs.h"
#include "tools/consistency/consistency_training.h"
#include "tests/support/groups.h"

#define QUESTION "Which one?\nOptions:\nA. cup\nB. a knife\n"

// Makes the pair of the first completion, whose text is JSON. The texts must be these; NULL: there is no pair.
static void check_pair(const char *template, const char *completion, const char *premise, const char *hypothesis) {
    SCOPED(struct arena, arena_release) memory = {0};
    struct consistency_pair pair;
    struct group *group =
        group_of_format("{\"id\":\"g\",\"prompt\":{\"messages\":[],\"solution\":\"\",\"question\":\"Which one?\\n"
                        "Options:\\nA. cup\\nB. a knife\\n\",\"options\":[\"cup\",\"a {option} knife\",null]},"
                        "\"completions\":[{\"text\":\"%s\"}]}",
                        completion);
    assert_int_equal(consistency_pair_make(&pair, &memory, group, 0, string_of(template)), OK);
    assert_true(!premise == !pair.premise.data && !premise == !pair.hypothesis.data);
    if (premise) {
        assert_string_equal(pair.premise.data, premise);
        assert_string_equal(pair.hypothesis.data, hypothesis);
        assert_int_equal(pair.thinking, strlen(QUESTION "\n"));
        assert_int_equal(consistency_thinking_begin(pair.premise, group->prompt.question), pair.thinking);
    }
    group->prompt.question = (struct string){0};
    assert_int_equal(consistency_pair_make(&pair, &memory, group, 0, string_of(template)), DATAERR);
    assert_string_equal(fail_text(), "not a group: prompt.question: missing");
    group_free(&group);
}

TEST(a_pair_is_the_question_with_the_thinking_and_the_answer) {
    static const char plain[] = "The final answer is {answer}";
    check_pair(plain, "<think> It cuts.\\n</think><answer> B </answer>", QUESTION "\nIt cuts.",
               "The final answer is B");
    check_pair(plain, "</think><think>a<think>b</think>c</think><answer>x</answer><answer>y</answer>",
               QUESTION "\na<think>b", "The final answer is x");
    check_pair(plain, "<answer>{answer}</answer><think>\\u00a0a\\u3000</think>", QUESTION "\na",
               "The final answer is {answer}");
    check_pair(plain, "<think>a</think> B", NULL, NULL);
    check_pair(plain, "<think>a</think><answer> \\n</answer>", NULL, NULL);
    check_pair(plain, "<think> \\u2028</think><answer>B</answer>", NULL, NULL);
    check_pair(plain, "<think>a<answer>B</answer>", NULL, NULL);
    check_pair(plain, "a</think><answer>B</answer>", NULL, NULL);
}

TEST(every_placeholder_is_filled_in_one_pass) {
    static const char both[] = "{option} ({answer}), {option} {answer}";
    check_pair(both, "<think>a</think><answer>A</answer>", QUESTION "\na", "cup (A), cup A");
    check_pair(both, "<think>a</think><answer>B</answer>", QUESTION "\na", "a {option} knife (B), a {option} knife B");
    check_pair("{answer}{option}", "<think>a</think><answer>{option}</answer>", QUESTION "\na", "{option}{option}");
    check_pair("{option}.{answer}", "<think>a</think><answer>{answer}</answer>", QUESTION "\na", "{answer}.{answer}");
    check_pair("{{answer}}{answer}{answ", "<think>a</think><answer>A</answer>", QUESTION "\na", "{A}A{answ");
    check_pair("{option}", "<think>a</think><answer>C</answer>", QUESTION "\na", "C"); // null
    check_pair("{option}", "<think>a</think><answer>D</answer>", QUESTION "\na", "D");
    check_pair("{option}", "<think>a</think><answer>b</answer>", QUESTION "\na", "b");
    check_pair("{option}", "<think>a</think><answer>B.</answer>", QUESTION "\na", "B.");
    check_pair("{option}", "<think>a</think><answer>cup</answer>", QUESTION "\na", "cup");
}

// Reads a file with this content as a template. It must become `expected`, or fail with it.
static void check_template(const char *content, size_t size, const char *expected, bool good) {
    char path[] = "/tmp/caravan-hypothesis-XXXXXX";
    SCOPED(struct arena, arena_release) memory = {0};
    struct string template;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, size), size);
    close(fd);
    const status result = consistency_template_read(&memory, path, &template);
    unlink(path);
    assert_int_equal(result, good ? OK : DATAERR);
    if (good) {
        assert_string_equal(template.data, expected);
    } else {
        assert_non_null(strstr(fail_text(), path));
        assert_non_null(strstr(fail_text(), expected));
    }
}

TEST(a_template_file_needs_a_placeholder) {
    check_template("It is {answer}.\n", 16, "It is {answer}.", true);
    check_template("{option}\n\n", 10, "{option}\n", true);
    check_template("{option}", 8, "{option}", true);
    check_template("\xef\xbb\xbf{option}\r\n", 13, "{option}", true);
    check_template("\r{option}\r\n\r\n", 13, "\r{option}\r\n", true);
    check_template("It is {Answer}\n", 15, "neither {answer} nor {option}", false);
    check_template("", 0, "neither {answer} nor {option}", false);
    check_template("{answer}\xff", 9, "not UTF-8", false);
    struct string template;
    assert_int_equal(consistency_template_read(NULL, NULL, &template), OK);
    assert_string_equal(template.data, "The final answer is {answer}");
    assert_int_equal(consistency_template_read(NULL, "/no/such/file", &template), DATAERR);
}

TEST(the_thinking_begins_behind_the_question) {
    assert_int_equal(consistency_thinking_begin(string_of("q\nt"), string_of("q")), 2);
    assert_int_equal(consistency_thinking_begin(string_of("\nt"), string_of("")), 1);
    assert_int_equal(consistency_thinking_begin(string_of("q t"), string_of("q")), 0);
    assert_int_equal(consistency_thinking_begin(string_of("q"), string_of("q")), 0);
    assert_int_equal(consistency_thinking_begin(string_of("r\nt"), string_of("q")), 0);
    assert_int_equal(consistency_thinking_begin(string_of("\nt"), (struct string){0}), 0);
}

TEST(the_first_tokens_of_a_long_thinking_go) {
    // The whole premise has two tokens for the two newlines before the thinking, which alone would be one word.
    static const char head[] = QUESTION "\n", thinking[] = "At first I see [SEP] a cup, then e\xCC\x81 knife.";
    static const char premise[] = QUESTION "\nAt first I see [SEP] a cup, then e\xCC\x81 knife.";
    const struct consistency_pair pair = {string_of(premise), string_of("The final answer is B"), sizeof head - 1};
    SCOPED(struct token_list, token_list_release) whole = {0}, alone = {0}, got = {0};
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    size_t cut;
    assert_int_equal(tokenizer_open(&t, "tests/data/tokenizer/modernbert"), OK);
    assert_int_equal(
        tokenizer_encode_pair(t, premise, sizeof premise - 1, pair.hypothesis.data, pair.hypothesis.size, &whole), OK);
    assert_int_equal(tokenizer_encode(t, thinking, sizeof thinking - 1, &alone), OK);
    // [CLS] question newline: the thinking begins behind them, since its tokens are found there.
    size_t begin = 1;
    while (memcmp(whole.data + begin, alone.data, alone.count * sizeof *alone.data) != 0) begin++;

    for (size_t k = 0; k <= alone.count; k++) {
        token_list_release(&got);
        token_list_append(&got, 7); // stays
        assert_int_equal(consistency_pair_encode(&pair, t, whole.count - k, &got, &cut), OK);
        assert_int_equal(cut, k);
        assert_int_equal(got.count, 1 + whole.count - k);
        assert_int_equal(got.data[0], 7);
        assert_memory_equal(got.data + 1, whole.data, begin * sizeof *whole.data);
        assert_memory_equal(got.data + 1 + begin, whole.data + begin + k,
                            (whole.count - begin - k) * sizeof *whole.data);
    }
    const size_t least = whole.count - alone.count;
    assert_int_equal(consistency_pair_encode(&pair, t, least - 1, &got, &cut), BAD_SAMPLE);
    char message[128];
    snprintf(message, sizeof message, "question and hypothesis alone have %zu tokens, but max_tokens is %zu", least,
             least - 1);
    assert_string_equal(fail_text(), message);
}

static char path[256]; // of what open_text has written

static status open_text(struct labelled_pairs *pairs, const char *text) {
    snprintf(path, sizeof path, "%s/pairs", unit_directory());
    assert_int_equal(file_write_atomic(path, text, strlen(text)), OK);
    return labelled_pairs_open(pairs, path);
}

#define PAIR(question, label)                                                                                          \
    "{\"premise\":\"" question "\\nt\",\"hypothesis\":\"h\",\"question\":\"" question "\",\"label\":" label            \
    ",\"step\":null}\n"

TEST(pairs_without_a_label_are_left_out) {
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    SCOPED(struct pair_record, pair_record_release) record = {0};
    assert_int_equal(open_text(&pairs, PAIR("a", "1") "\n \n" PAIR("b", "null") PAIR("b", "0.0")), OK);
    assert_int_equal(pairs.count, 2);
    assert_int_equal(pairs.unlabelled, 1);
    assert_int_equal(pairs.list[1].label, 0);
    assert_int_equal(labelled_pairs_read(&pairs, &pairs.list[1], &record), OK);
    assert_true(string_equals(record.premise, "b\nt") && string_equals(record.question, "b"));
}

TEST(a_bad_file_is_refused_with_its_line) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", ": no pair has a label"},
        {PAIR("a", "null"), ": no pair has a label"},
        {PAIR("a", "1") "\n{}\n", ":3: premise: missing"},
        {PAIR("a", "1") PAIR("a", "2"), ":2: label: neither 0, 1 nor null"},
        {PAIR("a", "-1"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "0.5"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "true"), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", "\"1\""), ":1: label: neither 0, 1 nor null"},
        {PAIR("a", ""), ":1: not JSON"},
        {"7\n", ":1: not a JSON object"},
        {"{\"premise\":\"p\",\"hypothesis\":\"h\",\"question\":\"q\"}", ":1: label: missing"},
        {"{\"premise\":\"p\",\"hypothesis\":null,\"question\":\"q\"}", ":1: hypothesis: missing"},
        {"{\"premise\":[],\"hypothesis\":\"h\"}", ":1: premise: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
        assert_int_equal(open_text(&pairs, cases[i].text), DATAERR);
        if (strncmp(fail_text(), path, strlen(path)) != 0 ||
            strncmp(fail_text() + strlen(path), cases[i].message, strlen(cases[i].message)) != 0)
            print_error("case %zu: %s\n", i, fail_text());
        assert_memory_equal(fail_text(), path, strlen(path));
        assert_memory_equal(fail_text() + strlen(path), cases[i].message, strlen(cases[i].message));
    }
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    assert_int_equal(labelled_pairs_open(&pairs, "/nowhere"), DATAERR);
}

// Opens 20 questions with two pairs each and holds out a share. Returns a bit for each question that is.
static uint32_t hold_out(double share, uint64_t seed) {
    SCOPED(struct labelled_pairs, labelled_pairs_release) pairs = {0};
    SCOPED(struct buf, buf_release) text = {0};
    size_t count, questions = 0;
    uint32_t bits = 0;
    for (int i = 0; i < 40; i++)
        buf_printf(&text, "{\"premise\":\"\",\"hypothesis\":\"\",\"question\":\"q%d\",\"label\":%d}\n", i % 20, i % 2);
    assert_int_equal(open_text(&pairs, text.data), OK);
    labelled_pairs_hold_out(&pairs, share, seed, &count);
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(pairs.list[i].held_out, pairs.list[i + 20].held_out); // never split
        bits |= (uint32_t)pairs.list[i].held_out << i;
        questions += pairs.list[i].held_out;
    }
    assert_int_equal(count, 2 * questions);
    return bits;
}

TEST(the_held_out_share_is_rounded_and_drawn_by_the_seed) {
    assert_int_equal(hold_out(0, 1), 0);
    assert_int_equal(__builtin_popcount(hold_out(1e-9, 1)), 1);
    assert_int_equal(__builtin_popcount(hold_out(0.05, 1)), 1);
    assert_int_equal(__builtin_popcount(hold_out(0.124, 1)), 2);
    assert_int_equal(__builtin_popcount(hold_out(0.125, 1)), 3); // 2.5 is rounded up
    assert_int_equal(__builtin_popcount(hold_out(1, 1)), 20);
    assert_int_equal(hold_out(0.3, 7), hold_out(0.3, 7));
    assert_int_not_equal(hold_out(0.3, 7), hold_out(0.3, 8));
}

TEST(the_rate_rises_and_falls_linearly) {
    const struct linear_schedule schedule = linear_schedule_of(1601, 64, 2, 1e-3);
    assert_int_equal(schedule.steps, 52);
    assert_int_equal(schedule.steps_per_epoch, 26);
    assert_int_equal(schedule.warmup, 3);
    assert_true(linear_schedule_lr(&schedule, 0) <= 0);
    assert_true(fabs(linear_schedule_lr(&schedule, 2) - 2e-3 / 3) <= 1e-18);
    assert_true(fabs(linear_schedule_lr(&schedule, 3) - 1e-3) <= 1e-18);
    assert_true(fabs(linear_schedule_lr(&schedule, 51) - 1e-3 / 49) <= 1e-18);
    const struct linear_schedule shortest = linear_schedule_of(1, 64, 1, 0.5);
    assert_int_equal(shortest.steps, 1);
    assert_true(fabs(linear_schedule_lr(&shortest, 0) - 0.5) <= 1e-18); // no warm-up
    assert_int_equal(linear_schedule_of(64, 64, 3, 1).steps, 3);
}

TEST(the_order_depends_on_seed_and_epoch_alone) {
    size_t first[50], again[50], second[50], other[50], seen[50] = {0};
    epoch_order(3, 0, 50, first);
    epoch_order(3, 0, 50, again);
    epoch_order(3, 1, 50, second);
    epoch_order(4, 0, 50, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, second, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    for (size_t i = 0; i < 50; i++) seen[first[i]]++;
    for (size_t i = 0; i < 50; i++) assert_int_equal(seen[i], 1);
}

static void assert_near(double value, double expected) {
    assert_true(isnan(expected) ? isnan(value) : fabs(value - expected) <= 1e-12);
}

static void assert_classification(const double *probabilities, const int *labels, size_t count, double accuracy,
                                  double auc, double rate_consistent, double rate_inconsistent) {
    struct classification got;
    classification_compute(&got, probabilities, labels, count, 0.5);
    assert_int_equal(got.count, count);
    assert_near(got.accuracy, accuracy);
    assert_near(got.auc, auc);
    assert_near(got.rate_consistent, rate_consistent);
    assert_near(got.rate_inconsistent, rate_inconsistent);
}

TEST(ties_count_half_and_one_class_has_no_area) {
    assert_classification((double[]){0.9, 0.1, 0.6, 0.4}, (int[]){1, 0, 0, 1}, 4, 0.5, 0.75, 0.5, 0.5);
    assert_classification((double[]){0.2, 0.5, 0.5, 0.5}, (int[]){0, 0, 1, 1}, 4, 0.75, 0.75, 1, 0.5); // ties
    assert_classification((double[]){0.3, 0.3}, (int[]){1, 0}, 2, 0.5, 0.5, 0, 1);
    assert_classification((double[]){0.9, 0.4}, (int[]){1, 1}, 2, 0.5, NAN, 0.5, NAN); // one class
    assert_classification((double[]){0.9}, (int[]){0}, 1, 0, NAN, NAN, 0);
    assert_classification(NULL, NULL, 0, NAN, NAN, NAN, NAN);
}
