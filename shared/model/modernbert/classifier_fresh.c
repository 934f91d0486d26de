#include "shared/model/modernbert/classifier_fresh.h"

#include <math.h>
#include <stdlib.h>

#include "shared/base/rng.h"

static status classifier_set(struct classifier *classifier, const struct fused_param *param, const float *values) {
    struct weights *weights = &classifier->weights->base;
    return parameter_upload(classifier->backend, &weights->values, &weights->remainders,
                            &weights->table->list[param->first], values, ELEMENT_F32);
}

// A matrix of normal numbers; one that is beyond two deviations is drawn again.
static status classifier_draw(struct classifier *classifier, const struct fused_param *param, double deviation,
                              uint64_t seed) {
    uint64_t key = rng_key(seed, classifier->params->table.list[param->first].name);
    size_t count = (size_t)(param->rows * param->columns);
    float *values = NULL;
    TRY(NEW_LARGE(&values, count));
    for (size_t i = 0; i < count; i++) {
        double number = rng_normal(key, i, 0);
        for (uint64_t again = 1; fabs(number) > 2; again++) number = rng_normal(key, i, again);
        values[i] = (float)(deviation * number);
    }
    status result = classifier_set(classifier, param, values);
    free(values);
    return result;
}

status classifier_fill_fresh(struct classifier *classifier, enum classifier_part fresh, uint64_t seed) {
    const struct classifier_config *config = &classifier->config;
    const struct classifier_parameters *params = classifier->params;
    if (fresh == PART_NONE) return OK;
    TRY(classifier_draw(classifier, &params->classifier, 1 / sqrt((double)config->hidden_size), seed));
    if (fresh == PART_CLASSIFIER) return OK;
    TRY(classifier_draw(classifier, &params->dense, 0.02 / sqrt(2.0 * config->num_hidden_layers), seed));
    float *ones = NULL;
    NEW(&ones, (size_t)config->hidden_size);
    for (int64_t i = 0; i < config->hidden_size; i++) ones[i] = 1;
    status result = classifier_set(classifier, &params->head_norm, ones);
    free(ones);
    return result;
}
