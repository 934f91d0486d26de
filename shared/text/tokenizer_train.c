#include "shared/text/tokenizer_train.h"

#include <assert.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/text/bpe_train.h"
#include "shared/text/chat_template.h"
#include "shared/text/pre_tokenizer.h"

// The added tokens of Qwen2.5-VL in the order of their ids. The first 14 are special.
static const char *const qwen_tokens[QWEN_ADDED_TOKENS] = {
    "<|endoftext|>",  "<|im_start|>",   "<|im_end|>",    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>",    "<|quad_start|>", "<|quad_end|>",  "<|vision_start|>",     "<|vision_end|>",     "<|vision_pad|>",
    "<|image_pad|>",  "<|video_pad|>",  "<tool_call>",   "</tool_call>",         "<|fim_prefix|>",     "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>",    "<|repo_name|>", "<|file_sep|>"};
enum { QWEN_SPECIAL_TOKENS = 14 };
static_assert(sizeof qwen_tokens / sizeof *qwen_tokens == QWEN_ADDED_TOKENS, "one string a token");

static status tokenizer_train_write(const char *dir, const char *name, const struct buf *content) {
    struct arena memory = {0};
    char *path = path_join(&memory, dir, name);
    status result = path ? file_write_atomic(path, content->data, content->size) : fail_oom();
    arena_release(&memory);
    return result;
}

status tokenizer_save_chat_template(const char *dir) {
    struct buf out = {0};
    status result = buf_puts(&out, "{\n  \"chat_template\": ");
    if (result == OK) result = json_print_string(&out, chat_template_jinja, strlen(chat_template_jinja));
    if (result == OK) result = buf_puts(&out, "\n}\n");
    if (result == OK) result = tokenizer_train_write(dir, "chat_template.json", &out);
    buf_release(&out);
    return result;
}

// Appends the fields that tokenizer.json and tokenizer_config.json have in common, and the closing brace.
static status tokenizer_train_print_token(struct buf *out, size_t index) {
    return buf_printf(out,
                      "\"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                      "\"normalized\": false, \"special\": %s}",
                      qwen_tokens[index], index < QWEN_SPECIAL_TOKENS ? "true" : "false");
}

static status tokenizer_train_print_json(struct buf *out, const struct vocab *v, const struct buf *merges) {
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}";
    TRY(buf_puts(out,
                 "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ["));
    for (size_t i = 0; i < QWEN_ADDED_TOKENS; i++) {
        TRY(buf_printf(out, "%s\n    {\"id\": %zu, ", i ? "," : "", v->size + i));
        TRY(tokenizer_train_print_token(out, i));
    }
    TRY(buf_puts(out, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                      "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "));
    TRY(json_print_string(out, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2)));
    TRY(buf_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, %s]},\n", byte_level));
    TRY(buf_printf(out, "  \"post_processor\": %s,\n  \"decoder\": %s,\n", byte_level, byte_level));
    TRY(buf_puts(out, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                      "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "
                      "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {"));
    for (size_t id = 0; id < v->size; id++) {
        TRY(buf_puts(out, id ? ", " : ""));
        TRY(json_print_string(out, v->entries[id].token, v->entries[id].token_size));
        TRY(buf_printf(out, ": %zu", id));
    }
    TRY(buf_puts(out, "},\n    \"merges\": ["));
    for (size_t at = 0; at < merges->size;) {
        const char *left = merges->data + at, *space = strchr(left, ' '), *end = strchr(space, '\n');
        TRY(buf_puts(out, at ? ", [" : "["));
        TRY(json_print_string(out, left, (size_t)(space - left)));
        TRY(buf_puts(out, ", "));
        TRY(json_print_string(out, space + 1, (size_t)(end - space - 1)));
        TRY(buf_puts(out, "]"));
        at = (size_t)(end + 1 - merges->data);
    }
    return buf_puts(out, "]}\n}\n");
}

status tokenizer_train(const char *dir, const char *text, size_t size, size_t vocab_size) {
    struct vocab v = {0};
    struct buf merges = {0}, out = {0};
    status result;
    TRY_TO(result, done, bpe_train(&v, &merges, text, size, vocab_size));
    TRY_TO(result, done, tokenizer_train_print_json(&out, &v, &merges));
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer.json", &out));
    buf_clear(&out);
    TRY_TO(result, done,
           buf_puts(&out, "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                          "  \"added_tokens_decoder\": {"));
    for (size_t i = 0; i < QWEN_ADDED_TOKENS; i++) {
        TRY_TO(result, done, buf_printf(&out, "%s\n    \"%zu\": {", i ? "," : "", v.size + i));
        TRY_TO(result, done, tokenizer_train_print_token(&out, i));
    }
    TRY_TO(result, done, buf_puts(&out, "\n  },\n  \"additional_special_tokens\": ["));
    for (size_t i = 1; i < QWEN_SPECIAL_TOKENS; i++)
        TRY_TO(result, done, buf_printf(&out, "%s\"%s\"", i > 1 ? ", " : "", qwen_tokens[i]));
    TRY_TO(result, done, buf_puts(&out, "],\n  \"bos_token\": null,\n  \"chat_template\": "));
    TRY_TO(result, done, json_print_string(&out, chat_template_jinja, strlen(chat_template_jinja)));
    TRY_TO(result, done,
           buf_puts(&out, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"<|im_end|>\",\n"
                          "  \"errors\": \"replace\",\n  \"model_max_length\": 131072,\n"
                          "  \"pad_token\": \"<|endoftext|>\",\n  \"split_special_tokens\": false,\n"
                          "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n"));
    TRY_TO(result, done, tokenizer_train_write(dir, "tokenizer_config.json", &out));
    TRY_TO(result, done, tokenizer_save_chat_template(dir));
done:
    buf_release(&out);
    buf_release(&merges);
    vocab_release(&v);
    return result;
}
