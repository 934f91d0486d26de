// The table of a model's parameters: names, shapes, and the offset of each in one long array of elements. Parameters
// that one product uses together (query, key and value; gate and up) are adjacent.
//
// The array consists of ranges. A range decays as a whole or not at all, and belongs to one group: the parameters that
// have a gradient in the same steps. A range consists of buckets: what the backward pass completes at the same time.
//
// An architecture adds its parameters, one after another, to an empty table: parameter_table_single, or
// parameter_table_start and parameter_table_append, then parameter_table_close_bucket and parameter_table_close_range;
// at the end parameter_table_finish.
#pragma once

#include "kernels/ops.h"
#include "shared/base/memory.h"
#include "shared/base/ranks.h"
#include "shared/model/safetensors.h"

enum { MAX_PARAM_RANGES = 4, MAX_PARAM_GROUPS = 2 };

enum parameter_kind { PARAMETER_MATRIX, PARAMETER_BIAS, PARAMETER_NORM };

struct parameter {
    const char *name;  // "model.layers.0.self_attn.q_proj.weight"
    const char *alias; // another name that a file may have for it; NULL: none
    enum parameter_kind kind;
    int group;
    int rank;
    int64_t shape[5];
    int64_t count;  // elements
    int64_t offset; // of the first element
};

// Adjacent parameters that are used as one matrix or vector. What it has on a backend: weights_load.
struct fused_param {
    size_t first, count;   // in the table's list; count 0: it does not exist
    int64_t offset;        // of the first element
    int64_t rows, columns; // a vector has 1 row
    struct weight *weight; // of a matrix, prepared for products
    struct tensor values;  // of a vector, or of the embedding
};

// Consecutive elements which all decay or all do not. Exactly matrices decay.
struct parameter_range {
    int64_t offset, count;
    bool decay;
    int group;
};

// How a backward pass adds to a bucket.
enum bucket_use {
    BUCKET_ANY_TIME,
    BUCKET_STREAMED, // to no other streamed one between its first and its last addition to it
    BUCKET_ONCE,     // streamed, and to each matrix one product, or one for each chunk of the rows
};

// Consecutive elements whose gradient the backward pass completes at the same time.
struct parameter_bucket {
    int64_t offset, count;
    int range; // that it belongs to
    enum bucket_use use;
};

struct parameter_table {
    struct arena arena;
    struct parameter *list;
    size_t count;
    int64_t elements;                                // of the whole array, with the padding between fused parameters
    uint64_t parameter_count;                        // elements without the padding
    struct parameter_range ranges[MAX_PARAM_RANGES]; // in the order of the array
    int range_count;
    struct parameter_bucket *buckets; // in the order of the array
    size_t bucket_count;
    struct fused_param **fused; // all of them, in the order of the array
    size_t fused_count;
    // Names, up to NULL, of tensors of a file that are not read: no parameters, or ones that get other values; or NULL.
    const char *const *ignored;
    double *settings; // what changes a result besides the parameters: a part of the weights' hash
    size_t setting_count;
    bool too_large; // for 64 bits
};

// Makes an empty table with room for `capacity` parameters; parameter_table_release frees what it has.
void parameter_table_init(struct parameter_table *table, size_t capacity);

// Frees what the table has, and zeroes it. A zeroed struct is fine.
void parameter_table_release(struct parameter_table *table);

// Starts a fused parameter at the next aligned offset. *fused must stay where it is as long as the table.
void parameter_table_start(struct parameter_table *table, struct fused_param *fused, int64_t rows, int64_t columns);

// Appends a parameter to the fused one that was started last. A vector of `columns` elements has rank 1. The name must
// outlive the table.
void parameter_table_append(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                            int64_t rows, int64_t columns, const char *name);

// Adds a fused parameter that is a single one.
void parameter_table_single(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                            int64_t rows, int64_t columns, const char *name);

// Ends a bucket: what was added since the bucket before it ended.
void parameter_table_close_bucket(struct parameter_table *table, enum bucket_use use);

// Ends a range, and its last bucket, to which is added at any time unless it was ended before: what was added since the
// range before it ended. All of it decays or does not, and is of one group.
void parameter_table_close_range(struct parameter_table *table, bool decay, int group);

// Sets the numbers, besides sizes, that change a result: `count` of `numbers`, then a flag for each of `layer_count`
// layers. Stores on disk are keyed by the hash of these numbers in this order. DATAERR when the model is too large for
// 64 bits: then the table is released.
status parameter_table_finish(struct parameter_table *table, const double *numbers, size_t count, const bool *layers,
                              int layer_count);

// Returns the number of the buckets of the first `ranges` ranges.
size_t parameter_table_buckets(const struct parameter_table *table, int ranges);

