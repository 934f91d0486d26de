#include "shared/model/modernbert/classifier_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PER_BLOCK = 12, MAX_OUTSIDE_BLOCKS = 11, ENCODER_PREFIX = 6 }; // "model."

// What stays the same while parameters are added.
struct classifier_builder {
    struct parameter_table *table;
    const struct classifier_config *config;
};

// A matrix NAME.weight.
static status classifier_add_matrix(struct classifier_builder *builder, struct fused_param *matrix, int64_t rows,
                                    int64_t columns, const char *name) {
    return parameter_table_single(builder->table, matrix, PARAMETER_MATRIX, rows, columns,
                                  arena_printf(&builder->table->arena, "%s.weight", name));
}

// NAME.bias, if `exists`.
static status classifier_add_bias(struct classifier_builder *builder, struct fused_param *bias, bool exists,
                                  int64_t columns, const char *name) {
    if (!exists) return OK;
    return parameter_table_single(builder->table, bias, PARAMETER_BIAS, 1, columns,
                                  arena_printf(&builder->table->arena, "%s.bias", name));
}

// A norm's NAME.weight and, if the configuration says so, NAME.bias.
static status classifier_add_norm(struct classifier_builder *builder, struct fused_param *scale,
                                  struct fused_param *bias, const char *name) {
    const struct classifier_config *config = builder->config;
    TRY(parameter_table_single(builder->table, scale, PARAMETER_NORM, 1, config->hidden_size,
                               arena_printf(&builder->table->arena, "%s.weight", name)));
    return classifier_add_bias(builder, bias, config->norm_bias, config->hidden_size, name);
}

// The names of a block's layers. They live as long as the table.
struct classifier_block_names {
    const char *qkv, *out, *gate_up, *down, *norm1, *norm2;
};

static void classifier_name_block(struct classifier_builder *builder, int block, struct classifier_block_names *out) {
    struct arena *arena = &builder->table->arena;
    *out = (struct classifier_block_names){arena_printf(arena, "model.layers.%d.attn.Wqkv", block),
                                           arena_printf(arena, "model.layers.%d.attn.Wo", block),
                                           arena_printf(arena, "model.layers.%d.mlp.Wi", block),
                                           arena_printf(arena, "model.layers.%d.mlp.Wo", block),
                                           arena_printf(arena, "model.layers.%d.attn_norm", block),
                                           arena_printf(arena, "model.layers.%d.mlp_norm", block)};
}

static status classifier_add_block_matrices(struct classifier_builder *builder, struct block_params *params,
                                            int block) {
    int64_t hidden_size = builder->config->hidden_size, intermediate_size = builder->config->intermediate_size;
    struct classifier_block_names names;
    classifier_name_block(builder, block, &names);
    TRY(classifier_add_matrix(builder, &params->qkv, 3 * hidden_size, hidden_size, names.qkv));
    TRY(classifier_add_matrix(builder, &params->out, hidden_size, hidden_size, names.out));
    TRY(classifier_add_matrix(builder, &params->gate_up, 2 * intermediate_size, hidden_size, names.gate_up));
    return classifier_add_matrix(builder, &params->down, hidden_size, intermediate_size, names.down);
}

static status classifier_add_block_vectors(struct classifier_builder *builder, struct block_params *params, int block) {
    const struct classifier_config *config = builder->config;
    int64_t hidden_size = config->hidden_size;
    struct classifier_block_names names;
    classifier_name_block(builder, block, &names);
    if (block > 0) TRY(classifier_add_norm(builder, &params->norm1, &params->norm1_bias, names.norm1));
    TRY(classifier_add_norm(builder, &params->norm2, &params->norm2_bias, names.norm2));
    TRY(classifier_add_bias(builder, &params->qkv_bias, config->attention_bias, 3 * hidden_size, names.qkv));
    TRY(classifier_add_bias(builder, &params->out_bias, config->attention_bias, hidden_size, names.out));
    TRY(classifier_add_bias(builder, &params->gate_up_bias, config->mlp_bias, 2 * config->intermediate_size,
                            names.gate_up));
    return classifier_add_bias(builder, &params->down_bias, config->mlp_bias, hidden_size, names.down);
}

