// The two packed forms of a weight, and products with a packed matrix. UNAVAILABLE when memory is short.
#ifndef KERNELS_CPU_LINEAR_H
#define KERNELS_CPU_LINEAR_H

#include "kernels/cpu/gemm.h"

// N of a weight [N,L].
int64_t weight_outputs(const struct weight *weight);

// L of a weight [N,L].
int64_t weight_inner(const struct weight *weight);

// The type of its products.
enum element weight_type(const struct weight *weight);

// Whether the weight was packed when it was created.
bool weight_prepacked(const struct weight *weight);

// *out = the outputs [first, first + count) packed for in W^T; `first` is a multiple of 64. It is part of the weight,
// or packed now into scratch memory that stays valid until the next call.
status weight_packed(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                     struct packed_matrix *out);

// *out = those outputs packed for grad_out W, in scratch memory of its own. BUG for a prepacked weight.
status weight_packed_transpose(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                               struct packed_matrix *out);

// out = in x matrix + bias (or none); += when `add`.
status linear_packed(struct cpu_backend *cpu, struct tensor out, struct tensor in, struct packed_matrix matrix,
                     struct tensor bias, bool add);

#endif
