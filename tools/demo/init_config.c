// The JSON files of a new model directory, except those of the tokenizer.
#include <string.h>

#include "shared/base/json.h"
#include "shared/model/modernbert/classifier_config.h"
#include "tools/demo/init.h"
#include "tools/tools.h"

bool init_is_classifier(struct json *config) {
    struct json *type;
    return json_find(config, "model_type", &type) && string_equals(json_string(type), "modernbert");
}

// Returns the object that has a key of the language model: the config's text_config if that has it, else the config.
static struct json *init_text_config(struct json *config, const char *key) {
    struct json *text;
    bool nested = json_find(config, "text_config", &text) && json_is(text, JSON_OBJECT);
    return nested && json_find(text, key, NULL) ? text : config;
}

int64_t init_vocabulary(struct json *config) {
    struct json *value;
    int64_t size;
    bool found = json_find(init_text_config(config, "vocab_size"), "vocab_size", &value);
    if (!found && init_is_classifier(config)) return DEFAULT_CLASSIFIER_VOCAB_SIZE;
    return found && json_int(value, &size) ? size : 0;
}

struct named_token {
    const char *key, *token;
};

// Sets the ids of the language model's tokens, also where text_config has them.
static void init_fit_text_ids(struct json *config, struct arena *arena, const struct tokenizer *t) {
    static const struct named_token ids[] = {
        {"bos_token_id", "<|endoftext|>"},        {"eos_token_id", "<|im_end|>"},
        {"image_token_id", "<|image_pad|>"},      {"video_token_id", "<|video_pad|>"},
        {"vision_token_id", "<|vision_pad|>"},    {"vision_start_token_id", "<|vision_start|>"},
        {"vision_end_token_id", "<|vision_end|>"}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *name = ids[i].key;
        int64_t id = tokenizer_token_to_id(t, ids[i].token);
        if (id < 0)
            json_remove(config, name);
        else
            json_set_int(config, arena, name, id);
        struct json *text = json_at(config, "text_config");
        if (!json_find(text, name, NULL)) continue;
        if (id < 0)
            json_set(text, arena, name); // null
        else
            json_set_int(text, arena, name, id);
    }
}

// Sets the ids of a classifier's tokens, and what makes it one of consistency where the config does not say.
static status init_fit_classifier(struct json *config, struct arena *arena, const struct tokenizer *t) {
    static const struct named_token ids[] = {{"bos_token_id", "[CLS]"},
                                             {"cls_token_id", "[CLS]"},
                                             {"eos_token_id", "[SEP]"},
                                             {"sep_token_id", "[SEP]"},
                                             {"pad_token_id", "[PAD]"}};
    static const char defaults[] = "{\"classifier_pooling\": \"mean\"}";
    static const char labels[] = "{\"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"},"
                                 " \"label2id\": {\"inconsistent\": 0, \"consistent\": 1}}";
    static const char always[] = "{\"architectures\": [\"ModernBertForSequenceClassification\"]}";
    const bool labelled = json_find(config, "id2label", NULL) || json_find(config, "num_labels", NULL);
    const bool pooled = json_find(config, "classifier_pooling", NULL);
    const char *changes[] = {always, labelled ? NULL : labels, pooled ? NULL : defaults};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const int64_t id = tokenizer_token_to_id(t, ids[i].token);
        if (id < 0) return fail(DATAERR, "the tokenizer has no token %s", ids[i].token);
        json_set_int(config, arena, ids[i].key, id);
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct json *changed;
        if (!changes[i]) continue;
        TRY(json_parse(&changed, arena, changes[i], strlen(changes[i])));
        json_merge(config, arena, changed);
    }
    return OK;
}

status init_fit(struct json *config, struct arena *arena, const struct tokenizer *t, bool fixed, const char *dtype) {
    if (init_is_classifier(config))
        TRY(init_fit_classifier(config, arena, t));
    else
        init_fit_text_ids(config, arena, t);
    int64_t size = tokenizer_vocab_size(t), given = init_vocabulary(config);
    if (fixed && given < size)
        return fail(DATAERR, "--shape: vocab_size %lld is less than the tokenizer's %lld", (long long)given,
                    (long long)size);
    if (!fixed) json_set_int(config, arena, "vocab_size", (size + 63) / 64 * 64);
    const char *key = json_find(config, "dtype", NULL) ? "dtype" : "torch_dtype";
    json_set_string(config, arena, key, dtype);
    struct json *text = init_text_config(config, key);
    if (text != config) json_set_string(text, arena, key, dtype);
    return OK;
}

void init_print(struct json *object, struct buf *out) {
    const char *before = "{\n  ";
    JSON_EACH(value, object) {
        buf_puts(out, before);
        json_print_string(out, value->key.data, value->key.size);
        buf_puts(out, ": ");
        json_print(out, value);
        before = ",\n  ";
    }
    buf_puts(out, "\n}\n");
}

status init_write_settings(const char *dir, const struct tokenizer *t, const struct model_config *config) {
    struct buf out = {0};
    long long end = tokenizer_token_to_id(t, "<|im_end|>"), pad = tokenizer_token_to_id(t, "<|endoftext|>");
    const struct vision_config *vision = &config->vision;
    status result = OK;
    if (pad >= 0) {
        buf_printf(&out,
                   "{\n  \"bos_token_id\": %lld,\n  \"pad_token_id\": %lld,\n  \"do_sample\": true,\n"
                   "  \"eos_token_id\": [%lld, %lld]\n}\n",
                   pad, pad, end, pad);
    } else {
        buf_printf(&out, "{\n  \"do_sample\": true,\n  \"eos_token_id\": [%lld]\n}\n", end);
    }
    if (result == OK) result = subcommand_write_file(dir, "generation_config.json", &out);
    buf_clear(&out);
    if (result == OK)
        buf_printf(&out,
                   "{\n  \"min_pixels\": 3136,\n  \"max_pixels\": 12845056,\n  \"patch_size\": %d,\n"
                   "  \"temporal_patch_size\": %d,\n  \"merge_size\": %d,\n"
                   "  \"image_mean\": [0.48145466, 0.4578275, 0.40821073],\n"
                   "  \"image_std\": [0.26862954, 0.26130258, 0.27577711],\n"
                   "  \"image_processor_type\": \"Qwen2VLImageProcessor\",\n"
                   "  \"processor_class\": \"%s\"\n}\n",
                   vision->patch_size, vision->temporal_patch_size, vision->spatial_merge_size,
                   vision->kind == VISION_QWEN2 ? "Qwen2VLProcessor" : "Qwen2_5_VLProcessor");
    if (result == OK) result = subcommand_write_file(dir, "preprocessor_config.json", &out);
    buf_release(&out);
    return result;
}
