// Compares the tokenizer and the chat template with the results of transformers 4.51.3 on the same directories
// (golden.json), and checks the time for long words and the messages for malformed directories.
// Small texts whose merges are known are trained on, and a trained tokenizer loads and decodes what it encodes.
#include <math.h>
#include <time.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/text/chat_template.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/tokenizer.h"
#include "tools/demo/tokenizer_train.h"

#define DIRECTORY "tests/data/tokenizer/"
// cmocka's fail_msg cannot be used, because it needs cmocka's macro fail(), which conflicts with shared/base/status.h.
#define FAIL_WITH(...)                                                                                                 \
    do {                                                                                                               \
        print_error(__VA_ARGS__);                                                                                      \
        assert_true(false);                                                                                            \
    } while (0)
static struct arena golden_arena;
static struct json *golden;

static int read_golden(void **state) {
    (void)state;
    return json_parse_file(&golden, &golden_arena, DIRECTORY "golden.json") != OK;
}

static int free_golden(void **state) {
    (void)state;
    arena_release(&golden_arena);
    return 0;
}

static struct json *at(struct json *object, const char *key) {
    struct json *value = json_at(object, key);
    assert_non_null(value);
    return value;
}

static void assert_tokens(struct json *expected, const struct token_list *got, const char *what) {
    if (json_count(expected) != got->count) FAIL_WITH("%s: %zu tokens", what, got->count);
    for (size_t i = 0; i < got->count; i++)
        if (json_int_or(json_item(expected, i), -1) != got->data[i])
            FAIL_WITH("%s: token %zu is %lld", what, i, (long long)got->data[i]);
}

static void assert_text(struct json *expected, const struct buf *got) {
    assert_int_equal(expected->text.size, got->size);
    if (got->size) assert_memory_equal(json_text(expected), got->data, got->size);
}

// Token by token the text is the same as at once, all of it is UTF-8, and only what may still change is kept.
static void check_decoded_piecewise(const struct tokenizer *t, const struct token_list *tokens) {
    SCOPED(struct buf, buf_release) whole = {0}, text = {0};
    struct tokenizer_rest rest = {0};
    tokenizer_decode_utf8(t, tokens->data, tokens->count, true, &whole);
    for (size_t i = 0; i < tokens->count; i++) {
        const size_t sent = text.size;
        tokenizer_decode_next(t, &rest, tokens->data[i], &text);
        assert_true(utf8_valid(text.data + sent, text.size - sent));
        for (size_t at = 0; at + 3 < rest.bytes.size; at++) // a character has 4 bytes at most
            assert_non_null(strchr(" 'nvr", rest.bytes.data[at]));
    }
    tokenizer_decode_end(t, &rest, &text);
    assert_int_equal(text.size, whole.size);
    if (whole.size) assert_memory_equal(text.data, whole.data, whole.size);
    buf_release(&rest.bytes);
}

static void check_decoded(const struct tokenizer *t, struct json *row) {
    struct json *list = at(row, "tokens");
    struct token_list tokens = {0};
    SCOPED(struct buf, buf_release) text = {0};
    for (size_t i = 0; i < json_count(list); i++) token_list_append(&tokens, json_int_or(json_item(list, i), -1));
    tokenizer_decode_utf8(t, tokens.data, tokens.count, false, &text);
    assert_text(at(row, "decoded"), &text);
    buf_clear(&text);
    tokenizer_decode_utf8(t, tokens.data, tokens.count, true, &text);
    assert_text(at(row, "skipped"), &text);
    check_decoded_piecewise(t, &tokens);
    token_list_release(&tokens);
}

static void check_directory(const char *name) {
    char dir[256];
    struct tokenizer *t;
    snprintf(dir, sizeof dir, DIRECTORY "%s", name);
    if (tokenizer_open(&t, dir) != OK) FAIL_WITH("%s", fail_text());
    struct json *texts = at(at(golden, name), "texts"), *scattered = at(at(golden, name), "scattered");
    for (int round = 0; round < 2; round++) // the second one from the cache
        for (size_t i = 0; i < json_count(texts); i++) {
            struct json *row = json_item(texts, i);
            const struct string text = json_string(at(row, "text"));
            const struct string pair = json_string(json_at(row, "pair")); // may be absent
            SCOPED(struct token_list, token_list_release) tokens = {0};
            assert_int_equal(tokenizer_encode_pair(t, text.data, text.size, pair.data, pair.size, &tokens), OK);
            assert_tokens(at(row, "tokens"), &tokens, text.data);
            check_decoded(t, row);
        }
    for (size_t i = 0; i < json_count(scattered); i++) check_decoded(t, json_item(scattered, i));
    tokenizer_free(&t);
    assert_null(t);
}

