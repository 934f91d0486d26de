// A weight's two packed forms, for linear.c and head.c.
#ifndef KERNELS_CPU_WEIGHT_H
#define KERNELS_CPU_WEIGHT_H

#include "kernels/cpu/products.h"

// N of a weight [N,L].
int64_t weight_outputs(const weight *weight);

// L.
int64_t weight_inner(const weight *weight);

// The type of its products.
element weight_type(const weight *weight);

// Whether its packed form is its own.
bool weight_kept(const weight *weight);

// *out = the weight packed for in W^T: its own, or packed now into scratch that is valid until the next call.
status weight_packed(cpu_backend *cpu, const weight *weight, packed *out);

// *out = the weight packed for out_gradient W, in scratch of its own. BUG for a weight that is kept.
status weight_transposed(cpu_backend *cpu, const weight *weight, packed *out);

// The same for the outputs [first, first + count) alone; `first` is a multiple of 64.
status weight_packed_part(cpu_backend *cpu, const weight *weight, int64_t first, int64_t count, packed *out);

// Those outputs packed for out_gradient W.
status weight_transposed_part(cpu_backend *cpu, const weight *weight, int64_t first, int64_t count, packed *out);

// out = in x matrix + bias (or none); += when add.
status linear_packed(cpu_backend *cpu, tensor out, tensor in, packed matrix, tensor bias, bool add);

#endif
