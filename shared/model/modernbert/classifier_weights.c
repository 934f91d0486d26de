#include "shared/model/modernbert/classifier_weights.h"

#include <math.h>
#include <stdlib.h>

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
