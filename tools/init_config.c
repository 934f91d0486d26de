// The JSON files of a new model directory, except those of the tokenizer.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/model/modernbert/classifier_config.h"
#include "tools/init.h"
#include "tools/tools.h"

// The config.json of Qwen2.5-VL-3B-Instruct, as published. Each other shape is this one with some changes.
static const char published_3b[] =
    "{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"attention_dropout\": 0.0, \"bos_token_id\": "
    "151643,"
    " \"eos_token_id\": 151645, \"vision_start_token_id\": 151652, \"vision_end_token_id\": 151653,"
    " \"vision_token_id\": 151654, \"image_token_id\": 151655, \"video_token_id\": 151656, \"hidden_act\": \"silu\","
    " \"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 11008,"
    " \"max_position_embeddings\": 128000, \"max_window_layers\": 70, \"model_type\": \"qwen2_5_vl\","
    " \"num_attention_heads\": 16, \"num_hidden_layers\": 36, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06,"
    " \"rope_theta\": 1000000.0, \"sliding_window\": 32768, \"tie_word_embeddings\": true,"
    " \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"use_sliding_window\": false, \"vision_config\": {"
    "\"depth\": 32, \"hidden_act\": \"silu\", \"hidden_size\": 1280, \"intermediate_size\": 3420, \"num_heads\": 16,"
    " \"in_chans\": 3, \"out_hidden_size\": 2048, \"patch_size\": 14, \"spatial_merge_size\": 2,"
    " \"spatial_patch_size\": 14, \"window_size\": 112, \"fullatt_block_indexes\": [7, 15, 23, 31],"
    " \"tokens_per_second\": 2, \"temporal_patch_size\": 2},"
    " \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}, \"vocab_size\": 151936}";
static const char change_7b[] =
    "{\"hidden_size\": 3584, \"intermediate_size\": 18944, \"max_window_layers\": 28, \"num_attention_heads\": 28,"
    " \"num_hidden_layers\": 28, \"num_key_value_heads\": 4, \"tie_word_embeddings\": false,"
    " \"vision_config\": {\"out_hidden_size\": 3584}, \"vocab_size\": 152064}";
static const char change_tiny[] =
    "{\"hidden_size\": 128, \"intermediate_size\": 384, \"max_window_layers\": 4, \"num_attention_heads\": 4,"
    " \"num_hidden_layers\": 4, \"num_key_value_heads\": 2, \"rope_scaling\": {\"mrope_section\": [4, 6, 6]},"
    " \"vision_config\": {\"depth\": 4, \"hidden_size\": 64, \"intermediate_size\": 160, \"num_heads\": 2,"
    " \"out_hidden_size\": 128, \"fullatt_block_indexes\": [1, 3]}}";

// The config.json of Qwen2-VL-2B-Instruct, as published.
static const char published_qwen2_2b[] =
    "{\"architectures\": [\"Qwen2VLForConditionalGeneration\"], \"attention_dropout\": 0.0, \"bos_token_id\": 151643,"
    " \"eos_token_id\": 151645, \"vision_start_token_id\": 151652, \"vision_end_token_id\": 151653,"
    " \"vision_token_id\": 151654, \"image_token_id\": 151655, \"video_token_id\": 151656, \"hidden_act\": \"silu\","
    " \"hidden_size\": 1536, \"initializer_range\": 0.02, \"intermediate_size\": 8960,"
    " \"max_position_embeddings\": 32768, \"max_window_layers\": 28, \"model_type\": \"qwen2_vl\","
    " \"num_attention_heads\": 12, \"num_hidden_layers\": 28, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06,"
    " \"rope_theta\": 1000000.0, \"sliding_window\": 32768, \"tie_word_embeddings\": true,"
    " \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"use_sliding_window\": false, \"vision_config\": {"
    "\"depth\": 32, \"embed_dim\": 1280, \"mlp_ratio\": 4, \"num_heads\": 16, \"in_chans\": 3, \"hidden_size\": 1536,"
    " \"patch_size\": 14, \"spatial_merge_size\": 2, \"spatial_patch_size\": 14, \"temporal_patch_size\": 2},"
    " \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}, \"vocab_size\": 151936}";
static const char change_qwen2_7b[] =
    "{\"hidden_size\": 3584, \"intermediate_size\": 18944, \"num_attention_heads\": 28, \"num_key_value_heads\": 4,"
    " \"tie_word_embeddings\": false, \"vision_config\": {\"hidden_size\": 3584}, \"vocab_size\": 152064}";

