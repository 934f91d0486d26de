#include "shared/model/qwen_vl/qwen_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum { MAX_PER_BLOCK = 15, MAX_OUTSIDE_BLOCKS = 16 }; // parameters

// What stays the same while the parameters of the language model or of the tower are added.
struct qwen_builder {
    struct parameter_table *table;
    bool vision;
    enum vision_kind kind; // of the tower
    int64_t hidden_size, intermediate_size;
    int64_t query_size, key_size; // columns of all their heads
};

static const char *qwen_block_name(struct qwen_builder *builder, int block, const char *rest) {
    return arena_printf(&builder->table->arena, "%s.%d.%s", builder->vision ? "visual.blocks" : "model.layers", block,
                        rest);
}

// Whether it is a block of Qwen2-VL's tower, which has LayerNorms with bias, fc1 and fc2.
static bool qwen_has_fc1(const struct qwen_builder *builder) {
    return builder->vision && builder->kind == VISION_QWEN2;
}

// Query, key and value: the tower stores them as one tensor, the language model as three.
static status qwen_add_qkv(struct qwen_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                           int block) {
    static const char *const text_names[3][2] = {
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias"},
        {"self_attn.k_proj.weight", "self_attn.k_proj.bias"},
        {"self_attn.v_proj.weight", "self_attn.v_proj.bias"},
    };
    bool bias = kind == PARAMETER_BIAS;
    int64_t size = builder->query_size + 2 * builder->key_size;
    int64_t rows = bias ? 1 : size, columns = bias ? size : builder->hidden_size;
    if (builder->vision)
        return parameter_table_single(builder->table, fused, kind, rows, columns,
                                      qwen_block_name(builder, block, bias ? "attn.qkv.bias" : "attn.qkv.weight"));
    parameter_table_start(builder->table, fused, rows, columns);
    for (int i = 0; i < 3; i++) {
        int64_t own = i ? builder->key_size : builder->query_size;
        TRY(parameter_table_append(builder->table, fused, kind, bias ? 1 : own, bias ? own : columns,
                                   qwen_block_name(builder, block, text_names[i][bias])));
    }
    return OK;
}

// A parameter of a block that no other one is fused with.
static status qwen_add(struct qwen_builder *builder, struct fused_param *fused, enum parameter_kind kind, int64_t rows,
                       int64_t columns, int block, const char *name) {
    return parameter_table_single(builder->table, fused, kind, rows, columns, qwen_block_name(builder, block, name));
}

// Gate and up, or what Qwen2-VL's tower has in their place.
static status qwen_add_gate_up(struct qwen_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                               int block) {
    static const char *const names[2][2] = {
        {"mlp.gate_proj.weight", "mlp.gate_proj.bias"},
        {"mlp.up_proj.weight", "mlp.up_proj.bias"},
    };
    bool bias = kind == PARAMETER_BIAS;
    int64_t size = builder->intermediate_size, columns = bias ? size : builder->hidden_size;
    if (qwen_has_fc1(builder))
        return qwen_add(builder, fused, kind, bias ? 1 : size, columns, block,
                        bias ? "mlp.fc1.bias" : "mlp.fc1.weight");
    parameter_table_start(builder->table, fused, bias ? 1 : 2 * size, bias ? 2 * size : columns);
    for (int i = 0; i < 2; i++)
        TRY(parameter_table_append(builder->table, fused, kind, bias ? 1 : size, columns,
                                   qwen_block_name(builder, block, names[i][bias])));
    return OK;
}

static status qwen_add_block_matrices(struct qwen_builder *builder, struct block_params *params, int block) {
    TRY(qwen_add_qkv(builder, &params->qkv, PARAMETER_MATRIX, block));
    TRY(qwen_add(builder, &params->out, PARAMETER_MATRIX, builder->hidden_size, builder->query_size, block,
                 builder->vision ? "attn.proj.weight" : "self_attn.o_proj.weight"));
    TRY(qwen_add_gate_up(builder, &params->gate_up, PARAMETER_MATRIX, block));
    return qwen_add(builder, &params->down, PARAMETER_MATRIX, builder->hidden_size, builder->intermediate_size, block,
                    qwen_has_fc1(builder) ? "mlp.fc2.weight" : "mlp.down_proj.weight");
}

