// A weight's two packed forms, for linear.c and head.c.
#ifndef KERNELS_CPU_WEIGHT_H
#define KERNELS_CPU_WEIGHT_H

#include "kernels/cpu/products.h"

// N of a weight [N,L].
int64_t weight_outputs(const struct weight *weight);

// L.
int64_t weight_inner(const struct weight *weight);

// The type of its products.
enum element weight_type(const struct weight *weight);

// Whether its packed form is its own.
bool weight_kept(const struct weight *weight);

// *out = the weight packed for in W^T: its own, or packed now into scratch that is valid until the next call.
status weight_packed(struct cpu_backend *cpu, const struct weight *weight, struct packed *out);

// *out = the weight packed for grad_out W, in scratch of its own. BUG for a weight that is kept.
status weight_transposed(struct cpu_backend *cpu, const struct weight *weight, struct packed *out);

// The same for the outputs [first, first + count) alone; `first` is a multiple of 64.
status weight_packed_part(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                          struct packed *out);

// Those outputs packed for grad_out W.
status weight_transposed_part(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                              struct packed *out);

// out = in x matrix + bias (or none); += when add.
status linear_packed(struct cpu_backend *cpu, struct tensor out, struct tensor in, struct packed matrix,
                     struct tensor bias, bool add);

#endif
