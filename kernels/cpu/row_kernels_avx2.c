// The row kernels (row_kernels.inc) for AVX2.
#if defined(__x86_64__)
#define SIMD_ROW_KERNELS simd_row_kernels_avx2
#include "kernels/cpu/row_kernels.inc"
#endif
