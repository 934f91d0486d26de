#include "shared/model/qwen_vl/qwen_weights.h"

#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"

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
