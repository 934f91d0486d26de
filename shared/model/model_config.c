// Every key is looked up where the present layout has it; a value of the wrong type or out of all reason is refused
// with the key's name. A missing key has transformers' default.
#include "shared/model/model_config.h"

#include <math.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/json.h"

// Where keys are looked up: the inner object first, then the outer one (which may be NULL).
struct scope {
    json_object *inner, *outer;
    const char *prefix; // of the inner object's keys in messages: "vision_config."
};

static json_object *look_up(struct scope scope, const char *key) {
    json_object *value = scope.inner ? json_object_object_get(scope.inner, key) : NULL;
    return value || !scope.outer ? value : json_object_object_get(scope.outer, key);
}

static status read_whole(struct scope scope, const char *key, int64_t low, int64_t high, int64_t missing,
                         int64_t *out) {
    json_object *value = look_up(scope, key);
    *out = missing;
    if (!value && missing >= low) return OK;
    if (!value) return fail(DATAERR, "%s%s is missing", scope.prefix, key);
    if (!json_object_is_type(value, json_type_int))
        return fail(DATAERR, "%s%s is not a whole number", scope.prefix, key);
    *out = json_object_get_int64(value);
    if (*out < low || *out > high)
        return fail(DATAERR, "%s%s is %lld, not in %lld..%lld", scope.prefix, key, (long long)*out, (long long)low,
                    (long long)high);
    return OK;
}

static status read_int(struct scope scope, const char *key, int low, int high, int missing, int *out) {
    int64_t value = 0;
    TRY(read_whole(scope, key, low, high, missing, &value));
    *out = (int)value;
    return OK;
}

static status read_float(struct scope scope, const char *key, double low, double high, double missing, float *out) {
    json_object *value = look_up(scope, key);
    *out = (float)missing;
    if (!value) return OK;
    if (!json_object_is_type(value, json_type_double) && !json_object_is_type(value, json_type_int))
        return fail(DATAERR, "%s%s is not a number", scope.prefix, key);
    double number = json_object_get_double(value);
    if (!(number >= low && number <= high))
        return fail(DATAERR, "%s%s is %g, not in %g..%g", scope.prefix, key, number, low, high);
    *out = (float)number;
    return OK;
}

static status read_bool(struct scope scope, const char *key, bool missing, bool *out) {
    json_object *value = look_up(scope, key);
    *out = missing;
    if (!value) return OK;
    if (!json_object_is_type(value, json_type_boolean))
        return fail(DATAERR, "%s%s is not true or false", scope.prefix, key);
    *out = json_object_get_boolean(value);
    return OK;
}

// The object under `key`, or NULL if it is missing or null.
static status read_object(json_object *from, const char *key, json_object **out) {
    *out = from ? json_object_object_get(from, key) : NULL;
    if (*out && !json_object_is_type(*out, json_type_object)) return fail(DATAERR, "%s is not an object", key);
    return OK;
}

// A text that must be one of those that the model computes.
static status require_text(struct scope scope, const char *key, const char *wanted) {
    json_object *value = look_up(scope, key);
    if (!value) return OK;
    if (!json_object_is_type(value, json_type_string) || strcmp(json_object_get_string(value), wanted) != 0)
        return fail(DATAERR, "%s%s is %.100s; only \"%s\" is known", scope.prefix, key, json_object_get_string(value),
                    wanted);
    return OK;
}

static status read_type(struct model_config *config, struct scope scope) {
    json_object *value = look_up(scope, "dtype");
    if (!value) value = look_up(scope, "torch_dtype");
    if (!value) return OK;
    const char *name = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    config->has_dtype = true;
    if (strcmp(name, "float32") == 0)
        config->dtype = ELEMENT_F32;
    else if (strcmp(name, "bfloat16") == 0)
        config->dtype = ELEMENT_BF16;
    else if (strcmp(name, "float16") == 0)
        config->dtype = ELEMENT_F16;
    else if (strcmp(name, "auto") == 0)
        config->has_dtype = false;
    else
        return fail(DATAERR, "dtype is none of float32, bfloat16, float16");
    return OK;
}

static status read_section(struct text_config *text, struct scope scope) {
    json_object *mrope_section = look_up(scope, "mrope_section");
    if (!json_object_is_type(mrope_section, json_type_array) || json_object_array_length(mrope_section) != 3)
        return fail(DATAERR, "%smrope_section is not three whole numbers", scope.prefix);
    int64_t sum = 0;
    for (size_t i = 0; i < 3; i++) {
        json_object *part = json_object_array_get_idx(mrope_section, i);
        int64_t value = json_object_is_type(part, json_type_int) ? json_object_get_int64(part) : -1;
        if (value < 0 || value > text->head_dim)
            return fail(DATAERR, "%smrope_section is not three whole numbers", scope.prefix);
        text->mrope_section[i] = (int)value;
        sum += value;
    }
    if (sum * 2 != text->head_dim)
        return fail(DATAERR, "%smrope_section sums to %lld, half a head's size is %d", scope.prefix, (long long)sum,
                    text->head_dim / 2);
    return OK;
}

