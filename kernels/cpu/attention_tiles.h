// How the operands of attention's inner loops lie in memory. The loops themselves stand in the table of SIMD functions.
#ifndef KERNELS_CPU_ATTENTION_TILES_H
#define KERNELS_CPU_ATTENTION_TILES_H

enum {
    kv_block = 16, // keys a block, and what every width is rounded up to
    q_panel = 12   // query rows that lie side by side: a tile of queries is [D][q_panel]
};

#endif
