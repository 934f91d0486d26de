// Every key is looked up where the present layout has it. A value of the wrong type or outside a sane range is refused
// with the key's name. A missing key has the default of Hugging Face's transformers.
#include "shared/model/qwen_vl/qwen_weights.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/model/model_shapes.h"

enum { MAX_SIZE = 1 << 20, MAX_COUNT = 10000 };
static_assert(MAX_VISION_BLOCKS > 31, "the published blocks with full attention fit");

static status text_config_read(struct text_config *text, struct config_scope scope) {
    TRY(config_int64(scope, "vocab_size", 1, 1 << 24, 152064, &text->vocab_size));
    TRY(config_int64(scope, "hidden_size", 1, MAX_SIZE, 8192, &text->hidden_size));
    TRY(config_int64(scope, "intermediate_size", 1, MAX_SIZE, 29568, &text->intermediate_size));
    TRY(config_int(scope, "num_hidden_layers", 1, MAX_COUNT, 80, &text->num_hidden_layers));
    TRY(config_int(scope, "num_attention_heads", 1, MAX_COUNT, 64, &text->num_attention_heads));
    // A missing num_key_value_heads means 8; null means num_attention_heads.
    bool null = (scope.inner && json_find(scope.inner, "num_key_value_heads", NULL)) ||
                (scope.outer && json_find(scope.outer, "num_key_value_heads", NULL));
    TRY(config_int(scope, "num_key_value_heads", 1, MAX_COUNT, null ? text->num_attention_heads : 8,
                   &text->num_key_value_heads));
    if (text->hidden_size % text->num_attention_heads || text->hidden_size / text->num_attention_heads % 2)
        return fail(DATAERR, "num_attention_heads %d does not divide hidden_size %lld into heads of even size",
                    text->num_attention_heads, (long long)text->hidden_size);
    if (text->num_attention_heads % text->num_key_value_heads)
        return fail(DATAERR, "num_key_value_heads %d does not divide num_attention_heads %d", text->num_key_value_heads,
                    text->num_attention_heads);
    text->head_dim = (int)(text->hidden_size / text->num_attention_heads);
    int head_dim = 0;
    TRY(config_int(scope, "head_dim", 1, MAX_SIZE, text->head_dim, &head_dim));
    if (head_dim != text->head_dim)
        return fail(DATAERR, "head_dim is %d; hidden_size / num_attention_heads is %d", head_dim, text->head_dim);
    TRY(config_float(scope, "rms_norm_eps", 0, 1, 1e-5, &text->rms_norm_eps));
    TRY(config_require(scope, "hidden_act", "silu"));
    bool sliding = false;
    TRY(config_bool(scope, "use_sliding_window", &sliding));
    if (sliding) return fail(DATAERR, "use_sliding_window is true; only full attention is supported");

    // Rotary settings: rope_scaling beside rope_theta, or both in rope_parameters.
    struct config_scope rope = {config_find(scope, "rope_parameters"), NULL, "rope_parameters."};
    if (!rope.inner) rope = (struct config_scope){config_find(scope, "rope_scaling"), NULL, "rope_scaling."};
    if (!json_is(rope.inner, JSON_OBJECT)) return fail(DATAERR, "rope_scaling is missing");
    static const char *const type_keys[] = {"type", "rope_type"};
    for (int i = 0; i < 2; i++) {
        struct json *type = config_find(rope, type_keys[i]);
        const char *name = json_is(type, JSON_STRING) ? json_text(type) : "default";
        if (strcmp(name, "default") != 0 && strcmp(name, "mrope") != 0)
            return fail(DATAERR, "%s%s is %.50s; only \"default\" and \"mrope\" are supported", rope.prefix,
                        type_keys[i], name);
    }
    TRY(config_float(scope, "rope_theta", 1, 1e30, 1000000.0, &text->rope_theta));
    TRY(config_float(rope, "rope_theta", 1, 1e30, text->rope_theta, &text->rope_theta));
    struct json *section = config_find(rope, "mrope_section");
    if (!json_is(section, JSON_ARRAY) || json_count(section) != 3)
        return fail(DATAERR, "%smrope_section is not an array of three integers", rope.prefix);
    int64_t sum = 0;
    for (size_t i = 0; i < 3; i++) {
        struct json *entry = json_item(section, i);
        int64_t value = json_int_or(entry, -1);
        if (value < 0 || value > text->head_dim)
            return fail(DATAERR, "%smrope_section[%zu] is not an integer in 0..%d", rope.prefix, i, text->head_dim);
        text->mrope_section[i] = (int)value;
        sum += value;
    }
    if (sum * 2 != text->head_dim)
        return fail(DATAERR, "%smrope_section sums to %lld; half of head_dim is %d", rope.prefix, (long long)sum,
                    text->head_dim / 2);
    return OK;
}