TEST(a_plain_directory_is_tokenized_as_by_transformers) {
    check_directory("plain");
}

TEST(vocab_and_merges_are_tokenized_as_by_transformers) {
    check_directory("files");
}

TEST(an_odd_directory_is_tokenized_as_by_transformers) {
    check_directory("odd");
}

TEST(the_pattern_of_gpt2_is_split_as_by_transformers) {
    check_directory("gpt2");
}

TEST(pairs_of_modernbert_are_joined_as_by_transformers) {
    check_directory("modernbert");
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    SCOPED(struct token_list, token_list_release) tokens = {0};
    assert_int_equal(tokenizer_open(&t, DIRECTORY "modernbert"), OK);
    assert_int_equal(tokenizer_encode_pair(t, "a", 1, "\xFF", 1, &tokens), DATAERR);
    assert_int_equal(tokens.count, 0);
    assert_int_equal(tokenizer_encode(t, "a", 1, &tokens), OK); // without special tokens
    assert_int_equal(tokens.count, 1);
    assert_int_equal(chat_template_check(t, "DIR"), DATAERR);
    assert_string_equal(fail_text(), "DIR: the tokenizer has no token <|im_start|>, which the chat template needs");
}

static void read_messages(struct arena *memory, struct json *list, struct message *messages) {
    for (size_t i = 0; i < json_count(list); i++) {
        struct json *row = json_item(list, i), *content = at(row, "content");
        bool plain = json_is(content, JSON_STRING);
        messages[i].role = json_string(at(row, "role"));
        messages[i].part_count = plain ? 1 : json_count(content);
        messages[i].parts = arena_alloc(memory, (messages[i].part_count + 1) * sizeof(struct part));
        for (size_t k = 0; k < messages[i].part_count; k++) {
            struct json *given = plain ? content : json_item(content, k), *value;
            struct part *part = &messages[i].parts[k];
            part->kind = plain || json_find(given, "text", &value) ? PART_TEXT
                         : json_find(given, "image", &value)       ? PART_IMAGE
                                                                   : PART_VIDEO;
            if (part->kind == PART_TEXT) part->text = json_string(plain ? content : value);
        }
    }
}

TEST(a_chat_template_gives_the_tokens_of_transformers) {
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    struct json *cases = at(golden, "template");
    assert_int_equal(tokenizer_open(&t, DIRECTORY "plain"), OK);
    for (size_t i = 0; i < json_count(cases); i++) {
        SCOPED(struct arena, arena_release) memory = {0};
        SCOPED(struct buf, buf_release) rendered = {0};
        SCOPED(struct token_list, token_list_release) tokens = {0};
        struct message messages[8] = {0};
        struct json *row = json_item(cases, i), *list = at(row, "messages");
        size_t count = json_count(list);
        read_messages(&memory, list, messages);
        chat_template_render(messages, count, &rendered);
        assert_text(at(row, "rendered"), &rendered);
        assert_int_equal(chat_template_encode(t, messages, count, &tokens), OK);
        assert_tokens(at(row, "tokens"), &tokens, "template");
    }
}

TEST(media_are_expanded_to_their_tokens) {
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(tokenizer_open(&t, DIRECTORY "plain"), OK);
    struct part parts[] = {{.kind = PART_VIDEO}, {.kind = PART_IMAGE}, {.kind = PART_TEXT, .text = string_of("what?")}};
    struct message message = {.role = string_of("user"), .parts = parts, .part_count = 3};
    struct medium media[] = {{.kind = string_of("video"), .frames = 4, .height = 56, .width = 84},
                             {.kind = string_of("image"), .frames = 1, .height = 28, .width = 140}};
    struct group group = {.prompt = {.messages = &message, .message_count = 1}, .media = media, .media_count = 2};
    const struct vision_grid grid = {28, 2};
    SCOPED(struct token_list, token_list_release) tokens = {0};
    assert_int_equal(chat_template_encode_prompt(t, &group, grid, &tokens), OK);
    size_t videos = 0, images = 0;
    for (size_t i = 0; i < tokens.count; i++) {
        videos += tokens.data[i] == tokenizer_token_to_id(t, "<|video_pad|>");
        images += tokens.data[i] == tokenizer_token_to_id(t, "<|image_pad|>");
    }
    assert_int_equal(videos, 2 * 2 * 3);
    assert_int_equal(images, 5);
    parts[2].text = string_of("a <|image_pad|> typed in");
    assert_int_equal(chat_template_encode_prompt(t, &group, grid, &tokens), BAD_SAMPLE);
    assert_non_null(strstr(fail_text(), "<|image_pad|>"));
    parts[2].text = string_of("x");
    media[0].width = 85;
    assert_int_equal(chat_template_encode_prompt(t, &group, grid, &tokens), DATAERR);
    media[0].width = INT64_MAX / 28 * 28;
    assert_int_equal(chat_template_encode_prompt(t, &group, grid, &tokens), DATAERR);
}

