// What each family of inner loops puts into the table; called by vectors.c alone.
#ifndef KERNELS_CPU_FAMILIES_H
#define KERNELS_CPU_FAMILIES_H

#include "kernels/cpu/vectors.h"

// Plain versions, complete.
void vectors_convert(struct cpu_vectors *vectors);
// Plain versions, complete.
void vectors_turn(struct cpu_vectors *vectors);
// Plain versions, complete.
void vectors_rows(struct cpu_vectors *vectors);
// Plain versions, complete.
void vectors_optimizer(struct cpu_vectors *vectors);

// Attention's tiles: plain versions, complete; the same for AVX2 and AVX-512.
void vectors_tiles(struct cpu_vectors *vectors);
// See vectors_tiles.
void vectors_tiles_avx2(struct cpu_vectors *vectors);
// See vectors_tiles.
void vectors_tiles_avx512(struct cpu_vectors *vectors);

// Norms, gates and rows of logits: plain versions, complete; the same for AVX2 and AVX-512.
void vectors_lines(struct cpu_vectors *vectors);
// See vectors_lines.
void vectors_lines_avx2(struct cpu_vectors *vectors);
// See vectors_lines.
void vectors_lines_avx512(struct cpu_vectors *vectors);

// The plain AdamW, for the tails of the others.
void vectors_plain_adamw(float *x, const float *gradient, float *m, float *v, size_t count,
                         const struct adamw_factors *factors);

// Conversions, turning, rows and optimizer for AVX2.
void vectors_elements_avx2(struct cpu_vectors *vectors);
// Conversions and rows for AVX-512.
void vectors_elements_avx512(struct cpu_vectors *vectors);

#endif
