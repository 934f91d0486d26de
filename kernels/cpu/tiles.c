// Attention's inner loops (tiles.inc) in plain C.
#define VECTORS_TILES vectors_tiles
#include "kernels/cpu/tiles.inc"