static status qwen_add_block_vectors(struct qwen_builder *builder, struct block_params *params, int block) {
    const char *norm1 = builder->vision ? "norm1.weight" : "input_layernorm.weight";
    const char *norm2 = builder->vision ? "norm2.weight" : "post_attention_layernorm.weight";
    TRY(qwen_add(builder, &params->norm1, PARAMETER_NORM, 1, builder->hidden_size, block, norm1));
    TRY(qwen_add(builder, &params->norm2, PARAMETER_NORM, 1, builder->hidden_size, block, norm2));
    if (qwen_has_fc1(builder)) {
        TRY(qwen_add(builder, &params->norm1_bias, PARAMETER_BIAS, 1, builder->hidden_size, block, "norm1.bias"));
        TRY(qwen_add(builder, &params->norm2_bias, PARAMETER_BIAS, 1, builder->hidden_size, block, "norm2.bias"));
    }
    TRY(qwen_add_qkv(builder, &params->qkv_bias, PARAMETER_BIAS, block));
    if (!builder->vision) return OK;
    TRY(qwen_add(builder, &params->out_bias, PARAMETER_BIAS, 1, builder->hidden_size, block, "attn.proj.bias"));
    TRY(qwen_add_gate_up(builder, &params->gate_up_bias, PARAMETER_BIAS, block));
    return qwen_add(builder, &params->down_bias, PARAMETER_BIAS, 1, builder->hidden_size, block,
                    qwen_has_fc1(builder) ? "mlp.fc2.bias" : "mlp.down_proj.bias");
}

// Adds the language model: first the matrices, then the vectors.
static status qwen_add_text(struct qwen_parameters *params, const struct text_config *text) {
    struct parameter_table *table = &params->table;
    struct qwen_builder builder = {.table = table,
                                   .hidden_size = text->hidden_size,
                                   .intermediate_size = text->intermediate_size,
                                   .query_size = (int64_t)text->num_attention_heads * text->head_dim,
                                   .key_size = (int64_t)text->num_key_value_heads * text->head_dim};
    TRY(parameter_table_single(table, &params->embedding, PARAMETER_MATRIX, text->vocab_size, text->hidden_size,
                               "model.embed_tokens.weight"));
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(qwen_add_block_matrices(&builder, &params->text[i], i));
    if (!text->tie_word_embeddings)
        TRY(parameter_table_single(table, &params->lm_head, PARAMETER_MATRIX, text->vocab_size, text->hidden_size,
                                   "lm_head.weight"));
    parameter_table_close_range(table, true, GROUP_TEXT);
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(qwen_add_block_vectors(&builder, &params->text[i], i));
    TRY(parameter_table_single(table, &params->norm, PARAMETER_NORM, 1, text->hidden_size, "model.norm.weight"));
    parameter_table_close_range(table, false, GROUP_TEXT);
    assert(table->range_count == TEXT_RANGES);
    return OK;
}

// Adds the vision tower, in the same order.
static status qwen_add_vision(struct qwen_parameters *params, const struct vision_config *vision) {
    struct parameter_table *table = &params->table;
    struct qwen_builder builder = {.table = table,
                                   .vision = true,
                                   .kind = vision->kind,
                                   .hidden_size = vision->hidden_size,
                                   .intermediate_size = vision->intermediate_size,
                                   .query_size = vision->hidden_size,
                                   .key_size = vision->hidden_size};
    int64_t pixels = (int64_t)3 * vision->temporal_patch_size * vision->patch_size * vision->patch_size;
    int64_t merged = vision->hidden_size * vision->spatial_merge_size * vision->spatial_merge_size;
    TRY(parameter_table_single(table, &params->patch_embed, PARAMETER_MATRIX, vision->hidden_size, pixels,
                               "visual.patch_embed.proj.weight"));
    struct parameter *patch_embed = &table->list[params->patch_embed.first];
    const int64_t shape[] = {vision->hidden_size, 3, vision->temporal_patch_size, vision->patch_size,
                             vision->patch_size};
    static_assert(sizeof shape == sizeof patch_embed->shape, "a three-dimensional convolution has rank 5");
    patch_embed->rank = 5;
    memcpy(patch_embed->shape, shape, sizeof shape);
    for (int i = 0; i < vision->depth; i++) TRY(qwen_add_block_matrices(&builder, &params->vision[i], i));
    TRY(parameter_table_single(table, &params->merger_fc1, PARAMETER_MATRIX, merged, merged,
                               "visual.merger.mlp.0.weight"));
    TRY(parameter_table_single(table, &params->merger_fc2, PARAMETER_MATRIX, vision->out_hidden_size, merged,
                               "visual.merger.mlp.2.weight"));
    parameter_table_close_range(table, true, GROUP_VISION);
    for (int i = 0; i < vision->depth; i++) TRY(qwen_add_block_vectors(&builder, &params->vision[i], i));
    TRY(parameter_table_single(table, &params->merger_norm, PARAMETER_NORM, 1, vision->hidden_size,
                               "visual.merger.ln_q.weight"));
    if (vision->kind == VISION_QWEN2)
        TRY(parameter_table_single(table, &params->merger_norm_bias, PARAMETER_BIAS, 1, vision->hidden_size,
                                   "visual.merger.ln_q.bias"));
    TRY(parameter_table_single(table, &params->merger_fc1_bias, PARAMETER_BIAS, 1, merged, "visual.merger.mlp.0.bias"));
    TRY(parameter_table_single(table, &params->merger_fc2_bias, PARAMETER_BIAS, 1, vision->out_hidden_size,
                               "visual.merger.mlp.2.bias"));
    parameter_table_close_range(table, false, GROUP_VISION);
    return OK;
}

