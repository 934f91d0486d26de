#include "shared/model/weights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/model/weights_hash.h"

enum { UNPACKED_ALIGNMENT = 64 }; // bytes

status weights_parse_type(const struct backend *backend, const char *option, const char *name, enum element *type) {
    if (!name) name = strcmp(backend->ops->name, "cpu") == 0 ? "float32" : "bfloat16";
    *type = strcmp(name, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    if (*type == ELEMENT_BF16 || strcmp(name, "float32") == 0) return OK;
    return fail(USAGE, "%s %s is not float32 or bfloat16", option, name);
}

// Fills a parameter of the array. One that the file may lack, and does, stays zero.
static status weights_fill_values(struct weights_loader *loader, const struct fused_param *param) {
    struct weights *weights = loader->weights;
    for (size_t i = param->first; loader->found && i < param->first + param->count; i++) {
        const struct stored_tensor *stored = loader->found[i];
        if (!stored) continue;
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
            TRY(mem_new_large(&copy, stored->size, 1));
            memcpy(copy, stored->data, stored->size);
        }
        status result = backend->ops->upload(backend, row, aligned ? stored->data : copy, stored->type);
        free(copy);
        TRY(result);
        safetensors_release_pages(stored);
    }
    return loader->digested ? weights_digest(backend, param, out, &loader->digest) : OK;
}

static bool weights_packed(const struct weights *weights) {
    return !weights->values.buffer;
}

status weights_load_matrix(struct weights_loader *loader, const struct fused_param *param, struct weight **out) {
    struct weights *weights = loader->weights;
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
static size_t weights_unpacked_bytes(const struct weights *weights, const struct fused_param *param) {
    size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
    return (bytes + UNPACKED_ALIGNMENT - 1) / UNPACKED_ALIGNMENT * UNPACKED_ALIGNMENT;
}

status weights_load_unpacked(struct weights_loader *loader, const struct fused_param *param, struct tensor *out) {
    struct weights *weights = loader->weights;
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

status weights_load_tied(struct weights_loader *loader, struct tensor embedding, struct weight **out) {
    struct weights *weights = loader->weights;
    return weights->backend->ops->weight_new(weights->backend, out, embedding, weights_packed(weights));
}

status weights_load_block_matrices(struct weights_loader *loader, struct transformer *transformer) {
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

status weights_load_block_vectors(struct weights_loader *loader, struct transformer *transformer) {
    for (int i = 0; i < transformer->block_count; i++) {
        const struct block_params *params = &transformer->params[i];
        struct block *block = &transformer->blocks[i];
        TRY(weights_load_unpacked(loader, &params->norm1, &block->norm1));
        TRY(weights_load_unpacked(loader, &params->norm1_bias, &block->norm1_bias));
        TRY(weights_load_unpacked(loader, &params->norm2, &block->norm2));
        TRY(weights_load_unpacked(loader, &params->norm2_bias, &block->norm2_bias));
        TRY(weights_load_unpacked(loader, &params->qkv_bias, &block->qkv_bias));
        TRY(weights_load_unpacked(loader, &params->out_bias, &block->out_bias));
        TRY(weights_load_unpacked(loader, &params->gate_up_bias, &block->gate_up_bias));
        TRY(weights_load_unpacked(loader, &params->down_bias, &block->down_bias));
    }
    return OK;
}

// Makes room for the weights in the order of the table.
static status weights_allocate(struct weights *weights, bool training) {
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
        if (param->rows == 1 || param == weights->embedding) bytes += weights_unpacked_bytes(weights, param);
    }
    return backend->ops->buffer_new(backend, bytes, &weights->unpacked);
}

status weights_loader_open(struct weights_loader *loader, struct weights *weights, const struct safetensors *store,
                           bool training, const uint64_t *hash) {
    *loader = (struct weights_loader){.weights = weights, .digested = !hash};
    NEW(&loader->found, weights->table->count);
    TRY(parameter_table_match(weights->table, store, loader->found));
    TRY(weights_allocate(weights, training));
    weights->hash_known = hash;
    if (hash) weights->hash = *hash;
    return OK;
}

void weights_loader_borrow(struct weights_loader *loader, struct weights *weights, struct buffer *values,
                           uint64_t hash) {
    *loader = (struct weights_loader){.weights = weights};
    param_array_view(&weights->values, values, weights->table, weights->table->range_count, weights->type,
                     weights->type);
    weights->borrowed = true;
    weights->hash = hash;
    weights->hash_known = true;
}

void weights_loader_finish(struct weights_loader *loader) {
    struct weights *weights = loader->weights;
    if (weights->hash_known || !weights_packed(weights)) return; // an array is hashed when it is asked for
    weights->hash_known = true;
    weights_hash_finish(weights->table, weights->type, loader->digest, &weights->hash);
}

void weights_loader_release(struct weights_loader *loader) {
    if (loader->weights) loader->weights->backend->ops->buffer_free(loader->weights->backend, &loader->staging);
    free(loader->found);
    *loader = (struct weights_loader){0};
}

void weights_free_blocks(struct backend *backend, struct transformer *transformer) {
    for (int i = 0; transformer->blocks && i < transformer->block_count; i++) {
        struct block *block = &transformer->blocks[i];
        backend->ops->weight_free(backend, &block->qkv);
        backend->ops->weight_free(backend, &block->out);
        backend->ops->weight_free(backend, &block->gate_up);
        backend->ops->weight_free(backend, &block->down);
    }
    free(transformer->blocks);
}

void weights_release(struct weights *weights) {
    if (!weights->borrowed) param_array_release(&weights->values, weights->backend);
    param_array_release(&weights->remainders, weights->backend);
    weights->backend->ops->buffer_free(weights->backend, &weights->unpacked);
}

status weights_hash(struct weights *weights, uint64_t *hash) {
    if (!weights->hash_known) TRY(weights_hash_array(weights->backend, &weights->values, &weights->hash));
    weights->hash_known = true;
    *hash = weights->hash;
    return OK;
}
