// The inner loops of the CPU backend, chosen at run time: the plain C versions first, then what the processor's
// capabilities overwrite. Every version of a function gives the same bits.
//
// A family FAMILY fills its functions with vectors_FAMILY (FAMILY.c), vectors_FAMILY_avx2 (FAMILY_avx2.c) and
// vectors_FAMILY_avx512 (FAMILY_avx512.c), each called from vectors.c.
#ifndef KERNELS_CPU_VECTORS_H
#define KERNELS_CPU_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum vector_level { VECTOR_PLAIN, VECTOR_AVX2, VECTOR_AVX512 } vector_level;

// Factors of one AdamW step in float32: m = m1 m + m2 g; v = v1 v + v2 g g; x = keep x - rate m / (sqrt(v) root +
// epsilon) with g = scale * gradient.
typedef struct adamw_factors {
    float scale, m1, m2, v1, v2, keep, rate, root, epsilon;
} adamw_factors;

typedef struct cpu_vectors {
    vector_level level;
    // convert.c
    void (*widen)(float *out, const uint16_t *in, size_t count);  // out = in, from bfloat16
    void (*narrow)(uint16_t *out, const float *in, size_t count); // out = in rounded to bfloat16
    // rows.c
    void (*add)(float *out, const float *in, size_t count); // out += in
    // optimizer.c
    double (*square_sum)(const float *in, size_t count); // sum of squares, in eight lanes of double
    void (*adamw)(float *x, const float *gradient, float *m, float *v, size_t count, const adamw_factors *factors);
    void (*average)(float *average, const float *in, size_t count, float rest); // average += (in - average) rest
} cpu_vectors;

// The best level that this processor and this build have.
vector_level vectors_best(void);

// Fills every function for a level, which must not exceed vectors_best().
void vectors_choose(cpu_vectors *vectors, vector_level level);

#endif
