// The weights of any architecture on a backend: matrices prepared for products, vectors in the type of the activations.
//
// All parameters are one array in the type of the products, in the order of the table; training in bfloat16 keeps the
// remainders of the float32 numbers beside it (kernels/ops.h). Products, norms and the embedding read this array as it
// is. Only on a backend that packs, sampling and scoring keep packed matrices instead, and unpacked what is not a
// product's matrix. Both compute with the same bits.
//
// An architecture embeds the struct in its own, which also has the matrices and vectors, and loads these one by one.
#ifndef SHARED_MODEL_WEIGHTS_H
#define SHARED_MODEL_WEIGHTS_H

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
    struct layer_shape qkv, out, gate_up, down;
};

// Adds the matrices of a block to the table, or its vectors.
void stack_add_block(struct parameter_table *table, struct block_params *params, const struct stack_shape *shape,
                     int block, bool matrices);

// ---- loading ----

struct weights {
    struct backend *backend;
    const struct parameter_table *table;
    const struct fused_param *embedding; // of the table: the one matrix that is read as rows
    enum element type;                   // of products and activations
    struct param_array values;           // in `type`, of training in BF16 pairs; no array: the matrices are packed
    bool borrowed;                       // the array is in memory that is not freed with the weights
    struct buffer *unpacked;             // beside packed matrices: the embedding and the vectors, in `type`
    struct arena arena;                  // the list below, and an architecture's blocks
    struct weight **matrices;            // all that were loaded
    size_t matrix_count;
    uint64_t hash;
    bool hash_known; // since the last change
};

// Where weights come from.
struct weights_source {
    const struct safetensors *store;
    struct buffer *values; // without a store: the array with its values, which outlives the weights; nothing is packed
    bool training;
    const uint64_t *hash; // theirs if it is known already, else NULL
};

// What is passed along while weights are loaded.
struct weights_loader {
    struct weights *weights;
    const struct stored_tensor **found; // by parameter; NULL: the array has its values already
    size_t unpacked_bytes;              // of weights->unpacked, given away so far
    struct buffer *staging;             // one matrix after another, before it is packed
    size_t staging_size;
    bool digested; // whether the hash of packed weights is computed while they are loaded
    uint64_t digest;
};

// *type = the type that an option names: float32, bfloat16; NULL: the backend's default, bfloat16 on a GPU. USAGE names
// the option.
status weights_parse_type(const struct backend *backend, const char *option, const char *name, enum element *type);

// Opens a backend that computes products in the type that `precision` names. The caller closes it with backend_close,
// also after a failure. USAGE: an unknown precision or device; UNAVAILABLE: no such device, or it lacks the type.
status weights_open_backend(const struct backend_options *options, const char *precision, struct backend **backend,
                            struct backend_info *info, enum element *type);

// Begins to load weights, of which the first four fields are set. The caller calls weights_loader_release, also after a
// failure. DATAERR names the tensor that does not fit the table; UNAVAILABLE when memory is short.
status weights_loader_open(struct weights_loader *loader, struct weights *weights, const struct weights_source *source);

// Everything is loaded in the order of the table.
//
// *out = a matrix, prepared for products; weights_release frees it. UNAVAILABLE when memory is short.
status weights_load_matrix(struct weights_loader *loader, const struct fused_param *param, struct weight **out);

// *out = a vector or the embedding; none if the parameter does not exist.
status weights_load_unpacked(struct weights_loader *loader, const struct fused_param *param, struct tensor *out);

// *out = the embedding, which was loaded to `embedding`, prepared for products too: the head of a tied model.
status weights_load_tied(struct weights_loader *loader, struct tensor embedding, struct weight **out);

// The matrices of all blocks.
status weights_load_block_matrices(struct weights_loader *loader, struct transformer *transformer);

// The vectors of all blocks.
status weights_load_block_vectors(struct weights_loader *loader, struct transformer *transformer);

// Ends loading: the weights have a hash, or get it when it is asked for.
void weights_loader_finish(struct weights_loader *loader);

// Frees what loading needed. A zeroed struct is fine.
void weights_loader_release(struct weights_loader *loader);

// Frees the matrices and the arrays. A zeroed struct is fine.
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

#endif
