// A key of config.json that is missing has the default of Hugging Face's transformers.
#include "shared/model/modernbert/classifier_weights.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/model/model_shapes.h"

enum { MAX_SIZE = 1 << 20, MAX_HEADS = 10000, PAD_TOKEN_ID = 50283 };

static status classifier_config_check_rope(struct config_scope rope) {
    TRY(config_require(rope, "rope_type", "default"));
    return config_require(rope, "type", "default");
}

// *theta = the base of one kind of layer: rope_parameters.KIND.rope_theta, else `missing`.
static status classifier_config_theta(struct config_scope root, const char *kind, float missing, float *theta) {
    struct config_scope rope = {config_find(root, "rope_parameters"), NULL, "rope_parameters."};
    *theta = missing;
    if (!rope.inner) return OK;
    if (!json_is(rope.inner, JSON_OBJECT)) return fail(DATAERR, "rope_parameters is not an object");
    TRY(classifier_config_check_rope(rope));
    if (config_find(rope, "rope_theta"))
        return fail(DATAERR, "rope_parameters.rope_theta belongs to neither full_attention nor sliding_attention");
    struct json *own = config_find(rope, kind);
    if (!own) return OK;
    if (!json_is(own, JSON_OBJECT)) return fail(DATAERR, "rope_parameters.%s is not an object", kind);
    const bool full = strcmp(kind, "full_attention") == 0;
    rope = (struct config_scope){own, NULL,
                                 full ? "rope_parameters.full_attention." : "rope_parameters.sliding_attention."};
    TRY(classifier_config_check_rope(rope));
    return config_float(rope, "rope_theta", 1, 1e30, missing, theta);
}

static bool classifier_config_is_label(struct string label, const char *name) {
    return label.size == strlen(name) && strncasecmp(label.data, name, label.size) == 0;
}

// The labels by id2label, which has an entry for each of them. label2id is not read.
static status classifier_config_labels(struct classifier_config *config, struct config_scope root) {
    static const char *const trained[] = {"inconsistent", "consistent"};
    struct json *names = config_find(root, "id2label");
    config->consistent = -1;
    config->has_id2label = names;
    if (!names) return config_int(root, "num_labels", 1, MAX_LABELS, 2, &config->labels);
    if (!json_is(names, JSON_OBJECT) || json_count(names) < 1 || json_count(names) > MAX_LABELS)
        return fail(DATAERR, "id2label is not an object of 1 to %d labels", MAX_LABELS);
    config->labels = (int)json_count(names);
    config->trains_labels = config->labels == 2;
    int entailment = -1;
    for (int i = 0; i < config->labels; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        struct json *value;
        if (!json_find(names, key, &value))
            return fail(DATAERR, "id2label has %d labels, but none has the key \"%s\"", config->labels, key);
        if (!json_is(value, JSON_STRING)) return fail(DATAERR, "id2label[%s] is not a string", key);
        struct string label = json_string(value);
        if (config->trains_labels) config->trains_labels = string_equals(label, trained[i]);
        if (config->consistent < 0 && classifier_config_is_label(label, "consistent")) config->consistent = i;
        if (entailment < 0 && classifier_config_is_label(label, "entailment")) entailment = i;
    }
    if (config->consistent < 0) config->consistent = entailment;
    return OK;
}