static status vision_config_read(struct vision_config *vision, struct config_scope scope) {
    const bool qwen2 = vision->kind == VISION_QWEN2;
    const char *size_key = qwen2 ? "embed_dim" : "hidden_size";
    TRY(config_int(scope, "depth", 1, MAX_VISION_BLOCKS, 32, &vision->depth));
    TRY(config_int(scope, "num_heads", 1, MAX_COUNT, 16, &vision->num_heads));
    TRY(config_int(scope, "patch_size", 1, 256, 14, &vision->patch_size));
    TRY(config_int(scope, "spatial_merge_size", 1, 16, 2, &vision->spatial_merge_size));
    TRY(config_int(scope, "temporal_patch_size", 1, 16, 2, &vision->temporal_patch_size));
    int channels = 0;
    TRY(config_int(scope, "in_chans", 3, 3, 3, &channels));
    TRY(config_int(scope, "in_channels", 3, 3, 3, &channels));
    TRY(config_int64(scope, size_key, 1, MAX_SIZE, qwen2 ? 1280 : 3584, &vision->hidden_size));
    if (qwen2) { // the tower's hidden_size is that of the language model
        float checked = 0;
        TRY(config_float(scope, "mlp_ratio", 0, MAX_SIZE, 4, &checked));
        double ratio = json_double_or(config_find(scope, "mlp_ratio"), (double)checked); // as Hugging Face multiplies
        vision->intermediate_size = (int64_t)((double)vision->hidden_size * ratio);
        if (vision->intermediate_size < 1 || vision->intermediate_size > MAX_SIZE)
            return fail(DATAERR, "%smlp_ratio %g makes an MLP of %lld channels", scope.prefix, ratio,
                        (long long)vision->intermediate_size);
        TRY(config_int64(scope, "hidden_size", 1, MAX_SIZE, 3584, &vision->out_hidden_size));
        TRY(config_require(scope, "hidden_act", "quick_gelu"));
        for (int i = 0; i < vision->depth; i++) vision->fullatt_blocks[i] = true;
    } else {
        TRY(config_int64(scope, "intermediate_size", 1, MAX_SIZE, 3420, &vision->intermediate_size));
        TRY(config_int64(scope, "out_hidden_size", 1, MAX_SIZE, 3584, &vision->out_hidden_size));
        TRY(config_int(scope, "window_size", 1, 1 << 16, 112, &vision->window_size));
        TRY(config_float(scope, "tokens_per_second", 0, 1e6, 4, &vision->tokens_per_second));
        TRY(config_require(scope, "hidden_act", "silu"));
        int unit = vision->patch_size * vision->spatial_merge_size;
        if (vision->window_size < unit)
            return fail(DATAERR, "%swindow_size %d is less than %d, the pixels a side of merged patches", scope.prefix,
                        vision->window_size, unit);
        static const int published[] = {7, 15, 23, 31};
        struct json *indexes = config_find(scope, "fullatt_block_indexes");
        for (int i = 0; !indexes && i < 4; i++) vision->fullatt_blocks[published[i]] = true;
        if (indexes && !json_is(indexes, JSON_ARRAY))
            return fail(DATAERR, "%sfullatt_block_indexes is not an array", scope.prefix);
        for (size_t i = 0; indexes && i < json_count(indexes); i++) {
            int64_t block = json_int_or(json_item(indexes, i), -1);
            if (block < 0 || block >= MAX_VISION_BLOCKS)
                return fail(DATAERR, "%sfullatt_block_indexes[%zu] is not the index of a block", scope.prefix, i);
            vision->fullatt_blocks[block] = true;
        }
    }
    if (vision->hidden_size % vision->num_heads || vision->hidden_size / vision->num_heads % 4)
        return fail(DATAERR, "%snum_heads %d does not divide %s%s %lld into heads of a multiple of 4", scope.prefix,
                    vision->num_heads, scope.prefix, size_key, (long long)vision->hidden_size);
    vision->head_dim = (int)(vision->hidden_size / vision->num_heads);
    return OK;
}

