#include "shared/model/modernbert/classifier_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PER_BLOCK = 12, MAX_OUTSIDE_BLOCKS = 11, ENCODER_PREFIX = 6 }; // "model."

// NAME.bias, if `exists`.
static void classifier_add_bias(struct parameter_table *table, struct fused_param *bias, bool exists, int64_t columns,
                                const char *name) {
    if (exists)
        parameter_table_single(table, bias, PARAMETER_BIAS, 1, columns, arena_printf(&table->arena, "%s.bias", name));
}

// A norm's NAME.weight and, if the configuration says so, NAME.bias.
static void classifier_add_norm(struct classifier_parameters *params, struct fused_param *scale,
                                struct fused_param *bias, const char *name) {
    const struct classifier_config *config = params->config;
    parameter_table_single(&params->table, scale, PARAMETER_NORM, 1, config->hidden_size,
                           arena_printf(&params->table.arena, "%s.weight", name));
    classifier_add_bias(&params->table, bias, config->norm_bias, config->hidden_size, name);
}

// Adds everything: first the matrices, then the vectors.
static void classifier_add_all(struct classifier_parameters *params) {
    const struct classifier_config *config = params->config;
    struct parameter_table *table = &params->table;
    const int64_t hidden = config->hidden_size, mlp = config->intermediate_size, labels = config->labels;
    const struct stack_shape shape = {
        .prefix = "model.layers",
        .hidden_size = hidden,
        .norms = {"attn_norm", "mlp_norm"},
        .norm_bias = config->norm_bias,
        .first_unnormed = true,
        .qkv = {{"attn.Wqkv"}, {3 * hidden}, hidden, config->attention_bias},
        .out = {{"attn.Wo"}, {hidden}, hidden, config->attention_bias},
        .gate_up = {{"mlp.Wi"}, {2 * mlp}, hidden, config->mlp_bias},
        .down = {{"mlp.Wo"}, {hidden}, mlp, config->mlp_bias},
    };
    parameter_table_single(table, &params->embedding, PARAMETER_MATRIX, config->vocab_size, hidden,
                           "model.embeddings.tok_embeddings.weight");
    for (int i = 0; i < config->num_hidden_layers; i++) stack_add_block(table, &params->blocks[i], &shape, i, true);
    parameter_table_single(table, &params->dense, PARAMETER_MATRIX, hidden, hidden, "head.dense.weight");
    parameter_table_single(table, &params->classifier, PARAMETER_MATRIX, labels, hidden, "classifier.weight");
    parameter_table_close_range(table, true, 0);
    classifier_add_norm(params, &params->embedding_norm, &params->embedding_norm_bias, "model.embeddings.norm");
    for (int i = 0; i < config->num_hidden_layers; i++) stack_add_block(table, &params->blocks[i], &shape, i, false);
    classifier_add_norm(params, &params->final_norm, &params->final_norm_bias, "model.final_norm");
    classifier_add_bias(table, &params->dense_bias, config->classifier_bias, hidden, "head.dense");
    classifier_add_norm(params, &params->head_norm, &params->head_norm_bias, "head.norm");
    classifier_add_bias(table, &params->classifier_bias, true, labels, "classifier");
    parameter_table_close_range(table, false, 0);
}

status classifier_parameters_new(struct classifier_parameters **out, const struct classifier_config *config,
                                 enum classifier_part fresh) {
    static const char *const all[] = {"head.dense.weight", "head.dense.bias",   "head.norm.weight",
                                      "head.norm.bias",    "classifier.weight", "classifier.bias",
                                      "decoder.weight",    "decoder.bias",      NULL};
    static const int first[] = {[PART_NONE] = 6, [PART_CLASSIFIER] = 4, [PART_HEAD] = 0};
    NEW(out, 1);
    struct classifier_parameters *params = *out;
    struct parameter_table *table = &params->table;
    size_t layers = (size_t)config->num_hidden_layers, capacity = layers * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    params->config = config;
    parameter_table_init(table, capacity);
    params->blocks = arena_alloc(&table->arena, layers * sizeof *params->blocks);
    classifier_add_all(params);
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
    status result = parameter_table_finish(table, numbers, sizeof numbers / sizeof *numbers, config->full_attention,
                                           config->num_hidden_layers);
    if (result != OK) classifier_parameters_free(out);
    return result;
}

void classifier_parameters_free(struct classifier_parameters **params) {
    if (!*params) return;
    parameter_table_release(&(*params)->table);
    free(*params);
    *params = NULL;
}

// ---- on a backend ----

struct transformer classifier_encoder(const struct classifier_parameters *params) {
    const struct classifier_config *config = params->config;
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
                               const struct classifier_parameters *params, enum element type,
                               const struct weights_source *source) {
    struct weights_loader loader;
    NEW(out, 1);
    struct classifier_weights *weights = *out;
    weights->base =
        (struct weights){.backend = backend, .table = &params->table, .embedding = &params->embedding, .type = type};
    weights->encoder = classifier_encoder(params);
    NEW(&weights->encoder.blocks, (size_t)weights->encoder.block_count);
    status result = weights_loader_open(&loader, &weights->base, source);
    if (result == OK) result = classifier_load_all(&loader, weights, params);
    if (result == OK) weights_loader_finish(&loader);
    weights_loader_release(&loader);
    return result;
}

void classifier_weights_free(struct classifier_weights **freed) {
    struct classifier_weights *weights = *freed;
    if (!weights) return;
    struct backend *backend = weights->base.backend;
    weights_free_blocks(backend, &weights->encoder);
    backend->ops->weight_free(backend, &weights->dense);
    backend->ops->weight_free(backend, &weights->classifier);
    weights_release(&weights->base);
    free(weights);
    *freed = NULL;
}