// Sets the names that nested state dicts have.
static void qwen_set_aliases(struct parameter_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        struct parameter *parameter = &table->list[i];
        if (parameter->group == GROUP_VISION)
            parameter->alias = arena_printf(&table->arena, "model.%s", parameter->name);
        else if (strncmp(parameter->name, "model.", 6) == 0)
            parameter->alias = arena_printf(&table->arena, "model.language_model.%s", parameter->name + 6);
        else
            continue;
    }
}

// Sets what changes a result, except sizes, which are in the parameters' shapes. Stores on disk are keyed by the hash
// of these numbers in this order.
static void qwen_set_settings(struct parameter_table *table, const struct model_config *config) {
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    const double numbers[] = {
        text->num_attention_heads,
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
        (double)config->video_token_id,
    };
    size_t count = sizeof numbers / sizeof *numbers, depth = (size_t)vision->depth;
    double *settings = arena_alloc(&table->arena, (count + depth) * sizeof *settings);
    memcpy(settings, numbers, sizeof numbers);
    for (size_t i = 0; i < depth; i++) settings[count + i] = vision->fullatt_blocks[i];
    table->settings = settings;
    table->setting_count = count + depth;
}

status qwen_parameters_new(struct qwen_parameters **out, const struct model_config *config) {
    static const char *const tied[] = {"lm_head.weight", NULL};
    *out = NULL;
    struct qwen_parameters *params = NULL;
    NEW(&params, 1);
    struct parameter_table *table = &params->table;
    size_t layers = (size_t)config->text.num_hidden_layers, depth = (size_t)config->vision.depth;
    size_t capacity = (layers + depth) * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    status result = OK;
    parameter_table_init(table, capacity);
    params->text = arena_alloc(&table->arena, layers * sizeof *params->text);
    params->vision = arena_alloc(&table->arena, depth * sizeof *params->vision);
    TRY_TO(result, failed, qwen_add_text(params, &config->text));
    TRY_TO(result, failed, qwen_add_vision(params, &config->vision));
    assert(table->count <= capacity);
    if (config->text.tie_word_embeddings) table->ignored = tied;
    qwen_set_aliases(table);
    qwen_set_settings(table, config);
    *out = params;
    return OK;
failed:
    qwen_parameters_free(&params);
    return result;
}

void qwen_parameters_free(struct qwen_parameters **params) {
    if (!*params) return;
    parameter_table_release(&(*params)->table);
    free(*params);
    *params = NULL;
}

// ---- on a backend ----

