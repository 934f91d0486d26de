#include "shared/model/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/model/weights_hash.h"

enum { elements_at_a_time = 1 << 18 };

// What loading carries along.
struct loader {
    struct weights *weights;
    const struct stored_tensor **found; // by parameter
    struct weights_hasher *hasher;      // NULL when the hash is known, and in training: hashed when asked for
    int64_t vector;                     // elements of `vectors` given away
    struct buffer *copy;                // of one matrix after the other, before it is packed
    size_t copy_bytes;
};

struct tensor range_tensor(struct buffer *buffer, int64_t offset, int64_t count) {
    return (struct tensor){buffer, (size_t)offset * 4, ELEMENT_F32, 1, count, count};
}

struct tensor param_tensor(struct buffer *buffer, const struct fused_param *param) {
    return (struct tensor){buffer, (size_t)param->offset * 4, ELEMENT_F32, param->rows, param->columns, param->columns};
}

// Elements [first, first + count) of a dense tensor as one row.
static struct tensor slice(struct tensor whole, int64_t first, int64_t count) {
    whole.offset += (size_t)first * element_size(whole.type);
    return (struct tensor){whole.buffer, whole.offset, whole.type, 1, count, count};
}

// Gives the elements of one dense row, converted to `type`, to the sink.
static status drain(struct backend *backend, struct tensor row, enum element type, element_sink *sink, void *context) {
    char *host = NULL;
    size_t size = element_size(type);
    int64_t most = row.columns < elements_at_a_time ? row.columns : elements_at_a_time;
    TRY(mem_new(&host, (size_t)most, size));
    status result = OK;
    for (int64_t first = 0; first < row.columns && result == OK; first += elements_at_a_time) {
        int64_t count = row.columns - first < most ? row.columns - first : most;
        TRY_TO(result, done, backend->ops->download(backend, host, type, slice(row, first, count)));
        result = sink(context, host, (size_t)count * size);
    }
done:
    free(host);
    return result;
}

status parameter_download(struct backend *backend, struct buffer *buffer, const struct parameter *parameter,
                          enum element type, element_sink *sink, void *context) {
    return drain(backend, range_tensor(buffer, parameter->offset, parameter->count), type, sink, context);
}

// Uploads a stored tensor, whose data may lie at any address.
static status upload_stored(struct backend *backend, struct tensor out, const struct stored_tensor *stored) {
    if ((uintptr_t)stored->data % element_size(stored->type) == 0)
        return backend->ops->upload(backend, out, stored->data, stored->type);
    char *aligned = NULL;
    TRY(mem_new(&aligned, stored->size, 1));
    memcpy(aligned, stored->data, stored->size);
    status result = backend->ops->upload(backend, out, aligned, stored->type);
    free(aligned);
    return result;
}

static status add_print(struct loader *loader, const struct parameter *parameter, const struct stored_tensor *stored,
                        struct tensor row) {
    if (!loader->hasher) return OK;
    weights_hasher_parameter(loader->hasher, parameter);
    if (stored->type == loader->weights->type) return weights_hasher_update(loader->hasher, stored->data, stored->size);
    return drain(loader->weights->backend, row, loader->weights->type, weights_hasher_update, loader->hasher);
}

// Fills a part's dense tensor from the store.
static status fill(struct loader *loader, const struct fused_param *param, struct tensor out) {
    const struct parameter_table *table = loader->weights->table;
    for (size_t i = param->first; i < param->first + param->count; i++) {
        const struct parameter *parameter = &table->list[i];
        struct tensor row = slice(out, parameter->offset - param->offset, parameter->count);
        TRY(upload_stored(loader->weights->backend, row, loader->found[i]));
        TRY(add_print(loader, parameter, loader->found[i], row));
        safetensors_release_pages(loader->found[i]);
    }
    return OK;
}

static status fit_copy(struct loader *loader, size_t bytes) {
    if (loader->copy_bytes >= bytes) return OK;
    struct backend *backend = loader->weights->backend;
    backend->ops->buffer_free(backend, &loader->copy);
    loader->copy_bytes = 0;
    TRY(backend->ops->buffer_new(backend, bytes, &loader->copy));
    loader->copy_bytes = bytes;
    return OK;
}

// A matrix: prepared from the master, which stays, or from a copy, which goes.
static status load_matrix(struct loader *loader, const struct fused_param *param, struct weight **out) {
    struct weights *weights = loader->weights;
    const struct operations *ops = weights->backend->ops;
    if (weights->training) {
        struct tensor plain = param_tensor(weights->master, param);
        TRY(fill(loader, param, plain));
        return ops->weight_new(weights->backend, out, plain, weights->type, false);
    }
    size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
    TRY(fit_copy(loader, bytes));
    struct tensor plain = {loader->copy, 0, weights->type, param->rows, param->columns, param->columns};
    TRY(fill(loader, param, plain));
    TRY(ops->weight_new(weights->backend, out, plain, weights->type, true));
    return ops->wait(weights->backend);
}

