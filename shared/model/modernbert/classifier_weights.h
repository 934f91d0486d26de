// The parameters of a ModernBERT classifier. Order of the array: the matrices, then the vectors. Tensors are read with
// or without "model." in front of the encoder's names, and a masked-LM head's decoder is ignored.
#ifndef SHARED_MODEL_CLASSIFIER_WEIGHTS_H
#define SHARED_MODEL_CLASSIFIER_WEIGHTS_H

#include "shared/model/modernbert/classifier_config.h"
#include "shared/model/transformer.h"
#include "shared/model/weights.h"

struct classifier_parameters {
    const struct classifier_config *config;
    struct parameter_table table;
    struct fused_param embedding, dense, classifier;
    struct fused_param embedding_norm, final_norm, dense_bias, head_norm, classifier_bias;
    struct fused_param embedding_norm_bias, final_norm_bias, head_norm_bias;
    struct block_params *blocks; // [num_hidden_layers]
};

// What a checkpoint lacks and training begins with fresh values.
enum classifier_part {
    PART_NONE,
    PART_CLASSIFIER, // of a masked-LM checkpoint, or one with other labels, whose classifier is ignored
    PART_HEAD,       // the head too: of an encoder alone
};

// Makes the table for a configuration with its labels, which must outlive it; a file may lack the fresh part. DATAERR
// when the model is too large for 64 bits.
status classifier_parameters_new(struct classifier_parameters **out, const struct classifier_config *config,
                                 enum classifier_part fresh);

// NULL is fine; sets *params to NULL.
void classifier_parameters_free(struct classifier_parameters **params);

// ---- on a backend ----

// The matrices and vectors.
struct classifier_weights {
    struct weights base;
    struct tensor embedding; // [V,C]
    struct tensor embedding_norm, embedding_norm_bias, final_norm, final_norm_bias, head_norm, head_norm_bias;
    struct weight *dense, *classifier;
    struct tensor dense_bias, classifier_bias;
    struct transformer encoder;
};

// Returns the encoder without its blocks. The parameters must outlive it.
struct transformer classifier_encoder(const struct classifier_parameters *params);

// Loads weights for computing in `type`. In training, parameters that the store lacks are zero. The caller frees *out,
// also after a failure. DATAERR names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status classifier_weights_load(struct classifier_weights **out, struct backend *backend,
                               const struct classifier_parameters *params, enum element type,
                               const struct weights_source *source);

// NULL is fine; sets *weights to NULL.
void classifier_weights_free(struct classifier_weights **weights);

#endif