TEST(tokens_know_their_bytes) {
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(tokenizer_open(&t, DIRECTORY "plain"), OK);
    static const char text[] = "<answer>C</answer>\xE4\xBD\xA0<|im_end|>";
    SCOPED(struct token_list, token_list_release) tokens = {0};
    assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, &tokens), OK);
    size_t offset = 0, size;
    for (size_t i = 0; i < tokens.count; i++) {
        const char *piece = tokenizer_piece(t, tokens.data[i], &size);
        assert_true(size <= sizeof text - 1 - offset);
        assert_memory_equal(piece, text + offset, size);
        offset += size;
        assert_int_equal(tokenizer_is_special(t, tokens.data[i]), i + 1 == tokens.count);
    }
    assert_int_equal(offset, sizeof text - 1);
    assert_null(tokenizer_piece(t, -1, &size));
    assert_null(tokenizer_piece(t, tokenizer_vocab_size(t), &size));
    assert_int_equal(tokenizer_token_to_id(t, "<|no such|>"), -1);
    assert_int_equal(tokenizer_encode(t, "\xFF", 1, &tokens), DATAERR);
}

TEST(a_text_is_not_tokenized_beyond_what_is_wanted) {
    static const char text[] = "one two<|im_end|>three";
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    SCOPED(struct token_list, token_list_release) all = {0};
    struct part part = {.kind = PART_TEXT, .text = string_of(text)};
    struct message message = {.role = string_of("user"), .parts = &part, .part_count = 1};
    struct group group = {.prompt = {.messages = &message, .message_count = 1}};
    const struct vision_grid grid = {28, 2};
    assert_int_equal(tokenizer_open(&t, DIRECTORY "plain"), OK);
    assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, &all), OK);
    for (size_t most = 1; most <= all.count; most++) {
        SCOPED(struct token_list, token_list_release) tokens = {.most = most};
        assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, &tokens), most < all.count ? BAD_SAMPLE : OK);
        assert_true(tokens.count <= most);
    }
    SCOPED(struct token_list, token_list_release) tokens = {.most = all.count};
    assert_int_equal(chat_template_encode_prompt(t, &group, grid, &tokens), BAD_SAMPLE);
    assert_non_null(strstr(fail_text(), "prompt too long: more than"));
}

// Appends random tokens: of the whole vocabulary, or only those that are one of the texts.
static void append_random(const struct tokenizer *t, uint32_t seed, const char *const *texts, struct token_list *out) {
    for (size_t i = 0, count = 0; i < 4000 && count < 60; i++) {
        seed = seed * 1664525 + 1013904223;
        const int64_t id = (int64_t)(seed >> 8) % tokenizer_vocab_size(t);
        size_t size;
        const char *piece = tokenizer_piece(t, id, &size);
        bool wanted = !texts;
        for (size_t k = 0; texts && texts[k] && piece; k++)
            wanted = wanted || (size == strlen(texts[k]) && !memcmp(piece, texts[k], size));
        if (wanted) token_list_append(out, id);
        count += wanted;
    }
}

TEST(text_that_is_decoded_token_by_token_is_the_same) {
    // ModernBERT's drops spaces. These tokens are all that it looks for, and the bytes of characters of 2 to 4 bytes.
    static const char *const texts[] = {" ",    ".",    "?",    "!",  ",",    "'",    "n",    "t",    "m",
                                        "s",    "v",    "e",    "r",  "'s",   "\xC3", "\xA4", "\xE2", "\x82",
                                        "\xAC", "\xF0", "\x9F", "  ", "\xE5", "\xFF", NULL};
    for (int i = 0; i < 2; i++) {
        SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
        MUST(tokenizer_open(&t, i ? DIRECTORY "modernbert" : DIRECTORY "plain"));
        for (uint32_t seed = 0; seed < 400; seed++) {
            SCOPED(struct token_list, token_list_release) tokens = {0};
            append_random(t, seed, seed % 4 ? texts : NULL, &tokens);
            assert_true(tokens.count > 10);
            check_decoded_piecewise(t, &tokens);
        }
    }
}