// eos_token_id: an integer, an array of integers, or null.
static status model_config_eos_ids(struct model_config *config, struct json *value) {
    bool array = json_is(value, JSON_ARRAY);
    size_t count = array ? json_count(value) : value ? 1 : 0;
    if (count > MAX_EOS_IDS) return fail(DATAERR, "eos_token_id has %zu tokens, more than %d", count, MAX_EOS_IDS);
    config->eos_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct json *token = array ? json_item(value, i) : value;
        int64_t number = json_int_or(token, -1);
        if (number < 0 || number >= config->text.vocab_size)
            return fail(DATAERR, "eos_token_id is not a token of the vocabulary");
        config->eos_ids[config->eos_count++] = number;
    }
    return OK;
}

static status model_config_root(struct model_config *config, struct json *root) {
    static const struct {
        const char *name;
        enum element type;
    } types[] = {{"float32", ELEMENT_F32}, {"bfloat16", ELEMENT_BF16}, {"float16", ELEMENT_F16}};
    *config = (struct model_config){.image_mean = {0.48145466f, 0.4578275f, 0.40821073f},
                                    .image_std = {0.26862954f, 0.26130258f, 0.27577711f},
                                    .rescale_factor = (float)(1 / 255.0)};
    struct json *text = json_at(root, "text_config"), *vision = json_at(root, "vision_config");
    if (text && !json_is(text, JSON_OBJECT)) return fail(DATAERR, "text_config is not an object");
    if (vision && !json_is(vision, JSON_OBJECT)) return fail(DATAERR, "vision_config is not an object");
    struct config_scope text_first = {text, root, ""}, root_first = {root, text, ""};
    struct json *model_type = config_find(root_first, "model_type"); // without it the tower is Qwen2.5-VL's
    config->vision.kind = string_equals(json_string(model_type), "qwen2_vl") ? VISION_QWEN2 : VISION_QWEN2_5;
    if (model_type && config->vision.kind != VISION_QWEN2 && !string_equals(json_string(model_type), "qwen2_5_vl"))
        return fail(DATAERR, "model_type is %.100s; only \"qwen2_5_vl\" and \"qwen2_vl\" are supported",
                    json_text(model_type));
    if (config_find(text_first, "quantization_config"))
        return fail(DATAERR, "quantization_config: quantized weights are not supported");
    TRY(text_config_read(&config->text, text_first));
    TRY(vision_config_read(&config->vision, (struct config_scope){vision, NULL, "vision_config."}));
    if (config->vision.out_hidden_size != config->text.hidden_size)
        return fail(DATAERR, "vision_config.%s is %lld, hidden_size is %lld",
                    config->vision.kind == VISION_QWEN2 ? "hidden_size" : "out_hidden_size",
                    (long long)config->vision.out_hidden_size, (long long)config->text.hidden_size);
    TRY(config_bool(text_first, "tie_word_embeddings", &config->text.tie_word_embeddings));
    struct json *dtype = config_find(root_first, "dtype");
    if (!dtype) dtype = config_find(root_first, "torch_dtype");
    const char *name = json_is(dtype, JSON_STRING) ? json_text(dtype) : "";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        config->has_dtype = true;
        config->dtype = types[i].type;
    }
    if (dtype && !config->has_dtype && strcmp(name, "auto") != 0)
        return fail(DATAERR, "dtype is not float32, bfloat16 or float16");
    int64_t last = config->text.vocab_size - 1;
    TRY(config_int64(root_first, "image_token_id", 0, last, -1, &config->image_token_id));
    TRY(config_int64(root_first, "video_token_id", 0, last, -1, &config->video_token_id));
    TRY(config_int64(root_first, "vision_start_token_id", 0, last, -1, &config->vision_start_token_id));
    TRY(config_int64(root_first, "vision_end_token_id", 0, last, -1, &config->vision_end_token_id));
    return model_config_eos_ids(config, config_find(root_first, "eos_token_id"));
}

