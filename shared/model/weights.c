#include "shared/model/weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/model/weights_hash.h"

enum { CHUNK_ELEMENTS = 1 << 18, VECTOR_ALIGNMENT = 32 }; // elements
static_assert(sizeof(float) == 4, "a float32 buffer holds 4 bytes an element");

// What is passed along while weights are loaded.
struct weights_loader {
    struct weights *weights;
    const struct stored_tensor **found; // by parameter
    struct weights_hasher *hasher;      // NULL if the hash is known, and in training, where it is computed on demand
    int64_t vector_elements;            // of weights->vectors, allocated so far
    struct buffer *staging;             // one matrix after another, before it is packed
    size_t staging_size;
};

struct tensor range_tensor(struct buffer *buffer, int64_t offset, int64_t count) {
    assert(buffer && offset >= 0 && count >= 0);
    return (struct tensor){buffer, (size_t)offset * sizeof(float), ELEMENT_F32, 1, count, count};
}

struct tensor param_tensor(struct buffer *buffer, const struct fused_param *param) {
    assert(buffer && param->count > 0);
    size_t bytes = (size_t)param->offset * sizeof(float);
    return (struct tensor){buffer, bytes, ELEMENT_F32, param->rows, param->columns, param->columns};
}

// Elements [first, first + count) of a dense tensor as one row.
static struct tensor weights_slice(struct tensor whole, int64_t first, int64_t count) {
    assert(whole.stride == whole.columns && first + count <= whole.rows * whole.columns);
    whole.offset += (size_t)first * element_size(whole.type);
    return (struct tensor){whole.buffer, whole.offset, whole.type, 1, count, count};
}

// Passes the elements of one dense row, converted to `type`, to the sink.
static status weights_download(struct backend *backend, struct tensor row, enum element type, element_sink *sink,
                               void *context) {
    char *host = NULL;
    size_t size = element_size(type);
    int64_t chunk = row.columns < CHUNK_ELEMENTS ? row.columns : CHUNK_ELEMENTS;
    TRY(mem_new(&host, (size_t)chunk, size));
    status result = OK;
    for (int64_t first = 0; first < row.columns; first += chunk) {
        int64_t count = row.columns - first < chunk ? row.columns - first : chunk;
        TRY_TO(result, done, backend->ops->download(backend, host, type, weights_slice(row, first, count)));
        TRY_TO(result, done, sink(context, host, (size_t)count * size));
    }
done:
    free(host);
    return result;
}

status parameter_download(struct backend *backend, struct buffer *buffer, const struct parameter *parameter,
                          enum element type, element_sink *sink, void *context) {
    struct tensor row = range_tensor(buffer, parameter->offset, parameter->count);
    return weights_download(backend, row, type, sink, context);
}

// Fills a parameter's dense tensor from the store, and adds it to the hash.
static status weights_fill(struct weights_loader *loader, const struct fused_param *param, struct tensor out) {
    struct backend *backend = loader->weights->backend;
    enum element type = loader->weights->type;
    for (size_t i = param->first; i < param->first + param->count; i++) {
        const struct parameter *parameter = &loader->weights->table->list[i];
        const struct stored_tensor *stored = loader->found[i];
        struct tensor row = weights_slice(out, parameter->offset - param->offset, parameter->count);
        bool aligned = (uintptr_t)stored->data % element_size(stored->type) == 0;
        char *copy = NULL; // the data of a file may be unaligned
        if (!aligned) {
            TRY(mem_new(&copy, stored->size, 1));
            memcpy(copy, stored->data, stored->size);
        }
        status result = backend->ops->upload(backend, row, aligned ? stored->data : copy, stored->type);
        free(copy);
        TRY(result);
        if (loader->hasher) {
            weights_hasher_parameter(loader->hasher, parameter);
            TRY(stored->type == type ? weights_hasher_update(loader->hasher, stored->data, stored->size)
                                     : weights_download(backend, row, type, weights_hasher_update, loader->hasher));
        }
        safetensors_release_pages(stored);
    }
    return OK;
}

