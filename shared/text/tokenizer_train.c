// The files of a learned tokenizer, as transformers reads them.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/bpe_train.h"

// Qwen2.5-VL's added tokens in their order; the first 14 are special.
static const char *const added[QWEN_ADDED_TOKENS] = {
    "<|endoftext|>",  "<|im_start|>",   "<|im_end|>",    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>",    "<|quad_start|>", "<|quad_end|>",  "<|vision_start|>",     "<|vision_end|>",     "<|vision_pad|>",
    "<|image_pad|>",  "<|video_pad|>",  "<tool_call>",   "</tool_call>",         "<|fim_prefix|>",     "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>",    "<|repo_name|>", "<|file_sep|>"};
enum { SPECIAL = 14 };

// The chat template published with Qwen2.5-VL; shared/text/template.c renders the same.
static const char chat_template[] =
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static status write_file(const char *folder, const char *name, const struct buf *content) {
    struct arena memory = {0};
    char *path = path_join(&memory, folder, name);
    status result = path ? file_write_atomic(path, content->data, content->size) : fail_oom();
    arena_release(&memory);
    return result;
}

status chat_template_save(const char *folder) {
    struct buf out = {0};
    status result = buf_puts(&out, "{\n  \"chat_template\": ");
    if (result == OK) result = json_print_string(&out, chat_template, sizeof chat_template - 1);
    if (result == OK) result = buf_puts(&out, "\n}\n");
    if (result == OK) result = write_file(folder, "chat_template.json", &out);
    buf_release(&out);
    return result;
}

static status print_flags(struct buf *out, size_t index) {
    return buf_printf(out,
                      "\"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                      "\"normalized\": false, \"special\": %s}",
                      added[index], index < SPECIAL ? "true" : "false");
}

static status print_model(struct buf *out, const struct vocab *v, const struct buf *merges) {
    TRY(buf_puts(out, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                      "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "
                      "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {"));
    for (size_t id = 0; id < v->size; id++) {
        TRY(buf_puts(out, id ? ", " : ""));
        TRY(json_print_string(out, v->entries[id].name, v->entries[id].name_size));
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

static status print_tokenizer(struct buf *out, const struct vocab *v, const struct buf *merges) {
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}";
    TRY(buf_puts(out,
                 "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ["));
    for (size_t i = 0; i < QWEN_ADDED_TOKENS; i++) {
        TRY(buf_printf(out, "%s\n    {\"id\": %zu, ", i ? "," : "", v->size + i));
        TRY(print_flags(out, i));
    }
    TRY(buf_puts(out, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                      "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "));
    TRY(json_print_string(out, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2)));
    TRY(buf_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, %s]},\n", byte_level));
    TRY(buf_printf(out, "  \"post_processor\": %s,\n  \"decoder\": %s,\n", byte_level, byte_level));
    return print_model(out, v, merges);
}

static status print_config(struct buf *out, size_t learned) {
    TRY(buf_puts(out, "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                      "  \"added_tokens_decoder\": {"));
    for (size_t i = 0; i < QWEN_ADDED_TOKENS; i++) {
        TRY(buf_printf(out, "%s\n    \"%zu\": {", i ? "," : "", learned + i));
        TRY(print_flags(out, i));
    }
    TRY(buf_puts(out, "\n  },\n  \"additional_special_tokens\": ["));
    for (size_t i = 1; i < SPECIAL; i++) TRY(buf_printf(out, "%s\"%s\"", i > 1 ? ", " : "", added[i]));
    TRY(buf_puts(out, "],\n  \"bos_token\": null,\n  \"chat_template\": "));
    TRY(json_print_string(out, chat_template, sizeof chat_template - 1));
    return buf_puts(out, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"<|im_end|>\",\n"
                         "  \"errors\": \"replace\",\n  \"model_max_length\": 131072,\n"
                         "  \"pad_token\": \"<|endoftext|>\",\n  \"split_special_tokens\": false,\n"
                         "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n");
}

status tokenizer_train(const char *folder, const char *text, size_t size, size_t limit) {
    struct vocab v = {0};
    struct buf merges = {0}, out = {0};
    status result;
    TRY_TO(result, done, bpe_train(&v, &merges, text, size, limit));
    TRY_TO(result, done, print_tokenizer(&out, &v, &merges));
    TRY_TO(result, done, write_file(folder, "tokenizer.json", &out));
    buf_clear(&out);
    TRY_TO(result, done, print_config(&out, v.size));
    TRY_TO(result, done, write_file(folder, "tokenizer_config.json", &out));
    TRY_TO(result, done, chat_template_save(folder));
done:
    buf_release(&out);
    buf_release(&merges);
    vocab_release(&v);
    return result;
}
