// The premise and the hypothesis of a completion, the file of a hypothesis, and which tokens of a long pair are left
// out.
#include "tests/unit/unit.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/data/consistency_pair.h"
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