static status classifier_parameters_fill(struct classifier_parameters *params, const struct classifier_config *config,
                                         int64_t labels) {
    struct parameter_table *table = &params->table;
    struct classifier_builder builder = {table, config};
    int64_t hidden_size = config->hidden_size;
    TRY(classifier_add_matrix(&builder, &params->embedding, config->vocab_size, hidden_size,
                              "model.embeddings.tok_embeddings"));
    for (int i = 0; i < config->num_hidden_layers; i++)
        TRY(classifier_add_block_matrices(&builder, &params->blocks[i], i));
    TRY(classifier_add_matrix(&builder, &params->dense, hidden_size, hidden_size, "head.dense"));
    TRY(classifier_add_matrix(&builder, &params->classifier, labels, hidden_size, "classifier"));
    parameter_table_close_range(table, true, 0);
    TRY(classifier_add_norm(&builder, &params->embedding_norm, &params->embedding_norm_bias, "model.embeddings.norm"));
    for (int i = 0; i < config->num_hidden_layers; i++)
        TRY(classifier_add_block_vectors(&builder, &params->blocks[i], i));
    TRY(classifier_add_norm(&builder, &params->final_norm, &params->final_norm_bias, "model.final_norm"));
    TRY(classifier_add_bias(&builder, &params->dense_bias, config->classifier_bias, hidden_size, "head.dense"));
    TRY(classifier_add_norm(&builder, &params->head_norm, &params->head_norm_bias, "head.norm"));
    TRY(classifier_add_bias(&builder, &params->classifier_bias, true, labels, "classifier"));
    parameter_table_close_range(table, false, 0);
    for (size_t i = 0; i < table->count; i++) {
        struct parameter *parameter = &table->list[i];
        if (strncmp(parameter->name, "model.", ENCODER_PREFIX) == 0)
            parameter->alias = parameter->name + ENCODER_PREFIX;
    }
    return OK;
}

// Sets what changes a result, except sizes, which are in the parameters' shapes. Stores on disk are keyed by the hash
// of these numbers in this order.
static void classifier_set_settings(struct parameter_table *table, const struct classifier_config *config) {
    const double numbers[] = {
        config->num_attention_heads, config->norm_eps,   config->global_rope_theta, config->local_rope_theta,
        (double)config->window,      config->pools_mean, config->consistent,
    };
    size_t count = sizeof numbers / sizeof *numbers, layers = (size_t)config->num_hidden_layers;
    double *settings = arena_alloc(&table->arena, (count + layers) * sizeof *settings);
    memcpy(settings, numbers, sizeof numbers);
    for (size_t i = 0; i < layers; i++) settings[count + i] = config->full_attention[i];
    table->settings = settings;
    table->setting_count = count + layers;
}

status classifier_parameters_new(struct classifier_parameters **out, const struct classifier_config *config,
                                 int64_t labels, enum classifier_part fresh) {
    static const char *const all[] = {"head.dense.weight", "head.dense.bias",   "head.norm.weight",
                                      "head.norm.bias",    "classifier.weight", "classifier.bias",
                                      "decoder.weight",    "decoder.bias",      NULL};
    static const int first[] = {[PART_NONE] = 6, [PART_CLASSIFIER] = 4, [PART_HEAD] = 0};
    *out = NULL;
    struct classifier_parameters *params = NULL;
    NEW(&params, 1);
    size_t layers = (size_t)config->num_hidden_layers, capacity = layers * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    status result = OK;
    parameter_table_init(&params->table, capacity);
    params->blocks = arena_alloc(&params->table.arena, layers * sizeof *params->blocks);
    TRY_TO(result, failed, classifier_parameters_fill(params, config, labels));
    assert(params->table.count <= capacity);
    params->table.ignored = all + first[fresh];
    classifier_set_settings(&params->table, config);
    *out = params;
    return OK;
failed:
    classifier_parameters_free(&params);
    return result;
}

