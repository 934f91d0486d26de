// How the operands of attention's inner loops lie in memory. The loops themselves stand in the table of SIMD functions.
#ifndef KERNELS_CPU_TILES_H
#define KERNELS_CPU_TILES_H

enum {
    lanes = 16,    // keys a block, and what every width is rounded up to
    tile_rows = 12 // query rows that lie side by side: a tile of queries is [D][tile_rows]
};

#endif
