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
struct pass {
    const struct weights *weights;
    const struct tower *tower;
    struct desk *desk;
    int64_t rows;
    struct tensor x, delta; // [T,C]; before the first block delta is without meaning
    bool pending;           // delta is still to be added to x
    struct tensor cos, sin; // F32 [T, D/2]
    struct tensor slots;    // I32 [T,1]
    struct cache *cache;
    bool deep;                // the cache has a layer for each block (generation); else one serves all
    struct tensor *saved;     // each block's input, for the gradient; NULL: not kept
    struct buffer *gradients; // of all parameters, F32, as the table says
    struct tensor x_gradient; // F32 [T,C]: of the output, then of each block's input
};

// What a block's rows see.
struct view {
    const struct segment *segments;
    size_t count;
};

// Block `index` for all rows. Leaves its output as x and a pending delta.
status block_forward(struct pass *pass, int index, struct view view);

// x_gradient, of the output of block `index`, becomes that of its input; adds the gradients of its parameters. The
// block is computed again from its saved input.
status block_gradient(struct pass *pass, int index, struct view view);

// out = rmsnorm(x + pending delta); inverse (or none) is kept for the gradient.
status pass_norm(struct pass *pass, struct tensor out, struct tensor scale, struct tensor inverse);

#endif
