#include "shared/model/qwen_vl/qwen_weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/model/weights_hash.h"

enum { UNPACKED_ALIGNMENT = 64 }; // bytes

// What is passed along while weights are loaded.
struct weights_loader {
    struct qwen_weights *weights;
    const struct stored_tensor **found; // by parameter; NULL: the array has its values already
    size_t unpacked_bytes;              // of weights->unpacked, given away so far
    struct buffer *staging;             // one matrix after another, before it is packed
    size_t staging_size;
    bool digested; // whether the hash of packed weights is computed while they are loaded
    uint64_t digest;
};

// Fills a parameter of the array.
static status weights_fill_values(struct weights_loader *loader, const struct fused_param *param) {
    struct qwen_weights *weights = loader->weights;
    for (size_t i = param->first; loader->found && i < param->first + param->count; i++) {
        const struct stored_tensor *stored = loader->found[i];
        TRY(parameter_upload(weights->backend, &weights->values, &weights->remainders, &weights->table->list[i],
                             stored->data, stored->type));
        safetensors_release_pages(stored);
    }
    return OK;
}

// Fills a dense tensor with a parameter, and adds it to the digest.
static status weights_fill(struct weights_loader *loader, const struct fused_param *param, struct tensor out) {
    struct backend *backend = loader->weights->backend;
    assert(loader->found);
    for (size_t i = param->first; i < param->first + param->count; i++) {
        const struct parameter *parameter = &loader->weights->table->list[i];
        const struct stored_tensor *stored = loader->found[i];
        struct tensor row = tensor_reshape(out, 1, parameter->count);
        row.offset += (size_t)(parameter->offset - param->offset) * element_size(out.type);
        bool aligned = (uintptr_t)stored->data % element_size(stored->type) == 0;
        char *copy = NULL; // the data of a file may be unaligned
        if (!aligned) {
            TRY(mem_new(&copy, stored->size, 1));
            memcpy(copy, stored->data, stored->size);
        }
        status result = backend->ops->upload(backend, row, aligned ? stored->data : copy, stored->type);
        free(copy);
        TRY(result);
        safetensors_release_pages(stored);
    }
    return loader->digested ? weights_digest(backend, param, out, &loader->digest) : OK;
}

static bool weights_packed(const struct qwen_weights *weights) {
    return !weights->values.buffer;
}

// Prepares a matrix from the array, which stays, or from a staging buffer.
static status weights_load_matrix(struct weights_loader *loader, const struct fused_param *param, struct weight **out) {
    struct qwen_weights *weights = loader->weights;
    struct backend *backend = weights->backend;
    if (!weights_packed(weights)) {
        TRY(weights_fill_values(loader, param));
        return backend->ops->weight_new(backend, out, param_tensor(&weights->values, param), false);
    }
    size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
    if (loader->staging_size < bytes) {
        backend->ops->buffer_free(backend, &loader->staging);
        loader->staging_size = 0;
        TRY(backend->ops->buffer_new(backend, bytes, &loader->staging));
        loader->staging_size = bytes;
    }
    struct tensor plain = {loader->staging, 0, weights->type, param->rows, param->columns, param->columns};
    TRY(weights_fill(loader, param, plain));
    TRY(backend->ops->weight_new(backend, out, plain, true));
    return backend->ops->wait(backend);
}

// Bytes that a parameter takes in weights->unpacked.
static size_t weights_unpacked_bytes(const struct qwen_weights *weights, const struct fused_param *param) {
    size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
    return (bytes + UNPACKED_ALIGNMENT - 1) / UNPACKED_ALIGNMENT * UNPACKED_ALIGNMENT;
}

// Loads what is read unpacked: a vector or the embedding. A vector that does not exist is none.
static status weights_load_unpacked(struct weights_loader *loader, const struct fused_param *param,
                                    struct tensor *out) {
    struct qwen_weights *weights = loader->weights;
    if (param->count == 0) return OK;
    if (!weights_packed(weights)) {
        *out = param_tensor(&weights->values, param);
        return weights_fill_values(loader, param);
    }
    *out = (struct tensor){weights->unpacked, loader->unpacked_bytes, weights->type,
                           param->rows,       param->columns,         param->columns};
    loader->unpacked_bytes += weights_unpacked_bytes(weights, param);
    return weights_fill(loader, param, *out);
}

static status weights_load_block_matrices(struct weights_loader *loader, struct transformer *transformer) {
    for (int i = 0; i < transformer->block_count; i++) {
        const struct block_params *params = &transformer->params[i];
        struct block *block = &transformer->blocks[i];
        TRY(weights_load_matrix(loader, &params->qkv, &block->qkv));
        TRY(weights_load_matrix(loader, &params->out, &block->out));
        TRY(weights_load_matrix(loader, &params->gate_up, &block->gate_up));
        TRY(weights_load_matrix(loader, &params->down, &block->down));
    }
    return OK;
}

static status weights_load_block_vectors(struct weights_loader *loader, struct transformer *transformer) {
    for (int i = 0; i < transformer->block_count; i++) {
        const struct block_params *params = &transformer->params[i];
        struct block *block = &transformer->blocks[i];
        TRY(weights_load_unpacked(loader, &params->norm1, &block->norm1));
        TRY(weights_load_unpacked(loader, &params->norm2, &block->norm2));
        TRY(weights_load_unpacked(loader, &params->norm1_bias, &block->norm1_bias));
        TRY(weights_load_unpacked(loader, &params->norm2_bias, &block->norm2_bias));
        TRY(weights_load_unpacked(loader, &params->qkv_bias, &block->qkv_bias));
        TRY(weights_load_unpacked(loader, &params->out_bias, &block->out_bias));
        TRY(weights_load_unpacked(loader, &params->gate_up_bias, &block->gate_up_bias));
        TRY(weights_load_unpacked(loader, &params->down_bias, &block->down_bias));
    }
    return OK;
}

