#include "shared/model/qwen_vl/qwen_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PER_BLOCK = 15, MAX_OUTSIDE_BLOCKS = 16 }; // parameters

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

// Adds the language model: first the matrices, then the vectors.
static void qwen_add_text(struct qwen_weights *weights) {
    const struct text_config *text = &weights->config->text;
    struct parameter_table *table = &weights->base.table;
    const int64_t hidden = text->hidden_size, mlp = text->intermediate_size;
    const int64_t query = (int64_t)text->num_attention_heads * text->head_dim;
    const int64_t key = (int64_t)text->num_key_value_heads * text->head_dim;
    const struct stack_shape shape = {
        .prefix = "model.layers",
        .hidden_size = hidden,
        .norms = {"input_layernorm", "post_attention_layernorm"},
        .qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {query, key, key}, hidden, true},
        .out = {{"self_attn.o_proj"}, {hidden}, query, false},
        .gate_up = {{"mlp.gate_proj", "mlp.up_proj"}, {mlp, mlp}, hidden, false},
        .down = {{"mlp.down_proj"}, {hidden}, mlp, false},
    };
    parameter_table_single(table, &weights->embedding, PARAMETER_MATRIX, text->vocab_size, hidden,
                           "model.embed_tokens.weight");
    for (int i = 0; i < text->num_hidden_layers; i++) stack_add_block(table, &weights->text.blocks[i], &shape, i, true);
    if (!text->tie_word_embeddings)
        parameter_table_single(table, &weights->lm_head, PARAMETER_MATRIX, text->vocab_size, hidden, "lm_head.weight");
    parameter_table_close_range(table, true, GROUP_TEXT);
    for (int i = 0; i < text->num_hidden_layers; i++)
        stack_add_block(table, &weights->text.blocks[i], &shape, i, false);
    parameter_table_single(table, &weights->norm, PARAMETER_NORM, 1, hidden, "model.norm.weight");
    parameter_table_close_range(table, false, GROUP_TEXT);
    assert(table->range_count == TEXT_RANGES);
}

// Adds the vision tower, in the same order.
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
    *weights = (struct qwen_weights){.base = {.embedding = &weights->embedding},
                                     .config = config,
                                     .text = text_transformer(text),
                                     .vision = vision_transformer(vision)};
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
