// The canonical product of bfloat16 (products.h) in tiles of 128 x 128 outputs, of any shape and alignment.
//
// A block of eight warps walks over the inner length in steps of 32, and has three steps on their way to shared memory.
// Rows that begin at multiples of 16 or 8 bytes are copied asynchronously, others element by element. The bits are the
// same.
#include <assert.h>

#include "kernels/cuda/gemm_tiles.h"

enum {
    gemm_tile = 128, // rows and columns of outputs of a block
    gemm_inner = 32, // inner elements of a step
    gemm_stages = 4, // steps in shared memory
    gemm_threads = 256,
    gemm_warp_rows = 64, // outputs of a warp
    gemm_warp_columns = 32,
    gemm_group = 16, // tiles of rows that are computed side by side, so that they find columns in the cache
};

static_assert(gemm_threads / 32 * gemm_warp_rows * gemm_warp_columns == gemm_tile * gemm_tile, "the warps fill a tile");

template <bool transposed> using gemm_reader = piece_reader<gemm_tile, gemm_inner, gemm_threads, transposed>;

template <bool a_transposed, bool b_transposed> struct gemm_stage {
    struct bf16 a[gemm_reader<a_transposed>::elements], b[gemm_reader<b_transposed>::elements];
};

// The first row and column of this block's tile. Blocks follow each other down a group of tiles of rows, then to the
// right.
static __device__ __forceinline__ void gemm_place_block(const struct product &p, int64_t *row, int64_t *column) {
    int64_t down = (p.a.outer + gemm_tile - 1) / gemm_tile;
    int64_t right = (p.b.outer + gemm_tile - 1) / gemm_tile;
    int64_t group = blockIdx.x / (gemm_group * right), within = blockIdx.x % (gemm_group * right);
    int64_t rows = down - group * gemm_group; // of tiles
    if (rows > gemm_group) rows = gemm_group;
    *row = (group * gemm_group + within % rows) * gemm_tile;
    *column = within / rows * gemm_tile;
}

template <bool a_transposed, bool b_transposed>
static __device__ __forceinline__ void gemm_add_step(float sums[4][4][4],
                                                     const struct gemm_stage<a_transposed, b_transposed> *stage,
                                                     int warp_row, int warp_column) {
#pragma unroll
    for (int k = 0; k < gemm_inner; k += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            fragment_a<a_transposed, gemm_reader<a_transposed>::pitch>(a[i], stage->a, warp_row + 16 * i, k);
#pragma unroll
        for (int j = 0; j < 2; j++)
            fragment_b<b_transposed, gemm_reader<b_transposed>::pitch>(b[j], stage->b, warp_column + 16 * j, k);
#pragma unroll
        for (int i = 0; i < 16; i++) mma_bf16(sums[i / 4][i % 4], a[i / 4], b[i % 4 / 2] + i % 2 * 2);
    }
}

template <bool a_transposed, bool b_transposed, int alignment>
__global__ void __launch_bounds__(gemm_threads, 2) gemm_bf16_kernel(struct product p) {
    using stage = gemm_stage<a_transposed, b_transposed>;
    stage *stages = (stage *)dynamic_shared();
    int64_t row, column, inner = p.a.inner;
    gemm_place_block(p, &row, &column);
    gemm_reader<a_transposed> a(p.a, row);
    gemm_reader<b_transposed> b(p.b, column);
    int warp = (int)threadIdx.x / 32, lane = lane_id();
    int warp_row = warp / 4 * gemm_warp_rows, warp_column = warp % 4 * gemm_warp_columns;
    float sums[4][4][4];
#pragma unroll
    for (int i = 0; i < 64; i++) sums[i / 16][i / 4 % 4][i % 4] = 0;

    int64_t read = 0; // inner elements whose copies have begun
    int to = 0;       // the stage that is copied to next
    auto copy = [&] {
        if (read < inner) {
            a.template copy<alignment>(stages[to].a, inner - read);
            b.template copy<alignment>(stages[to].b, inner - read);
        }
        cp_async_commit();
        read += gemm_inner;
        to = (to + 1) % gemm_stages;
    };
    for (int i = 0; i < gemm_stages - 1; i++) copy();
    for (int64_t k = 0; k < inner; k += gemm_inner) {
        cp_async_wait<gemm_stages - 2>();
        __syncthreads(); // this step has arrived, and everybody is done with the stage that is copied to next
        const stage *current = &stages[(to + 1) % gemm_stages];
        copy();
        gemm_add_step<a_transposed, b_transposed>(sums, current, warp_row, warp_column);
    }
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 64; i++)
        product_store(p, row + warp_row + i / 16 * 16 + lane / 4 + i % 4 / 2 * 8,
                      column + warp_column + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2, sums[i / 16][i / 4 % 4][i % 4]);
}

template <bool a_transposed, bool b_transposed>
static void gemm_launch(struct cuda_backend *cuda, const struct product *p, unsigned blocks) {
    size_t shared = gemm_stages * sizeof(gemm_stage<a_transposed, b_transposed>);
    int a = operand_alignment(&p->a), b = operand_alignment(&p->b), alignment = a < b ? a : b;
    if (alignment == 16)
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 16>), blocks, gemm_threads, shared, cuda->stream, *p);
    else if (alignment == 8)
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 8>), blocks, gemm_threads, shared, cuda->stream, *p);
    else
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 2>), blocks, gemm_threads, shared, cuda->stream, *p);
}

template <bool a_transposed, bool b_transposed> static void gemm_load(void) {
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 16>));
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 8>));
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 2>));
}

void gemm_bf16_load(void) {
    gemm_load<true, true>();
    gemm_load<false, true>();
    gemm_load<false, false>();
}

status gemm_bf16(struct cuda_backend *cuda, const struct product *p) {
    int64_t down = (p->a.outer + gemm_tile - 1) / gemm_tile;
    int64_t right = (p->b.outer + gemm_tile - 1) / gemm_tile;
    assert(p->b.transposed || !p->a.transposed);
    if (p->a.transposed)
        gemm_launch<true, true>(cuda, p, (unsigned)(down * right));
    else if (p->b.transposed)
        gemm_launch<false, true>(cuda, p, (unsigned)(down * right));
    else
        gemm_launch<false, false>(cuda, p, (unsigned)(down * right));
    return cuda_launched("gemm_bf16");
}