// Prepares a matrix from the master, which stays, or from a staging buffer.
static status weights_load_matrix(struct weights_loader *loader, const struct fused_param *param, struct weight **out) {
    struct weights *weights = loader->weights;
    struct backend *backend = weights->backend;
    if (weights->training) {
        struct tensor plain = param_tensor(weights->master, param);
        TRY(weights_fill(loader, param, plain));
        return backend->ops->weight_new(backend, out, plain, weights->type, false);
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
    TRY(backend->ops->weight_new(backend, out, plain, weights->type, true));
    return backend->ops->wait(backend);
}

// Whether vectors and the embedding are read from the master as they are.
static bool weights_read_master(const struct weights *weights) {
    return weights->training && weights->type == ELEMENT_F32;
}

static status weights_load_vector(struct weights_loader *loader, const struct fused_param *param, struct tensor *out) {
    struct weights *weights = loader->weights;
    if (param->count == 0) return OK;
    if (weights->training) {
        struct tensor master = param_tensor(weights->master, param);
        TRY(weights_fill(loader, param, master));
        *out = master;
        if (weights->type == ELEMENT_F32) return OK;
    }
    size_t offset = (size_t)loader->vector_elements * element_size(weights->type);
    *out = (struct tensor){weights->vectors, offset, weights->type, 1, param->columns, param->columns};
    loader->vector_elements += (param->columns + VECTOR_ALIGNMENT - 1) / VECTOR_ALIGNMENT * VECTOR_ALIGNMENT;
    return weights->training ? OK : weights_fill(loader, param, *out);
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
        TRY(weights_load_vector(loader, &params->norm1, &block->norm1));
        TRY(weights_load_vector(loader, &params->norm2, &block->norm2));
        TRY(weights_load_vector(loader, &params->qkv_bias, &block->qkv_bias));
        TRY(weights_load_vector(loader, &params->out_bias, &block->out_bias));
        TRY(weights_load_vector(loader, &params->gate_up_bias, &block->gate_up_bias));
        TRY(weights_load_vector(loader, &params->down_bias, &block->down_bias));
    }
    return OK;
}

// Loads everything in the order of the table, which is the order of the hash.
static status weights_load_all(struct weights_loader *loader) {
    struct weights *weights = loader->weights;
    const struct operations *ops = weights->backend->ops;
    const struct parameter_table *table = weights->table;
    const struct fused_param *embedding = &table->embedding;
    if (weights->training) {
        weights->embedding = param_tensor(weights->master, embedding);
    } else {
        size_t bytes = (size_t)embedding->rows * (size_t)embedding->columns * element_size(weights->type);
        TRY(ops->buffer_new(weights->backend, bytes, &weights->embedding_rows));
        weights->embedding = (struct tensor){
            weights->embedding_rows, 0, weights->type, embedding->rows, embedding->columns, embedding->columns};
    }
    TRY(weights_fill(loader, embedding, weights->embedding));
    if (!table->lm_head.count)
        TRY(ops->weight_new(weights->backend, &weights->lm_head, weights->embedding, weights->type,
                            !weights->training));
    TRY(weights_load_block_matrices(loader, &weights->text));
    if (table->lm_head.count) TRY(weights_load_matrix(loader, &table->lm_head, &weights->lm_head));
    TRY(weights_load_block_vectors(loader, &weights->text));
    TRY(weights_load_vector(loader, &table->norm, &weights->norm));
    TRY(weights_load_matrix(loader, &table->patch_embed, &weights->patch_embed));
    TRY(weights_load_block_matrices(loader, &weights->vision));
    TRY(weights_load_matrix(loader, &table->merger_fc1, &weights->merger_fc1));
    TRY(weights_load_matrix(loader, &table->merger_fc2, &weights->merger_fc2));
    TRY(weights_load_block_vectors(loader, &weights->vision));
    TRY(weights_load_vector(loader, &table->merger_norm, &weights->merger_norm));
    TRY(weights_load_vector(loader, &table->merger_fc1_bias, &weights->merger_fc1_bias));
    TRY(weights_load_vector(loader, &table->merger_fc2_bias, &weights->merger_fc2_bias));
    return weights_refresh(weights);
}

