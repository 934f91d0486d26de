// The inner loops in plain C, and which versions run on this processor.
#include "kernels/cpu/simd.h"

#include <cpuid.h>

#include "kernels/cpu/tiles.inc"
#include "kernels/cpu/elements.inc"
#include "kernels/cpu/row_kernels.inc"

enum simd_level simd_best(void) {
    // Older versions of clang do not know __builtin_cpu_supports("f16c").
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? SIMD_AVX512 : avx2 ? SIMD_AVX2 : SIMD_PLAIN;
}

void simd_choose(struct simd *simd, enum simd_level level) {
    elements_enter(simd);
    tiles_enter(simd);
    row_kernels_enter(simd);
    if (level >= SIMD_AVX2) simd_avx2(simd);
    if (level >= SIMD_AVX512) simd_avx512(simd);
}