// Returns the CPU seconds for a word of `count` times one character, or of mixed letters if `letter` is 0.
static double seconds_for(const struct tokenizer *t, char letter, size_t count) {
    char *text = malloc(count);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) text[i] = letter ? letter : (char)("etaoinshr"[i * i % 9]);
    SCOPED(struct token_list, token_list_release) tokens = {0};
    clock_t start = clock();
    assert_int_equal(tokenizer_encode(t, text, count, &tokens), OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    size_t offsets = 0, size;
    for (size_t i = 0; i < tokens.count; i++) {
        tokenizer_piece(t, tokens.data[i], &size);
        offsets += size;
    }
    assert_int_equal(offsets, count);
    free(text);
    return seconds;
}

TEST(long_words_take_near_linear_time) {
    enum { WORD = 20000 };
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(tokenizer_open(&t, DIRECTORY "plain"), OK);
    const char letters[] = {'a', ' ', '\n', '1', '!', 0};
    for (size_t i = 0; i < sizeof letters; i++) {
        // Quadratic time would be 256 times as long for a word 16 times as long. A busy machine gets more attempts.
        double ratio = INFINITY;
        for (int attempt = 0; attempt < 3 && !(ratio < 64); attempt++) {
            double once = seconds_for(t, letters[i], WORD);
            for (int again = 0; again < 2; again++) once = fmin(once, seconds_for(t, letters[i], WORD));
            ratio = seconds_for(t, letters[i], 16 * WORD) / once;
        }
        print_message("a word 16 times as long takes %.1f times as long\n", ratio);
        assert_true(ratio < 64);
    }
}

static void write_file(struct arena *memory, const char *dir, const char *name, const char *content, size_t size) {
    assert_int_equal(file_write_atomic(path_join(memory, dir, name), content, size), OK);
}

// Opens a copy of a tokenizer.json in which `from` is replaced by `to`. The failure must contain `what`.
static void check_broken_in(const char *original, const char *from, const char *to, const char *what) {
    const char *dir = unit_new_directory();
    SCOPED(struct arena, arena_release) memory = {0};
    SCOPED(struct buf, buf_release) content = {0}, changed = {0};
    assert_int_equal(file_read(original, &content), OK);
    const char *place = strstr(content.data, from);
    assert_non_null(place);
    buf_append(&changed, content.data, (size_t)(place - content.data));
    buf_puts(&changed, to);
    buf_puts(&changed, place + strlen(from));
    write_file(&memory, dir, "tokenizer.json", changed.data, changed.size);
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    status result = tokenizer_open(&t, dir);
    assert_true(!t == (result != OK));
    if (result == OK) result = chat_template_check(t, dir);
    assert_int_equal(result, DATAERR);
    if (!strstr(fail_text(), what)) FAIL_WITH("\"%s\" does not contain \"%s\"", fail_text(), what);
    if (!strstr(fail_text(), dir)) FAIL_WITH("\"%s\" does not contain the directory", fail_text());
}

static void check_broken(const char *from, const char *to, const char *what) {
    check_broken_in(DIRECTORY "plain/tokenizer.json", from, to, what);
}

static void check_broken_template(const char *from, const char *to, const char *what) {
    check_broken_in(DIRECTORY "modernbert/tokenizer.json", from, to, what);
}

TEST(a_malformed_template_is_refused) {
    check_broken_template("\"type\": \"TemplateProcessing\"", "\"type\": \"BertProcessing\"",
                          "post_processor: BertProcessing is not supported");
    check_broken_template("\"special_tokens\"", "\"tokens\"", "post_processor: special_tokens: missing");
    check_broken_template("\"pair\"", "\"two\"", "post_processor: pair: missing");
    check_broken_template("\"single\": [", "\"single\": [{\"Sequence\": {\"id\": \"B\"}}, ", "single[0]: Sequence");
    check_broken_template("\"single\": [", "\"single\": [{\"Special\": {}}, ", "single[0]: neither SpecialToken");
    check_broken_template("\"single\": [", "\"single\": [{\"Sequence\": {}}, ", "single[0]: id: missing");
    check_broken_template("\"single\": [", "\"single\": [1, ", "single[0]: not an object");
    check_broken_template("\"SpecialToken\": {\"id\": \"[CLS]\"", "\"SpecialToken\": {\"id\": \"[END]\"",
                          "single[0]: special_tokens has no [END]");
    check_broken_template("\"ids\": [", "\"ids\": [9999, ",
                          "special_tokens.[CLS].ids[0]: 9999 is not in the vocabulary");
    check_broken_template("\"ids\": [", "\"ids\": [\"1\", ", "special_tokens.[CLS].ids[0]: not an integer");
    check_broken_template("\"ids\": [", "\"number\": [", "special_tokens.[CLS].ids: missing");
    check_broken_template("\"post_processor\": {",
                          "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [1]}, \"other\": {",
                          "post_processor: processors[0]: not an object");
    check_broken("\"post_processor\": {",
                 "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [], \"pair\": [], "
                 "\"special_tokens\": {}}, \"other\": {",
                 "TemplateProcessing does not suit the chat template");
}