status weights_load(struct weights **out, struct backend *backend, const struct model_config *config,
                    const struct parameter_table *table, const struct safetensors *store, enum element type,
                    bool training, const uint64_t *hash) {
    *out = NULL;
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    struct weights *weights = NULL;
    status result = OK;
    TRY(NEW(&weights, 1));
    struct weights_loader loader = {.weights = weights};
    *weights = (struct weights){.backend = backend, .table = table, .type = type, .training = training};
    TRY_TO(result, done, NEW(&loader.found, table->count));
    TRY_TO(result, done, parameter_table_match(table, store, loader.found));
    if (!training && !hash) TRY_TO(result, done, weights_hasher_new(&loader.hasher, config, type));
    weights->text = (struct transformer){
        .params = table->text,
        .block_count = text->num_hidden_layers,
        .heads = {text->num_attention_heads, text->num_key_value_heads, text->head_dim},
        .attention_scale = 1 / sqrtf((float)text->head_dim),
        .eps = text->rms_norm_eps,
        .hidden_size = text->hidden_size,
        .intermediate_size = text->intermediate_size,
    };
    weights->vision = (struct transformer){
        .params = table->vision,
        .block_count = vision->depth,
        .heads = {vision->num_heads, vision->num_heads, vision->head_dim},
        .attention_scale = 1 / sqrtf((float)vision->head_dim),
        .eps = 1e-6f,
        .hidden_size = vision->hidden_size,
        .intermediate_size = vision->intermediate_size,
    };
    TRY_TO(result, done, NEW(&weights->text.blocks, (size_t)text->num_hidden_layers));
    TRY_TO(result, done, NEW(&weights->vision.blocks, (size_t)vision->depth));
    if (training)
        TRY_TO(result, done,
               backend->ops->buffer_new(backend, (size_t)table->elements * sizeof(float), &weights->master));
    if (!weights_read_master(weights)) {
        size_t elements = 0;
        for (size_t i = 0; i < table->count; i++)
            if (table->list[i].kind != PARAMETER_MATRIX) elements += (size_t)table->list[i].count + VECTOR_ALIGNMENT;
        TRY_TO(result, done, backend->ops->buffer_new(backend, elements * element_size(type), &weights->vectors));
    }
    TRY_TO(result, done, weights_load_all(&loader));
    if (hash || loader.hasher) weights->hash = hash ? *hash : weights_hasher_digest(loader.hasher);
    weights->hash_known = hash || loader.hasher;
    *out = weights;
    weights = NULL;
done:
    backend->ops->buffer_free(backend, &loader.staging);
    weights_free(&weights);
    weights_hasher_free(&loader.hasher);
    free(loader.found);
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

void weights_free(struct weights **weights) {
    struct weights *it = *weights;
    if (!it) return;
    const struct operations *ops = it->backend->ops;
    weights_free_blocks(it->backend, &it->text);
    weights_free_blocks(it->backend, &it->vision);
    ops->weight_free(it->backend, &it->lm_head);
    ops->weight_free(it->backend, &it->patch_embed);
    ops->weight_free(it->backend, &it->merger_fc1);
    ops->weight_free(it->backend, &it->merger_fc2);
    ops->buffer_free(it->backend, &it->master);
    ops->buffer_free(it->backend, &it->vectors);
    ops->buffer_free(it->backend, &it->embedding_rows);
    free(it);
    *weights = NULL;
}

static status weights_refresh_vector(struct weights *weights, const struct fused_param *param, struct tensor vector) {
    if (param->count == 0) return OK;
    return weights->backend->ops->copy(weights->backend, vector, param_tensor(weights->master, param));
}

static status weights_refresh_blocks(struct weights *weights, const struct transformer *transformer) {
    for (int i = 0; i < transformer->block_count; i++) {
        const struct block_params *params = &transformer->params[i];
        const struct block *block = &transformer->blocks[i];
        TRY(weights_refresh_vector(weights, &params->norm1, block->norm1));
        TRY(weights_refresh_vector(weights, &params->norm2, block->norm2));
        TRY(weights_refresh_vector(weights, &params->qkv_bias, block->qkv_bias));
        TRY(weights_refresh_vector(weights, &params->out_bias, block->out_bias));
        TRY(weights_refresh_vector(weights, &params->gate_up_bias, block->gate_up_bias));
        TRY(weights_refresh_vector(weights, &params->down_bias, block->down_bias));
    }
    return OK;
}

status weights_refresh(struct weights *weights) {
    weights->hash_known = false;
    if (!weights->training || weights_read_master(weights)) return OK;
    const struct parameter_table *table = weights->table;
    TRY(weights_refresh_blocks(weights, &weights->text));
    TRY(weights_refresh_blocks(weights, &weights->vision));
    TRY(weights_refresh_vector(weights, &table->norm, weights->norm));
    TRY(weights_refresh_vector(weights, &table->merger_norm, weights->merger_norm));
    TRY(weights_refresh_vector(weights, &table->merger_fc1_bias, weights->merger_fc1_bias));
    return weights_refresh_vector(weights, &table->merger_fc2_bias, weights->merger_fc2_bias);
}

status weights_hash(struct weights *weights, const struct model_config *config, uint64_t *hash) {
    status result = OK;
    struct weights_hasher *hasher = NULL;
    if (!weights->hash_known) {
        TRY_TO(result, done, weights_hasher_new(&hasher, config, weights->type));
        for (size_t i = 0; i < weights->table->count; i++) {
            const struct parameter *parameter = &weights->table->list[i];
            weights_hasher_parameter(hasher, parameter);
            TRY_TO(result, done,
                   parameter_download(weights->backend, weights->master, parameter, weights->type,
                                      weights_hasher_update, hasher));
        }
        weights->hash = weights_hasher_digest(hasher);
        weights->hash_known = true;
    }
    *hash = weights->hash;
done:
    weights_hasher_free(&hasher);
    return result;
}
