// The table of a model's parameters: names, shapes, and the offset of each in one long array of elements. Parameters
// that one product uses together (query, key and value; gate and up) are adjacent.
//
// The array consists of ranges. A range decays as a whole or not at all, and belongs to one group: the parameters that
// have a gradient in the same steps.
//
// An architecture adds its parameters, one after another, to an empty table: parameter_table_single, or
// parameter_table_start and parameter_table_append, then parameter_table_close_range.
#ifndef SHARED_MODEL_PARAMETERS_H
#define SHARED_MODEL_PARAMETERS_H

#include "shared/base/memory.h"
#include "shared/model/safetensors.h"

enum { MAX_PARAM_RANGES = 4, MAX_PARAM_GROUPS = 2 };

enum parameter_kind { PARAMETER_MATRIX, PARAMETER_BIAS, PARAMETER_NORM };

struct parameter {
    const char *name;  // "model.layers.0.self_attn.q_proj.weight"
    const char *alias; // another name that a file may have for it; NULL: none
    enum parameter_kind kind;
    bool optional; // a file may lack it
    int group;
    int rank;
    int64_t shape[5];
    int64_t count;  // elements
    int64_t offset; // of the first element
};

// Adjacent parameters that are used as one matrix or vector.
struct fused_param {
    size_t first, count;   // in the table's list; count 0: it does not exist
    int64_t offset;        // of the first element
    int64_t rows, columns; // a vector has 1 row
};

// Consecutive elements which all decay or all do not. Exactly matrices decay.
struct parameter_range {
    int64_t offset, count;
    bool decay;
    int group;
};

struct parameter_table {
    struct arena arena;
    struct parameter *list;
    size_t count;
    int64_t elements;                                // of the whole array, with the padding between fused parameters
    uint64_t parameter_count;                        // elements without the padding
    struct parameter_range ranges[MAX_PARAM_RANGES]; // in the order of the array
    int range_count;
    const struct fused_param **fused; // all of them, in the order of the array
    size_t fused_count;
    // Names, up to NULL, of tensors of a file that are not read: no parameters, or ones that get other values; or NULL.
    const char *const *ignored;
    const double *settings; // what changes a result besides the parameters: a part of the weights' hash
    size_t setting_count;
};

// Makes an empty table with room for `capacity` parameters; parameter_table_release frees what it has, also after a
// failure.
void parameter_table_init(struct parameter_table *table, size_t capacity);

// Frees what the table has, and zeroes it. A zeroed struct is fine.
void parameter_table_release(struct parameter_table *table);

// Starts a fused parameter at the next aligned offset. *fused must stay where it is as long as the table.
void parameter_table_start(struct parameter_table *table, struct fused_param *fused, int64_t rows, int64_t columns);

// Appends a parameter to the fused one that was started last. A vector of `columns` elements has rank 1. DATAERR when
// the model is too large for 64 bits; UNAVAILABLE when `name` is NULL (memory was short when it was composed).
status parameter_table_append(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                              int64_t rows, int64_t columns, const char *name);

// Adds a fused parameter that is a single one. Errors as above.
status parameter_table_single(struct parameter_table *table, struct fused_param *fused, enum parameter_kind kind,
                              int64_t rows, int64_t columns, const char *name);

// Ends a range: what was added since the range before it ended. All of it decays or does not, and is of one group.
void parameter_table_close_range(struct parameter_table *table, bool decay, int group);

// Finds every parameter of the table in a store, under its name or its alias: found[i] for list[i], NULL for an
// ignored one and for an optional one that is not there. DATAERR names a tensor that is missing, has another shape, or
// is neither a parameter nor ignored.
status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found);

// Checks that a store has every parameter of the table, and nothing else. DATAERR as parameter_table_match.
status parameter_table_check(const struct parameter_table *table, const struct safetensors *store);

// The tensor of a file that is to be written with a parameter's values.
struct stored_tensor parameter_stored(const struct parameter *parameter, const char *name, enum element type);

#endif
