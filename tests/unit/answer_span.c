// Finds the tokens of a completion's answer by both rules.
#include "shared/text/answer_span.h"
#include "tests/unit/unit.h"

static struct tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    return tokenizer_open(&tokenizer, "tests/data/tokenizer/plain") == OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    tokenizer_free(&tokenizer);
    return 0;
}

// Returns the text of the answer's tokens: "" if the span is empty, NULL if there is no answer.
static char *answer_text(enum answer_span_rule rule, const char *completion, bool ended, size_t *tokens_after) {
    struct token_list tokens = {0};
    struct answer_span span;
    struct buf text = {0};
    assert_int_equal(tokenizer_encode(tokenizer, completion, strlen(completion), &tokens), OK);
    if (ended) assert_int_equal(token_list_append(&tokens, tokenizer_token_to_id(tokenizer, "<|im_end|>")), OK);
    assert_int_equal(answer_span_find(tokenizer, rule, tokens.data, tokens.count, ended, &span), OK);
    if (span.found) {
        assert_true(span.end <= tokens.count);
        assert_int_equal(buf_puts(&text, ""), OK);
        assert_int_equal(tokenizer_decode(tokenizer, tokens.data + span.first, span.end - span.first, false, &text),
                         OK);
        if (tokens_after) *tokens_after = tokens.count - span.end;
    }
    token_list_release(&tokens);
    return text.data;
}

static void expect_answer(enum answer_span_rule rule, const char *completion, bool ended, const char *part) {
    char *text = answer_text(rule, completion, ended, NULL);
    if (part) {
        assert_non_null(text);
        assert_non_null(strstr(text, part));
        assert_null(strstr(text, "think"));
    } else {
        assert_null(text);
    }
    free(text);
}

static void test_content_of_the_last_answer(void **state) {
    (void)state;
    expect_answer(ANSWER_SPAN_CONTENT, "<think>so</think><answer>C</answer>", true, "C");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>A</answer> no <answer>12.5</answer>", true, "12.5");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>not closed", false, "not closed");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>one <answer>two</answer></answer>", true, "two");
}

static void test_no_answer(void **state) {
    (void)state;
    const char *without[] = {"", "no tag at all", "<answer></answer>", "<answer>", "</answer>C<answer"};
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        expect_answer(ANSWER_SPAN_CONTENT, without[i], true, NULL);
        expect_answer(ANSWER_SPAN_CONTENT, without[i], false, NULL);
    }
    expect_answer(ANSWER_SPAN_RELEASED, "no tag at all", true, NULL);
}

static void test_eos_is_not_part_of_the_answer(void **state) {
    (void)state;
    size_t after = 0;
    char *text = answer_text(ANSWER_SPAN_CONTENT, "<answer>not closed", true, &after);
    assert_non_null(text);
    assert_int_equal(after, 1);
    free(text);
}

static void test_rules_agree_on_well_formed_completions(void **state) {
    (void)state;
    const char *completion = "<think>we see it.</think><answer>C</answer>";
    char *content = answer_text(ANSWER_SPAN_CONTENT, completion, true, NULL);
    char *released = answer_text(ANSWER_SPAN_RELEASED, completion, true, NULL);
    assert_non_null(content);
    assert_non_null(released);
    assert_non_null(strstr(released, "C"));
    free(content);
    free(released);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_of_the_last_answer),
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_eos_is_not_part_of_the_answer),
        cmocka_unit_test(test_rules_agree_on_well_formed_completions),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
