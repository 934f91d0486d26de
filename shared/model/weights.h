// A model's weights on a backend: matrices prepared for products, vectors in the type of the activations.
//
// Sampling and scoring keep packed matrices alone. Training keeps all parameters as one row of float32 (parameters.h
// says where each stands); products round and pack from it, and the vectors are rounded from it after each step. Both
// compute with the same bits.
#ifndef SHARED_MODEL_WEIGHTS_H
#define SHARED_MODEL_WEIGHTS_H

#include "kernels/ops.h"
#include "shared/model/config.h"
#include "shared/model/parameters.h"
#include "shared/model/safetensors.h"

typedef struct block {
    weight *qkv, *out, *gate_up, *down;
    tensor norm1, norm2, qkv_bias, out_bias, gate_up_bias, down_bias; // a bias that the tower lacks is none
} block;

// A stack of transformer blocks: the language model's or the vision tower's.
typedef struct tower {
    const block_parts *parts;
    block *blocks;
    int count;
    heads heads;
    float scale, epsilon;
    int64_t hidden, inner;
} tower;

typedef struct weights {
    backend *backend;
    const parameter_table *table;
    element type; // of products and activations
    bool training;
    buffer *master;   // training: F32, table->elements
    buffer *vectors;  // in `type`, unless they are read from the master
    buffer *rows;     // of the embedding in `type`, unless they are read from the master
    tensor embedding; // [V,C]
    weight *head, *patch, *merge_in, *merge_out;
    tensor norm, merge_norm, merge_in_bias, merge_out_bias;
    tower text, vision;
    uint64_t hash;
    bool hash_known;
} weights;

// Loads the weights of a store for computing in `type`; their hash, where it is known already, else NULL. INPUT names
// the tensor that does not fit the table.
status weights_load(weights **out, backend *backend, const model_config *config, const parameter_table *table,
                    const safetensors *store, element type, bool training, const uint64_t *hash);

// NULL is fine; sets *weights to NULL.
void weights_free(weights **weights);

// Training: brings the rounded vectors up to date with the master.
status weights_refresh(weights *weights);

// *hash = the hash over the configuration and the bits in use.
status weights_hash(weights *weights, const model_config *config, uint64_t *hash);

// *hash = what weights_hash will say of the weights of a store that has them in `type` already. INPUT if it does not.
status weights_hash_stored(const model_config *config, const parameter_table *table, const safetensors *store,
                           element type, uint64_t *hash);

// A parameter's place in a buffer laid out as the table says, as rows x columns of float32.
tensor part_tensor(buffer *buffer, const part *part);

// The elements [place, place + count) of such a buffer as one row.
tensor range_tensor(buffer *buffer, int64_t place, int64_t count);

// Called with the parameters' elements in the order of the table, some at a time.
typedef status element_sink(void *context, const void *elements, size_t bytes);

// Gives parameter `index` of a float32 buffer laid out as the table says, converted to `type`, to the sink.
status parameter_download(backend *backend, buffer *buffer, const parameter *parameter, element type,
                          element_sink *sink, void *context);

#endif
