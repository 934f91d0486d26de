#include "shared/model/weights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/memory.h"
#include "shared/model/shards.h"

enum { DENSE_ALIGNMENT = 64 }; // bytes

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

void stack_add_block(struct parameter_table *table, struct block *params, const struct stack_shape *shape, int block,
                     bool matrices) {
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
    if (matrices) parameter_table_close_bucket(table, shape->use);
}

static void stack_add_adapter(struct parameter_table *table, struct adapter *adapter, const struct stack_shape *shape,
                              const struct layer_shape *layer, int block, int64_t rank) {
    int64_t parts = 0;
    while (parts < ADAPTED_PARTS && layer->names[parts]) parts++;
    for (int letter = 0; letter < 2; letter++) {
        if (letter == 0) parameter_table_start(table, &adapter->a, parts * rank, layer->columns);
        for (int i = 0; i < parts; i++) {
            if (letter == 1) parameter_table_start(table, &adapter->b[i], layer->rows[i], rank);
            parameter_table_append(table, letter == 0 ? &adapter->a : &adapter->b[i], PARAMETER_MATRIX,
                                   letter == 0 ? rank : layer->rows[i], letter == 0 ? layer->columns : rank,
                                   arena_printf(&table->arena, "base_model.model.%s.%d.%s.lora_%c.weight",
                                                shape->prefix, block, layer->names[i], "AB"[letter]));
        }
    }
}

void stack_add_adapters(struct parameter_table *table, struct block *params, const struct stack_shape *shape, int block,
                        int64_t rank) {
    stack_add_adapter(table, &params->qkv_adapter, shape, &shape->qkv, block, rank);
    stack_add_adapter(table, &params->out_adapter, shape, &shape->out, block, rank);
    stack_add_adapter(table, &params->gate_up_adapter, shape, &shape->gate_up, block, rank);
    stack_add_adapter(table, &params->down_adapter, shape, &shape->down, block, rank);
    parameter_table_close_bucket(table, shape->use);
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
    TRY((*backend)->ops->info(*backend, info));
    TRY(weights_parse_type(*backend, "precision", precision, type));
    return (*backend)->ops->supports(*backend, *type);
}

// What is passed along while weights are loaded.
struct weights_loader {
    const struct stored_tensor **found; // by parameter; NULL: the array has its values already
    bool packed;
    size_t unpacked_bytes;  // of weights->unpacked, given away so far
    struct buffer *staging; // one matrix after another, before it is packed
    size_t staging_size;
    bool digested; // the digest of packed weights is computed
    uint64_t digest;
};

// Whether a parameter is no matrix of a product.
static bool weights_keep_unpacked(const struct weights *weights, const struct fused_param *param) {
    return weights->table.list[param->first].kind != PARAMETER_MATRIX || param == weights->embedding;
}

static size_t weights_dense_bytes(const struct weights *weights, const struct fused_param *param) {
    size_t bytes = (size_t)param->rows * (size_t)param->columns * element_size(weights->type);
    return (bytes + DENSE_ALIGNMENT - 1) / DENSE_ALIGNMENT * DENSE_ALIGNMENT;
}

// *digest += the digest of a fused parameter's values, dense in the type of the weights.
static status weights_digest(struct backend *backend, const struct fused_param *param, struct tensor values,
                             uint64_t *digest) {
    uint64_t first = (uint64_t)param->offset * element_size(values.type);
    assert(first % 8 == 0);
    return backend->ops->digest(backend, values, first / 8, digest);
}

