// The matrices and vectors of a classifier on a backend.
#ifndef SHARED_MODEL_CLASSIFIER_WEIGHTS_H
#define SHARED_MODEL_CLASSIFIER_WEIGHTS_H

#include "shared/model/modernbert/classifier_parameters.h"
#include "shared/model/weights.h"

struct classifier_weights {
    struct weights base;
    struct tensor embedding; // [V,C]
    struct tensor embedding_norm, embedding_norm_bias, final_norm, final_norm_bias, head_norm, head_norm_bias;
    struct weight *dense, *classifier;
    struct tensor dense_bias, classifier_bias;
    struct transformer encoder;
};

// Returns the encoder without its blocks. The parameters must outlive it.
struct transformer classifier_encoder(const struct classifier_config *config,
                                      const struct classifier_parameters *params);

// Loads the weights of a store for computing in `type`. In training, parameters that the store lacks are zero. DATAERR
// names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status classifier_weights_load(struct classifier_weights **out, struct backend *backend,
                               const struct classifier_config *config, const struct classifier_parameters *params,
                               const struct safetensors *store, enum element type, bool training);

// NULL is fine; sets *weights to NULL.
void classifier_weights_free(struct classifier_weights **weights);

#endif
