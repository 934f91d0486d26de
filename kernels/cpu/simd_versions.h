// What each set of versions enters into the SIMD table. Called by simd.c alone.
#ifndef KERNELS_CPU_SIMD_VERSIONS_H
#define KERNELS_CPU_SIMD_VERSIONS_H

#include "kernels/cpu/simd.h"

// Loops over arrays (elements.c): the plain versions, complete.
void simd_elements(struct simd *simd);
// The versions for AVX2 (elements_avx2.c).
void simd_elements_avx2(struct simd *simd);
// The versions for AVX-512 (elements_avx512.c), of those that are not limited by memory.
void simd_elements_avx512(struct simd *simd);

// Attention's tiles (attention_tiles.inc): the plain versions, complete.
void simd_attention_tiles(struct simd *simd);
// The versions for AVX2, complete.
void simd_attention_tiles_avx2(struct simd *simd);
// The versions for AVX-512, complete.
void simd_attention_tiles_avx512(struct simd *simd);

// Norms, activations and rows of logits (row_kernels.inc): the plain versions, complete.
void simd_row_kernels(struct simd *simd);
// The versions for AVX2, complete.
void simd_row_kernels_avx2(struct simd *simd);
// The versions for AVX-512, complete.
void simd_row_kernels_avx512(struct simd *simd);

// One AdamW step in plain C, also for the remainder of another version.
void simd_plain_adamw(float *param, const float *grad, float *exp_avg, float *exp_avg_sq, size_t count,
                      const struct adamw_factors *factors);

#endif
