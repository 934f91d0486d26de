#include "shared/model/weights_hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/memory.h"

// The hash is a key of stores on disk: these values are part of it.
static_assert(ELEMENT_F32 == 0 && ELEMENT_BF16 == 1, "the type is hashed by its number");
static_assert(sizeof(double) == 8 && sizeof((struct parameter){0}.shape[0]) == 8, "numbers are hashed by their bits");

enum { STAGING_BYTES = 4 << 20 }; // of a file's data at a time

static_assert(STAGING_BYTES % 8 == 0, "the data is divided between whole words");

status weights_digest(struct backend *backend, const struct fused_param *param, struct tensor values,
                      uint64_t *digest) {
    uint64_t first = (uint64_t)param->offset * element_size(values.type);
    assert(first % 8 == 0);
    return backend->ops->digest(backend, values, first / 8, digest);
}

void weights_hash_finish(const struct parameter_table *table, enum element type, uint64_t digest, uint64_t *hash) {
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
    *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
}

status weights_hash_array(struct backend *backend, const struct param_array *values, uint64_t *hash) {
    uint64_t digest = 0;
    for (size_t i = 0; i < values->table->fused_count; i++) {
        const struct fused_param *param = values->table->fused[i];
        TRY(weights_digest(backend, param, param_tensor(values, param), &digest));
    }
    weights_hash_finish(values->table, values->types[0], digest, hash);
    return OK;
}

// Adds the digest of a fused parameter, whose tensors lie apart in the file: brings them together in `staging`, piece
// by piece.
static status weights_digest_stored(struct backend *backend, struct buffer *staging, const struct fused_param *param,
                                    const struct stored_tensor *const *found, enum element type, uint64_t *digest) {
    size_t filled = 0, digested = 0; // bytes
    size_t total = (size_t)(param->rows * param->columns) * element_size(type);
    uint64_t first = (uint64_t)param->offset * element_size(type) / 8;
    for (size_t i = param->first; i < param->first + param->count; i++) {
        const char *data = found[i]->data;
        for (size_t at = 0, now; at < found[i]->size; at += now) {
            now = found[i]->size - at < STAGING_BYTES - filled ? found[i]->size - at : STAGING_BYTES - filled;
            struct tensor piece = {staging, filled, ELEMENT_U8, 1, (int64_t)now, (int64_t)now};
            TRY(backend->ops->upload(backend, piece, data + at, ELEMENT_U8));
            filled += now;
            if (filled < STAGING_BYTES && digested + filled < total) continue;
            struct tensor all = {staging, 0, ELEMENT_U8, 1, (int64_t)filled, (int64_t)filled};
            TRY(backend->ops->digest(backend, all, first + digested / 8, digest));
            digested += filled;
            filled = 0;
        }
    }
    assert(digested == total);
    return OK;
}

status weights_hash_stored(struct backend *backend, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash) {
    const struct stored_tensor **found = NULL;
    struct buffer *staging = NULL;
    uint64_t digest = 0;
    status result = OK;
    NEW(&found, table->count);
    TRY_TO(result, done, parameter_table_match(table, store, found));
    for (size_t i = 0; i < table->count; i++) {
        if (found[i]->type != type)
            TRY_TO(result, done,
                   fail(DATAERR, "tensor %s has another type than the model computes in", found[i]->name));
    }
    TRY_TO(result, done, backend->ops->buffer_new(backend, STAGING_BYTES, &staging));
    for (size_t i = 0; i < table->fused_count; i++)
        TRY_TO(result, done, weights_digest_stored(backend, staging, table->fused[i], found, type, &digest));
    weights_hash_finish(table, type, digest, hash);
done:
    backend->ops->buffer_free(backend, &staging);
    free(found);
    return result;
}

status weights_hash_files(const struct parameter_table *table, const struct safetensors *store, uint64_t *hash) {
    const struct stored_tensor **found = NULL;
    XXH3_state_t *state = NULL;
    status result = OK;
    NEW(&found, table->count);
    TRY_TO(result, done, parameter_table_match(table, store, found));
    state = mem_checked(XXH3_createState());
    XXH3_64bits_reset(state);
    for (size_t i = 0; i < table->count; i++) {
        if (!found[i]) continue; // one that a file may lack
        const int64_t head[] = {(int64_t)i, found[i]->type};
        XXH3_64bits_update(state, head, sizeof head);
        XXH3_64bits_update(state, found[i]->data, found[i]->size);
        safetensors_release_pages(found[i]);
    }
    weights_hash_finish(table, ELEMENT_F32, XXH3_64bits_digest(state), hash);
done:
    XXH3_freeState(state);
    free(found);
    return result;
}