static status classifier_config_root(struct classifier_config *config, struct config_scope root) {
    static const char *const dropouts[] = {"attention_dropout", "embedding_dropout", "mlp_dropout",
                                           "classifier_dropout"};
    TRY(config_require(root, "model_type", "modernbert"));
    if (config_find(root, "quantization_config"))
        return fail(DATAERR, "quantization_config: quantized weights are not supported");
    TRY(config_int64(root, "vocab_size", 1, 1 << 24, DEFAULT_CLASSIFIER_VOCAB_SIZE, &config->vocab_size));
    TRY(config_int64(root, "hidden_size", 1, MAX_SIZE, 768, &config->hidden_size));
    TRY(config_int64(root, "intermediate_size", 1, MAX_SIZE, 1152, &config->intermediate_size));
    TRY(config_int(root, "num_hidden_layers", 1, MAX_CLASSIFIER_LAYERS, 22, &config->num_hidden_layers));
    TRY(config_int(root, "num_attention_heads", 1, MAX_HEADS, 12, &config->num_attention_heads));
    if (config->hidden_size % config->num_attention_heads || config->hidden_size / config->num_attention_heads % 2)
        return fail(DATAERR, "num_attention_heads %d does not divide hidden_size %lld into heads of even size",
                    config->num_attention_heads, (long long)config->hidden_size);
    config->head_dim = (int)(config->hidden_size / config->num_attention_heads);
    TRY(config_require(root, "hidden_activation", "gelu"));
    TRY(config_require(root, "classifier_activation", "gelu"));
    TRY(config_float(root, "norm_eps", 0, 1, 1e-5, &config->norm_eps));
    TRY(config_bool(root, "norm_bias", &config->norm_bias));
    TRY(config_bool(root, "attention_bias", &config->attention_bias));
    TRY(config_bool(root, "mlp_bias", &config->mlp_bias));
    TRY(config_bool(root, "classifier_bias", &config->classifier_bias));

    // Which layers attend to everything.
    int every, local_attention;
    TRY(config_int(root, "global_attn_every_n_layers", 1, MAX_SIZE, 3, &every));
    TRY(config_int(root, "local_attention", 2, 1 << 30, 128, &local_attention));
    config->window = local_attention / 2;
    for (int i = 0; i < config->num_hidden_layers; i++) config->full_attention[i] = i % every == 0;
    struct json *types = config_find(root, "layer_types");
    if (types && (!json_is(types, JSON_ARRAY) || json_count(types) != (size_t)config->num_hidden_layers))
        return fail(DATAERR, "layer_types is not an array of num_hidden_layers %d strings", config->num_hidden_layers);
    for (int i = 0; types && i < config->num_hidden_layers; i++) {
        struct string type = json_string(json_item(types, (size_t)i));
        config->full_attention[i] = string_equals(type, "full_attention");
        if (!config->full_attention[i] && !string_equals(type, "sliding_attention"))
            return fail(DATAERR, "layer_types[%d] is not full_attention or sliding_attention", i);
    }

    // What they rotate by. A local_rope_theta that is null means the global one.
    struct config_scope scaling = {config_find(root, "rope_scaling"), NULL, "rope_scaling."};
    if (scaling.inner && !json_is(scaling.inner, JSON_OBJECT))
        TRY(config_require(root, "rope_scaling", "default"));
    else if (scaling.inner)
        TRY(classifier_config_check_rope(scaling));
    float global, local;
    bool null = json_find(root.inner, "local_rope_theta", NULL);
    TRY(config_float(root, "global_rope_theta", 1, 1e30, 160000, &global));
    TRY(config_float(root, "local_rope_theta", 1, 1e30, null ? (double)global : 10000, &local));
    TRY(classifier_config_theta(root, "full_attention", global, &config->global_rope_theta));
    TRY(classifier_config_theta(root, "sliding_attention", local, &config->local_rope_theta));

    for (size_t i = 0; i < sizeof dropouts / sizeof *dropouts; i++) {
        float share;
        TRY(config_float(root, dropouts[i], 0, 1, 0, &share));
        if (share > 0 && !config->dropout) config->dropout = dropouts[i];
    }
    struct json *pooling = config_find(root, "classifier_pooling");
    config->pools_mean = string_equals(json_string(pooling), "mean");
    if (pooling && !config->pools_mean && !string_equals(json_string(pooling), "cls"))
        return fail(DATAERR, "classifier_pooling is not mean or cls");
    config->pad_token_id = -1;
    if (!json_find(root.inner, "pad_token_id", &pooling) || pooling)
        TRY(config_int64(root, "pad_token_id", 0, config->vocab_size - 1,
                         config->vocab_size > PAD_TOKEN_ID ? PAD_TOKEN_ID : -1, &config->pad_token_id));
    return classifier_config_labels(config, root);
}

status classifier_config_fill(struct classifier_config *config, struct json *root, const char *name) {
    *config = (struct classifier_config){0};
    const status result = classifier_config_root(config, (struct config_scope){root, NULL, ""});
    return result == OK ? OK : fail_prefix(result, "%s", name);
}

status classifier_config_read_shape(struct classifier_config *config, const char *model) {
    struct arena arena = {0};
    struct json *root;
    const char *name;
    status result = named_shape_read(&root, &arena, model, &name);
    if (result == OK) result = classifier_config_fill(config, root, name);
    arena_release(&arena);
    return result;
}

status classifier_config_read(struct classifier_config *config, const char *dir) {
    struct arena arena = {0};
    struct json *root;
    const char *path = path_join(&arena, dir, "config.json");
    status result = json_parse_file(&root, &arena, path);
    if (result == OK) result = classifier_config_fill(config, root, path);
    arena_release(&arena);
    return result;
}

status classifier_config_check_labels(const struct classifier_config *config, const char *dir) {
    if (config->consistent >= 0) return OK;
    if (!config->has_id2label) return fail(DATAERR, "%s/config.json: id2label is missing", dir);
    return fail(DATAERR, "%s/config.json: id2label has neither a label consistent nor a label entailment", dir);
}

// ---- weights ----

enum { MAX_PER_BLOCK = 12, MAX_OUTSIDE_BLOCKS = 11, ENCODER_PREFIX = 6 }; // "model."

// NAME.bias, if `exists`.
static void classifier_add_bias(struct parameter_table *table, struct fused_param *bias, bool exists, int64_t columns,
                                const char *name) {
    if (exists)
        parameter_table_single(table, bias, PARAMETER_BIAS, 1, columns, arena_printf(&table->arena, "%s.bias", name));
}