// The config.json of ModernBERT-large, as published, of a classifier of consistency.
static const char published_bert_large[] =
    "{\"architectures\": [\"ModernBertForSequenceClassification\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 50281, \"classifier_activation\": \"gelu\","
    " \"classifier_bias\": false, \"classifier_dropout\": 0.0, \"classifier_pooling\": \"mean\","
    " \"cls_token_id\": 50281, \"decoder_bias\": true, \"deterministic_flash_attn\": false,"
    " \"embedding_dropout\": 0.0, \"eos_token_id\": 50282, \"global_attn_every_n_layers\": 3,"
    " \"global_rope_theta\": 160000.0, \"hidden_activation\": \"gelu\", \"hidden_size\": 1024,"
    " \"initializer_cutoff_factor\": 2.0, \"initializer_range\": 0.02, \"intermediate_size\": 2624,"
    " \"layer_norm_eps\": 1e-05, \"local_attention\": 128, \"local_rope_theta\": 10000.0,"
    " \"max_position_embeddings\": 8192, \"mlp_bias\": false, \"mlp_dropout\": 0.0, \"model_type\": \"modernbert\","
    " \"norm_bias\": false, \"norm_eps\": 1e-05, \"num_attention_heads\": 16, \"num_hidden_layers\": 28,"
    " \"pad_token_id\": 50283, \"position_embedding_type\": \"absolute\", \"sep_token_id\": 50282,"
    " \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\", \"vocab_size\": 50368}";
static const char change_bert_base[] =
    "{\"hidden_size\": 768, \"intermediate_size\": 1152, \"num_attention_heads\": 12,"
    " \"num_hidden_layers\": 22}";
static const char change_bert_tiny[] = "{\"hidden_size\": 128, \"intermediate_size\": 192, \"num_attention_heads\": 4,"
                                       " \"num_hidden_layers\": 4, \"local_attention\": 32}";

static const struct named_shape {
    const char *name, *published, *changes;
    bool fixed; // its vocabulary has a given size
} named_shapes[] = {
    {"tiny", published_3b, change_tiny, false},
    {"3b", published_3b, "{}", true},
    {"7b", published_3b, change_7b, true},
    {"qwen2-vl-2b", published_qwen2_2b, "{}", true},
    {"qwen2-vl-7b", published_qwen2_2b, change_qwen2_7b, true},
    {"modernbert-tiny", published_bert_large, change_bert_tiny, false},
    {"modernbert-base", published_bert_large, change_bert_base, true},
    {"modernbert-large", published_bert_large, "{}", true},
};
enum { NAMED_SHAPES = sizeof named_shapes / sizeof *named_shapes };

// Replaces the keys of `object` by those of `changes`; nested objects are merged key by key.
static void init_merge(json_object *object, json_object *changes) {
    json_object_object_foreach(changes, key, value) {
        json_object *inner;
        if (json_object_is_type(value, json_type_object) && json_object_object_get_ex(object, key, &inner)) {
            init_merge(inner, value);
        } else {
            json_object_object_add(object, key, json_object_get(value));
        }
    }
}

// USAGE, with the names of all shapes; NULL: none was given.
static status init_unknown_shape(const char *shape) {
    char names[256] = "";
    for (size_t i = 0, length = 0; i < NAMED_SHAPES && length < sizeof names; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i ? ", " : "", named_shapes[i].name);
    if (!shape) return fail(USAGE, "missing: shape: one of %s, or the path of a config.json", names);
    return fail(USAGE, "--shape: '%s' is neither a file nor one of %s", shape, names);
}

status init_shape(json_object **out, const char *shape, bool *fixed) {
    const struct named_shape *named = named_shapes, *end = named_shapes + NAMED_SHAPES;
    json_object *changed;
    if (!shape) return init_unknown_shape(NULL);
    while (named < end && strcmp(shape, named->name) != 0) named++;
    *fixed = named == end || named->fixed;
    if (named == end) return path_exists(shape) ? json_parse_file(out, shape) : init_unknown_shape(shape);
    TRY(json_parse(out, named->published, strlen(named->published)));
    status result = json_parse(&changed, named->changes, strlen(named->changes));
    if (result == OK) init_merge(*out, changed);
    json_object_put(changed);
    return result;
}

bool init_is_classifier(json_object *config) {
    json_object *type;
    return json_object_object_get_ex(config, "model_type", &type) && string_equals(json_string(type), "modernbert");
}

// Returns the object that has a key of the language model: the config's text_config if that has it, else the config.
static json_object *init_text_config(json_object *config, const char *key) {
    json_object *text;
    bool nested =
        json_object_object_get_ex(config, "text_config", &text) && json_object_is_type(text, json_type_object);
    return nested && json_object_object_get_ex(text, key, NULL) ? text : config;
}

int64_t init_vocabulary(json_object *config) {
    json_object *value;
    int64_t size;
    bool found = json_object_object_get_ex(init_text_config(config, "vocab_size"), "vocab_size", &value);
    if (!found && init_is_classifier(config)) return DEFAULT_CLASSIFIER_VOCAB_SIZE;
    return found && json_int(value, &size) ? size : 0;
}

struct named_token {
    const char *key, *token;
};

