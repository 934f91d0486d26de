// A model's weights on a backend: matrices prepared for products, vectors in the type of the activations.
//
// All parameters are one array in the type of the products, in the order of the table; training in bfloat16 keeps the
// remainders of the float32 numbers beside it (kernels/ops.h). Products, norms and the embedding read this array as it
// is. Only on a backend that packs, sampling and scoring keep packed matrices instead, and unpacked what is not a
// product's matrix. Both compute with the same bits.
#ifndef SHARED_MODEL_QWEN_WEIGHTS_H
#define SHARED_MODEL_QWEN_WEIGHTS_H

#include "kernels/ops.h"
#include "shared/model/param_array.h"
#include "shared/model/safetensors.h"
#include "shared/model/qwen_vl/qwen_parameters.h"

struct qwen_weights {
    struct backend *backend;
    const struct qwen_parameters *params;
    const struct parameter_table *table; // of them
    enum element type;                   // of products and activations
    struct param_array values;           // in `type`; no array: the matrices are packed
    bool borrowed;                       // the array is in memory that is not freed with the weights
    struct param_array remainders;       // training in BF16: U16
    struct buffer *unpacked;             // beside packed matrices: the embedding and the vectors, in `type`
    struct tensor embedding;             // [V,C]
    struct weight *lm_head, *patch_embed, *merger_fc1, *merger_fc2;
    struct tensor norm, merger_norm, merger_norm_bias, merger_fc1_bias, merger_fc2_bias;
    struct transformer text, vision;
    uint64_t hash;
    bool hash_known; // since the last change
};

// The blocks of the language model and of the tower, without their parameters.
struct transformer text_transformer(const struct text_config *text);

// The same for the vision tower.
struct transformer vision_transformer(const struct vision_config *vision);

// Loads the weights of a store for computing in `type`. `hash`: their hash if it is known already, else NULL. DATAERR
// names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status qwen_weights_load(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                         const struct qwen_parameters *params, const struct safetensors *store, enum element type,
                         bool training, const uint64_t *hash);

// Makes weights without values, which can only be asked for their type and shape and be freed. UNAVAILABLE when memory
// is short.
status qwen_weights_new(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                        const struct qwen_parameters *params, enum element type);

// Makes weights of an array of values in `type` that is in `values` already, on a backend that does not pack; `hash` is
// theirs. `values` must outlive them. UNAVAILABLE when memory is short.
status qwen_weights_borrow(struct qwen_weights **out, struct backend *backend, const struct model_config *config,
                           const struct qwen_parameters *params, enum element type, struct buffer *values,
                           uint64_t hash);

// NULL is fine; sets *weights to NULL.
void qwen_weights_free(struct qwen_weights **weights);

// *hash = the hash of the configuration and of the bits in use. UNAVAILABLE when memory is short.
status qwen_weights_hash(struct qwen_weights *weights, uint64_t *hash);

#endif
