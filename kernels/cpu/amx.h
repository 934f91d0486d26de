// Products of bfloat16 matrices on the matrix unit of Intel's processors (AMX), in one thread.
//
// oneDNN's code for AMX sums a row in an order that depends on how many rows the product has, which breaks the one
// fixed order of ops.h. Here each output is one float32 sum over steps of 32 inner elements, from the first to the
// last.
#ifndef KERNELS_CPU_AMX_H
#define KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

enum { amx_inner = 32 }; // inner elements of a step

// Whether this processor and this build have it and the system permits its use, for which it is asked at the first
// call.
bool amx_usable(void);

// out [rows, columns] = in [rows, inner] x matrix [inner, columns]. All are dense, columns is a multiple of 64, and
// `matrix` is packed: blocks of 64 columns, in each the pairs of inner elements, with zeros up to a multiple of 32.
// Only where amx_usable().
void amx_matmul(float *out, const uint16_t *in, const uint16_t *matrix, int64_t rows, int64_t columns, int64_t inner);

#endif
