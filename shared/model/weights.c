#include "shared/model/weights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/memory.h"

enum { UNPACKED_ALIGNMENT = 64 }; // bytes

// ---- stack ----

static void stack_add_layer(struct parameter_table *table, struct fused_param *weight, struct fused_param *bias,
                            const struct stack_shape *shape, const struct layer_shape *layer, int block,
                            bool matrices) {
    int64_t rows = 0;
    if (!matrices && !layer->bias) return;
    for (int i = 0; i < 3; i++) rows += layer->rows[i];
    struct fused_param *fused = matrices ? weight : bias;
    parameter_table_start(table, fused, matrices ? rows : 1, matrices ? layer->columns : rows);
    for (int i = 0; i < 3 && layer->names[i]; i++)
        parameter_table_append(table, fused, matrices ? PARAMETER_MATRIX : PARAMETER_BIAS,
                               matrices ? layer->rows[i] : 1, matrices ? layer->columns : layer->rows[i],
                               arena_printf(&table->arena, "%s.%d.%s.%s", shape->prefix, block, layer->names[i],
                                            matrices ? "weight" : "bias"));
}

void stack_add_block(struct parameter_table *table, struct block_params *params, const struct stack_shape *shape,
                     int block, bool matrices) {
    struct fused_param *const norms[2][2] = {{&params->norm1, &params->norm1_bias},
                                             {&params->norm2, &params->norm2_bias}};
    for (int k = 0; k < 4 && !matrices; k++) {
        const int norm = shape->norm_biases_last ? k % 2 : k / 2, bias = shape->norm_biases_last ? k / 2 : k % 2;
        if ((bias && !shape->norm_bias) || (norm == 0 && block == 0 && shape->first_unnormed)) continue;
        parameter_table_single(table, norms[norm][bias], bias ? PARAMETER_BIAS : PARAMETER_NORM, 1, shape->hidden_size,
                               arena_printf(&table->arena, "%s.%d.%s.%s", shape->prefix, block, shape->norms[norm],
                                            bias ? "bias" : "weight"));
    }
    stack_add_layer(table, &params->qkv, &params->qkv_bias, shape, &shape->qkv, block, matrices);
    stack_add_layer(table, &params->out, &params->out_bias, shape, &shape->out, block, matrices);
    stack_add_layer(table, &params->gate_up, &params->gate_up_bias, shape, &shape->gate_up, block, matrices);
    stack_add_layer(table, &params->down, &params->down_bias, shape, &shape->down, block, matrices);
}

// ---- loading ----