// Rotary settings: rope_scaling beside rope_theta, or both in rope_parameters.
static status read_rope(struct text_config *text, struct scope scope) {
    json_object *rope = look_up(scope, "rope_parameters");
    struct scope inside = {rope, NULL, "rope_parameters."};
    if (!rope) {
        rope = look_up(scope, "rope_scaling");
        inside = (struct scope){rope, NULL, "rope_scaling."};
    }
    if (!json_object_is_type(rope, json_type_object)) return fail(DATAERR, "rope_scaling is missing");
    static const char *const kinds[] = {"type", "rope_type"};
    for (int i = 0; i < 2; i++) {
        json_object *kind = look_up(inside, kinds[i]);
        const char *name = json_object_is_type(kind, json_type_string) ? json_object_get_string(kind) : "default";
        if (strcmp(name, "default") != 0 && strcmp(name, "mrope") != 0)
            return fail(DATAERR, "%s%s is %.50s; only \"default\" and \"mrope\" are known", inside.prefix, kinds[i],
                        name);
    }
    TRY(read_float(scope, "rope_theta", 1, 1e30, 1000000.0, &text->rope_theta));
    TRY(read_float(inside, "rope_theta", 1, 1e30, text->rope_theta, &text->rope_theta));
    return read_section(text, inside);
}

// Left out, there are 8; said to be null, as many as query heads.
static int missing_key_heads(struct scope scope, int heads) {
    const char *key = "num_key_value_heads";
    bool null = (scope.inner && json_object_object_get_ex(scope.inner, key, NULL)) ||
                (scope.outer && json_object_object_get_ex(scope.outer, key, NULL));
    return null ? heads : 8;
}

static status read_text(struct text_config *text, struct scope scope) {
    enum { wide = 1 << 20 };
    TRY(read_whole(scope, "vocab_size", 1, 1 << 24, 152064, &text->vocab_size));
    TRY(read_whole(scope, "hidden_size", 1, wide, 8192, &text->hidden_size));
    TRY(read_whole(scope, "intermediate_size", 1, wide, 29568, &text->intermediate_size));
    TRY(read_int(scope, "num_hidden_layers", 1, 10000, 80, &text->num_hidden_layers));
    TRY(read_int(scope, "num_attention_heads", 1, 10000, 64, &text->num_attention_heads));
    TRY(read_int(scope, "num_key_value_heads", 1, 10000, missing_key_heads(scope, text->num_attention_heads),
                 &text->num_key_value_heads));
    if (text->hidden_size % text->num_attention_heads || text->hidden_size / text->num_attention_heads % 2)
        return fail(DATAERR, "num_attention_heads %d do not divide hidden_size %lld into even heads",
                    text->num_attention_heads, (long long)text->hidden_size);
    if (text->num_attention_heads % text->num_key_value_heads)
        return fail(DATAERR, "num_key_value_heads %d do not divide num_attention_heads %d", text->num_key_value_heads,
                    text->num_attention_heads);
    text->head_dim = (int)(text->hidden_size / text->num_attention_heads);
    int head_dim = 0;
    TRY(read_int(scope, "head_dim", 1, wide, text->head_dim, &head_dim));
    if (head_dim != text->head_dim)
        return fail(DATAERR, "head_dim is %d, hidden_size / num_attention_heads is %d", head_dim, text->head_dim);
    TRY(read_float(scope, "rms_norm_eps", 0, 1, 1e-5, &text->rms_norm_eps));
    TRY(require_text(scope, "hidden_act", "silu"));
    bool sliding = false;
    TRY(read_bool(scope, "use_sliding_window", false, &sliding));
    if (sliding) return fail(DATAERR, "use_sliding_window is true; only full attention is known");
    return read_rope(text, scope);
}

static status read_full(struct vision_config *vision, struct scope scope) {
    json_object *list = look_up(scope, "fullatt_block_indexes");
    static const int published[] = {7, 15, 23, 31};
    if (!list) {
        for (int i = 0; i < 4; i++) vision->fullatt_blocks[published[i]] = true;
        return OK;
    }
    if (!json_object_is_type(list, json_type_array))
        return fail(DATAERR, "%sfullatt_block_indexes is not a list", scope.prefix);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        json_object *entry = json_object_array_get_idx(list, i);
        int64_t block = json_object_is_type(entry, json_type_int) ? json_object_get_int64(entry) : -1;
        if (block < 0 || block >= MAX_VISION_BLOCKS)
            return fail(DATAERR, "%sfullatt_block_indexes[%zu] is not the number of a block", scope.prefix, i);
        vision->fullatt_blocks[block] = true;
    }
    return OK;
}