// Loads everything in the order of the table.
static status qwen_load_all(struct weights_loader *loader, struct qwen_weights *weights) {
    const struct qwen_parameters *params = weights->params;
    TRY(weights_load_unpacked(loader, &params->embedding, &weights->embedding));
    if (!params->lm_head.count) TRY(weights_load_tied(loader, weights->embedding, &weights->lm_head));
    TRY(weights_load_block_matrices(loader, &weights->text));
    if (params->lm_head.count) TRY(weights_load_matrix(loader, &params->lm_head, &weights->lm_head));
    TRY(weights_load_block_vectors(loader, &weights->text));
    TRY(weights_load_unpacked(loader, &params->norm, &weights->norm));
    TRY(weights_load_matrix(loader, &params->patch_embed, &weights->patch_embed));
    TRY(weights_load_block_matrices(loader, &weights->vision));
    TRY(weights_load_matrix(loader, &params->merger_fc1, &weights->merger_fc1));
    TRY(weights_load_matrix(loader, &params->merger_fc2, &weights->merger_fc2));
    TRY(weights_load_block_vectors(loader, &weights->vision));
    TRY(weights_load_unpacked(loader, &params->merger_norm, &weights->merger_norm));
    TRY(weights_load_unpacked(loader, &params->merger_norm_bias, &weights->merger_norm_bias));
    TRY(weights_load_unpacked(loader, &params->merger_fc1_bias, &weights->merger_fc1_bias));
    return weights_load_unpacked(loader, &params->merger_fc2_bias, &weights->merger_fc2_bias);
}

struct transformer text_transformer(const struct text_config *text) {
    return (struct transformer){
        .block_count = text->num_hidden_layers,
        .heads = {text->num_attention_heads, text->num_key_value_heads, text->head_dim},
        .attention_scale = 1 / sqrtf((float)text->head_dim),
        .eps = text->rms_norm_eps,
        .hidden_size = text->hidden_size,
        .intermediate_size = text->intermediate_size,
        .norm = NORM_RMSNORM,
        .activation = ACTIVATION_SWIGLU,
    };
}

struct transformer vision_transformer(const struct vision_config *vision) {
    bool qwen2 = vision->kind == VISION_QWEN2;
    return (struct transformer){
        .block_count = vision->depth,
        .heads = {vision->num_heads, vision->num_heads, vision->head_dim},
        .attention_scale = 1 / sqrtf((float)vision->head_dim),
        .eps = 1e-6f,
        .hidden_size = vision->hidden_size,
        .intermediate_size = vision->intermediate_size,
        .norm = qwen2 ? NORM_LAYERNORM : NORM_RMSNORM,
        .activation = qwen2 ? ACTIVATION_QUICK_GELU : ACTIVATION_SWIGLU,
    };
}

void qwen_weights_new(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                      const struct qwen_parameters *params, enum element type) {
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    NEW(out, 1);
    struct qwen_weights *weights = *out;
    weights->params = params;
    weights->base =
        (struct weights){.backend = backend, .table = &params->table, .embedding = &params->embedding, .type = type};
    weights->text = text_transformer(text);
    weights->text.params = params->text;
    weights->vision = vision_transformer(vision);
    weights->vision.params = params->vision;
    NEW(&weights->text.blocks, (size_t)text->num_hidden_layers);
    NEW(&weights->vision.blocks, (size_t)vision->depth);
}

status qwen_weights_load(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                         const struct qwen_parameters *params, const struct safetensors *store, enum element type,
                         bool training, const uint64_t *hash) {
    *out = NULL;
    struct qwen_weights *weights = NULL;
    status result = OK;
    qwen_weights_new(&weights, backend, config, params, type);
    struct weights_loader loader = {0};
    TRY_TO(result, done, weights_loader_open(&loader, &weights->base, store, training, hash));
    TRY_TO(result, done, qwen_load_all(&loader, weights));
    weights_loader_finish(&loader);
    *out = weights;
    weights = NULL;
done:
    weights_loader_release(&loader);
    qwen_weights_free(&weights);
    return result;
}

status qwen_weights_borrow(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                           const struct qwen_parameters *params, enum element type, struct buffer *values,
                           uint64_t hash) {
    *out = NULL;
    struct qwen_weights *weights;
    qwen_weights_new(&weights, backend, config, params, type);
    struct weights_loader loader;
    weights_loader_borrow(&loader, &weights->base, values, hash);
    status result = qwen_load_all(&loader, weights);
    weights_loader_release(&loader);
    if (result != OK) qwen_weights_free(&weights);
    *out = weights;
    return result;
}

void qwen_weights_free(struct qwen_weights **weights) {
    struct qwen_weights *it = *weights;
    if (!it) return;
    struct backend *backend = it->base.backend;
    weights_free_blocks(backend, &it->text);
    weights_free_blocks(backend, &it->vision);
    backend->ops->weight_free(backend, &it->lm_head);
    backend->ops->weight_free(backend, &it->patch_embed);
    backend->ops->weight_free(backend, &it->merger_fc1);
    backend->ops->weight_free(backend, &it->merger_fc2);
    weights_release(&it->base);
    free(it);
    *weights = NULL;
}