status weights_parse_type(const struct backend *backend, const char *option, const char *name, enum element *type) {
    if (!name) name = strcmp(backend->ops->name, "cpu") == 0 ? "float32" : "bfloat16";
    *type = strcmp(name, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    if (*type == ELEMENT_BF16 || strcmp(name, "float32") == 0) return OK;
    return fail(USAGE, "%s %s is not float32 or bfloat16", option, name);
}

status weights_open_backend(const struct backend_options *options, const char *precision, struct backend **backend,
                            struct backend_info *info, enum element *type) {
    TRY(backend_open(backend, options));
    TRY(backend_get_info(*backend, info));
    TRY(weights_parse_type(*backend, "precision", precision, type));
    return backend_supports(*backend, *type);
}

// Fills a parameter of the array. One that the file may lack, and does, stays zero.
static status weights_fill_values(struct weights_loader *loader, const struct fused_param *param) {
    struct weights *weights = loader->weights;
    for (size_t i = param->first; loader->found && i < param->first + param->count; i++) {
        const struct stored_tensor *stored = loader->found[i];
        if (!stored) continue;
        TRY(parameter_upload(weights->backend, &weights->values, &weights->table->list[i], stored->data, stored->type));
        safetensors_release_pages(stored);
    }
    return OK;
}

// *digest += the digest of a fused parameter's values, dense in the type of the weights.
static status weights_digest(struct backend *backend, const struct fused_param *param, struct tensor values,
                             uint64_t *digest) {
    uint64_t first = (uint64_t)param->offset * element_size(values.type);
    assert(first % 8 == 0);
    return backend->ops->digest(backend, values, first / 8, digest);
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

// *out = a matrix of the list that weights_release frees.
static status weights_add_matrix(struct weights *weights, struct tensor plain, struct weight **out) {
    struct weight **added = &weights->matrices[weights->matrix_count++];
    const status result = weights->backend->ops->weight_new(weights->backend, added, plain, weights_packed(weights));
    *out = *added;
    return result;
}

status weights_load_matrix(struct weights_loader *loader, const struct fused_param *param, struct weight **out) {
    struct weights *weights = loader->weights;
    struct backend *backend = weights->backend;
    if (!weights_packed(weights)) {
        TRY(weights_fill_values(loader, param));
        return weights_add_matrix(weights, param_tensor(&weights->values, param), out);
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
    TRY(weights_add_matrix(weights, plain, out));
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
    return weights_add_matrix(loader->weights, embedding, out);
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

status weights_loader_open(struct weights_loader *loader, struct weights *weights,
                           const struct weights_source *source) {
    struct backend *backend = weights->backend;
    const struct parameter_table *table = weights->table;
    struct backend_info info;
    *loader = (struct weights_loader){.weights = weights, .digested = !source->hash};
    weights->hash_known = source->hash;
    if (source->hash) weights->hash = *source->hash;
    weights->matrices = arena_alloc(&weights->arena, (table->fused_count + 1) * sizeof(struct weight *)); // one is tied
    weights->borrowed = !source->store;
    if (weights->borrowed) {
        param_array_view(&weights->values, source->values, table, table->range_count, weights->type, weights->type);
        return OK;
    }
    NEW(&loader->found, table->count);
    TRY(parameter_table_match(table, source->store, loader->found));
    TRY(backend_get_info(backend, &info));
    if (source->training || !info.packs) {
        TRY(param_array_init(&weights->values, backend, table, table->range_count, weights->type, weights->type));
        const bool pairs = source->training && weights->type == ELEMENT_BF16;
        return pairs ? param_array_add_remainders(&weights->values, backend) : OK;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < table->fused_count; i++)
        if (table->fused[i]->rows == 1 || table->fused[i] == weights->embedding)
            bytes += weights_unpacked_bytes(weights, table->fused[i]);
    return backend->ops->buffer_new(backend, bytes, &weights->unpacked);
}

void weights_loader_finish(struct weights_loader *loader) {
    struct weights *weights = loader->weights;
    if (weights->hash_known || !weights_packed(weights)) return; // an array is hashed when it is asked for
    weights->hash_known = true;
    weights->hash = weights_hash_finish(weights->table, weights->type, loader->digest);
}

void weights_loader_release(struct weights_loader *loader) {
    if (loader->weights) loader->weights->backend->ops->buffer_free(loader->weights->backend, &loader->staging);
    free(loader->found);
    *loader = (struct weights_loader){0};
}

void weights_release(struct weights *weights) {
    struct backend *backend = weights->backend;
    if (!backend) return;
    for (size_t i = 0; i < weights->matrix_count; i++) backend->ops->weight_free(backend, &weights->matrices[i]);
    if (!weights->borrowed) param_array_release(&weights->values, backend);
    backend->ops->buffer_free(backend, &weights->unpacked);
    arena_release(&weights->arena);
}

status weights_hash(struct weights *weights, uint64_t *hash) {
    if (!weights->hash_known) TRY(weights_hash_array(weights->backend, &weights->values, &weights->hash));
    weights->hash_known = true;
    *hash = weights->hash;
    return OK;
}

// ---- hash ----

// The hash is a key of stores on disk: these values are part of it.
static_assert(ELEMENT_F32 == 0 && ELEMENT_BF16 == 1, "the type is hashed by its number");
static_assert(sizeof(double) == 8 && sizeof((struct parameter){0}.shape[0]) == 8, "numbers are hashed by their bits");

enum { STAGING_BYTES = 4 << 20 }; // of a file's data at a time

static_assert(STAGING_BYTES % 8 == 0, "the data is divided between whole words");

uint64_t weights_hash_finish(const struct parameter_table *table, enum element type, uint64_t digest) {
    const double number = type;
    XXH3_state_t *state = mem_checked(XXH3_createState());
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, &number, sizeof number);
    XXH3_64bits_update(state, table->settings, table->setting_count * sizeof *table->settings);
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        XXH3_64bits_update(state, parameter->name, strlen(parameter->name) + 1);
        XXH3_64bits_update(state, parameter->shape, (size_t)parameter->rank * sizeof *parameter->shape);
    }
    XXH3_64bits_update(state, &digest, sizeof digest);
    const uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

status weights_hash_array(struct backend *backend, const struct param_array *values, uint64_t *hash) {
    uint64_t digest = 0;
    for (size_t i = 0; i < values->table->fused_count; i++) {
        const struct fused_param *param = values->table->fused[i];
        TRY(weights_digest(backend, param, param_tensor(values, param), &digest));
    }
    *hash = weights_hash_finish(values->table, values->types[0], digest);
    return OK;
}

status weights_hash_stored(struct backend *backend, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash) {
    const struct operations *ops = backend->ops;
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct buffer *staging = NULL;
    uint64_t digest = 0;
    status result;
    TRY_TO(result, done, parameter_table_match(table, store, found));
    for (size_t i = 0; i < table->count; i++)
        if (found[i]->type != type)
            TRY_TO(result, done,
                   fail(DATAERR, "tensor %s has another type than the model computes in", found[i]->name));
    TRY_TO(result, done, ops->buffer_new(backend, STAGING_BYTES, &staging));

    // The tensors of a fused parameter lie apart in the file: they are brought together in `staging`, piece by piece.
    for (size_t k = 0; k < table->fused_count; k++) {
        const struct fused_param *param = table->fused[k];
        size_t filled = 0, digested = 0; // bytes
        size_t total = (size_t)(param->rows * param->columns) * element_size(type);
        uint64_t first = (uint64_t)param->offset * element_size(type) / 8;
        for (size_t i = param->first; i < param->first + param->count; i++) {
            const char *data = found[i]->data;
            for (size_t at = 0, now; at < found[i]->size; at += now) {
                now = found[i]->size - at < STAGING_BYTES - filled ? found[i]->size - at : STAGING_BYTES - filled;
                struct tensor piece = {staging, filled, ELEMENT_U8, 1, (int64_t)now, (int64_t)now};
                TRY_TO(result, done, ops->upload(backend, piece, data + at, ELEMENT_U8));
                filled += now;
                if (filled < STAGING_BYTES && digested + filled < total) continue;
                struct tensor all = {staging, 0, ELEMENT_U8, 1, (int64_t)filled, (int64_t)filled};
                TRY_TO(result, done, ops->digest(backend, all, first + digested / 8, &digest));
                digested += filled;
                filled = 0;
            }
        }
        assert(digested == total);
    }
    *hash = weights_hash_finish(table, type, digest);
done:
    ops->buffer_free(backend, &staging);
    arena_release(&arena);
    return result;
}

status weights_hash_files(const struct parameter_table *table, const struct safetensors *store, uint64_t *hash) {
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    XXH3_state_t *state = mem_checked(XXH3_createState());
    XXH3_64bits_reset(state);
    const status result = parameter_table_match(table, store, found);
    for (size_t i = 0; result == OK && i < table->count; i++) {
        if (!found[i]) continue; // one that is not read
        const int64_t head[] = {(int64_t)i, found[i]->type};
        XXH3_64bits_update(state, head, sizeof head);
        XXH3_64bits_update(state, found[i]->data, found[i]->size);
        safetensors_release_pages(found[i]);
    }
    if (result == OK) *hash = weights_hash_finish(table, ELEMENT_F32, XXH3_64bits_digest(state));
    XXH3_freeState(state);
    arena_release(&arena);
    return result;
}