static status read_vision(struct vision_config *vision, struct scope scope) {
    enum { wide = 1 << 20 };
    TRY(read_int(scope, "depth", 1, MAX_VISION_BLOCKS, 32, &vision->depth));
    TRY(read_whole(scope, "hidden_size", 1, wide, 3584, &vision->hidden_size));
    TRY(read_whole(scope, "intermediate_size", 1, wide, 3420, &vision->intermediate_size));
    TRY(read_whole(scope, "out_hidden_size", 1, wide, 3584, &vision->out_hidden_size));
    TRY(read_int(scope, "num_heads", 1, 10000, 16, &vision->num_heads));
    TRY(read_int(scope, "patch_size", 1, 256, 14, &vision->patch_size));
    TRY(read_int(scope, "spatial_merge_size", 1, 16, 2, &vision->spatial_merge_size));
    TRY(read_int(scope, "temporal_patch_size", 1, 16, 2, &vision->temporal_patch_size));
    TRY(read_int(scope, "window_size", 1, 1 << 16, 112, &vision->window_size));
    TRY(read_float(scope, "tokens_per_second", 0, 1e6, 4, &vision->tokens_per_second));
    TRY(require_text(scope, "hidden_act", "silu"));
    int channels = 0;
    TRY(read_int(scope, "in_chans", 3, 3, 3, &channels));
    TRY(read_int(scope, "in_channels", 3, 3, 3, &channels));
    if (vision->hidden_size % vision->num_heads || vision->hidden_size / vision->num_heads % 4)
        return fail(DATAERR, "%snum_heads %d do not divide %shidden_size %lld into heads of a multiple of 4",
                    scope.prefix, vision->num_heads, scope.prefix, (long long)vision->hidden_size);
    vision->head_dim = (int)(vision->hidden_size / vision->num_heads);
    if (vision->window_size < vision->patch_size * vision->spatial_merge_size)
        return fail(DATAERR, "%swindow_size %d is below a unit's %d pixels", scope.prefix, vision->window_size,
                    vision->patch_size * vision->spatial_merge_size);
    return read_full(vision, scope);
}

// eos_token_id: one number, a list, or null.
static status read_ends(struct model_config *config, json_object *value) {
    size_t count = json_object_is_type(value, json_type_array) ? json_object_array_length(value) : value ? 1 : 0;
    if (count > MAX_EOS_IDS) return fail(DATAERR, "eos_token_id has %zu tokens, %d at most", count, MAX_EOS_IDS);
    config->eos_count = 0;
    for (size_t i = 0; i < count; i++) {
        json_object *token = json_object_is_type(value, json_type_array) ? json_object_array_get_idx(value, i) : value;
        int64_t number = json_object_is_type(token, json_type_int) ? json_object_get_int64(token) : -1;
        if (number < 0 || number >= config->text.vocab_size)
            return fail(DATAERR, "eos_token_id is not a token of the vocabulary");
        config->eos_ids[config->eos_count++] = number;
    }
    return OK;
}

static status read_token(struct scope scope, const char *key, const struct text_config *text, int64_t *out) {
    return read_whole(scope, key, 0, text->vocab_size - 1, -1, out);
}

static status read_all(struct model_config *config, json_object *root) {
    static const float mean[3] = {0.48145466f, 0.4578275f, 0.40821073f};
    static const float image_std[3] = {0.26862954f, 0.26130258f, 0.27577711f};
    *config = (struct model_config){.rescale_factor = (float)(1 / 255.0)};
    memcpy(config->image_mean, mean, sizeof mean);
    memcpy(config->image_std, image_std, sizeof image_std);
    json_object *text = NULL, *vision = NULL;
    TRY(read_object(root, "text_config", &text));
    TRY(read_object(root, "vision_config", &vision));
    struct scope whole = {text, root, ""}, outer_first = {root, text, ""};
    TRY(require_text(outer_first, "model_type", "qwen2_5_vl"));
    if (look_up(whole, "quantization_config"))
        return fail(DATAERR, "quantization_config: quantized weights are not known");
    TRY(read_text(&config->text, whole));
    TRY(read_vision(&config->vision, (struct scope){vision, NULL, "vision_config."}));
    if (config->vision.out_hidden_size != config->text.hidden_size)
        return fail(DATAERR, "vision_config.out_hidden_size is %lld, hidden_size is %lld",
                    (long long)config->vision.out_hidden_size, (long long)config->text.hidden_size);
    TRY(read_bool(whole, "tie_word_embeddings", false, &config->text.tie_word_embeddings));
    TRY(read_type(config, outer_first));
    TRY(read_token(outer_first, "image_token_id", &config->text, &config->image_token_id));
    TRY(read_token(outer_first, "video_token_id", &config->text, &config->video_token_id));
    TRY(read_token(outer_first, "vision_start_token_id", &config->text, &config->vision_start_token_id));
    TRY(read_token(outer_first, "vision_end_token_id", &config->text, &config->vision_end_token_id));
    return read_ends(config, look_up(outer_first, "eos_token_id"));
}