// Finds every parameter of the table in a store, under its name or its alias: found[i] for list[i], NULL for an
// ignored one. DATAERR names a tensor that is missing, has another shape, or is neither a parameter nor ignored.
status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found);

// Returns the parameter whose tensor that is, as parameter_table_match has found them; NULL if it is none's.
const struct parameter *parameter_of_stored(const struct parameter_table *table, const struct stored_tensor **found,
                                            const struct stored_tensor *stored);

// Checks that a store has every parameter of the table, and nothing else. DATAERR as parameter_table_match.
status parameter_table_check(const struct parameter_table *table, const struct safetensors *store);

// The tensor of a file that is to be written with a parameter's values.
struct stored_tensor parameter_stored(const struct parameter *parameter, const char *name, enum element type);

// ---- arrays ----

// Arrays with one number for each parameter, in the order of the parameter table: the weights, their gradients, the
// optimizer's moments, the reference. And the exchange of a parameter's values with the host.
//
// Float32 numbers are an array of F32, or one of pairs (kernels/ops.h): BF16 values and U16 remainders.
//
// Ranks that train together divide the values, or the remainders alone: each has what it owns (shards.h), one piece
// behind the other. Only a view within one piece can be had of them.
struct param_array {
    const struct parameter_table *table;
    struct buffer *buffer;                            // of the values
    struct buffer *remainders;                        // of pairs; NULL: the numbers are the values
    const struct ranks *divided, *remainders_divided; // between these ranks; NULL: the array has all of them
    int ranges;                                       // of the table: the first ones
    enum element types[MAX_PARAM_RANGES];
    size_t starts[MAX_PARAM_RANGES]; // bytes: where a range begins
};

// An array of zeros for the first `ranges` ranges of the table, of one type for matrices and one for vectors; divided
// between ranks that outlive it, or whole (NULL). The caller frees it with param_array_release; a zeroed struct is no
// array. UNAVAILABLE when memory is short.
status param_array_init(struct param_array *array, struct backend *backend, const struct parameter_table *table,
                        int ranges, enum element matrices, enum element vectors, const struct ranks *divided);

// Makes the zeros of a whole array in BF16 pairs, whose remainders may be divided. UNAVAILABLE when memory is short.
status param_array_add_remainders(struct param_array *array, struct backend *backend, const struct ranks *divided);

// An array like that of param_array_init in memory that exists: `buffer`, which must outlive it.
void param_array_view(struct param_array *array, struct buffer *buffer, const struct parameter_table *table, int ranges,
                      enum element matrices, enum element vectors);

// Returns the bytes of such an array.
size_t param_array_bytes(const struct parameter_table *table, int ranges, enum element matrices, enum element vectors);

// Returns the bytes of what rank number `rank` of `count` has of it if it is divided.
size_t param_array_divided_bytes(const struct parameter_table *table, int ranges, enum element matrices,
                                 enum element vectors, int rank, int count);

// Frees the array and zeroes the struct. A zeroed struct is fine.
void param_array_release(struct param_array *array, struct backend *backend);

// Elements [first, end) of the table's array, which may cut parameters anywhere.
struct param_piece {
    int64_t first, end;
};
extern const struct param_piece param_whole; // all elements

// The values of a fused parameter as rows x columns.
struct tensor param_tensor(const struct param_array *array, const struct fused_param *param);

// The values of a range of the table as one row; none if there is no array.
struct tensor param_range(const struct param_array *array, int range);

// The values of a piece of one range of the table as one row; none if there is no array.
struct tensor param_slice(const struct param_array *array, struct param_piece piece);

// The remainders of values of the array; none if its numbers are no pairs.
struct tensor param_remainders(const struct param_array *array, struct tensor values);

// Whether there is an array, and it keeps the parameter.
bool param_array_has(const struct param_array *array, const struct parameter *parameter);

// The type of a parameter's numbers: F32 of pairs, else that of its values.
enum element param_type(const struct param_array *array, const struct parameter *parameter);

// Writes those of a parameter's numbers that are in the piece, converted to `type`, to tensor number `tensor` of a
// file; without a file (NULL) to `memory`, one behind the other. Errors as safetensors_write.
status parameter_download(struct backend *backend, const struct param_array *array, const struct parameter *parameter,
                          struct param_piece piece, enum element type, struct safetensors_writer *writer, size_t tensor,
                          void *memory);

// Sets those of a parameter's numbers that are in the piece. `host` has them and others, from number `start` on, of
// type `type`, at any alignment; the others are not read.
status parameter_upload(struct backend *backend, const struct param_array *array, const struct parameter *parameter,
                        struct param_piece piece, const void *host, int64_t start, enum element type);