// Makes room for the weights in the order of the table.
static status weights_allocate(struct qwen_weights *weights, bool training) {
    struct backend *backend = weights->backend;
    const struct parameter_table *table = weights->table;
    struct backend_info info;
    TRY(backend_get_info(backend, &info));
    if (training || !info.packs) {
        TRY(param_array_init(&weights->values, backend, table, table->range_count, weights->type, weights->type));
        if (!training || weights->type == ELEMENT_F32) return OK;
        return param_array_init(&weights->remainders, backend, table, table->range_count, ELEMENT_U16, ELEMENT_U16);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < table->fused_count; i++) {
        const struct fused_param *param = table->fused[i];
        if (param->rows == 1 || param == &weights->params->embedding) bytes += weights_unpacked_bytes(weights, param);
    }
    return backend->ops->buffer_new(backend, bytes, &weights->unpacked);
}

// Loads everything in the order of the table.
static status weights_load_all(struct weights_loader *loader) {
    struct qwen_weights *weights = loader->weights;
    const struct operations *ops = weights->backend->ops;
    const struct qwen_parameters *params = weights->params;
    TRY(weights_load_unpacked(loader, &params->embedding, &weights->embedding));
    if (!params->lm_head.count)
        TRY(ops->weight_new(weights->backend, &weights->lm_head, weights->embedding, weights_packed(weights)));
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

status qwen_weights_new(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                        const struct qwen_parameters *params, enum element type) {
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    TRY(NEW(out, 1));
    struct qwen_weights *weights = *out;
    *weights = (struct qwen_weights){.backend = backend, .params = params, .table = &params->table, .type = type};
    weights->text = text_transformer(text);
    weights->text.params = params->text;
    weights->vision = vision_transformer(vision);
    weights->vision.params = params->vision;
    status result = NEW(&weights->text.blocks, (size_t)text->num_hidden_layers);
    if (result == OK) result = NEW(&weights->vision.blocks, (size_t)vision->depth);
    if (result != OK) qwen_weights_free(out);
    return result;
}

status qwen_weights_load(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                         const struct qwen_parameters *params, const struct safetensors *store, enum element type,
                         bool training, const uint64_t *hash) {
    *out = NULL;
    struct qwen_weights *weights = NULL;
    status result = OK;
    TRY(qwen_weights_new(&weights, backend, config, params, type));
    struct weights_loader loader = {.weights = weights, .digested = !hash};
    TRY_TO(result, done, NEW(&loader.found, params->table.count));
    TRY_TO(result, done, parameter_table_match(&params->table, store, loader.found));
    TRY_TO(result, done, weights_allocate(weights, training));
    TRY_TO(result, done, weights_load_all(&loader));
    weights->hash_known = hash || weights_packed(weights); // an array is hashed when it is asked for
    if (hash) weights->hash = *hash;
    if (!hash && weights_packed(weights))
        TRY_TO(result, done, weights_hash_finish(&params->table, type, loader.digest, &weights->hash));
    *out = weights;
    weights = NULL;
done:
    backend->ops->buffer_free(backend, &loader.staging);
    qwen_weights_free(&weights);
    free(loader.found);
    return result;
}

status qwen_weights_borrow(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                           const struct qwen_parameters *params, enum element type, struct buffer *values,
                           uint64_t hash) {
    *out = NULL;
    struct qwen_weights *weights;
    TRY(qwen_weights_new(&weights, backend, config, params, type));
    param_array_view(&weights->values, values, &params->table, params->table.range_count, type, type);
    weights->borrowed = true;
    weights->hash = hash;
    weights->hash_known = true;
    struct weights_loader loader = {.weights = weights};
    status result = weights_load_all(&loader);
    if (result != OK) qwen_weights_free(&weights);
    *out = weights;
    return result;
}

static void weights_free_blocks(struct backend *backend, struct transformer *transformer) {
    for (int i = 0; transformer->blocks && i < transformer->block_count; i++) {
        struct block *block = &transformer->blocks[i];
        backend->ops->weight_free(backend, &block->qkv);
        backend->ops->weight_free(backend, &block->out);
        backend->ops->weight_free(backend, &block->gate_up);
        backend->ops->weight_free(backend, &block->down);
    }
    free(transformer->blocks);
}

void qwen_weights_free(struct qwen_weights **weights) {
    struct qwen_weights *it = *weights;
    if (!it) return;
    const struct operations *ops = it->backend->ops;
    weights_free_blocks(it->backend, &it->text);
    weights_free_blocks(it->backend, &it->vision);
    ops->weight_free(it->backend, &it->lm_head);
    ops->weight_free(it->backend, &it->patch_embed);
    ops->weight_free(it->backend, &it->merger_fc1);
    ops->weight_free(it->backend, &it->merger_fc2);
    if (!it->borrowed) param_array_release(&it->values, it->backend);
    param_array_release(&it->remainders, it->backend);
    ops->buffer_free(it->backend, &it->unpacked);
    free(it);
    *weights = NULL;
}

status qwen_weights_hash(struct qwen_weights *weights, uint64_t *hash) {
    if (!weights->hash_known) TRY(weights_hash_array(weights->backend, &weights->values, &weights->hash));
    weights->hash_known = true;
    *hash = weights->hash;
    return OK;
}