status model_config_parse(struct model_config *config, const char *text, size_t size, const char *name) {
    json_object *root = NULL;
    TRY(json_parse_object(&root, text, size, name));
    status result = read_all(config, root);
    json_object_put(root);
    return result == OK ? OK : fail_prefix(result, "%s", name);
}

status model_config_parse_generation(struct model_config *config, const char *text, size_t size, const char *name) {
    json_object *root = NULL;
    TRY(json_parse_object(&root, text, size, name));
    json_object *eos_ids = json_object_object_get(root, "eos_token_id");
    status result = eos_ids ? read_ends(config, eos_ids) : OK;
    json_object_put(root);
    return result == OK ? OK : fail_prefix(result, "%s", name);
}

static status read_triple(json_object *root, const char *key, double low, float out[3]) {
    json_object *list = json_object_object_get(root, key);
    if (!list) return OK;
    if (!json_object_is_type(list, json_type_array) || json_object_array_length(list) != 3)
        return fail(DATAERR, "%s is not three numbers", key);
    for (size_t i = 0; i < 3; i++) {
        json_object *value = json_object_array_get_idx(list, i);
        double number = json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int)
                            ? json_object_get_double(value)
                            : NAN;
        if (!(number >= low && number <= 1e6)) return fail(DATAERR, "%s[%zu] is no sensible number", key, i);
        out[i] = (float)number;
    }
    return OK;
}

static status read_preprocessor(struct model_config *config, json_object *root) {
    struct scope scope = {root, NULL, ""};
    TRY(read_triple(root, "image_mean", -1e6, config->image_mean));
    TRY(read_triple(root, "image_std", 1e-6, config->image_std));
    TRY(read_float(scope, "rescale_factor", 1e-9, 1e9, 1 / 255.0, &config->rescale_factor));
    const struct {
        const char *key;
        int value;
    } same[] = {{"patch_size", config->vision.patch_size},
                {"temporal_patch_size", config->vision.temporal_patch_size},
                {"merge_size", config->vision.spatial_merge_size}};
    for (int i = 0; i < 3; i++) {
        int value = 0;
        TRY(read_int(scope, same[i].key, 1, 1 << 16, same[i].value, &value));
        if (value != same[i].value)
            return fail(DATAERR, "%s is %d, config.json says %d", same[i].key, value, same[i].value);
    }
    return OK;
}

status model_config_parse_preprocessor(struct model_config *config, const char *text, size_t size, const char *name) {
    json_object *root = NULL;
    TRY(json_parse_object(&root, text, size, name));
    status result = read_preprocessor(config, root);
    json_object_put(root);
    return result == OK ? OK : fail_prefix(result, "%s", name);
}

typedef status parser(struct model_config *config, const char *text, size_t size, const char *name);

static status parse_file(struct model_config *config, const char *path, bool optional, parser *parse) {
    if (optional && !path_exists(path)) return OK;
    struct buf text = {0};
    status result = file_read(path, &text);
    if (result == OK) result = parse(config, text.data ? text.data : "", text.size, path);
    buf_release(&text);
    return result;
}

status model_config_read_file(struct model_config *config, const char *path) {
    return parse_file(config, path, false, model_config_parse);
}

status model_config_read(struct model_config *config, const char *dir) {
    static const struct {
        const char *name;
        bool optional;
        parser *parse;
    } files[] = {{"config.json", false, model_config_parse},
                 {"generation_config.json", true, model_config_parse_generation},
                 {"preprocessor_config.json", true, model_config_parse_preprocessor}};
    struct arena arena = {0};
    status result = OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && result == OK; i++) {
        char *path = path_join(&arena, dir, files[i].name);
        result = path ? parse_file(config, path, files[i].optional, files[i].parse) : fail_oom();
    }
    arena_release(&arena);
    return result;
}
