// Attention's inner loops (tiles.inc) in plain C.
#define SIMD_TILES simd_tiles
#include "kernels/cpu/tiles.inc"
