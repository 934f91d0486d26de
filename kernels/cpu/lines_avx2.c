// Inner loops of norms, gates and rows of logits (lines.inc) for AVX2.
#if defined(__x86_64__)
#define SIMD_LINES simd_lines_avx2
#include "kernels/cpu/lines.inc"
#endif