static status model_config_generation(struct model_config *config, struct json *root) {
    struct json *eos_ids = json_at(root, "eos_token_id");
    return eos_ids ? model_config_eos_ids(config, eos_ids) : OK;
}

static status model_config_triple(struct json *root, const char *key, double low, float out[3]) {
    struct json *list = json_at(root, key);
    if (!list) return OK;
    if (!json_is(list, JSON_ARRAY) || json_count(list) != 3)
        return fail(DATAERR, "%s is not an array of three numbers", key);
    for (size_t i = 0; i < 3; i++) {
        struct json *value = json_item(list, i);
        const double found = json_double_or(value, NAN);
        if (!(found >= low && found <= 1e6)) return fail(DATAERR, "%s[%zu] is not a number in %g..1e6", key, i, low);
        out[i] = (float)found;
    }
    return OK;
}

static status model_config_preprocessor(struct model_config *config, struct json *root) {
    struct config_scope scope = {root, NULL, ""};
    TRY(model_config_triple(root, "image_mean", -1e6, config->image_mean));
    TRY(model_config_triple(root, "image_std", 1e-6, config->image_std));
    TRY(config_float(scope, "rescale_factor", 1e-9, 1e9, 1 / 255.0, &config->rescale_factor));
    const struct {
        const char *key;
        int value;
    } same[] = {{"patch_size", config->vision.patch_size},
                {"temporal_patch_size", config->vision.temporal_patch_size},
                {"merge_size", config->vision.spatial_merge_size}};
    for (int i = 0; i < 3; i++) {
        int value = 0;
        TRY(config_int(scope, same[i].key, 1, 1 << 16, same[i].value, &value));
        if (value != same[i].value)
            return fail(DATAERR, "%s is %d, but in config.json it is %d", same[i].key, value, same[i].value);
    }
    return OK;
}

static const struct {
    const char *name;
    status (*read)(struct model_config *config, struct json *root);
} config_files[CONFIG_FILES] = {
    [CONFIG_MODEL] = {"config.json", model_config_root},
    [CONFIG_GENERATION] = {"generation_config.json", model_config_generation},
    [CONFIG_PREPROCESSOR] = {"preprocessor_config.json", model_config_preprocessor},
};

status model_config_fill(struct model_config *config, enum config_file file, struct json *root, const char *name) {
    const status result = config_files[file].read(config, root);
    return result == OK ? OK : fail_prefix(result, "%s", name);
}

status model_config_read_shape(struct model_config *config, const char *model) {
    struct arena arena = {0};
    struct json *root;
    const char *name;
    status result = named_shape_read(&root, &arena, model, &name);
    if (result == OK) result = model_config_fill(config, CONFIG_MODEL, root, name);
    arena_release(&arena);
    return result;
}

