// A model's weights on a backend: matrices prepared for products, vectors in the type of the activations.
//
// Sampling and scoring keep packed matrices alone. Training keeps all parameters as one row of float32 (parameters.h
// says where each stands); products round and pack from it, and the vectors are rounded from it after each step. Both
// compute with the same bits.
#ifndef SHARED_MODEL_WEIGHTS_H
#define SHARED_MODEL_WEIGHTS_H

#include "kernels/ops.h"
#include "shared/model/model_config.h"
#include "shared/model/parameters.h"
#include "shared/model/safetensors.h"

struct block {
    struct weight *qkv, *out, *gate_up, *down;
    struct tensor norm1, norm2, qkv_bias, out_bias, gate_up_bias, down_bias; // a bias that the tower lacks is none
};

// A stack of transformer blocks: the language model's or the vision tower's.
struct transformer {
    const struct block_params *params;
    struct block *blocks;
    int count;
    struct heads heads;
    float scale, eps;
    int64_t hidden_size, intermediate_size;
};

struct weights {
    struct backend *backend;
    const struct parameter_table *table;
    enum element type; // of products and activations
    bool training;
    struct buffer *master;   // training: F32, table->elements
    struct buffer *vectors;  // in `type`, unless they are read from the master
    struct buffer *rows;     // of the embedding in `type`, unless they are read from the master
    struct tensor embedding; // [V,C]
    struct weight *head, *patch, *merger_fc1, *merger_fc2;
    struct tensor norm, merger_norm, merger_fc1_bias, merger_fc2_bias;
    struct transformer text, vision;
    uint64_t hash;
    bool hash_known;
};

// Loads the weights of a store for computing in `type`; their hash, where it is known already, else NULL. DATAERR names
// the tensor that does not fit the table.
status weights_load(struct weights **out, struct backend *backend, const struct model_config *config,
                    const struct parameter_table *table, const struct safetensors *store, enum element type,
                    bool training, const uint64_t *hash);

// NULL is fine; sets *weights to NULL.
void weights_free(struct weights **weights);

// Training: brings the rounded vectors up to date with the master.
status weights_refresh(struct weights *weights);

// *hash = the hash over the configuration and the bits in use.
status weights_hash(struct weights *weights, const struct model_config *config, uint64_t *hash);

// *hash = what weights_hash will say of the weights of a store that has them in `type` already. DATAERR if it does not.
status weights_hash_stored(const struct model_config *config, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash);

// A parameter's place in a buffer laid out as the table says, as rows x columns of float32.
struct tensor param_tensor(struct buffer *buffer, const struct fused_param *param);

// The elements [place, place + count) of such a buffer as one row.
struct tensor range_tensor(struct buffer *buffer, int64_t offset, int64_t count);

// Called with the parameters' elements in the order of the table, some at a time.
typedef status element_sink(void *context, const void *elements, size_t bytes);

// Gives parameter `index` of a float32 buffer laid out as the table says, converted to `type`, to the sink.
status parameter_download(struct backend *backend, struct buffer *buffer, const struct parameter *parameter,
                          enum element type, element_sink *sink, void *context);

#endif
