// The vocabulary that bpe_train learns, in the files of a tokenizer.
#include "tools/demo/tokenizer_train.h"

#include <assert.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/text/chat_template.h"
#include "shared/text/pre_tokenizer.h"

// ---- bpe_train ----

// Equal words are counted once. A pair knows the words that contain it, so that a merge costs only what it changes. The
// heap holds a pair under the count that it had when it was pushed; an entry that has become too high is pushed again.

struct bpe_train_word {
    struct bpe_train_word *next;
    const char *text; // the word is text[0..size)
    size_t size;
    int32_t *ids;
    uint32_t length;
    int64_t count;
};

struct bpe_train_pair {
    int32_t ids[2];
    int64_t count;
    struct bpe_train_word **words; // that contain or contained it; some are listed twice
    size_t word_count;
};

struct bpe_train_candidate {
    int64_t count;
    struct bpe_train_pair *pair;
};

struct bpe_trainer {
    struct vocab *vocab;
    struct arena memory;
    void *words, *pairs; // as tsearch keeps them
    struct bpe_train_word *first;
    struct bpe_train_candidate *heap;
    size_t heap_count;
};

static int bpe_train_compare_words(const void *left, const void *right) {
    const struct bpe_train_word *a = left, *b = right;
    return a->size != b->size ? (a->size < b->size ? -1 : 1) : memcmp(a->text, b->text, a->size);
}

static int bpe_train_compare_pairs(const void *left, const void *right) {
    const int32_t *a = ((const struct bpe_train_pair *)left)->ids, *b = ((const struct bpe_train_pair *)right)->ids;
    const int i = a[0] == b[0];
    return (a[i] > b[i]) - (a[i] < b[i]);
}

static void bpe_train_free_pair(void *pair) {
    free(((struct bpe_train_pair *)pair)->words);
    free(pair);
}

// Counts one word of the text. The tokens of a new word are those of its bytes.
static status bpe_train_count_word(void *context, const char *text, size_t size) {
    struct bpe_trainer *t = context;
    const struct bpe_train_word wanted = {.text = text, .size = size, .length = (uint32_t)size, .count = 1};
    struct bpe_train_word *const *known = tfind(&wanted, &t->words, bpe_train_compare_words), *word;
    if (known) {
        (*known)->count++;
        return OK;
    }
    if (size > INT32_MAX) return fail(DATAERR, "a word of %zu bytes is too long", size);
    NEW(&word, 1);
    *word = wanted;
    word->text = arena_strndup(&t->memory, text, size);
    word->ids = arena_alloc(&t->memory, size * sizeof *word->ids);
    for (size_t i = 0; i < size; i++) {
        char token[2];
        word->ids[i] = vocab_token_to_id(t->vocab, token, byte_to_unicode((unsigned char)text[i], token));
        assert(word->ids[i] >= 0 && word->ids[i] < BPE_BYTE_TOKENS);
    }
    word->next = t->first;
    t->first = word;
    mem_checked(tsearch(word, &t->words, bpe_train_compare_words));
    return OK;
}

// The heap's order: the higher count first, then the lower ids.
static bool bpe_train_is_before(const struct bpe_train_candidate *a, const struct bpe_train_candidate *b) {
    return a->count != b->count ? a->count > b->count : bpe_train_compare_pairs(a->pair, b->pair) < 0;
}