static status weights_load_param(struct weights *weights, struct weights_loader *loader, struct fused_param *param) {
    struct backend *backend = weights->backend;
    const struct operations *ops = backend->ops;
    const bool packed = loader->packed, unpacked = weights_keep_unpacked(weights, param);
    const size_t bytes = weights_dense_bytes(weights, param);
    struct tensor values = {NULL, 0, weights->type, param->rows, param->columns, param->columns};
    if (!packed) {
        values = param_tensor(&weights->values, param);
    } else if (unpacked) {
        values.buffer = weights->unpacked;
        values.offset = loader->unpacked_bytes;
        loader->unpacked_bytes += bytes;
    } else {
        if (loader->staging_size < bytes) {
            ops->buffer_free(backend, &loader->staging);
            loader->staging_size = 0;
            TRY(ops->buffer_new(backend, bytes, &loader->staging));
            loader->staging_size = bytes;
        }
        values.buffer = loader->staging;
    }
    for (size_t i = param->first; loader->found && i < param->first + param->count; i++) {
        const struct parameter *parameter = &weights->table.list[i];
        const struct stored_tensor *stored = loader->found[i];
        if (!stored) continue; // one that the file may lack stays zero
        if (packed) {
            struct tensor row = tensor_reshape(values, 1, parameter->count);
            row.offset += (size_t)(parameter->offset - param->offset) * element_size(row.type);
            char *copy = NULL; // the data of a file may be unaligned
            if ((uintptr_t)stored->data % element_size(stored->type)) {
                TRY(mem_new_large(&copy, stored->size, 1));
                memcpy(copy, stored->data, stored->size);
            }
            status result = ops->upload(backend, row, copy ? copy : stored->data, stored->type);
            free(copy);
            TRY(result);
        } else {
            struct param_array whole = weights->values;
            const struct ranks *ranks = whole.remainders_divided;
            if (ranks) whole.remainders = NULL; // which are uploaded with what this rank owns
            TRY(parameter_upload(backend, &whole, parameter, param_whole, stored->data, 0, stored->type));
            for (size_t b = 0; ranks && b < weights->table.bucket_count; b++)
                TRY(parameter_upload(backend, &weights->values, parameter, shard_own(&weights->table.buckets[b], ranks),
                                     stored->data, 0, stored->type));
        }
        safetensors_release_pages(stored);
    }
    if (packed && loader->digested) TRY(weights_digest(backend, param, values, &loader->digest));
    if (unpacked)
        param->values = values;
    else
        TRY(ops->weight_new(backend, &param->weight, values, packed));
    if (param == weights->embedding && weights->tied_head)
        TRY(ops->weight_new(backend, &weights->tied_head->weight, values, packed));
    return packed && !unpacked ? ops->wait(backend) : OK; // the next matrix overwrites this one
}

status weights_load(struct weights *weights, const struct weights_source *source) {
    struct backend *backend = weights->backend;
    const struct parameter_table *table = &weights->table;
    const enum element type = weights->type;
    struct weights_loader loader = {.digested = !source->hash};
    struct backend_info info;
    status result = OK;
    weights->hash_known = source->hash;
    if (source->hash) weights->hash = *source->hash;
    weights->borrowed = !source->store;
    if (source->store) {
        NEW(&loader.found, table->count);
        TRY_TO(result, done, parameter_table_match(table, source->store, loader.found));
        TRY_TO(result, done, backend->ops->info(backend, &info));
        loader.packed = info.packs && !source->training;
    }
    if (loader.packed) {
        size_t bytes = 0;
        for (size_t i = 0; i < table->fused_count; i++)
            if (weights_keep_unpacked(weights, table->fused[i])) bytes += weights_dense_bytes(weights, table->fused[i]);
        TRY_TO(result, done, backend->ops->buffer_new(backend, bytes, &weights->unpacked));
    } else if (source->store) {
        TRY_TO(result, done, param_array_init(&weights->values, backend, table, table->range_count, type, type, NULL));
        if (source->training && !source->frozen && type == ELEMENT_BF16)
            TRY_TO(result, done, param_array_add_remainders(&weights->values, backend, source->ranks));
    } else {
        param_array_view(&weights->values, source->values, table, table->range_count, type, type);
    }
    for (size_t i = 0; i < table->fused_count; i++)
        TRY_TO(result, done, weights_load_param(weights, &loader, table->fused[i]));
    if (!weights->hash_known && loader.packed) { // an array is hashed when it is asked for
        weights->hash_known = true;
        weights->hash = weights_hash_finish(table, type, loader.digest);
    }
done:
    backend->ops->buffer_free(backend, &loader.staging);
    free(loader.found);
    return result;
}

void weights_unload(struct weights *weights) {
    struct backend *backend = weights->backend;
    if (!backend) return;
    for (size_t i = 0; i < weights->table.fused_count; i++) {
        backend->ops->weight_free(backend, &weights->table.fused[i]->weight);
        weights->table.fused[i]->values = (struct tensor){0};
    }
    if (weights->tied_head) backend->ops->weight_free(backend, &weights->tied_head->weight);
    if (weights->borrowed) weights->values = (struct param_array){0};
    param_array_release(&weights->values, backend);
    backend->ops->buffer_free(backend, &weights->unpacked);
    weights->hash_known = false;
}

void weights_release(struct weights *weights) {
    weights_unload(weights);
    parameter_table_release(&weights->table);
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
