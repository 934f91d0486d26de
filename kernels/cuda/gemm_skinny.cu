// The canonical product of bfloat16 (products.h) for at most 64 rows of activations, which the reading of the weight
// limits. The weight is the first operand of mma.sync and the activations are the second: the sums are the same, to the
// bit. Each warp computes sixteen columns of outputs for all rows.
#include <assert.h>

#include "kernels/cuda/gemm_tiles.h"

enum {
    skinny_inner = 64,          // inner elements of a step
    skinny_most_rows = 64,      // of activations
    skinny_many_columns = 8192, // from here on a block has four warps instead of two
    skinny_shared = 92160,      // bytes of shared memory at most, which every device has
    skinny_most_stages = 8,
};

template <int rows, int warps> struct skinny_shape {
    static constexpr int threads = 32 * warps, columns = 16 * warps;
    using in_reader = piece_reader<rows, skinny_inner, threads, false>;
    using weight_reader = piece_reader<columns, skinny_inner, threads, false>;
    struct skinny_stage {
        struct bf16 weight[weight_reader::elements], in[in_reader::elements];
    };
    static constexpr int fitting = skinny_shared / (int)sizeof(skinny_stage);
    static constexpr int stages = fitting < skinny_most_stages ? fitting : skinny_most_stages;
};

template <int rows, int warps> __global__ void __launch_bounds__(32 * warps) gemm_skinny_kernel(struct product p) {
    using shape = skinny_shape<rows, warps>;
    auto *stages = (typename shape::skinny_stage *)dynamic_shared();
    int warp = (int)threadIdx.x / 32, lane = lane_id();
    int64_t column = (int64_t)blockIdx.x * shape::columns, inner = p.a.inner;
    typename shape::in_reader in(p.a, 0);
    typename shape::weight_reader weight(p.b, column);
    float sums[(size_t)rows / 8][4];
#pragma unroll
    for (int i = 0; i < rows / 2; i++) sums[i / 4][i % 4] = 0;

    int64_t read = 0; // inner elements whose copies have begun
    int to = 0;       // the stage that is copied to next
    auto copy = [&] {
        if (read < inner) {
            weight.template copy<16>(stages[to].weight, inner - read);
            in.template copy<16>(stages[to].in, inner - read);
        }
        cp_async_commit();
        read += skinny_inner;
        to = (to + 1) % shape::stages;
    };
    for (int i = 0; i < shape::stages - 1; i++) copy();
    for (int64_t step = 0; step < inner; step += skinny_inner) {
        cp_async_wait<shape::stages - 2>();
        __syncthreads(); // this step has arrived, and everybody is done with the stage that is copied to next
        const typename shape::skinny_stage *current = &stages[(to + 1) % shape::stages];
        copy();
#pragma unroll
        for (int k = 0; k < skinny_inner; k += 16) {
            uint32_t a[4], b[4];
            fragment_a<false, shape::weight_reader::pitch>(a, current->weight, 16 * warp, k);
#pragma unroll
            for (int j = 0; j < rows / 8; j += 2) {
                fragment_b<false, shape::in_reader::pitch>(b, current->in, 8 * j, k);
                mma_bf16(sums[j], a, b);
                mma_bf16(sums[j + 1], a, b + 2);
            }
        }
    }
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < rows / 2; i++)
        product_store(p, i / 4 * 8 + lane % 4 * 2 + i % 2, column + warp * 16 + lane / 4 + i % 4 / 2 * 8,
                      sums[i / 4][i % 4]);
}

bool gemm_skinny_fits(const struct product *p) {
    return p->type == ELEMENT_BF16 && !p->a.transposed && !p->b.transposed && p->a.outer <= skinny_most_rows &&
           operand_aligned(&p->a) && operand_aligned(&p->b);
}

template <int rows, int warps> static void gemm_skinny_launch(struct cuda_backend *cuda, const struct product *p) {
    using shape = skinny_shape<rows, warps>;
    int64_t blocks = (p->b.outer + shape::columns - 1) / shape::columns;
    LAUNCH((gemm_skinny_kernel<rows, warps>), (unsigned)blocks, shape::threads,
           (size_t)shape::stages * sizeof(typename shape::skinny_stage), cuda->stream, *p);
}

template <int rows> static void gemm_skinny_launch_rows(struct cuda_backend *cuda, const struct product *p) {
    if (p->b.outer < skinny_many_columns)
        gemm_skinny_launch<rows, 2>(cuda, p);
    else
        gemm_skinny_launch<rows, 4>(cuda, p);
}

status gemm_skinny(struct cuda_backend *cuda, const struct product *p) {
    assert(gemm_skinny_fits(p));
    if (p->a.outer <= 16)
        gemm_skinny_launch_rows<16>(cuda, p);
    else if (p->a.outer <= 32)
        gemm_skinny_launch_rows<32>(cuda, p);
    else
        gemm_skinny_launch_rows<64>(cuda, p);
    return cuda_launched("gemm_skinny");
}
