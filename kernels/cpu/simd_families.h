// What each family of inner loops puts into the table; called by simd.c alone.
#ifndef KERNELS_CPU_FAMILIES_H
#define KERNELS_CPU_FAMILIES_H

#include "kernels/cpu/simd.h"

// Plain versions, complete.
void simd_convert(struct simd *simd);
// Plain versions, complete.
void simd_transpose(struct simd *simd);
// Plain versions, complete.
void simd_rows(struct simd *simd);
// Plain versions, complete.
void simd_optimizer(struct simd *simd);

// Attention's tiles: plain versions, complete; the same for AVX2 and AVX-512.
void simd_attention_tiles(struct simd *simd);
// See simd_attention_tiles.
void simd_attention_tiles_avx2(struct simd *simd);
// See simd_attention_tiles.
void simd_attention_tiles_avx512(struct simd *simd);

// Norms, gates and rows of logits: plain versions, complete; the same for AVX2 and AVX-512.
void simd_row_kernels(struct simd *simd);
// See simd_row_kernels.
void simd_row_kernels_avx2(struct simd *simd);
// See simd_row_kernels.
void simd_row_kernels_avx512(struct simd *simd);

// The plain AdamW, for the tails of the others.
void simd_plain_adamw(float *x, const float *gradient, float *m, float *v, size_t count,
                      const struct adamw_factors *factors);

// Conversions, turning, rows and optimizer for AVX2.
void simd_elements_avx2(struct simd *simd);
// Conversions and rows for AVX-512.
void simd_elements_avx512(struct simd *simd);

#endif
