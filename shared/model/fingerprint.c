#include "shared/model/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

struct fingerprint {
    XXH3_state_t *state;
};

static void add_number(struct fingerprint *print, double number) {
    XXH3_64bits_update(print->state, &number, sizeof number);
}

// Only what changes a result: shapes follow with the parameters.
static void add_config(struct fingerprint *print, const struct model_config *config) {
    const struct text_config *text = &config->text;
    const struct vision_config *vision = &config->vision;
    const double numbers[] = {
        text->heads,
        text->key_heads,
        text->head_size,
        text->epsilon,
        text->theta,
        text->section[0],
        text->section[1],
        text->section[2],
        text->tied,
        vision->heads,
        vision->patch,
        vision->merge,
        vision->time,
        vision->window,
        vision->tokens_per_second,
        config->rescale,
        config->mean[0],
        config->mean[1],
        config->mean[2],
        config->deviation[0],
        config->deviation[1],
        config->deviation[2],
        (double)config->image_token,
        (double)config->video_token,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(print, numbers[i]);
    for (int i = 0; i < vision->depth; i++) add_number(print, vision->full[i]);
}

status fingerprint_new(struct fingerprint **out, const struct model_config *config, enum element type) {
    *out = NULL;
    struct fingerprint *print = NULL;
    TRY(NEW(&print, 1));
    print->state = XXH3_createState();
    if (!print->state) {
        free(print);
        return fail(UNAVAILABLE, "out of memory");
    }
    XXH3_64bits_reset(print->state);
    add_number(print, type);
    add_config(print, config);
    *out = print;
    return OK;
}

void fingerprint_free(struct fingerprint **print) {
    if (!*print) return;
    XXH3_freeState((*print)->state);
    free(*print);
    *print = NULL;
}

void fingerprint_parameter(struct fingerprint *print, const struct parameter *parameter) {
    XXH3_64bits_update(print->state, parameter->name, strlen(parameter->name) + 1);
    XXH3_64bits_update(print->state, parameter->shape, (size_t)parameter->rank * sizeof *parameter->shape);
}

status fingerprint_bits(void *print, const void *elements, size_t bytes) {
    XXH3_64bits_update(((struct fingerprint *)print)->state, elements, bytes);
    return OK;
}

uint64_t fingerprint_value(const struct fingerprint *print) {
    return XXH3_64bits_digest(print->state);
}