TEST(a_malformed_directory_is_refused) {
    check_broken("\"type\": \"BPE\"", "\"type\": \"Unigram\"", "Unigram");
    check_broken("\"vocab\"", "\"vocabulary\"", "vocab: missing");
    check_broken("\"merges\"", "\"rules\"", "merges: missing");
    check_broken("\"merges\": [[", "\"merges\": [[\"nowhere\", \"x\"], [", "nowhere");
    check_broken("\"merges\": [[", "\"merges\": [[\"x\"], [", "merge 1");
    check_broken("\"merges\": [[", "\"merges\": [\"a b c\", [", "a b c");
    check_broken("\"!\": 0", "\"!\": -1", "out of range");
    check_broken("\"!\": 0", "\"!\": 9999999999", "out of range");
    check_broken("\"!\": 0", "\"!\": 1", "the same id");
    check_broken("\"!\": 0", "\"!\": \"0\"", "not an integer");
    check_broken("<|video_pad|>", "<|film_pad|>", "<|video_pad|>");
    check_broken("\"NFC\"", "\"Lowercase\"", "Lowercase");
    check_broken("\"ByteLevel\"", "\"Metaspace\"", "Metaspace");
    check_broken("(?i:", "(?i", "regular expression");
    check_broken("\"Isolated\"", "\"MergedWithNext\"", "MergedWithNext");
    check_broken("\"id\": ", "\"id\": 9", "id");
    check_broken("\"version\": \"1.0\"", "\"version\": \"2.0\"", "version");
    check_broken("\"dropout\": null", "\"dropout\": 0.5", "dropout");
    check_broken("{", "{{", "not JSON");
    struct tokenizer *t;
    assert_int_equal(tokenizer_open(&t, "tests/data/no-such-dir"), DATAERR);
    assert_non_null(strstr(fail_text(), "no-such-dir"));
}

static void check_merges(const char *merges, const char *what) {
    const char *dir = unit_new_directory();
    SCOPED(struct arena, arena_release) memory = {0};
    static const char *const names[] = {"vocab.json", "tokenizer_config.json"};
    for (size_t i = 0; i < 2; i++) {
        SCOPED(struct buf, buf_release) content = {0};
        assert_int_equal(file_read(path_join(&memory, DIRECTORY "files", names[i]), &content), OK);
        write_file(&memory, dir, names[i], content.data, content.size);
    }
    if (merges) write_file(&memory, dir, "merges.txt", merges, strlen(merges));
    SCOPED(struct tokenizer *, tokenizer_free) t = NULL;
    assert_int_equal(tokenizer_open(&t, dir), what ? DATAERR : OK);
    if (what && !strstr(fail_text(), what)) FAIL_WITH("\"%s\" does not contain \"%s\"", fail_text(), what);
}

// U+08CF (combining class 220) came with Unicode 14: the published tokenizers leave it after U+0301 (class 230), but
// they move U+0323 before it.
TEST(characters_after_unicode9_are_not_reordered) {
    static const char *const cases[][2] = {
        {"q\u0301\u08CF", "q\u0301\u08CF"},
        {"q\u0301\u0323", "q\u0323\u0301"},
        {"a\u0301\u08CFa\u0301\u0323", "\u00E1\u08CF\u1EA1\u0301"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) buffer = {0};
        const char *out;
        size_t size;
        assert_int_equal(normalize_text(NORMALIZE_NFC, cases[i][0], strlen(cases[i][0]), &buffer, &out, &size), OK);
        assert_int_equal(size, strlen(cases[i][1]));
        assert_memory_equal(out, cases[i][1], size);
    }
}

TEST(merges_txt_is_read_with_its_lines) {
    check_merges("# a comment of any kind\nh e\r\n\no n\n", NULL);
    check_merges("h e\n# comment of a kind\n", "line 2");
    check_merges("h e\nh \n", "line 2");
    check_merges("h nowhere\n", "nowhere");
    check_merges(NULL, "merges.txt");
}

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
    assert_int_equal(file_read("tests/unit/tokenizer.c", &text), OK);
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

int main(void) {
    return unit_run(read_golden, free_golden);
}
