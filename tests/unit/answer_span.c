// Finds the tokens of a completion's answer by both rules.
#include "stages/refscore/answer_span.h"
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

// The text of the answer's tokens contains `part`, and nothing of the thinking; NULL: there is no answer.
static void expect_answer(enum answer_span_rule rule, const char *completion, bool ended, const char *part) {
    SCOPED(struct token_list, token_list_release) tokens = {0};
    SCOPED(struct buf, buf_release) text = {0};
    struct answer_span span;
    assert_int_equal(tokenizer_encode(tokenizer, completion, strlen(completion), &tokens), OK);
    if (ended) token_list_append(&tokens, tokenizer_token_to_id(tokenizer, "<|im_end|>"));
    answer_span_find(tokenizer, rule, tokens.data, tokens.count, ended, &span);
    assert_int_equal(span.found, part != NULL);
    if (!part) return;
    assert_true(span.end + ended <= tokens.count); // without the end-of-sequence token
    buf_puts(&text, "");
    tokenizer_decode(tokenizer, tokens.data + span.first, span.end - span.first, false, &text);
    assert_non_null(strstr(text.data, part));
    assert_null(strstr(text.data, "think"));
}

TEST(the_content_of_the_last_answer_counts) {
    expect_answer(ANSWER_SPAN_CONTENT, "<think>so</think><answer>C</answer>", true, "C");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>A</answer> no <answer>12.5</answer>", true, "12.5");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>not closed", false, "not closed");
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>one <answer>two</answer></answer>", true, "two");
}

TEST(without_a_whole_tag_there_is_no_answer) {
    const char *without[] = {"", "no tag at all", "<answer></answer>", "<answer>", "</answer>C<answer"};
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        expect_answer(ANSWER_SPAN_CONTENT, without[i], true, NULL);
        expect_answer(ANSWER_SPAN_CONTENT, without[i], false, NULL);
    }
    expect_answer(ANSWER_SPAN_RELEASED, "no tag at all", true, NULL);
}

TEST(eos_is_not_part_of_the_answer) {
    expect_answer(ANSWER_SPAN_CONTENT, "<answer>not closed", true, "not closed");
}

TEST(rules_agree_on_well_formed_completions) {
    expect_answer(ANSWER_SPAN_CONTENT, "<think>we see it.</think><answer>C</answer>", true, "C");
    expect_answer(ANSWER_SPAN_RELEASED, "<think>we see it.</think><answer>C</answer>", true, "C");
}

// The prefix of a completion reads `want`, and its tokens are the completion's own up to the last ones, the cut
// token's.
static void expect_prefix(const struct token_list *tokens, bool ended, const char *want, size_t cut) {
    SCOPED(struct answer_prefix, answer_prefix_release) prefix = {0};
    SCOPED(struct buf, buf_release) text = {0};
    assert_int_equal(answer_prefix_find(tokenizer, tokens->data, tokens->count, ended, &prefix), OK);
    assert_int_equal(prefix.found, want != NULL);
    assert_int_equal(prefix.cut.count, cut);
    buf_puts(&text, "");
    tokenizer_decode(tokenizer, tokens->data, prefix.kept, true, &text);
    tokenizer_decode(tokenizer, prefix.cut.data, prefix.cut.count, true, &text);
    assert_string_equal(text.data, want ? want : "");
}

static void expect_text_prefix(const char *completion, bool ended, const char *want) {
    SCOPED(struct token_list, token_list_release) tokens = {0};
    assert_int_equal(tokenizer_encode(tokenizer, completion, strlen(completion), &tokens), OK);
    if (ended) token_list_append(&tokens, tokenizer_token_to_id(tokenizer, "<|im_end|>"));
    expect_prefix(&tokens, ended, want, 0);
}

TEST(a_prefix_ends_with_the_last_tag) {
    for (int ended = 0; ended < 2; ended++) {
        expect_text_prefix("<think>so</think><answer> C</answer>", ended, "<think>so</think><answer>");
        expect_text_prefix("<answer>A</answer> no <answer> B", ended, "<answer>A</answer> no <answer>");
        expect_text_prefix("cut off at <answer>", ended, "cut off at <answer>");
        expect_text_prefix("", ended, NULL);
        expect_text_prefix("</answer>C<answer", ended, NULL);
    }
}

// Tokens of any bytes: those of `parts`, and between them special ones, which are no text.
TEST(special_tokens_are_no_text_of_a_prefix) {
    const int64_t special = tokenizer_token_to_id(tokenizer, "<|im_start|>");
    SCOPED(struct token_list, token_list_release) tokens = {0};
    assert_int_equal(tokenizer_encode(tokenizer, "so <answer", 10, &tokens), OK);
    const size_t before = tokens.count;
    token_list_append(&tokens, special);
    expect_prefix(&tokens, false, NULL, 0);
    // The fused token: `>` and a letter.
    int64_t fused = -1;
    for (int64_t id = 0; id < tokenizer_vocab_size(tokenizer) && fused < 0; id++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, id, &size);
        if (size > 1 && piece[0] == '>') fused = id;
    }
    assert_true(fused >= 0);
    token_list_append(&tokens, fused);
    token_list_append(&tokens, special);
    SCOPED(struct answer_prefix, answer_prefix_release) prefix = {0};
    assert_int_equal(answer_prefix_find(tokenizer, tokens.data, tokens.count, true, &prefix), OK);
    assert_int_equal(prefix.kept, before + 1);
    expect_prefix(&tokens, true, "so <answer>", 1);
    expect_prefix(&tokens, false, "so <answer>", 1);
}

// An answer is closed by a tag that is spread over several tokens; special tokens between them are no text.
TEST(an_answer_ends_where_a_tag_of_several_tokens_closes_it) {
    const char *answer = " 12.5 </answer>";
    SCOPED(struct token_list, token_list_release) tokens = {0};
    SCOPED(struct buf, buf_release) text = {0};
    bool closed = false;
    assert_int_equal(tokenizer_encode(tokenizer, answer, strlen(answer), &tokens), OK);
    assert_true(tokens.count > 4);
    for (size_t i = 0; i < tokens.count; i++) {
        assert_false(closed);
        answer_append(tokenizer, tokenizer_token_to_id(tokenizer, "<|im_start|>"), &text, &closed);
        assert_false(closed);
        answer_append(tokenizer, tokens.data[i], &text, &closed);
    }
    assert_true(closed);
    assert_int_equal(answer_size(text.data, text.size), strlen(" 12.5 "));
    assert_int_equal(answer_size("</answer>", 9), 0);
    assert_int_equal(answer_size("open", 4), 4);
    assert_int_equal(answer_size(NULL, 0), 0);
}

int main(void) {
    return unit_run(open_tokenizer, close_tokenizer);
}
