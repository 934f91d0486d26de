// A model's weights on a backend: matrices prepared for products, vectors in the type of the activations.
//
// Sampling and scoring keep packed matrices alone. Training keeps all parameters as one float32 array (parameters.h
// says at which offsets): products round and pack from it, and the vectors are rounded from it after each step. Both
// compute with the same bits.
#ifndef SHARED_MODEL_WEIGHTS_H
#define SHARED_MODEL_WEIGHTS_H

#include "kernels/ops.h"
#include "shared/model/model_config.h"
#include "shared/model/parameters.h"
#include "shared/model/safetensors.h"
#include "shared/model/transformer.h"

struct weights {
    struct backend *backend;
    const struct parameter_table *table;
    enum element type; // of products and activations
    bool training;
    struct buffer *master;         // training: F32, table->elements
    struct buffer *vectors;        // in `type`, unless they are read from the master
    struct buffer *embedding_rows; // in `type`, unless they are read from the master
    struct tensor embedding;       // [V,C]
    struct weight *lm_head, *patch_embed, *merger_fc1, *merger_fc2;
    struct tensor norm, merger_norm, merger_fc1_bias, merger_fc2_bias;
    struct transformer text, vision;
    uint64_t hash;
    bool hash_known;
};

// Loads the weights of a store for computing in `type`. `hash`: their hash if it is known already, else NULL. DATAERR
// names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status weights_load(struct weights **out, struct backend *backend, const struct model_config *config,
                    const struct parameter_table *table, const struct safetensors *store, enum element type,
                    bool training, const uint64_t *hash);

// NULL is fine; sets *weights to NULL.
void weights_free(struct weights **weights);

// Training: rounds the vectors again from the master. A failure is the backend's (kernels/ops.h).
status weights_refresh(struct weights *weights);

// *hash = the hash of the configuration and of the bits in use. UNAVAILABLE when memory is short.
status weights_hash(struct weights *weights, const struct model_config *config, uint64_t *hash);

// A parameter in a float32 buffer laid out as the table says, as rows x columns.
struct tensor param_tensor(struct buffer *buffer, const struct fused_param *param);

// The elements [offset, offset + count) of such a buffer as one row.
struct tensor range_tensor(struct buffer *buffer, int64_t offset, int64_t count);

// Receives elements of parameters, in the order of the table, some at a time. A failure ends the download.
typedef status element_sink(void *context, const void *elements, size_t bytes);

// Passes a parameter of a float32 buffer laid out as the table says, converted to `type`, to the sink. Returns the
// sink's failure; UNAVAILABLE when memory is short.
status parameter_download(struct backend *backend, struct buffer *buffer, const struct parameter *parameter,
                          enum element type, element_sink *sink, void *context);

#endif
