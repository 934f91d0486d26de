// Attention's inner loops (tiles.inc) for AVX2.
#if defined(__x86_64__)
#define SIMD_TILES simd_tiles_avx2
#include "kernels/cpu/tiles.inc"
#endif
