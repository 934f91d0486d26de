// The gradient of an optimizer step: the sums of the gradients of its leaves.
//
// A leaf is what one backward pass computes: a group or a part of one, or the texts of a classifier's pass. Its
// gradient begins at zero in memory of its own, so that it is a function of the leaf and the weights alone. Then each
// of its elements is added to the sum: sum = round(sum + leaf). The caller takes the leaves of a step in an order that
// depends on them alone. So the sums have the same bits wherever the leaves were computed. A leaf without gradient may
// be left out: that changes no bit.
//
// A bucket is added when the backward pass has completed it. Streamed buckets use the same memory, one after another.
// Where a leaf's gradient of a matrix is one rounded product, the product is added to the sum itself, which has the
// same bits (zero and a product is the product).
#pragma once

#include "shared/model/shards.h"

// Of matrices; vectors are F32.
struct gradient_types {
    enum element products, leaf, sum; // what a backward pass multiplies, a leaf's gradient, the sums
};

struct step_sums {
    struct backend *backend;
    struct param_array sums;     // of the trained ranges
    bool direct;                 // buckets to which a pass adds once have no memory of a leaf
    struct buffer *leaf;         // the gradient of the present leaf: zeros but in buckets that are touched
    struct leaf_bucket *buckets; // for each bucket of these ranges
    size_t streamed;             // the streamed bucket that was touched last
};

// Makes zeros for the first `ranges` ranges of the table. The caller calls step_sums_release, also after a failure.
// UNAVAILABLE when memory is short.
status step_sums_init(struct step_sums *sums, struct backend *backend, const struct parameter_table *table, int ranges,
                      struct gradient_types types);

// Frees the memory, and zeroes the struct. A zeroed struct is fine.
void step_sums_release(struct step_sums *sums);

// Returns the bytes of a leaf's gradient, on a backend that does or does not round products (struct backend_info).
size_t step_sums_leaf_bytes(const struct parameter_table *table, int ranges, struct gradient_types types,
                            bool rounds_products);

// Begins a leaf. What an earlier one has left that did not end is dropped, except the buckets that were done or to
// which is added once.
status step_sums_begin(struct step_sums *sums);

// Returns where the backward pass adds the leaf's gradient of a parameter.
struct tensor step_sums_grad(struct step_sums *sums, const struct fused_param *param);

// The leaf's gradient of the bucket with this parameter is complete: adds it.
status step_sums_done(struct step_sums *sums, const struct fused_param *param);

// Ends a leaf: adds what is not done.
status step_sums_end(struct step_sums *sums);

// *norm = the norm of the sums: the squares are added by the units of shards.h, in the order of the table. DATAERR if
// it is not finite.
status step_sums_norm(const struct step_sums *sums, double *norm);

// Sets the sums to zero, for the next step.
status step_sums_clear(struct step_sums *sums);