// Sets the ids of the language model's tokens, also where text_config has them.
static void init_fit_text_ids(json_object *config, const struct tokenizer *t) {
    static const struct named_token ids[] = {
        {"bos_token_id", "<|endoftext|>"},        {"eos_token_id", "<|im_end|>"},
        {"image_token_id", "<|image_pad|>"},      {"video_token_id", "<|video_pad|>"},
        {"vision_token_id", "<|vision_pad|>"},    {"vision_start_token_id", "<|vision_start|>"},
        {"vision_end_token_id", "<|vision_end|>"}};
    json_object *text;
    bool nested = json_object_object_get_ex(config, "text_config", &text);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *name = ids[i].key;
        int64_t id = tokenizer_token_to_id(t, ids[i].token);
        if (id < 0) {
            json_object_object_del(config, name);
        } else {
            json_object_object_add(config, name, json_object_new_int64(id));
        }
        if (nested && json_object_object_get_ex(text, name, NULL))
            json_object_object_add(text, name, id < 0 ? NULL : json_object_new_int64(id));
    }
}

// Sets the ids of a classifier's tokens, and what makes it one of consistency where the config does not say.
static status init_fit_classifier(json_object *config, const struct tokenizer *t) {
    static const struct named_token ids[] = {{"bos_token_id", "[CLS]"},
                                             {"cls_token_id", "[CLS]"},
                                             {"eos_token_id", "[SEP]"},
                                             {"sep_token_id", "[SEP]"},
                                             {"pad_token_id", "[PAD]"}};
    static const char defaults[] = "{\"classifier_pooling\": \"mean\"}";
    static const char labels[] = "{\"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"},"
                                 " \"label2id\": {\"inconsistent\": 0, \"consistent\": 1}}";
    static const char always[] = "{\"architectures\": [\"ModernBertForSequenceClassification\"]}";
    const bool labelled =
        json_object_object_get_ex(config, "id2label", NULL) || json_object_object_get_ex(config, "num_labels", NULL);
    const bool pooled = json_object_object_get_ex(config, "classifier_pooling", NULL);
    const char *changes[] = {always, labelled ? NULL : labels, pooled ? NULL : defaults};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const int64_t id = tokenizer_token_to_id(t, ids[i].token);
        if (id < 0) return fail(DATAERR, "the tokenizer has no token %s", ids[i].token);
        json_object_object_add(config, ids[i].key, json_object_new_int64(id));
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_object *changed = NULL;
        if (changes[i]) TRY(json_parse(&changed, changes[i], strlen(changes[i])));
        if (changed) init_merge(config, changed);
        json_object_put(changed);
    }
    return OK;
}

status init_fit(json_object *config, const struct tokenizer *t, bool fixed, const char *dtype) {
    if (init_is_classifier(config))
        TRY(init_fit_classifier(config, t));
    else
        init_fit_text_ids(config, t);
    int64_t size = tokenizer_vocab_size(t), given = init_vocabulary(config);
    if (fixed && given < size)
        return fail(DATAERR, "--shape: vocab_size %lld is less than the tokenizer's %lld", (long long)given,
                    (long long)size);
    if (!fixed) json_object_object_add(config, "vocab_size", json_object_new_int64((size + 63) / 64 * 64));
    const char *key = json_object_object_get_ex(config, "dtype", NULL) ? "dtype" : "torch_dtype";
    json_object_object_add(config, key, json_object_new_string(dtype));
    json_object *text = init_text_config(config, key);
    if (text != config) json_object_object_add(text, key, json_object_new_string(dtype));
    return OK;
}

status init_print(json_object *object, struct buf *out) {
    const char *before = "{\n  ";
    json_object_object_foreach(object, key, value) {
        TRY(buf_puts(out, before));
        TRY(json_print_string(out, key, strlen(key)));
        TRY(buf_puts(out, ": "));
        TRY(json_print(out, value));
        before = ",\n  ";
    }
    return buf_puts(out, "\n}\n");
}

status init_write_settings(const char *dir, const struct tokenizer *t, const struct model_config *config) {
    struct buf out = {0};
    long long end = tokenizer_token_to_id(t, "<|im_end|>"), pad = tokenizer_token_to_id(t, "<|endoftext|>");
    const struct vision_config *vision = &config->vision;
    status result = OK;
    if (pad >= 0) {
        result = buf_printf(&out,
                            "{\n  \"bos_token_id\": %lld,\n  \"pad_token_id\": %lld,\n  \"do_sample\": true,\n"
                            "  \"eos_token_id\": [%lld, %lld]\n}\n",
                            pad, pad, end, pad);
    } else {
        result = buf_printf(&out, "{\n  \"do_sample\": true,\n  \"eos_token_id\": [%lld]\n}\n", end);
    }
    if (result == OK) result = subcommand_write_file(dir, "generation_config.json", &out);
    buf_clear(&out);
    if (result == OK)
        result = buf_printf(&out,
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
