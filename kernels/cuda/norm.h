// How rmsnorm and layernorm divide their work.
//
// A block works on one row at a time. A thread keeps its octets of the row in registers, so that memory is read once.
// The gradients of scale and bias are summed by blocks of rows, whose number depends on the shape alone; the blocks'
// sums are then added in order.
#ifndef KERNELS_CUDA_NORM_H
#define KERNELS_CUDA_NORM_H

#include "kernels/cuda/rows.h"

enum {
    norm_octets = 2, // of a row, in one thread
    norm_most_threads = 512,
    norm_most_columns = norm_octets * norm_most_threads * octet,
    norm_grad_most_threads = 84 << 10, // of all blocks of a gradient together
};

// The column of the thread's k-th octet.
DEVICE int64_t norm_column(int k) {
    return ((int64_t)k * blockDim.x + threadIdx.x) * octet;
}

// The threads of a block: enough for norm_octets octets each, in whole warps.
static inline unsigned norm_threads(int64_t columns) {
    int64_t threads = (octets_of(columns) + norm_octets - 1) / norm_octets;
    return (unsigned)((threads + 31) / 32 * 32);
}

// The rows that a block of a gradient works on.
static inline int64_t norm_block_rows(int64_t rows, unsigned threads) {
    int64_t most_blocks = norm_grad_most_threads / threads;
    return (rows + most_blocks - 1) / most_blocks;
}

// out F32 [1,C] += the rows of sums [blocks,C], in an order that their number determines (norm.cu).
void norm_add_sums(struct cuda_backend *cuda, struct tensor out, const float *sums, int64_t blocks);

#endif
