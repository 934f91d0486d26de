// The weights of any architecture on a backend: matrices prepared for products, vectors in the type of the activations.
//
// All parameters are one array in the type of the products, in the order of the table; training in bfloat16 keeps the
// remainders of the float32 numbers beside it (kernels/ops.h). Products, norms and the embedding read this array as it
// is. Only on a backend that packs, sampling and scoring keep packed matrices instead, and unpacked what is not a
// product's matrix. Both compute with the same bits.
//
// An architecture embeds the struct in its own, which also has the table's matrices and vectors.
#pragma once

#include "kernels/ops.h"
#include "shared/model/parameters.h"
#include "shared/model/safetensors.h"
#include "shared/model/transformer.h"

// ---- the parameters of blocks ----

// A linear layer of a block: up to three tensors NAME.weight, one below the other, and NAME.bias.
struct layer_shape {
    const char *names[3];
    int64_t rows[3], columns;
    bool bias;
};

// What an architecture has in its blocks. The tensors of block i are called PREFIX.i.NAME.
struct stack_shape {
    const char *prefix;
    int64_t hidden_size;
    const char *norms[2];  // NAME.weight
    bool norm_bias;        // NAME.bias
    bool norm_biases_last; // in the order of the parameters: behind both weights
    bool first_unnormed;   // the first block has no norm1
    enum bucket_use use;   // of the bucket of a block's matrices
    struct layer_shape qkv, out, gate_up, down;
};

// Adds the matrices of a block to the table, as a bucket, or its vectors.
void stack_add_block(struct parameter_table *table, struct block *params, const struct stack_shape *shape, int block,
                     bool matrices);

// Adds the adapters of a block's matrices (transformer.h) to a table of their own, as a bucket, under PEFT's names.
void stack_add_adapters(struct parameter_table *table, struct block *params, const struct stack_shape *shape, int block,
                        int64_t rank);

// ---- loading ----

// An architecture makes the table and says which are its embedding and its head; the backend and the type are set
// before anything is loaded.
struct weights {
    struct parameter_table table;
    struct fused_param *embedding; // of the table: the one matrix that is read as rows
    struct fused_param *tied_head; // not of the table: the embedding, prepared for products too; NULL: there is none
    struct backend *backend;
    enum element type;         // of products and activations
    struct param_array values; // in `type`, of training in BF16 pairs; no array: the matrices are packed
    bool borrowed;             // the array is in memory that is not freed with the weights
    struct buffer *unpacked;   // beside packed matrices: the embedding and the vectors, in `type`
    uint64_t hash;
    bool hash_known; // since the last change
};

// Where weights come from.
struct weights_source {
    const struct safetensors *store;
    struct buffer *values; // without a store: the array with its values, which outlives the weights; nothing is packed
    bool training;
    bool frozen;               // training: it changes others alone, so these have no remainders
    const struct ranks *ranks; // training: between which the remainders are divided; NULL: one process
    const uint64_t *hash;      // theirs if it is known already, else NULL
};

// *type = the type that an option names: float32, bfloat16; NULL: the backend's default, bfloat16 on a GPU. USAGE names
// the option.
status weights_parse_type(const struct backend *backend, const char *option, const char *name, enum element *type);

// Opens a backend that computes products in the type that `precision` names. The caller closes it with backend_close,
// also after a failure. USAGE: an unknown precision or device; UNAVAILABLE: no such device, or it lacks the type.
status weights_open_backend(const struct backend_options *options, const char *precision, struct backend **backend,
                            struct backend_info *info, enum element *type);

// Loads weights that have no values: those of every fused parameter, and the head of a tied model. In training,
// parameters that the store lacks are zero. The weights have a hash then, or get it when it is asked for. After a
// failure they can only be released. DATAERR names the tensor that does not fit the table; UNAVAILABLE when memory is
// short.
status weights_load(struct weights *weights, const struct weights_source *source);

// Frees the values, which can then be loaded again.
void weights_unload(struct weights *weights);

// Frees the values and the table. A zeroed struct is fine.
void weights_release(struct weights *weights);

// *hash = the hash of the table's settings and of the bits in use. UNAVAILABLE when memory is short.
status weights_hash(struct weights *weights, uint64_t *hash);

// ---- hash ----

// The hash by which weights are known: XXH3 over their type, the table's settings, each parameter's name and shape in
// the order of the table, and the digest of the bits. The digest is the sum of the fused parameters' digests
// (kernels/ops.h), each with the position of its first byte in the table's array, divided by 8, as `first`.

// Returns the hash of weights in `type` with this digest.
uint64_t weights_hash_finish(const struct parameter_table *table, enum element type, uint64_t digest);

// *hash = the hash of an array of weights, all in one type. UNAVAILABLE when memory is short.
status weights_hash_array(struct backend *backend, const struct param_array *values, uint64_t *hash);

// *hash = the hash of a store's weights, which must be in `type`. DATAERR names a tensor that is not, or that does not
// fit the table; UNAVAILABLE when memory is short.
status weights_hash_stored(struct backend *backend, const struct parameter_table *table,
                           const struct safetensors *store, enum element type, uint64_t *hash);

// *hash = a hash of a store's weights as they are stored, whatever type they are used in: of the table's settings, and
// of the type and the bytes of each parameter's tensor. It is no hash of model_hash. DATAERR names a tensor that does
// not fit the table; UNAVAILABLE when memory is short.
status weights_hash_files(const struct parameter_table *table, const struct safetensors *store, uint64_t *hash);
