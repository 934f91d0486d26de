// The inner loops of attention (attention_tiles.inc) for AVX2.
#if defined(__x86_64__)
#define SIMD_ATTENTION_TILES simd_attention_tiles_avx2
#include "kernels/cpu/attention_tiles.inc"
#endif