status model_config_read(struct model_config *config, const char *dir) {
    struct arena arena = {0};
    status result = model_check_dir(dir);
    for (enum config_file file = CONFIG_MODEL; result == OK && file < CONFIG_FILES; file++) {
        char *path = path_join(&arena, dir, config_files[file].name);
        struct json *root;
        if (file != CONFIG_MODEL && !path_exists(path)) continue;
        result = json_parse_file(&root, &arena, path);
        if (result == OK) result = model_config_fill(config, file, root, path);
    }
    arena_release(&arena);
    return result;
}

// ---- weights ----

enum { MAX_PER_BLOCK = 15, MAX_OUTSIDE_BLOCKS = 16 }; // parameters

static struct stack_shape qwen_text_shape(const struct text_config *text) {
    const int64_t hidden = text->hidden_size, mlp = text->intermediate_size;
    const int64_t query = (int64_t)text->num_attention_heads * text->head_dim;
    const int64_t key = (int64_t)text->num_key_value_heads * text->head_dim;
    return (struct stack_shape){
        .prefix = "model.layers",
        .hidden_size = hidden,
        .norms = {"input_layernorm", "post_attention_layernorm"},
        .use = BUCKET_ONCE,
        .qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {query, key, key}, hidden, true},
        .out = {{"self_attn.o_proj"}, {hidden}, query, false},
        .gate_up = {{"mlp.gate_proj", "mlp.up_proj"}, {mlp, mlp}, hidden, false},
        .down = {{"mlp.down_proj"}, {hidden}, mlp, false},
    };
}

// Adds the language model: first the matrices, then the vectors.
static void qwen_add_text(struct qwen_weights *weights) {
    const struct text_config *text = &weights->config->text;
    struct parameter_table *table = &weights->base.table;
    const struct stack_shape shape = qwen_text_shape(text);
    const int64_t hidden = text->hidden_size;
    parameter_table_single(table, &weights->embedding, PARAMETER_MATRIX, text->vocab_size, hidden,
                           "model.embed_tokens.weight");
    parameter_table_close_bucket(table, text->tie_word_embeddings ? BUCKET_ANY_TIME : BUCKET_STREAMED);
    for (int i = 0; i < text->num_hidden_layers; i++) stack_add_block(table, &weights->text.blocks[i], &shape, i, true);
    if (!text->tie_word_embeddings)
        parameter_table_single(table, &weights->lm_head, PARAMETER_MATRIX, text->vocab_size, hidden, "lm_head.weight");
    parameter_table_close_bucket(table, BUCKET_STREAMED);
    parameter_table_close_range(table, true, GROUP_TEXT);
    for (int i = 0; i < text->num_hidden_layers; i++)
        stack_add_block(table, &weights->text.blocks[i], &shape, i, false);
    parameter_table_single(table, &weights->norm, PARAMETER_NORM, 1, hidden, "model.norm.weight");
    parameter_table_close_range(table, false, GROUP_TEXT);
    assert(table->range_count == TEXT_RANGES);
}

