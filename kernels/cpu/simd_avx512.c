// The inner loops for AVX-512.
#include "kernels/cpu/tiles.inc"
#include "kernels/cpu/elements.inc"
#include "kernels/cpu/row_kernels.inc"

void simd_avx512(struct simd *simd) {
    elements_enter(simd);
    tiles_enter(simd);
    row_kernels_enter(simd);
}
