// The table of a model's parameters: names, shapes, which of them decay, and the offset of each in one long array of
// elements. Parameters that one product uses together (query, key and value; gate and up) are adjacent.
//
// Order of the array: the language model's matrices, its vectors, the vision tower's matrices, its vectors. So a
// trainer without the tower needs the first two ranges only, and a range decays as a whole or not at all.
#ifndef SHARED_MODEL_PARAMETERS_H
#define SHARED_MODEL_PARAMETERS_H

#include "shared/base/memory.h"
#include "shared/model/qwen_vl/model_config.h"
#include "shared/model/safetensors.h"

enum parameter_kind { PARAMETER_MATRIX, PARAMETER_BIAS, PARAMETER_NORM };

struct parameter {
    const char *name; // flat: "model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.norm1.weight"
    enum parameter_kind kind;
    int rank;
    int64_t shape[5];
    int64_t count;  // elements
    int64_t offset; // of the first element
    bool vision;
};

// Adjacent parameters that are used as one matrix or vector.
struct fused_param {
    size_t first, count;   // in the table's list; count 0: it does not exist
    int64_t offset;        // of the first element
    int64_t rows, columns; // a vector has 1 row
};

// A transformer block. The language model's and the tower's differ in which biases exist.
struct block_params {
    struct fused_param qkv, out, gate_up, down;
    struct fused_param norm1, norm2, qkv_bias, out_bias, gate_up_bias, down_bias;
};

// Consecutive elements which all decay or all do not.
struct parameter_range {
    int64_t offset, count;
    bool decay, vision;
};

struct parameter_table {
    struct arena arena;
    struct parameter *list;
    size_t count;
    int64_t elements;                            // of the whole array, with the padding between fused parameters
    uint64_t parameter_count;                    // elements without the padding
    struct parameter_range ranges[4];            // in the order of the array
    struct fused_param embedding, lm_head, norm; // a tied model has no lm_head
    struct block_params *text;                   // [num_hidden_layers]
    struct fused_param patch_embed, merger_norm, merger_fc1, merger_fc1_bias, merger_fc2, merger_fc2_bias;
    struct block_params *vision;      // [depth]
    const struct fused_param **fused; // all of them, in the order of the array
    size_t fused_count;
};

// Makes the table for a configuration. UNAVAILABLE when memory is short; DATAERR when the model is too large for 64
// bits.
status parameter_table_new(struct parameter_table **out, const struct model_config *config);

// NULL is fine; sets *table to NULL.
void parameter_table_free(struct parameter_table **table);

// The name that newer state dicts give a parameter: "model.language_model.layers.0…", "model.visual.…". Lives as long
// as the arena; NULL when memory is short.
const char *parameter_nested_name(struct arena *arena, const struct parameter *parameter);

// Finds every parameter of the table in a store, under either name: found[i] for list[i]. DATAERR names a tensor that
// is missing, has another shape or belongs to no parameter. A stored lm_head of a tied model is ignored.
status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found);

#endif