// Adds the vision tower, in the same order. Each of several media adds to all of it.
static void qwen_add_vision(struct qwen_weights *weights) {
    const struct vision_config *vision = &weights->config->vision;
    struct parameter_table *table = &weights->base.table;
    const int64_t hidden = vision->hidden_size, mlp = vision->intermediate_size, patch = vision->patch_size;
    const int64_t pixels = 3 * vision->temporal_patch_size * patch * patch;
    const int64_t merged = hidden * vision->spatial_merge_size * vision->spatial_merge_size;
    const bool qwen2 = vision->kind == VISION_QWEN2;
    const struct layer_shape fc1 = {{"mlp.fc1"}, {mlp}, hidden, true};
    const struct layer_shape gate_up = {{"mlp.gate_proj", "mlp.up_proj"}, {mlp, mlp}, hidden, true};
    const struct stack_shape shape = {
        .prefix = "visual.blocks",
        .hidden_size = hidden,
        .norms = {"norm1", "norm2"},
        .norm_bias = qwen2,
        .norm_biases_last = true,
        .qkv = {{"attn.qkv"}, {3 * hidden}, hidden, true},
        .out = {{"attn.proj"}, {hidden}, hidden, true},
        .gate_up = qwen2 ? fc1 : gate_up,
        .down = {{qwen2 ? "mlp.fc2" : "mlp.down_proj"}, {hidden}, mlp, true},
    };
    parameter_table_single(table, &weights->patch_embed, PARAMETER_MATRIX, hidden, pixels,
                           "visual.patch_embed.proj.weight");
    struct parameter *patch_embed = &table->list[weights->patch_embed.first];
    const int64_t convolution[] = {hidden, 3, vision->temporal_patch_size, patch, patch};
    static_assert(sizeof convolution == sizeof patch_embed->shape, "a three-dimensional convolution has rank 5");
    patch_embed->rank = 5;
    memcpy(patch_embed->shape, convolution, sizeof convolution);
    parameter_table_close_bucket(table, BUCKET_ANY_TIME);
    for (int i = 0; i < vision->depth; i++) stack_add_block(table, &weights->vision.blocks[i], &shape, i, true);
    parameter_table_single(table, &weights->merger_fc1, PARAMETER_MATRIX, merged, merged, "visual.merger.mlp.0.weight");
    parameter_table_single(table, &weights->merger_fc2, PARAMETER_MATRIX, vision->out_hidden_size, merged,
                           "visual.merger.mlp.2.weight");
    parameter_table_close_range(table, true, GROUP_VISION);
    for (int i = 0; i < vision->depth; i++) stack_add_block(table, &weights->vision.blocks[i], &shape, i, false);
    parameter_table_single(table, &weights->merger_norm, PARAMETER_NORM, 1, hidden, "visual.merger.ln_q.weight");
    if (qwen2)
        parameter_table_single(table, &weights->merger_norm_bias, PARAMETER_BIAS, 1, hidden, "visual.merger.ln_q.bias");
    parameter_table_single(table, &weights->merger_fc1_bias, PARAMETER_BIAS, 1, merged, "visual.merger.mlp.0.bias");
    parameter_table_single(table, &weights->merger_fc2_bias, PARAMETER_BIAS, 1, vision->out_hidden_size,
                           "visual.merger.mlp.2.bias");
    parameter_table_close_range(table, false, GROUP_VISION);
}

status qwen_weights_init(struct qwen_weights *weights, const struct model_config *config) {
    static const char *const tied[] = {"lm_head.weight", NULL};
    struct parameter_table *table = &weights->base.table;
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    size_t layers = (size_t)text->num_hidden_layers, depth = (size_t)vision->depth;
    size_t capacity = (layers + depth) * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    const bool qwen2 = vision->kind == VISION_QWEN2;
    *weights = (struct qwen_weights){.base = {.embedding = &weights->embedding}, .config = config};
    weights->text = (struct transformer){
        .block_count = text->num_hidden_layers,
        .heads = {text->num_attention_heads, text->num_key_value_heads, text->head_dim},
        .attention_scale = 1 / sqrtf((float)text->head_dim),
        .eps = text->rms_norm_eps,
        .hidden_size = text->hidden_size,
        .intermediate_size = text->intermediate_size,
        .norm = NORM_RMSNORM,
        .activation = ACTIVATION_SWIGLU,
    };
    weights->vision = (struct transformer){
        .block_count = vision->depth,
        .heads = {vision->num_heads, vision->num_heads, vision->head_dim},
        .attention_scale = 1 / sqrtf((float)vision->head_dim),
        .eps = 1e-6f,
        .hidden_size = vision->hidden_size,
        .intermediate_size = vision->intermediate_size,
        .norm = qwen2 ? NORM_LAYERNORM : NORM_RMSNORM,
        .activation = qwen2 ? ACTIVATION_QUICK_GELU : ACTIVATION_SWIGLU,
    };
    if (text->tie_word_embeddings) weights->base.tied_head = &weights->lm_head;
    parameter_table_init(table, capacity);
    weights->text.blocks = arena_alloc(&table->arena, layers * sizeof *weights->text.blocks);
    weights->vision.blocks = arena_alloc(&table->arena, depth * sizeof *weights->vision.blocks);
    qwen_add_text(weights);
    qwen_add_vision(weights);
    assert(table->count <= capacity);
    if (text->tie_word_embeddings) table->ignored = tied;
    for (size_t i = 0; i < table->count; i++) { // the names that nested state dicts have
        struct parameter *parameter = &table->list[i];
        if (parameter->group == GROUP_VISION)
            parameter->alias = arena_printf(&table->arena, "model.%s", parameter->name);
        else if (strncmp(parameter->name, "model.", 6) == 0)
            parameter->alias = arena_printf(&table->arena, "model.language_model.%s", parameter->name + 6);
    }

    // What changes a result, except sizes, which are in the parameters' shapes.
    const double numbers[] = {text->num_attention_heads,
                              text->num_key_value_heads,
                              text->head_dim,
                              text->rms_norm_eps,
                              text->rope_theta,
                              text->mrope_section[0],
                              text->mrope_section[1],
                              text->mrope_section[2],
                              text->tie_word_embeddings,
                              vision->num_heads,
                              vision->patch_size,
                              vision->spatial_merge_size,
                              vision->temporal_patch_size,
                              vision->window_size,
                              vision->tokens_per_second,
                              config->rescale_factor,
                              config->image_mean[0],
                              config->image_mean[1],
                              config->image_mean[2],
                              config->image_std[0],
                              config->image_std[1],
                              config->image_std[2],
                              (double)config->image_token_id,
                              (double)config->video_token_id};
    return parameter_table_finish(table, numbers, sizeof numbers / sizeof *numbers, vision->fullatt_blocks,
                                  vision->depth);
}