// Whether vectors and the embedding are read from the master as they are.
static bool reads_master(const struct weights *weights) {
    return weights->training && weights->type == ELEMENT_F32;
}

static status load_vector(struct loader *loader, const struct fused_param *param, struct tensor *out) {
    struct weights *weights = loader->weights;
    if (param->count == 0) return OK;
    struct tensor master = param_tensor(weights->master, param);
    if (weights->training) TRY(fill(loader, param, master));
    if (reads_master(weights)) {
        *out = master;
        return OK;
    }
    *out = (struct tensor){weights->vectors, (size_t)loader->vector * element_size(weights->type),
                           weights->type,    1,
                           param->columns,   param->columns};
    loader->vector += (param->columns + 31) / 32 * 32;
    return weights->training ? OK : fill(loader, param, *out);
}

static status load_embedding(struct loader *loader) {
    struct weights *weights = loader->weights;
    const struct operations *ops = weights->backend->ops;
    const struct fused_param *param = &weights->table->embedding;
    if (weights->training) {
        weights->embedding = param_tensor(weights->master, param);
    } else {
        size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
        TRY(ops->buffer_new(weights->backend, bytes, &weights->rows));
        weights->embedding =
            (struct tensor){weights->rows, 0, weights->type, param->rows, param->columns, param->columns};
    }
    TRY(fill(loader, param, weights->embedding));
    if (weights->table->head.count) return OK;
    return ops->weight_new(weights->backend, &weights->head, weights->embedding, weights->type, !weights->training);
}

static status load_block_matrices(struct loader *loader, struct transformer *transformer) {
    for (int i = 0; i < transformer->count; i++) {
        const struct block_params *params = &transformer->params[i];
        struct block *block = &transformer->blocks[i];
        TRY(load_matrix(loader, &params->qkv, &block->qkv));
        TRY(load_matrix(loader, &params->out, &block->out));
        TRY(load_matrix(loader, &params->gate_up, &block->gate_up));
        TRY(load_matrix(loader, &params->down, &block->down));
    }
    return OK;
}

static status load_block_vectors(struct loader *loader, struct transformer *transformer) {
    for (int i = 0; i < transformer->count; i++) {
        const struct block_params *params = &transformer->params[i];
        struct block *block = &transformer->blocks[i];
        TRY(load_vector(loader, &params->norm1, &block->norm1));
        TRY(load_vector(loader, &params->norm2, &block->norm2));
        TRY(load_vector(loader, &params->qkv_bias, &block->qkv_bias));
        TRY(load_vector(loader, &params->out_bias, &block->out_bias));
        TRY(load_vector(loader, &params->gate_up_bias, &block->gate_up_bias));
        TRY(load_vector(loader, &params->down_bias, &block->down_bias));
    }
    return OK;
}

// In the order of the table, which is the order of the fingerprint.
static status load_all(struct loader *loader) {
    struct weights *weights = loader->weights;
    const struct parameter_table *table = weights->table;
    TRY(load_embedding(loader));
    TRY(load_block_matrices(loader, &weights->text));
    if (table->head.count) TRY(load_matrix(loader, &table->head, &weights->head));
    TRY(load_block_vectors(loader, &weights->text));
    TRY(load_vector(loader, &table->norm, &weights->norm));
    TRY(load_matrix(loader, &table->patch, &weights->patch));
    TRY(load_block_matrices(loader, &weights->vision));
    TRY(load_matrix(loader, &table->merger_fc1, &weights->merger_fc1));
    TRY(load_matrix(loader, &table->merger_fc2, &weights->merger_fc2));
    TRY(load_block_vectors(loader, &weights->vision));
    TRY(load_vector(loader, &table->merger_norm, &weights->merger_norm));
    TRY(load_vector(loader, &table->merger_fc1_bias, &weights->merger_fc1_bias));
    TRY(load_vector(loader, &table->merger_fc2_bias, &weights->merger_fc2_bias));
    return weights_refresh(weights);
}

// Room for every vector, each start a multiple of 32 elements.
static int64_t vector_room(const struct parameter_table *table) {
    int64_t room = 0;
    for (size_t i = 0; i < table->count; i++)
        if (table->list[i].kind != PARAMETER_MATRIX) room += table->list[i].count + 32;
    return room;
}

static status prepare(struct weights *weights, const struct model_config *config) {
    const struct operations *ops = weights->backend->ops;
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    weights->text = (struct transformer){weights->table->text,
                                         NULL,
                                         text->num_hidden_layers,
                                         {text->num_attention_heads, text->num_key_value_heads, text->head_dim},
                                         1 / sqrtf((float)text->head_dim),
                                         text->rms_norm_eps,
                                         text->hidden_size,
                                         text->intermediate_size};
    weights->vision = (struct transformer){weights->table->vision,
                                           NULL,
                                           vision->depth,
                                           {vision->num_heads, vision->num_heads, vision->head_dim},
                                           1 / sqrtf((float)vision->head_dim),
                                           1e-6f,
                                           vision->hidden_size,
                                           vision->intermediate_size};
    TRY(NEW(&weights->text.blocks, (size_t)text->num_hidden_layers));
    TRY(NEW(&weights->vision.blocks, (size_t)vision->depth));
    if (weights->training)
        TRY(ops->buffer_new(weights->backend, (size_t)weights->table->elements * 4, &weights->master));
    if (reads_master(weights)) return OK;
    return ops->buffer_new(weights->backend, (size_t)vector_room(weights->table) * element_size(weights->type),
                           &weights->vectors);
}