static void bpe_train_heap_push(struct bpe_trainer *t, struct bpe_train_candidate candidate) {
    GROW(&t->heap, t->heap_count);
    struct bpe_train_candidate *heap = t->heap;
    size_t at = t->heap_count++;
    for (; at && bpe_train_is_before(&candidate, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = candidate;
}

// Adds the counts of a word's pairs (sign 1) or subtracts them (sign -1). Pushes a pair whose count rises.
static void bpe_train_count_pairs(struct bpe_trainer *t, struct bpe_train_word *word, int sign) {
    assert(sign == 1 || sign == -1);
    for (uint32_t i = 0; i + 1 < word->length; i++) {
        const struct bpe_train_pair wanted = {.ids = {word->ids[i], word->ids[i + 1]}};
        struct bpe_train_pair *const *known = tfind(&wanted, &t->pairs, bpe_train_compare_pairs);
        struct bpe_train_pair *pair = known ? *known : NULL;
        if (!pair) {
            NEW(&pair, 1);
            *pair = wanted;
            mem_checked(tsearch(pair, &t->pairs, bpe_train_compare_pairs));
        }
        pair->count += sign * word->count;
        if (sign < 0) continue;
        bpe_train_heap_push(t, (struct bpe_train_candidate){pair->count, pair});
        if (pair->word_count && pair->words[pair->word_count - 1] == word) continue;
        GROW(&pair->words, pair->word_count);
        pair->words[pair->word_count++] = word;
    }
}

// Merges pairs until there are `vocab_size` tokens or no pair occurs twice.
static status bpe_train_merge_pairs(struct bpe_trainer *t, struct buf *merges, size_t vocab_size) {
    struct vocab *v = t->vocab;
    while (v->size < vocab_size && t->heap_count) {
        struct bpe_train_candidate *heap = t->heap, top = heap[0], last = heap[--t->heap_count];
        size_t at = 0;
        for (size_t child; (child = at * 2 + 1) < t->heap_count; at = child) {
            if (child + 1 < t->heap_count && bpe_train_is_before(&heap[child + 1], &heap[child])) child++;
            if (!bpe_train_is_before(&heap[child], &last)) break;
            heap[at] = heap[child];
        }
        heap[at] = last;
        struct bpe_train_pair *pair = top.pair;
        const int32_t left_id = pair->ids[0], right_id = pair->ids[1];
        const int64_t count = pair->count;
        if (count != top.count) { // it has changed since; if it rose, it was pushed again under the new count
            top.count = count < top.count ? count : 0;
            if (top.count > 1) bpe_train_heap_push(t, top);
            continue;
        }
        if (count < 2) break;
        const char *left = v->entries[left_id].token, *right = v->entries[right_id].token;
        buf_printf(merges, "%s %s\n", left, right);
        char *token = arena_printf(&t->memory, "%s%s", left, right);
        int32_t new_id = vocab_token_to_id(v, token, strlen(token)); // another pair may have made the same token
        if (new_id < 0) {
            new_id = (int32_t)v->size;
            TRY(vocab_add(v, token, strlen(token), new_id));
        }
        struct bpe_train_word **words = pair->words;
        const size_t word_count = pair->word_count;
        pair->words = NULL; // counting may list words anew
        pair->word_count = 0;
        for (size_t i = 0; i < word_count; i++) { // replaces the pair by its token
            struct bpe_train_word *word = words[i];
            uint32_t first = 0, length = 0;
            while (first + 1 < word->length && (word->ids[first] != left_id || word->ids[first + 1] != right_id))
                first++;
            if (first + 1 >= word->length) continue; // listed twice, or the word has changed
            bpe_train_count_pairs(t, word, -1);
            for (uint32_t k = 0; k < word->length; k++) {
                bool here = k + 1 < word->length && word->ids[k] == left_id && word->ids[k + 1] == right_id;
                word->ids[length++] = here ? new_id : word->ids[k];
                k += here;
            }
            word->length = length;
            bpe_train_count_pairs(t, word, 1);
        }
        free(words);
    }
    return OK;
}

status bpe_train(struct vocab *v, struct buf *merges, const char *pattern, const char *text, size_t size,
                 size_t vocab_size) {
    static const struct {
        int first, last;
    } ranges[] = {{0x21, 0x7E}, {0xA1, 0xAC}, {0xAE, 0xFF}, {0, 0x20}, {0x7F, 0xA0}, {0xAD, 0xAD}};
    struct bpe_trainer t = {.vocab = v};
    struct pre_tokenizer words = {0};
    struct buf normalized = {0};
    status result;
    if (!utf8_valid(text, size)) return fail(DATAERR, "the text is not UTF-8");
    assert(!v->size);
    // The bytes' tokens get their ids in the order of their characters.
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int byte = ranges[i].first; byte <= ranges[i].last; byte++) {
            char token[2];
            size_t length = byte_to_unicode((unsigned char)byte, token);
            TRY_TO(result, done, vocab_add(v, token, length, (int64_t)v->size));
        }
    assert(v->size == BPE_BYTE_TOKENS);
    TRY_TO(result, done, pre_tokenizer_add(&words, pattern, strlen(pattern), SPLIT_ISOLATED, false));
    TRY_TO(result, done, normalize_text(NORMALIZE_NFC, text, size, &normalized, &text, &size));
    TRY_TO(result, done, pre_tokenizer_run(&words, text, size, bpe_train_count_word, &t));
    for (struct bpe_train_word *word = t.first; word; word = word->next) bpe_train_count_pairs(&t, word, 1);
    if (t.pairs) TRY_TO(result, done, bpe_train_merge_pairs(&t, merges, vocab_size));
done:
    tdestroy(t.pairs, bpe_train_free_pair);
    tdestroy(t.words, free);
    free(t.heap);
    arena_release(&t.memory);
    buf_release(&normalized);
    pre_tokenizer_release(&words);
    return result;
}

// ---- tokenizer_train ----

// The added tokens in the order of their ids. The first ones are special.
static const char *const qwen_tokens[] = {
    "<|endoftext|>",  "<|im_start|>",   "<|im_end|>",    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>",    "<|quad_start|>", "<|quad_end|>",  "<|vision_start|>",     "<|vision_end|>",     "<|vision_pad|>",
    "<|image_pad|>",  "<|video_pad|>",  "<tool_call>",   "</tool_call>",         "<|fim_prefix|>",     "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>",    "<|repo_name|>", "<|file_sep|>"};
static const char *const modernbert_tokens[] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
static_assert(sizeof qwen_tokens / sizeof *qwen_tokens == QWEN_ADDED_TOKENS, "one string a token");
static_assert(sizeof modernbert_tokens / sizeof *modernbert_tokens == MODERNBERT_ADDED_TOKENS, "one string a token");
enum { MODERNBERT_CLS = 1, MODERNBERT_SEP = 2 };

// What the kinds of tokenizers differ in.
static const struct tokenizer_train_kind {
    const char *const *tokens;
    size_t count, special_count;
    const char *lstrip; // the token that takes the white space before it
    const char *pattern;
} kinds[] = {
    [TOKENIZER_QWEN] = {qwen_tokens, QWEN_ADDED_TOKENS, 14, "", pre_tokenizer_qwen2},
    [TOKENIZER_MODERNBERT] = {modernbert_tokens, MODERNBERT_ADDED_TOKENS, MODERNBERT_ADDED_TOKENS, "[MASK]",
                              pre_tokenizer_gpt2},
};

static status tokenizer_train_write(const char *dir, const char *name, const struct buf *content) {
    struct arena memory = {0};
    char *path = path_join(&memory, dir, name);
    status result = file_write_atomic(path, content->data, content->size);
    arena_release(&memory);
    return result;
}

status tokenizer_save_chat_template(const char *dir) {
    struct buf out = {0};
    buf_puts(&out, "{\n  \"chat_template\": ");
    json_print_string(&out, chat_template_jinja, strlen(chat_template_jinja));
    buf_puts(&out, "\n}\n");
    const status result = tokenizer_train_write(dir, "chat_template.json", &out);
    buf_release(&out);
    return result;
}

// Appends the fields that tokenizer.json and tokenizer_config.json have in common, and the closing brace.
static void tokenizer_train_print_token(struct buf *out, const struct tokenizer_train_kind *kind, size_t index) {
    buf_printf(out,
               "\"content\": \"%s\", \"single_word\": false, \"lstrip\": %s, \"rstrip\": false, "
               "\"normalized\": false, \"special\": %s}",
               kind->tokens[index], strcmp(kind->tokens[index], kind->lstrip) ? "false" : "true",
               index < kind->special_count ? "true" : "false");
}

static void tokenizer_train_print_json(struct buf *out, enum tokenizer_kind kind, const struct vocab *v,
                                       const struct buf *merges) {
    static const char *const byte_levels[] = {
        [TOKENIZER_QWEN] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, "
                           "\"use_regex\": false}",
        [TOKENIZER_MODERNBERT] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                 "\"use_regex\": true}"};
    static const char cls[] = "{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}",
                      sep[] = "{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}",
                      a[] = "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}",
                      b[] = "{\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}";
    const char *const byte_level = byte_levels[kind];
    buf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [");
    for (size_t i = 0; i < kinds[kind].count; i++) {
        buf_printf(out, "%s\n    {\"id\": %zu, ", i ? "," : "", v->size + i);
        tokenizer_train_print_token(out, &kinds[kind], i);
    }
    buf_puts(out, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n");
    if (kind == TOKENIZER_QWEN) {
        buf_puts(out, "  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                      "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        json_print_string(out, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2));
        buf_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, %s]},\n", byte_level);
        buf_printf(out, "  \"post_processor\": %s,\n", byte_level);
    } else { // [CLS] text [SEP], and [CLS] text [SEP] pair [SEP]
        buf_printf(out, "  \"pre_tokenizer\": %s,\n  \"post_processor\": {\"type\": \"TemplateProcessing\",\n",
                   byte_level);
        buf_printf(out, "    \"single\": [%s, %s, %s],\n    \"pair\": [%s, %s, %s, %s, %s],\n", cls, a, sep, cls, a,
                   sep, b, sep);
        buf_printf(out,
                   "    \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [%zu], \"tokens\": "
                   "[\"[CLS]\"]}, \"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [%zu], \"tokens\": [\"[SEP]\"]}}},\n",
                   v->size + MODERNBERT_CLS, v->size + MODERNBERT_SEP);
    }
    buf_printf(out, "  \"decoder\": %s,\n", byte_level);
    buf_puts(out, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                  "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "
                  "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {");
    for (size_t id = 0; id < v->size; id++) {
        buf_puts(out, id ? ", " : "");
        json_print_string(out, v->entries[id].token, v->entries[id].token_size);
        buf_printf(out, ": %zu", id);
    }
    buf_puts(out, "},\n    \"merges\": [");
    for (size_t at = 0; at < merges->size;) {
        const char *left = merges->data + at, *space = strchr(left, ' '), *end = strchr(space, '\n');
        buf_puts(out, at ? ", [" : "[");
        json_print_string(out, left, (size_t)(space - left));
        buf_puts(out, ", ");
        json_print_string(out, space + 1, (size_t)(end - space - 1));
        buf_puts(out, "]");
        at = (size_t)(end + 1 - merges->data);
    }
    buf_puts(out, "]}\n}\n");
}

status tokenizer_train(const char *dir, enum tokenizer_kind kind, const char *text, size_t size, size_t vocab_size) {
    struct vocab v = {0};
    struct buf merges = {0}, out = {0};
    status result;
    TRY_TO(result, done, bpe_train(&v, &merges, kinds[kind].pattern, text, size, vocab_size));
    tokenizer_train_print_json(&out, kind, &v, &merges);
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer.json", &out));
    buf_clear(&out);
    buf_puts(&out, "{\n  \"add_prefix_space\": false,\n  \"added_tokens_decoder\": {");
    for (size_t i = 0; i < kinds[kind].count; i++) {
        buf_printf(&out, "%s\n    \"%zu\": {", i ? "," : "", v.size + i);
        tokenizer_train_print_token(&out, &kinds[kind], i);
    }
    buf_puts(&out, "\n  },\n  \"clean_up_tokenization_spaces\": false,\n  \"split_special_tokens\": false,\n");
    if (kind == TOKENIZER_QWEN) {
        buf_puts(&out, "  \"add_bos_token\": false,\n  \"additional_special_tokens\": [");
        for (size_t i = 1; i < kinds[kind].special_count; i++)
            buf_printf(&out, "%s\"%s\"", i > 1 ? ", " : "", kinds[kind].tokens[i]);
        buf_puts(&out, "],\n  \"bos_token\": null,\n  \"chat_template\": ");
        json_print_string(&out, chat_template_jinja, strlen(chat_template_jinja));
        buf_puts(&out, ",\n  \"eos_token\": \"<|im_end|>\",\n  \"errors\": \"replace\",\n"
                       "  \"model_max_length\": 131072,\n  \"pad_token\": \"<|endoftext|>\",\n"
                       "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n");
    } else {
        buf_puts(&out, "  \"cls_token\": \"[CLS]\",\n  \"mask_token\": \"[MASK]\",\n"
                       "  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n"
                       "  \"model_max_length\": 8192,\n  \"pad_token\": \"[PAD]\",\n"
                       "  \"sep_token\": \"[SEP]\",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                       "  \"unk_token\": \"[UNK]\"\n}\n");
    }
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer_config.json", &out));
    if (kind == TOKENIZER_QWEN) result = tokenizer_save_chat_template(dir);
done:
    buf_release(&out);
    buf_release(&merges);
    vocab_release(&v);
    return result;
}
