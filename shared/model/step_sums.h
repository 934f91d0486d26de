// The gradient of an optimizer step: the sums of the gradients of its leaves.
//
// A leaf is what one backward pass computes: a group or a part of one, or the texts of a classifier's pass. Its
// gradient begins at zero in memory of its own, so that it is a function of the leaf and the weights alone. Then each
// of its elements is added to the sum: sum = round(sum + leaf). The caller takes the leaves of a step in an order that
// depends on them alone. So the sums have the same bits wherever the leaves were computed. A leaf without gradient may
// be left out: that changes no bit.
//
// Ranks compute the leaves of a turn side by side. Each sends its leaf's pieces of a bucket to their owners, who add
// them in the order of the ranks; what other ranks own of the sums is not kept up. A bucket is on its way while the
// backward pass computes the next one. All ranks exchange the buckets in one order, that of the backward pass: streamed
// ones from the table's end to its beginning, then the others as they stand there. Pieces go from device to device
// (rank_devices.h), out of the leaf itself; or through the hosts, where there is a copy of the leaf's bucket.
//
// A bucket is added when the backward pass has completed it. Streamed buckets use the same memory, one after another;
// from device to device two memories in turn, because the bucket before is still on its way.
// Where a leaf's gradient of a matrix is one rounded product, the product is added to the sum itself, which has the
// same bits (zero and a product is the product). Not so with ranks, where leaves travel.
#pragma once

#include "shared/model/shards.h"

// Of matrices; vectors are F32.
struct gradient_types {
    enum element products, leaf, sum; // what a backward pass multiplies, a leaf's gradient, the sums
};

struct step_sums {
    struct backend *backend;
    struct param_array sums;      // of the trained ranges
    bool direct;                  // buckets to which a pass adds once have no memory of a leaf
    struct buffer *leaf;          // the gradient of the present leaf: zeros but in buckets that are touched
    struct leaf_bucket *buckets;  // for each bucket of these ranges
    size_t streamed;              // the streamed bucket that was touched last
    struct ranks *ranks;          // NULL: one process
    struct rank_devices *devices; // of the ranks; NULL: through the hosts
    struct sum_traffic *traffic;  // between the ranks; NULL without
};

// Makes zeros for the first `ranges` ranges of the table. `rank_list` has two ranks or more, or is NULL; `devices` are
// theirs, or NULL. The caller calls step_sums_release, also after a failure. UNAVAILABLE when memory is short.
status step_sums_init(struct step_sums *sums, struct backend *backend, const struct parameter_table *table, int ranges,
                      struct gradient_types types, struct ranks *rank_list, struct rank_devices *devices);

// Frees the memory, after what is on its way, and zeroes the struct. What was on its way from device to device has
// ended or was given up. Keeps fail_text. A zeroed struct is fine.
void step_sums_release(struct step_sums *sums);

// Returns the bytes of a leaf's gradient, on a backend that does or does not round products (struct backend_info), or
// of one that goes from device to device.
size_t step_sums_leaf_bytes(const struct parameter_table *table, int ranges, struct gradient_types types,
                            bool rounds_products, bool devices);

// Returns the bytes that one of `count` ranks has on the host for what is on its way, and at *device on the backend.
size_t step_sums_traffic_bytes(const struct parameter_table *table, int ranges, struct gradient_types types, int count,
                               bool devices, size_t *device);

// Begins a leaf with gradients of the first `groups` groups of the table; 0: of none, or no leaf. What an earlier one
// has left that did not end is dropped, except the buckets that were done or to which is added once. With ranks all
// begin and end a leaf in each turn, and wait for each other. A failure is the backend's or, final, one of the ranks.
status step_sums_begin(struct step_sums *sums, int groups);

// Returns where the backward pass adds the leaf's gradient of a parameter.
struct tensor step_sums_grad(struct step_sums *sums, const struct fused_param *param);

// The leaf's gradient of the bucket with this parameter is complete: adds it. With ranks BUG out of order.
status step_sums_done(struct step_sums *sums, const struct fused_param *param);

// Ends a leaf: adds what is not done.
status step_sums_end(struct step_sums *sums);

// *norm = the norm of the sums: the squares are added by the units of shards.h, in the order of the table. DATAERR if
// it is not finite.
status step_sums_norm(const struct step_sums *sums, double *norm);

// Sets the sums to zero, for the next step.
status step_sums_clear(struct step_sums *sums);
