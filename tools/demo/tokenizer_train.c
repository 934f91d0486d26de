#include "tools/demo/tokenizer_train.h"

#include <assert.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "tools/demo/bpe_train.h"
#include "shared/text/chat_template.h"
#include "shared/text/pre_tokenizer.h"

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
    status result = OK;
    if (result == OK) buf_puts(&out, "\n}\n");
    if (result == OK) result = tokenizer_train_write(dir, "chat_template.json", &out);
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

// Appends pre_tokenizer, post_processor and decoder.
static void tokenizer_train_print_qwen(struct buf *out) {
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}";
    buf_puts(out, "  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                  "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    json_print_string(out, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2));
    buf_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, %s]},\n", byte_level);
    buf_printf(out, "  \"post_processor\": %s,\n  \"decoder\": %s,\n", byte_level, byte_level);
}

// The same: [CLS] text [SEP], and [CLS] text [SEP] pair [SEP]. `first` is the id of the first added token.
static void tokenizer_train_print_modernbert(struct buf *out, size_t first) {
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}";
    static const char cls[] = "{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}",
                      sep[] = "{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}",
                      a[] = "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}",
                      b[] = "{\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}";
    buf_printf(out, "  \"pre_tokenizer\": %s,\n  \"post_processor\": {\"type\": \"TemplateProcessing\",\n", byte_level);
    buf_printf(out, "    \"single\": [%s, %s, %s],\n    \"pair\": [%s, %s, %s, %s, %s],\n", cls, a, sep, cls, a, sep, b,
               sep);
    buf_printf(out,
               "    \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [%zu], \"tokens\": [\"[CLS]\"]}, "
               "\"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [%zu], \"tokens\": [\"[SEP]\"]}}},\n",
               first + MODERNBERT_CLS, first + MODERNBERT_SEP);
    buf_printf(out, "  \"decoder\": %s,\n", byte_level);
}

static void tokenizer_train_print_json(struct buf *out, enum tokenizer_kind kind, const struct vocab *v,
                                       const struct buf *merges) {
    buf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [");
    for (size_t i = 0; i < kinds[kind].count; i++) {
        buf_printf(out, "%s\n    {\"id\": %zu, ", i ? "," : "", v->size + i);
        tokenizer_train_print_token(out, &kinds[kind], i);
    }
    buf_puts(out, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n");
    if (kind == TOKENIZER_QWEN)
        tokenizer_train_print_qwen(out);
    else
        tokenizer_train_print_modernbert(out, v->size);
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

// Appends tokenizer_config.json. `first` is the id of the first added token.
static void tokenizer_train_print_config(struct buf *out, enum tokenizer_kind kind, size_t first) {
    buf_puts(out, "{\n  \"add_prefix_space\": false,\n  \"added_tokens_decoder\": {");
    for (size_t i = 0; i < kinds[kind].count; i++) {
        buf_printf(out, "%s\n    \"%zu\": {", i ? "," : "", first + i);
        tokenizer_train_print_token(out, &kinds[kind], i);
    }
    buf_puts(out, "\n  },\n  \"clean_up_tokenization_spaces\": false,\n  \"split_special_tokens\": false,\n");
    if (kind == TOKENIZER_MODERNBERT) {
        buf_puts(out, "  \"cls_token\": \"[CLS]\",\n  \"mask_token\": \"[MASK]\",\n"
                      "  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n"
                      "  \"model_max_length\": 8192,\n  \"pad_token\": \"[PAD]\",\n"
                      "  \"sep_token\": \"[SEP]\",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                      "  \"unk_token\": \"[UNK]\"\n}\n");
        return;
    }
    buf_puts(out, "  \"add_bos_token\": false,\n  \"additional_special_tokens\": [");
    for (size_t i = 1; i < kinds[kind].special_count; i++)
        buf_printf(out, "%s\"%s\"", i > 1 ? ", " : "", kinds[kind].tokens[i]);
    buf_puts(out, "],\n  \"bos_token\": null,\n  \"chat_template\": ");
    json_print_string(out, chat_template_jinja, strlen(chat_template_jinja));
    buf_puts(out, ",\n  \"eos_token\": \"<|im_end|>\",\n  \"errors\": \"replace\",\n"
                  "  \"model_max_length\": 131072,\n  \"pad_token\": \"<|endoftext|>\",\n"
                  "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n");
}

status tokenizer_train(const char *dir, enum tokenizer_kind kind, const char *text, size_t size, size_t vocab_size) {
    struct vocab v = {0};
    struct buf merges = {0}, out = {0};
    status result;
    TRY_TO(result, done, bpe_train(&v, &merges, kinds[kind].pattern, text, size, vocab_size));
    tokenizer_train_print_json(&out, kind, &v, &merges);
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer.json", &out));
    buf_clear(&out);
    tokenizer_train_print_config(&out, kind, v.size);
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer_config.json", &out));
    if (kind == TOKENIZER_QWEN) result = tokenizer_save_chat_template(dir);
done:
    buf_release(&out);
    buf_release(&merges);
    vocab_release(&v);
    return result;
}
