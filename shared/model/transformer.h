// The transformer blocks that both towers are made of, forward and backward:
//
//   n = rmsnorm(x; norm1)         x' = x + out(attention(rotate(qkv(n))))
//   m = rmsnorm(x'; norm2)        y  = x' + down(silu(gate(m)) * up(m))
//
// The sum x + delta is taken by the next norm, so a pass carries both: after a block, x + delta is its output.
#ifndef SHARED_MODEL_TOWER_H
#define SHARED_MODEL_TOWER_H

#include "shared/model/workspace.h"
#include "shared/model/weights.h"

// Rows that go through a tower together. T rows, C = tower->hidden.
struct forward_state {
    const struct weights *weights;
    const struct transformer *transformer;
    struct workspace *workspace;
    int64_t rows;
    struct tensor x, delta; // [T,C]; before the first block delta is without meaning
    bool has_delta;         // delta is still to be added to x
    struct tensor cos, sin; // F32 [T, D/2]
    struct tensor slots;    // I32 [T,1]
    struct kv_cache *cache;
    bool per_layer;           // the cache has a layer for each block (generation); else one serves all
    struct tensor *saved;     // each block's input, for the gradient; NULL: not kept
    struct buffer *gradients; // of all parameters, F32, as the table says
    struct tensor x_grad;     // F32 [T,C]: of the output, then of each block's input
};

// What a block's rows see.
struct attention_spans {
    const struct attention_span *items;
    size_t count;
};

// Block `index` for all rows. Leaves its output as x and a pending delta.
status block_forward(struct forward_state *fwd, int index, struct attention_spans spans);

// x_gradient, of the output of block `index`, becomes that of its input; adds the gradients of its parameters. The
// block is computed again from its saved input.
status block_backward(struct forward_state *fwd, int index, struct attention_spans spans);

// out = rmsnorm(x + pending delta); inverse (or none) is kept for the gradient.
status forward_norm(struct forward_state *fwd, struct tensor out, struct tensor scale, struct tensor inverse);

#endif
