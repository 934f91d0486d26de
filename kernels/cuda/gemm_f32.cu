// Products of float32: each output is one chain of fused multiply-adds in the order of k, past the end of which zeros
// are added up to a multiple of sixteen. A block of 256 threads computes 64 x 64 outputs, 4 x 4 a thread.
#include <assert.h>

#include "kernels/cuda/gemm_tiles.h"

enum {
    gemm_f32_tile = 64,
    gemm_f32_inner = 16,
    gemm_f32_threads = 256,
    gemm_f32_pitch = gemm_f32_tile + 4, // a row of shared memory: the outputs of one inner element
    gemm_f32_piece = gemm_f32_inner * gemm_f32_pitch,
};

static_assert(gemm_f32_tile * gemm_f32_tile == 16 * gemm_f32_threads, "sixteen outputs a thread");

// piece[k][outer] = elements of the operand from (outer, inner) on, zeros outside. Neighbouring threads read
// neighbouring elements.
static __device__ __forceinline__ void gemm_f32_read(float *piece, const struct operand &o, int64_t outer,
                                                     int64_t inner) {
    for (int i = (int)threadIdx.x; i < gemm_f32_tile * gemm_f32_inner; i += gemm_f32_threads) {
        int along = o.transposed ? i % gemm_f32_tile : i / gemm_f32_inner;
        int k = o.transposed ? i / gemm_f32_tile : i % gemm_f32_inner;
        int64_t m = outer + along, l = inner + k, at = o.transposed ? l * o.stride + m : m * o.stride + l;
        piece[k * gemm_f32_pitch + along] = m < o.outer && l < o.inner ? ((const float *)o.data)[at] : 0;
    }
}

__global__ void __launch_bounds__(gemm_f32_threads) gemm_f32_kernel(struct product p) {
    float *a = (float *)dynamic_shared(), *b = a + gemm_f32_piece;
    int64_t right = (p.b.outer + gemm_f32_tile - 1) / gemm_f32_tile;
    int64_t row = blockIdx.x / right * gemm_f32_tile, column = blockIdx.x % right * gemm_f32_tile;
    int own_row = (int)threadIdx.x / 16 * 4, own_column = (int)threadIdx.x % 16 * 4;
    float sums[4][4] = {};
    for (int64_t inner = 0; inner < p.a.inner; inner += gemm_f32_inner) {
        __syncthreads(); // everybody is done with the pieces before
        gemm_f32_read(a, p.a, row, inner);
        gemm_f32_read(b, p.b, column, inner);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < gemm_f32_inner; k++) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                sums[i / 4][i % 4] = fma_rn(a[k * gemm_f32_pitch + own_row + i / 4],
                                            b[k * gemm_f32_pitch + own_column + i % 4], sums[i / 4][i % 4]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        product_store(p, row + own_row + i / 4, column + own_column + i % 4, sums[i / 4][i % 4]);
}

status gemm_f32(struct cuda_backend *cuda, const struct product *p) {
    int64_t down = (p->a.outer + gemm_f32_tile - 1) / gemm_f32_tile;
    int64_t right = (p->b.outer + gemm_f32_tile - 1) / gemm_f32_tile;
    LAUNCH(gemm_f32_kernel, (unsigned)(down * right), gemm_f32_threads, 2 * gemm_f32_piece * sizeof(float),
           cuda->stream, *p);
    return cuda_launched("gemm_f32");
}
