// Attention's inner loops (tiles.inc) for AVX-512.
#if defined(__x86_64__)
#define SIMD_TILES simd_tiles_avx512
#include "kernels/cpu/tiles.inc"
#endif
