#include "shared/model/weights_hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/memory.h"

// The hash is a key of stores on disk: these values are part of it.
static_assert(ELEMENT_F32 == 0 && ELEMENT_BF16 == 1, "the type is hashed by its number");
static_assert(sizeof(double) == 8 && sizeof((struct parameter){0}.shape[0]) == 8, "numbers are hashed by their bits");

struct weights_hasher {
    XXH3_state_t *state;
};

static void weights_hasher_number(struct weights_hasher *hasher, double number) {
    XXH3_64bits_update(hasher->state, &number, sizeof number);
}

status weights_hasher_new(struct weights_hasher **out, const struct model_config *config, enum element type) {
    *out = NULL;
    struct weights_hasher *hasher = NULL;
    TRY(NEW(&hasher, 1));
    hasher->state = XXH3_createState();
    if (!hasher->state) {
        free(hasher);
        return fail_oom();
    }
    XXH3_64bits_reset(hasher->state);
    weights_hasher_number(hasher, type);
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    const double numbers[] = {
        // everything that changes a result except sizes, which are in the parameters' shapes
        text->num_attention_heads,
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
        (double)config->video_token_id,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) weights_hasher_number(hasher, numbers[i]);
    for (int i = 0; i < vision->depth; i++) weights_hasher_number(hasher, vision->fullatt_blocks[i]);
    *out = hasher;
    return OK;
}

void weights_hasher_free(struct weights_hasher **hasher) {
    if (!*hasher) return;
    XXH3_freeState((*hasher)->state);
    free(*hasher);
    *hasher = NULL;
}

void weights_hasher_parameter(struct weights_hasher *hasher, const struct parameter *parameter) {
    XXH3_64bits_update(hasher->state, parameter->name, strlen(parameter->name) + 1);
    XXH3_64bits_update(hasher->state, parameter->shape, (size_t)parameter->rank * sizeof *parameter->shape);
}

status weights_hasher_update(void *hasher, const void *elements, size_t bytes) {
    XXH3_64bits_update(((struct weights_hasher *)hasher)->state, elements, bytes);
    return OK;
}

uint64_t weights_hasher_digest(const struct weights_hasher *hasher) {
    return XXH3_64bits_digest(hasher->state);
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
            TRY_TO(result, done,
                   fail(DATAERR, "tensor %s has another type than the model computes in", found[i]->name));
        weights_hasher_parameter(hasher, &table->list[i]);
        TRY_TO(result, done, weights_hasher_update(hasher, found[i]->data, found[i]->size));
    }
    *hash = weights_hasher_digest(hasher);
done:
    weights_hasher_free(&hasher);
    free(found);
    return result;
}