// A norm's NAME.weight and, if the configuration says so, NAME.bias.
static void classifier_add_norm(struct classifier_weights *weights, struct fused_param *scale, struct fused_param *bias,
                                const char *name) {
    const struct classifier_config *config = weights->config;
    parameter_table_single(&weights->base.table, scale, PARAMETER_NORM, 1, config->hidden_size,
                           arena_printf(&weights->base.table.arena, "%s.weight", name));
    classifier_add_bias(&weights->base.table, bias, config->norm_bias, config->hidden_size, name);
}

status classifier_weights_init(struct classifier_weights *weights, const struct classifier_config *config,
                               enum classifier_part fresh) {
    static const char *const all[] = {"head.dense.weight", "head.dense.bias",   "head.norm.weight",
                                      "head.norm.bias",    "classifier.weight", "classifier.bias",
                                      "decoder.weight",    "decoder.bias",      NULL};
    static const int first[] = {[PART_NONE] = 6, [PART_CLASSIFIER] = 4, [PART_HEAD] = 0};
    struct parameter_table *table = &weights->base.table;
    const int64_t hidden = config->hidden_size, mlp = config->intermediate_size, labels = config->labels;
    const int layers = config->num_hidden_layers;
    const size_t capacity = (size_t)layers * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    const struct stack_shape shape = {
        .prefix = "model.layers",
        .hidden_size = hidden,
        .norms = {"attn_norm", "mlp_norm"},
        .norm_bias = config->norm_bias,
        .first_unnormed = true,
        .use = BUCKET_ONCE,
        .qkv = {{"attn.Wqkv"}, {3 * hidden}, hidden, config->attention_bias},
        .out = {{"attn.Wo"}, {hidden}, hidden, config->attention_bias},
        .gate_up = {{"mlp.Wi"}, {2 * mlp}, hidden, config->mlp_bias},
        .down = {{"mlp.Wo"}, {hidden}, mlp, config->mlp_bias},
    };
    *weights = (struct classifier_weights){
        .base = {.embedding = &weights->embedding},
        .config = config,
        .encoder = {.block_count = layers,
                    .heads = {config->num_attention_heads, config->num_attention_heads, config->head_dim},
                    .attention_scale = 1 / sqrtf((float)config->head_dim),
                    .eps = config->norm_eps,
                    .hidden_size = hidden,
                    .intermediate_size = mlp,
                    .norm = NORM_LAYERNORM,
                    .activation = ACTIVATION_GEGLU},
    };
    parameter_table_init(table, capacity);
    struct block *blocks = arena_alloc(&table->arena, (size_t)layers * sizeof *blocks);
    weights->encoder.blocks = blocks;

    // First the matrices, then the vectors.
    parameter_table_single(table, &weights->embedding, PARAMETER_MATRIX, config->vocab_size, hidden,
                           "model.embeddings.tok_embeddings.weight");
    parameter_table_close_bucket(table, BUCKET_STREAMED);
    for (int i = 0; i < layers; i++) stack_add_block(table, &blocks[i], &shape, i, true);
    parameter_table_single(table, &weights->dense, PARAMETER_MATRIX, hidden, hidden, "head.dense.weight");
    parameter_table_single(table, &weights->classifier, PARAMETER_MATRIX, labels, hidden, "classifier.weight");
    parameter_table_close_bucket(table, BUCKET_STREAMED);
    parameter_table_close_range(table, true, 0);
    classifier_add_norm(weights, &weights->embedding_norm, &weights->embedding_norm_bias, "model.embeddings.norm");
    for (int i = 0; i < layers; i++) stack_add_block(table, &blocks[i], &shape, i, false);
    classifier_add_norm(weights, &weights->final_norm, &weights->final_norm_bias, "model.final_norm");
    classifier_add_bias(table, &weights->dense_bias, config->classifier_bias, hidden, "head.dense");
    classifier_add_norm(weights, &weights->head_norm, &weights->head_norm_bias, "head.norm");
    classifier_add_bias(table, &weights->classifier_bias, true, labels, "classifier");
    parameter_table_close_range(table, false, 0);
    assert(table->count <= capacity);

    table->ignored = all + first[fresh];
    for (size_t i = 0; i < table->count; i++) {
        struct parameter *parameter = &table->list[i];
        if (strncmp(parameter->name, "model.", ENCODER_PREFIX) == 0)
            parameter->alias = parameter->name + ENCODER_PREFIX;
    }
    const double numbers[] = {config->num_attention_heads, config->norm_eps,       config->global_rope_theta,
                              config->local_rope_theta,    (double)config->window, config->pools_mean,
                              config->consistent};
    return parameter_table_finish(table, numbers, sizeof numbers / sizeof *numbers, config->full_attention, layers);
}