// Of the settings of the adapters' table.
enum { SETTING_RANK, SETTING_SCALE, SETTING_BASE_HIGH, SETTING_BASE_LOW, ADAPTER_SETTINGS };

status qwen_add_adapters(struct qwen_weights *weights, int64_t rank, float scale) {
    struct parameter_table *table = &weights->adapters.table;
    const struct stack_shape shape = qwen_text_shape(&weights->config->text);
    const double numbers[ADAPTER_SETTINGS] = {[SETTING_RANK] = (double)rank, [SETTING_SCALE] = scale};
    static const char prefix[] = "base_model.model.model.";
    const int blocks = weights->text.block_count;
    parameter_table_init(table, (size_t)blocks * 2 * ADAPTED_PARTS * 4);
    for (int i = 0; i < blocks; i++) stack_add_adapters(table, &weights->text.blocks[i], &shape, i, rank);
    parameter_table_close_range(table, true, GROUP_TEXT);
    for (size_t i = 0; i < table->count; i++)
        table->list[i].alias =
            arena_printf(&table->arena, "%slanguage_model.%s", prefix, table->list[i].name + sizeof prefix - 1);
    weights->adapters.backend = weights->base.backend;
    weights->adapters.type = weights->base.type;
    weights->text.adapter_rank = rank;
    weights->text.adapter_scale = scale;
    return parameter_table_finish(table, numbers, ADAPTER_SETTINGS, NULL, 0);
}

void qwen_set_base_hash(struct qwen_weights *weights, uint64_t base_hash) {
    double *settings = weights->adapters.table.settings;
    settings[SETTING_BASE_HIGH] = (double)(base_hash >> 32);
    settings[SETTING_BASE_LOW] = (double)(base_hash & UINT32_MAX);
}

uint64_t qwen_layout(const struct qwen_weights *weights) {
    const enum element type = weights->base.type;
    struct parameter_table adapters = weights->adapters.table;
    const uint64_t base = weights_hash_finish(&weights->base.table, type, 0);
    if (!adapters.count) return base;
    adapters.setting_count = SETTING_BASE_HIGH; // the base's hash is of values
    return ops_mix64(base ^ weights_hash_finish(&adapters, type, 0));
}