status weights_load(struct weights **out, struct backend *backend, const struct model_config *config,
                    const struct parameter_table *table, const struct safetensors *store, enum element type,
                    bool training, const uint64_t *hash) {
    *out = NULL;
    struct loader loader = {0};
    status result = OK;
    TRY(NEW(&loader.weights, 1));
    *loader.weights = (struct weights){.backend = backend, .table = table, .type = type, .training = training};
    TRY_TO(result, done, NEW(&loader.found, table->count));
    TRY_TO(result, done, parameter_table_match(table, store, loader.found));
    if (!training && !hash) TRY_TO(result, done, weights_hasher_new(&loader.hasher, config, type));
    TRY_TO(result, done, prepare(loader.weights, config));
    TRY_TO(result, done, load_all(&loader));
    if (hash || loader.hasher) loader.weights->hash = hash ? *hash : weights_hasher_digest(loader.hasher);
    loader.weights->hash_known = hash || loader.hasher;
    *out = loader.weights;
    loader.weights = NULL;
done:
    backend->ops->buffer_free(backend, &loader.copy);
    weights_free(&loader.weights);
    weights_hasher_free(&loader.hasher);
    free(loader.found);
    return result;
}

status weights_hash_stored(const struct model_config *config, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash) {
    const struct stored_tensor **found = NULL;
    struct weights_hasher *hasher = NULL;
    status result = OK;
    TRY_TO(result, done, NEW(&found, table->count));
    TRY_TO(result, done, parameter_table_match(table, store, found));
    TRY_TO(result, done, weights_hasher_new(&hasher, config, type));
    for (size_t i = 0; i < table->count; i++) {
        if (found[i]->type != type)
            TRY_TO(result, done, fail(DATAERR, "tensor %s is not of the type that it is used in", found[i]->name));
        weights_hasher_parameter(hasher, &table->list[i]);
        TRY_TO(result, done, weights_hasher_update(hasher, found[i]->data, found[i]->size));
    }
    *hash = weights_hasher_digest(hasher);
done:
    weights_hasher_free(&hasher);
    free(found);
    return result;
}

static void free_tower(struct backend *backend, struct transformer *transformer) {
    for (int i = 0; transformer->blocks && i < transformer->count; i++) {
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
    free_tower(it->backend, &it->text);
    free_tower(it->backend, &it->vision);
    ops->weight_free(it->backend, &it->head);
    ops->weight_free(it->backend, &it->patch);
    ops->weight_free(it->backend, &it->merger_fc1);
    ops->weight_free(it->backend, &it->merger_fc2);
    ops->buffer_free(it->backend, &it->master);
    ops->buffer_free(it->backend, &it->vectors);
    ops->buffer_free(it->backend, &it->rows);
    free(it);
    *weights = NULL;
}

static status refresh_vector(struct weights *weights, const struct fused_param *param, struct tensor vector) {
    if (param->count == 0) return OK;
    return weights->backend->ops->copy(weights->backend, vector, param_tensor(weights->master, param));
}

static status refresh_tower(struct weights *weights, const struct transformer *transformer) {
    for (int i = 0; i < transformer->count; i++) {
        const struct block_params *params = &transformer->params[i];
        const struct block *block = &transformer->blocks[i];
        TRY(refresh_vector(weights, &params->norm1, block->norm1));
        TRY(refresh_vector(weights, &params->norm2, block->norm2));
        TRY(refresh_vector(weights, &params->qkv_bias, block->qkv_bias));
        TRY(refresh_vector(weights, &params->out_bias, block->out_bias));
        TRY(refresh_vector(weights, &params->gate_up_bias, block->gate_up_bias));
        TRY(refresh_vector(weights, &params->down_bias, block->down_bias));
    }
    return OK;
}

status weights_refresh(struct weights *weights) {
    weights->hash_known = false;
    if (!weights->training || reads_master(weights)) return OK;
    const struct parameter_table *table = weights->table;
    TRY(refresh_tower(weights, &weights->text));
    TRY(refresh_tower(weights, &weights->vision));
    TRY(refresh_vector(weights, &table->norm, weights->norm));
    TRY(refresh_vector(weights, &table->merger_norm, weights->merger_norm));
    TRY(refresh_vector(weights, &table->merger_fc1_bias, weights->merger_fc1_bias));
    return refresh_vector(weights, &table->merger_fc2_bias, weights->merger_fc2_bias);
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
