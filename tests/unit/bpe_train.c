// Trains a vocabulary on small texts whose merges are known, and checks that a trained tokenizer loads and decodes what
// it encodes.
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "tools/demo/tokenizer_train.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/tokenizer.h"

// Trains the vocabulary on the text, which must give these merges.
static void assert_merges(struct vocab *v, const char *text, size_t size, size_t vocab_size, const char *wanted) {
    SCOPED(struct buf, buf_release) merges = {0};
    MUST(bpe_train(v, &merges, pre_tokenizer_qwen2, text, size, vocab_size));
    assert_int_equal(merges.size, strlen(wanted));
    if (*wanted) assert_string_equal(merges.data, wanted);
}

TEST(the_most_frequent_pair_merges_first) {
    // Words: "ab" twice, " ab" three times, "abc" once. a+b occurs 6 times, then space+ab 3 times, and every other pair
    // once.
    static const char text[] = "ab ab ab\nab ab\nabc";
    SCOPED(struct vocab, vocab_release) v = {0};
    assert_merges(&v, text, sizeof text - 1, 1000, "a b\n\xC4\xA0 ab\n");
    assert_int_equal(v.size, 258);
    assert_int_equal(vocab_token_to_id(&v, "!", 1), 0);
    assert_int_equal(vocab_token_to_id(&v, "ab", 2), 256);
}

TEST(equal_counts_prefer_lower_ids) {
    static const char text[] = "xy xy dc dc";
    SCOPED(struct vocab, vocab_release) v = {0};
    assert_merges(&v, text, sizeof text - 1, 257, "d c\n"); // only one merge, because vocab_size is 257
}

TEST(overlapping_pairs_count_once) {
    char text[4096];
    memset(text, 'a', sizeof text);
    SCOPED(struct vocab, vocab_release) v = {0};
    assert_merges(&v, text, sizeof text, 260, "a a\naa aa\naaaa aaaa\naaaaaaaa aaaaaaaa\n");
}

TEST(empty_text_trains_bytes_and_bad_utf8_is_refused) {
    SCOPED(struct vocab, vocab_release) v = {0};
    SCOPED(struct buf, buf_release) merges = {0};
    assert_merges(&v, NULL, 0, 1000, "");
    assert_int_equal(v.size, 256);
    vocab_release(&v);
    assert_int_equal(bpe_train(&v, &merges, pre_tokenizer_qwen2, "\xFF", 1, 1000), DATAERR);
}

TEST(a_trained_tokenizer_loads_and_decodes_its_text) {
    const char *dir = unit_new_directory();
    SCOPED(struct buf, buf_release) text = {0}, decoded = {0};
    SCOPED(struct token_list, token_list_release) tokens = {0};
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(file_read("tests/unit/bpe_train.c", &text), OK);
    assert_int_equal(tokenizer_train(dir, TOKENIZER_QWEN, text.data, text.size, 500), OK);
    MUST(tokenizer_open(&t, dir));
    assert_int_equal(tokenizer_vocab_size(t), 500 + QWEN_ADDED_TOKENS);
    assert_true(tokenizer_is_special(t, tokenizer_token_to_id(t, "<|video_pad|>")));
    assert_false(tokenizer_is_special(t, tokenizer_token_to_id(t, "<tool_call>")));
    assert_int_equal(tokenizer_encode(t, text.data, text.size, &tokens), OK);
    assert_true(tokens.count * 2 < text.size);
    tokenizer_decode_utf8(t, tokens.data, tokens.count, false, &decoded);
    assert_int_equal(decoded.size, text.size);
    assert_memory_equal(decoded.data, text.data, text.size);
}

TEST(a_trained_modernbert_tokenizer_encodes_pairs) {
    static const char text[] = "the cat and the dog, the cat and the dog";
    const char *dir = unit_new_directory();
    SCOPED(struct token_list, token_list_release) tokens = {0};
    SCOPED(struct buf, buf_release) decoded = {0};
    SCOPED(struct arena, arena_release) memory = {0};
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(tokenizer_train(dir, TOKENIZER_MODERNBERT, text, sizeof text - 1, 270), OK);
    assert_int_equal(tokenizer_open(&t, dir), OK);
    assert_false(path_exists(path_join(&memory, dir, "chat_template.json")));
    assert_int_equal(tokenizer_encode_pair(t, "the cat\n [MASK]", 15, "the dog", 7, &tokens), OK);
    const int64_t first = tokenizer_vocab_size(t) - MODERNBERT_ADDED_TOKENS;
    assert_int_equal(tokens.data[0], first + 1);                // [CLS]
    assert_int_equal(tokens.data[tokens.count - 1], first + 2); // [SEP]
    tokenizer_decode_utf8(t, tokens.data, tokens.count, false, &decoded);
    assert_string_equal(decoded.data, "[CLS]the cat[MASK][SEP]the dog[SEP]");
}
