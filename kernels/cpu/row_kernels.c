// The row kernels (row_kernels.inc) in plain C.
#define SIMD_ROW_KERNELS simd_row_kernels
#include "kernels/cpu/row_kernels.inc"