void classifier_parameters_free(struct classifier_parameters **params) {
    if (!*params) return;
    parameter_table_release(&(*params)->table);
    free(*params);
    *params = NULL;
}

// ---- on a backend ----

struct transformer classifier_encoder(const struct classifier_config *config,
                                      const struct classifier_parameters *params) {
    return (struct transformer){
        .params = params->blocks,
        .block_count = config->num_hidden_layers,
        .heads = {config->num_attention_heads, config->num_attention_heads, config->head_dim},
        .attention_scale = 1 / sqrtf((float)config->head_dim),
        .eps = config->norm_eps,
        .hidden_size = config->hidden_size,
        .intermediate_size = config->intermediate_size,
        .norm = NORM_LAYERNORM,
        .activation = ACTIVATION_GEGLU,
    };
}

// Loads everything in the order of the table.
static status classifier_load_all(struct weights_loader *loader, struct classifier_weights *weights,
                                  const struct classifier_parameters *params) {
    TRY(weights_load_unpacked(loader, &params->embedding, &weights->embedding));
    TRY(weights_load_block_matrices(loader, &weights->encoder));
    TRY(weights_load_matrix(loader, &params->dense, &weights->dense));
    TRY(weights_load_matrix(loader, &params->classifier, &weights->classifier));
    TRY(weights_load_unpacked(loader, &params->embedding_norm, &weights->embedding_norm));
    TRY(weights_load_unpacked(loader, &params->embedding_norm_bias, &weights->embedding_norm_bias));
    TRY(weights_load_block_vectors(loader, &weights->encoder));
    TRY(weights_load_unpacked(loader, &params->final_norm, &weights->final_norm));
    TRY(weights_load_unpacked(loader, &params->final_norm_bias, &weights->final_norm_bias));
    TRY(weights_load_unpacked(loader, &params->dense_bias, &weights->dense_bias));
    TRY(weights_load_unpacked(loader, &params->head_norm, &weights->head_norm));
    TRY(weights_load_unpacked(loader, &params->head_norm_bias, &weights->head_norm_bias));
    return weights_load_unpacked(loader, &params->classifier_bias, &weights->classifier_bias);
}

status classifier_weights_load(struct classifier_weights **out, struct backend *backend,
                               const struct classifier_config *config, const struct classifier_parameters *params,
                               const struct safetensors *store, enum element type, bool training) {
    *out = NULL;
    struct weights_loader loader = {0};
    struct classifier_weights *weights = NULL;
    NEW(&weights, 1);
    weights->base =
        (struct weights){.backend = backend, .table = &params->table, .embedding = &params->embedding, .type = type};
    weights->encoder = classifier_encoder(config, params);
    status result = OK;
    NEW(&weights->encoder.blocks, (size_t)config->num_hidden_layers);
    TRY_TO(result, done, weights_loader_open(&loader, &weights->base, store, training, NULL));
    TRY_TO(result, done, classifier_load_all(&loader, weights, params));
    weights_loader_finish(&loader);
    *out = weights;
    weights = NULL;
done:
    weights_loader_release(&loader);
    classifier_weights_free(&weights);
    return result;
}

void classifier_weights_free(struct classifier_weights **weights) {
    struct classifier_weights *it = *weights;
    if (!it) return;
    struct backend *backend = it->base.backend;
    weights_free_blocks(backend, &it->encoder);
    backend->ops->weight_free(backend, &it->dense);
    backend->ops->weight_free(backend, &it->classifier);
    weights_release(&it->base);
    free(it);
    *weights = NULL;
}
