// Which versions of the inner loops run on this processor.
#include "kernels/cpu/simd.h"

#include "kernels/cpu/simd_versions.h"

#if defined(__x86_64__)
#include <cpuid.h>

// Older versions of clang do not know __builtin_cpu_supports("f16c").
static bool simd_has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

enum simd_level simd_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && simd_has_f16c();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? SIMD_AVX512 : avx2 ? SIMD_AVX2 : SIMD_PLAIN;
#else
    return SIMD_PLAIN;
#endif
}

void simd_choose(struct simd *simd, enum simd_level level) {
    simd->level = level;
    simd_elements(simd);
    simd_attention_tiles(simd);
    simd_row_kernels(simd);
#if defined(__x86_64__)
    if (level >= SIMD_AVX2) {
        simd_elements_avx2(simd);
        simd_attention_tiles_avx2(simd);
        simd_row_kernels_avx2(simd);
    }
    if (level >= SIMD_AVX512) {
        simd_elements_avx512(simd);
        simd_attention_tiles_avx512(simd);
        simd_row_kernels_avx512(simd);
    }
#endif
}
