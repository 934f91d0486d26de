// Inner loops of norms, gates and rows of logits (lines.inc) for AVX-512.
#if defined(__x86_64__)
#define SIMD_LINES simd_lines_avx512
#include "kernels/cpu/lines.inc"
#endif
