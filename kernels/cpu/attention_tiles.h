// The layout of query rows for the inner loops of attention, which are in the SIMD table (simd.h).
#ifndef KERNELS_CPU_ATTENTION_TILES_H
#define KERNELS_CPU_ATTENTION_TILES_H

// Query rows are packed into panels [D][q_panel]: element (row, d) of a panel is at d * q_panel + row.
enum { q_panel = 12 };

#endif
