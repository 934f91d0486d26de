// The inner loops for AVX2.
#include "kernels/cpu/tiles.inc"
#include "kernels/cpu/elements.inc"
#include "kernels/cpu/row_kernels.inc"

void simd_avx2(struct simd *simd) {
    elements_enter(simd);
    tiles_enter(simd);
    row_kernels_enter(simd);
}
