// The transformer blocks that every architecture is made of, forward and backward:
//
//   n = norm(x; norm1)         x' = x + out(attention(rope(qkv(n))))
//   m = norm(x'; norm2)        y  = x' + down(activation(gate_up(m)))
//
// The first block of an encoder whose embedding is normed has no norm1: its n is x.
//
// With adapters (LoRA) each product in W^T gets another one added:
//
//   h = scale * (in A^T)       out = in W^T + bias, then out += h B^T
//
// h is rounded once, and `out` twice, as kernels/ops.h has it. The adapters alone are trained then.
//
// The next norm computes the sum x + delta, so a forward state carries both: the output of a block is x + delta.
// A failure is the backend's (kernels/ops.h).
#pragma once

#include "shared/model/step_sums.h"
#include "shared/model/workspace.h"

// What is beside a matrix of a block whose outputs have up to three parts, one beside the other (query, key, value):
// an A for each, one below the other, and their Bs. Those of parts that do not exist are empty.
enum { ADAPTED_PARTS = 3 };
struct adapter {
    struct fused_param a, b[ADAPTED_PARTS]; // [parts * rank, L] and [N of the part, rank]
};

// The parameters of a block. A bias, an adapter or a norm1 that does not exist is empty.
struct block {
    struct fused_param qkv, out, gate_up, down;
    struct fused_param norm1, norm2, norm1_bias, norm2_bias, qkv_bias, out_bias, gate_up_bias, down_bias;
    struct adapter qkv_adapter, out_adapter, gate_up_adapter, down_adapter;
};

enum norm_kind { NORM_RMSNORM, NORM_LAYERNORM };

// A stack of blocks.
struct transformer {
    struct block *blocks;
    int block_count;
    struct heads heads;
    float attention_scale, eps;
    int64_t hidden_size, intermediate_size;
    enum norm_kind norm;
    enum activation activation; // from [T, 2I] if it is gated, or from [T, I], to [T, I]
    int64_t adapter_rank;       // 0: there are no adapters
    float adapter_scale;
};

// What a block computes on the way to its output.
struct block_activations {
    struct tensor input;                    // [T,C]: x
    struct tensor normed;                   // [T,C]: the output of norm1, later of norm2
    struct tensor statistics1, statistics2; // of the norms, F32: rstd [T,1], or mean and rstd [T,2]
    struct tensor qkv;                      // [T, (H+2K)D], rotated
    struct tensor attended;                 // [T, H*D]
    struct tensor lse;                      // F32 [T,H]
    struct tensor residual;                 // [T,C]: x'
    struct tensor gate_up;                  // [T, 2I] or [T, I]
};

// What a block keeps of it for the backward pass, which computes the rest again. The gradients have the same bits at
// every level.
enum kept_level {
    KEEP_INPUT,     // the input alone
    KEEP_ATTENTION, // all but `normed` and `gate_up`: of the forward pass, gate_up's product alone is computed twice
    KEEP_MLP,       // all but `normed`: no product is computed twice
    KEPT_LEVELS,
};

// The rows of one pass through a transformer. T rows, C = transformer->hidden_size.
struct forward_state {
    struct backend *backend;
    enum element type; // of products and activations
    const struct transformer *transformer;
    struct workspace *workspace;
    int64_t rows;
    int64_t chunk_rows;            // the most rows that an MLP computes at the same time
    struct tensor x, delta;        // [T,C]; delta is undefined before the first block
    bool has_delta;                // delta is still to be added to x
    const struct rope_table *rope; // it has every position of position_ids
    struct tensor position_ids;    // I32 [T,3]
    struct tensor cache_slots;     // I32 [T,1]: the cache row of each row
    struct kv_cache *cache;
    const struct attention_plan *plan; // what the rows attend to
    bool layered;                   // the cache has a layer for each block (generation); otherwise all blocks share one
    struct block_activations *kept; // of each block, for the backward pass; NULL: nothing
    struct step_sums *grads;        // takes the gradients of all trained parameters
    struct tensor grad_x;           // F32 [T,C]: of the output, then of each block's input
};

// Returns the state of a pass over `rows` rows, without what the caller sets: rope, positions, cache and plan.
struct forward_state forward_start(const struct transformer *transformer, struct workspace *workspace,
                                   const struct backend_info *info, enum element type, int64_t rows);

// Allocates x and delta.
status forward_alloc(struct forward_state *fwd);

// Returns how many numbers a norm keeps of each row for the backward pass.
int64_t norm_statistics_size(const struct transformer *transformer);

// out = norm(x + delta; scale, bias), and x = x + delta. `bias` may be NULL or empty. statistics (or none) are kept for
// the backward pass.
status forward_norm(struct forward_state *fwd, struct tensor out, const struct fused_param *scale,
                    const struct fused_param *bias, struct tensor statistics);

// Returns where the gradient of a parameter other than an adapter's is added; none if the model does not have it, or if
// it is not trained.
struct tensor backward_param(const struct forward_state *fwd, const struct fused_param *param);

// Adds the gradients of a linear layer's weight and bias; then grad_in = that of its input, which may be `in` itself.
status backward_linear(const struct forward_state *fwd, struct tensor grad_in, struct tensor grad_out, struct tensor in,
                       const struct fused_param *matrix, const struct fused_param *bias);

// grad_x += the gradient of x through norm(x), and the gradients of its parameters += theirs. A bias that does not
// exist is empty.
status backward_norm(const struct forward_state *fwd, const struct fused_param *scale, const struct fused_param *bias,
                     struct tensor grad_out, struct tensor x, struct tensor statistics);

// Computes block `index` for all rows, and fills in kept[index]. Its output is x + delta.
status block_forward(struct forward_state *fwd, int index);

// Returns the bytes that one block keeps at a level for `rows` rows computed in `type`.
size_t block_kept_bytes(const struct transformer *transformer, enum element type, int64_t rows, enum kept_level level);

// Returns the bytes of working memory that block_backward needs at most, for `rows` rows in chunks of chunk_rows.
size_t block_work_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t chunk_rows);

// *kept = memory for what one block keeps at a level; all other tensors are none.
status block_keep(const struct forward_state *fwd, enum kept_level level, struct block_activations *kept);

// Turns grad_x, the gradient of the output of block `index`, into the gradient of its input, and adds the gradients of
// its parameters to grads. Computes again what kept[index] lacks, and overwrites its gate_up.
status block_backward(struct forward_state *fwd, int index);
