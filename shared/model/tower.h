// The transformer blocks that both towers are made of, forward and backward:
//
//   n = rmsnorm(x; norm1)         x' = x + out(attention(rotate(qkv(n))))
//   m = rmsnorm(x'; norm2)        y  = x' + down(silu(gate(m)) * up(m))
//
// The sum x + delta is taken by the next norm, so a pass carries both: after a block, x + delta is its output.
#ifndef SHARED_MODEL_TOWER_H
#define SHARED_MODEL_TOWER_H

#include "shared/model/desk.h"
#include "shared/model/weights.h"

// Rows that go through a tower together. T rows, C = tower->hidden.
typedef struct pass {
    const weights *weights;
    const tower *tower;
    desk *desk;
    int64_t rows;
    tensor x, delta; // [T,C]; before the first block delta is without meaning
    bool pending;    // delta is still to be added to x
    tensor cos, sin; // F32 [T, D/2]
    tensor slots;    // I32 [T,1]
    cache *cache;
    bool deep;         // the cache has a layer for each block (generation); else one serves all
    tensor *saved;     // each block's input, for the gradient; NULL: not kept
    buffer *gradients; // of all parameters, F32, as the table says
    tensor x_gradient; // F32 [T,C]: of the output, then of each block's input
} pass;

// What a block's rows see.
typedef struct view {
    const segment *segments;
    size_t count;
} view;

// Block `index` for all rows. Leaves its output as x and a pending delta.
status block_forward(pass *pass, int index, view view);

// x_gradient, of the output of block `index`, becomes that of its input; adds the gradients of its parameters. The
// block is computed again from its saved input.
status block_gradient(pass *pass, int index, view view);

// out = rmsnorm(x + pending delta); inverse (or none) is kept for the gradient.
status pass_norm(pass *pass, tensor out, tensor scale, tensor inverse);

#endif
