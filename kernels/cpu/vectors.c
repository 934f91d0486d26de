// Which versions of the inner loops run on this processor.
#include "kernels/cpu/vectors.h"

#include "kernels/cpu/families.h"

#if defined(__x86_64__)
#include <cpuid.h>

// __builtin_cpu_supports("f16c") is unknown to older clang.
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

enum vector_level vectors_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? VECTOR_AVX512 : avx2 ? VECTOR_AVX2 : VECTOR_PLAIN;
#else
    return VECTOR_PLAIN;
#endif
}

void vectors_choose(struct cpu_vectors *vectors, enum vector_level level) {
    vectors->level = level;
    vectors_convert(vectors);
    vectors_rows(vectors);
    vectors_turn(vectors);
    vectors_optimizer(vectors);
    vectors_tiles(vectors);
    vectors_lines(vectors);
#if defined(__x86_64__)
    if (level >= VECTOR_AVX2) {
        vectors_elements_avx2(vectors);
        vectors_tiles_avx2(vectors);
        vectors_lines_avx2(vectors);
    }
    if (level >= VECTOR_AVX512) {
        vectors_elements_avx512(vectors);
        vectors_tiles_avx512(vectors);
        vectors_lines_avx512(vectors);
    }
#endif
}
