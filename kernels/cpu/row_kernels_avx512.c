// The row kernels (row_kernels.inc) for AVX-512.
#if defined(__x86_64__)
#define SIMD_ROW_KERNELS simd_row_kernels_avx512
#include "kernels/cpu/row_kernels.inc"
#endif
