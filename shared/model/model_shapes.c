#include "shared/model/model_shapes.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"

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

static const struct named_shape *named_shape_row(const char *name) {
    for (size_t i = 0; i < NAMED_SHAPES; i++)
        if (!strcmp(name, named_shapes[i].name)) return &named_shapes[i];
    return NULL;
}

// Returns the names of all shapes, for messages.
static const char *named_shape_list(struct arena *arena) {
    const char *names = named_shapes[0].name;
    for (size_t i = 1; i < NAMED_SHAPES; i++) names = arena_printf(arena, "%s, %s", names, named_shapes[i].name);
    return names;
}

bool named_shape_exists(const char *name) {
    return named_shape_row(name) != NULL;
}

status named_shape_find(struct json **out, struct arena *arena, const char *shape, bool *fixed) {
    struct json *changes;
    if (!shape) return fail(USAGE, "missing: shape: one of %s, or the path of a config.json", named_shape_list(arena));
    const struct named_shape *named = named_shape_row(shape);
    *fixed = !named || named->fixed;
    if (!named && !path_exists(shape))
        return fail(USAGE, "--shape: '%s' is neither a file nor one of %s", shape, named_shape_list(arena));
    if (!named) return json_parse_file(out, arena, shape);
    TRY(json_parse(out, arena, named->published, strlen(named->published)));
    TRY(json_parse(&changes, arena, named->changes, strlen(named->changes)));
    json_merge(*out, arena, changes);
    return OK;
}

status named_shape_read(struct json **out, struct arena *arena, const char *model, const char **name) {
    struct stat info;
    bool fixed;
    *name = model;
    if (named_shape_exists(model)) return named_shape_find(out, arena, model, &fixed);
    if (stat(model, &info))
        return fail(DATAERR, "%s: %s; for the sizes alone a shape will do: %s", model, strerror(errno),
                    named_shape_list(arena));
    if (!S_ISREG(info.st_mode)) TRY(model_check_dir(model));
    if (!S_ISREG(info.st_mode)) *name = path_join(arena, model, "config.json");
    return json_parse_file(out, arena, *name);
}

// ---- config ----

struct json *config_find(struct config_scope scope, const char *key) {
    struct json *value = scope.inner ? json_at(scope.inner, key) : NULL;
    return value || !scope.outer ? value : json_at(scope.outer, key);
}

status config_int64(struct config_scope scope, const char *key, int64_t low, int64_t high, int64_t missing,
                    int64_t *out) {
    assert(low <= high && missing <= high);
    struct json *value = config_find(scope, key);
    *out = missing;
    if (!value && missing >= low) return OK;
    if (!value) return fail(DATAERR, "%s%s is missing", scope.prefix, key);
    if (!json_int(value, out)) return fail(DATAERR, "%s%s is not an integer", scope.prefix, key);
    if (*out < low || *out > high)
        return fail(DATAERR, "%s%s is %lld, not in %lld..%lld", scope.prefix, key, (long long)*out, (long long)low,
                    (long long)high);
    return OK;
}

status config_int(struct config_scope scope, const char *key, int low, int high, int missing, int *out) {
    int64_t value = 0;
    TRY(config_int64(scope, key, low, high, missing, &value));
    *out = (int)value;
    return OK;
}

status config_float(struct config_scope scope, const char *key, double low, double high, double missing, float *out) {
    struct json *value = config_find(scope, key);
    *out = (float)missing;
    if (!value) return OK;
    double number;
    if (!json_double(value, &number)) return fail(DATAERR, "%s%s is not a number", scope.prefix, key);
    if (!(number >= low && number <= high))
        return fail(DATAERR, "%s%s is %g, not in %g..%g", scope.prefix, key, number, low, high);
    *out = (float)number;
    return OK;
}

status config_bool(struct config_scope scope, const char *key, bool *out) {
    struct json *value = config_find(scope, key);
    *out = false;
    if (!value) return OK;
    if (!json_is(value, JSON_BOOL)) return fail(DATAERR, "%s%s is not true or false", scope.prefix, key);
    *out = value->boolean;
    return OK;
}

status config_require(struct config_scope scope, const char *key, const char *wanted) {
    struct json *value = config_find(scope, key);
    if (!value) return OK;
    if (!json_is(value, JSON_STRING) || strcmp(json_text(value), wanted) != 0)
        return fail(DATAERR, "%s%s is %.100s; only \"%s\" is supported", scope.prefix, key, json_text(value), wanted);
    return OK;
}

// ---- memory ----

void memory_list_add(struct memory_list *list, const char *name, size_t bytes) {
    assert(*list->count < MEMORY_ITEMS);
    if (bytes) list->items[(*list->count)++] = (struct memory_item){name, bytes};
}

enum element memory_list_type(const char *precision) {
    return precision && strcmp(precision, "float32") == 0 ? ELEMENT_F32 : ELEMENT_BF16;
}

size_t memory_list_cache_bytes(struct heads heads, enum element type, int64_t rows) {
    return (size_t)(2 * (int64_t)heads.key * heads.size * rows) * element_size(type);
}
