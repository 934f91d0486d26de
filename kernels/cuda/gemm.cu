// Matrix products: the kernels.
//
// The canonical product of bfloat16 (products.h) has two kernels that give the same bits: tiles of 128 x 128 outputs of
// any shape and alignment, and one for at most 64 rows of activations.
#include <assert.h>

#include "kernels/cuda/products.h"
#include "kernels/cuda/rows.h"

enum {
    GEMM_TILE = 128, // rows and columns of outputs of a block
    GEMM_INNER = 32, // inner elements of a step
    GEMM_STAGES = 4, // steps in shared memory
    GEMM_THREADS = 256,
    GEMM_WARP_ROWS = 64, // outputs of a warp
    GEMM_WARP_COLUMNS = 32,
    GEMM_GROUP = 16, // tiles of rows that are computed side by side, so that they find columns in the cache

    SKINNY_INNER = 64,          // inner elements of a step
    MAX_SKINNY_ROWS = 64,       // of activations
    SKINNY_MANY_COLUMNS = 8192, // from here on a block has four warps instead of two
    SKINNY_SHARED = 92160,      // bytes of shared memory at most, which every device has
    MAX_SKINNY_STAGES = 8,

    GEMM_F32_TILE = 64,
    GEMM_F32_INNER = 16,
    GEMM_F32_THREADS = 256,
    GEMM_F32_PITCH = GEMM_F32_TILE + 4, // a row of shared memory: the outputs of one inner element
    GEMM_F32_PIECE = GEMM_F32_INNER * GEMM_F32_PITCH,

    CHUNK_ELEMENTS = 8, // a copy of 16 bytes
    PIECE_PAD = 8,      // elements between rows, so that eight rows in a column lie in different banks
};

static_assert(GEMM_THREADS / 32 * GEMM_WARP_ROWS * GEMM_WARP_COLUMNS == GEMM_TILE * GEMM_TILE, "the warps fill a tile");
static_assert(GEMM_F32_TILE * GEMM_F32_TILE == 16 * GEMM_F32_THREADS, "sixteen outputs a thread");

// ---- operands ----

int operand_alignment(const struct operand *o) {
    int64_t rows = o->transposed ? o->inner : o->outer;
    uintptr_t bits = (uintptr_t)o->data | (rows > 1 ? (uintptr_t)o->stride * sizeof(struct bf16) : 0);
    return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 2;
}

// ---- pieces ----

// What the two kernels of the canonical product share: copying pieces of the operands to shared memory, reading
// fragments from there, and storing sums.
//
// A piece is what one step of the inner length needs of an operand. It keeps the order of the matrix in memory, so its
// rows are the outer index and its columns the inner one, or the other way round if the operand is transposed; then it
// is turned when fragments are read. Elements outside the matrix are zeros.

// What one thread copies of an operand: some chunks in each step, `rows_apart` rows apart.
template <int outer_count, int inner_count, int threads, bool transposed> struct piece_reader {
    static constexpr int rows = transposed ? inner_count : outer_count; // of a piece
    static constexpr int columns = transposed ? outer_count : inner_count;
    static constexpr int pitch = columns + PIECE_PAD;
    static constexpr int elements = rows * pitch; // of shared memory
    static constexpr int rows_apart = threads / (columns / CHUNK_ELEMENTS);
    static_assert(rows % rows_apart == 0, "every thread copies as many chunks");

    const struct bf16 *start, *from;
    int64_t jump, advance;
    int row, column, outer_left;

    // For the piece whose first outer index is `outer`.
    __device__ __forceinline__ piece_reader(const struct operand &o, int64_t outer) {
        row = (int)threadIdx.x / (columns / CHUNK_ELEMENTS);
        column = (int)threadIdx.x % (columns / CHUNK_ELEMENTS) * CHUNK_ELEMENTS;
        int64_t left = o.outer - outer;
        outer_left = (int)(left < outer_count ? left : outer_count);
        start = (const struct bf16 *)o.data;
        from = start + (transposed ? row * o.stride + outer + column : (outer + row) * o.stride + column);
        jump = rows_apart * o.stride;
        advance = transposed ? inner_count * o.stride : inner_count;
    }

    // Copies this thread's part of the next step to `piece`; `left` inner elements are left. Asynchronously if the rows
    // of the operand begin at multiples of `alignment` bytes, 16 or 8.
    template <int alignment> __device__ __forceinline__ void copy(struct bf16 *piece, int64_t left) {
        int inner_left = (int)(left < inner_count ? left : inner_count);
#pragma unroll
        for (int i = 0; i < rows / rows_apart; i++) {
            int r = row + i * rows_apart;
            int count =
                transposed ? (r < inner_left ? outer_left - column : 0) : (r < outer_left ? inner_left - column : 0);
            count = count < 0 ? 0 : count > CHUNK_ELEMENTS ? CHUNK_ELEMENTS : count;
            struct bf16 *to = piece + r * pitch + column;
            const struct bf16 *source = count ? from + i * jump : start;
            if (alignment == 16) {
                cp_async16(to, source, (uint32_t)count * (uint32_t)sizeof *to);
            } else if (alignment == 8) {
                int second = count > 4 ? count - 4 : 0;
                cp_async8(to, source, (uint32_t)(count - second) * (uint32_t)sizeof *to);
                cp_async8(to + 4, second ? source + 4 : start, (uint32_t)second * (uint32_t)sizeof *to);
            } else {
                for (int e = 0; e < CHUNK_ELEMENTS; e++) to[e].bits = e < count ? source[e].bits : (uint16_t)0;
            }
        }
        from += advance;
    }
};

// The fragment a of mma_bf16: outer indices [outer, outer + 16), inner ones [k, k + 16) of a piece.
template <bool transposed, int pitch>
DEVICE void fragment_a(uint32_t out[4], const struct bf16 *piece, int outer, int k) {
    int lane = lane_id();
    if (transposed)
        ldmatrix_x4<true>(out, piece + (k + lane % 8 + lane / 16 * 8) * pitch + outer + lane / 8 % 2 * 8);
    else
        ldmatrix_x4<false>(out, piece + (outer + lane % 16) * pitch + k + lane / 16 * 8);
}

// Two fragments b: outer indices [outer, outer + 8) in out[0] and out[1], the next eight in out[2] and out[3].
template <bool transposed, int pitch>
DEVICE void fragment_b(uint32_t out[4], const struct bf16 *piece, int outer, int k) {
    int lane = lane_id();
    if (transposed)
        ldmatrix_x4<true>(out, piece + (k + lane % 16) * pitch + outer + lane / 16 * 8);
    else
        ldmatrix_x4<false>(out, piece + (outer + lane / 16 * 8 + lane % 8) * pitch + k + lane / 8 % 2 * 8);
}

// Stores `sum` as out[row, column], if that is inside.
DEVICE void product_store(const struct product &p, int64_t row, int64_t column, float sum) {
    if (row >= p.a.outer || column >= p.b.outer) return;
    int64_t at = row * p.out_stride + column;
    if (p.bias) sum = add_rn(sum, element_read(p.bias, p.bias_type, column));
    if (p.add && p.type == ELEMENT_BF16 && p.out_type == ELEMENT_BF16) sum = f32_from_bf16(bf16_from_f32(sum));
    if (p.add) sum = add_rn(element_read(p.out, p.out_type, at), sum);
    if (p.out_type == ELEMENT_F32)
        ((float *)p.out)[at] = sum;
    else
        ((struct bf16 *)p.out)[at] = bf16_from_f32(sum);
}

// ---- gemm ----
//
// Tiles of 128 x 128 outputs. A block of eight warps walks over the inner length in steps of 32, and has three steps on
// their way to shared memory. Rows that begin at multiples of 16 or 8 bytes are copied asynchronously, others element
// by element.

template <bool transposed> using gemm_reader = piece_reader<GEMM_TILE, GEMM_INNER, GEMM_THREADS, transposed>;

template <bool a_transposed, bool b_transposed> struct gemm_stage {
    struct bf16 a[gemm_reader<a_transposed>::elements], b[gemm_reader<b_transposed>::elements];
};

// The first row and column of this block's tile. Blocks follow each other down a group of tiles of rows, then to the
// right.
DEVICE void gemm_place_block(const struct product &p, int64_t *row, int64_t *column) {
    int64_t down = (p.a.outer + GEMM_TILE - 1) / GEMM_TILE;
    int64_t right = (p.b.outer + GEMM_TILE - 1) / GEMM_TILE;
    int64_t group = blockIdx.x / (GEMM_GROUP * right), within = blockIdx.x % (GEMM_GROUP * right);
    int64_t rows = down - group * GEMM_GROUP; // of tiles
    if (rows > GEMM_GROUP) rows = GEMM_GROUP;
    *row = (group * GEMM_GROUP + within % rows) * GEMM_TILE;
    *column = within / rows * GEMM_TILE;
}

template <bool a_transposed, bool b_transposed>
DEVICE void gemm_add_step(float sums[4][4][4], const struct gemm_stage<a_transposed, b_transposed> *stage, int warp_row,
                          int warp_column) {
#pragma unroll
    for (int k = 0; k < GEMM_INNER; k += 16) {
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
__global__ void __launch_bounds__(GEMM_THREADS, 2) gemm_bf16_kernel(struct product p) {
    using stage = gemm_stage<a_transposed, b_transposed>;
    stage *stages = (stage *)dynamic_shared();
    int64_t row, column, inner = p.a.inner;
    gemm_place_block(p, &row, &column);
    gemm_reader<a_transposed> a(p.a, row);
    gemm_reader<b_transposed> b(p.b, column);
    int warp = (int)threadIdx.x / 32, lane = lane_id();
    int warp_row = warp / 4 * GEMM_WARP_ROWS, warp_column = warp % 4 * GEMM_WARP_COLUMNS;
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
        read += GEMM_INNER;
        to = (to + 1) % GEMM_STAGES;
    };
    for (int i = 0; i < GEMM_STAGES - 1; i++) copy();
    for (int64_t k = 0; k < inner; k += GEMM_INNER) {
        cp_async_wait<GEMM_STAGES - 2>();
        __syncthreads(); // this step has arrived, and everybody is done with the stage that is copied to next
        const stage *current = &stages[(to + 1) % GEMM_STAGES];
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
    size_t shared = GEMM_STAGES * sizeof(gemm_stage<a_transposed, b_transposed>);
    int a = operand_alignment(&p->a), b = operand_alignment(&p->b), alignment = a < b ? a : b;
    if (alignment == 16)
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 16>), blocks, GEMM_THREADS, shared, cuda->stream, *p);
    else if (alignment == 8)
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 8>), blocks, GEMM_THREADS, shared, cuda->stream, *p);
    else
        LAUNCH((gemm_bf16_kernel<a_transposed, b_transposed, 2>), blocks, GEMM_THREADS, shared, cuda->stream, *p);
}

template <bool a_transposed, bool b_transposed> static void gemm_load(void) {
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 16>));
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 8>));
    LOAD((gemm_bf16_kernel<a_transposed, b_transposed, 2>));
}

// The number of tiles of `tile` rows and columns that a product's outputs have.
static unsigned gemm_tiles(const struct product *p, int64_t tile) {
    return (unsigned)((p->a.outer + tile - 1) / tile * ((p->b.outer + tile - 1) / tile));
}

status gemm_bf16(struct cuda_backend *cuda, const struct product *p) {
    unsigned blocks = gemm_tiles(p, GEMM_TILE);
    assert(p->b.transposed || !p->a.transposed);
    if (p->a.transposed)
        gemm_launch<true, true>(cuda, p, blocks);
    else if (p->b.transposed)
        gemm_launch<false, true>(cuda, p, blocks);
    else
        gemm_launch<false, false>(cuda, p, blocks);
    return cuda_launched("gemm_bf16");
}

// ---- skinny ----
//
// At most 64 rows of activations, which the reading of the weight limits. The weight is the first operand of mma.sync
// and the activations are the second: the sums are the same, to the bit. Each warp computes sixteen columns of outputs
// for all rows.

template <int rows, int warps> struct skinny_shape {
    static constexpr int threads = 32 * warps, columns = 16 * warps;
    using in_reader = piece_reader<rows, SKINNY_INNER, threads, false>;
    using weight_reader = piece_reader<columns, SKINNY_INNER, threads, false>;
    struct skinny_stage {
        struct bf16 weight[weight_reader::elements], in[in_reader::elements];
    };
    static constexpr int fitting = SKINNY_SHARED / (int)sizeof(skinny_stage);
    static constexpr int stages = fitting < MAX_SKINNY_STAGES ? fitting : MAX_SKINNY_STAGES;
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
        read += SKINNY_INNER;
        to = (to + 1) % shape::stages;
    };
    for (int i = 0; i < shape::stages - 1; i++) copy();
    for (int64_t step = 0; step < inner; step += SKINNY_INNER) {
        cp_async_wait<shape::stages - 2>();
        __syncthreads(); // this step has arrived, and everybody is done with the stage that is copied to next
        const typename shape::skinny_stage *current = &stages[(to + 1) % shape::stages];
        copy();
#pragma unroll
        for (int k = 0; k < SKINNY_INNER; k += 16) {
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

template <int rows, int warps> static void gemm_skinny_launch(struct cuda_backend *cuda, const struct product *p) {
    using shape = skinny_shape<rows, warps>;
    int64_t blocks = (p->b.outer + shape::columns - 1) / shape::columns;
    LAUNCH((gemm_skinny_kernel<rows, warps>), (unsigned)blocks, shape::threads,
           (size_t)shape::stages * sizeof(typename shape::skinny_stage), cuda->stream, *p);
}

bool gemm_skinny_fits(const struct product *p) {
    return p->type == ELEMENT_BF16 && !p->a.transposed && !p->b.transposed && p->a.outer <= MAX_SKINNY_ROWS &&
           operand_alignment(&p->a) == 16 && operand_alignment(&p->b) == 16;
}

template <int rows> static void gemm_skinny_launch_rows(struct cuda_backend *cuda, const struct product *p) {
    if (p->b.outer < SKINNY_MANY_COLUMNS)
        gemm_skinny_launch<rows, 2>(cuda, p);
    else
        gemm_skinny_launch<rows, 4>(cuda, p);
}

status gemm_skinny(struct cuda_backend *cuda, const struct product *p) {
    if (p->a.outer <= 16)
        gemm_skinny_launch_rows<16>(cuda, p);
    else if (p->a.outer <= 32)
        gemm_skinny_launch_rows<32>(cuda, p);
    else
        gemm_skinny_launch_rows<64>(cuda, p);
    return cuda_launched("gemm_skinny");
}

template <int rows> static void gemm_skinny_load(void) {
    LOAD((gemm_skinny_kernel<rows, 2>));
    LOAD((gemm_skinny_kernel<rows, 4>));
}

void gemm_bf16_load(void) {
    gemm_load<true, true>();
    gemm_load<false, true>();
    gemm_load<false, false>();
    gemm_skinny_load<16>();
    gemm_skinny_load<32>();
    gemm_skinny_load<64>();
}

// ---- float32 ----
//
// Each output is one chain of fused multiply-adds in the order of k, past the end of which zeros are added up to a
// multiple of sixteen. A block of 256 threads computes 64 x 64 outputs, 4 x 4 a thread.

// piece[k][outer] = elements of the operand from (outer, inner) on, zeros outside. Neighbouring threads read
// neighbouring elements.
DEVICE void gemm_f32_read(float *piece, const struct operand &o, int64_t outer, int64_t inner) {
    for (int i = (int)threadIdx.x; i < GEMM_F32_TILE * GEMM_F32_INNER; i += GEMM_F32_THREADS) {
        int along = o.transposed ? i % GEMM_F32_TILE : i / GEMM_F32_INNER;
        int k = o.transposed ? i / GEMM_F32_TILE : i % GEMM_F32_INNER;
        int64_t m = outer + along, l = inner + k, at = o.transposed ? l * o.stride + m : m * o.stride + l;
        piece[k * GEMM_F32_PITCH + along] = m < o.outer && l < o.inner ? ((const float *)o.data)[at] : 0;
    }
}

__global__ void __launch_bounds__(GEMM_F32_THREADS) gemm_f32_kernel(struct product p) {
    float *a = (float *)dynamic_shared(), *b = a + GEMM_F32_PIECE;
    int64_t right = (p.b.outer + GEMM_F32_TILE - 1) / GEMM_F32_TILE;
    int64_t row = blockIdx.x / right * GEMM_F32_TILE, column = blockIdx.x % right * GEMM_F32_TILE;
    int own_row = (int)threadIdx.x / 16 * 4, own_column = (int)threadIdx.x % 16 * 4;
    float sums[4][4] = {};
    for (int64_t inner = 0; inner < p.a.inner; inner += GEMM_F32_INNER) {
        __syncthreads(); // everybody is done with the pieces before
        gemm_f32_read(a, p.a, row, inner);
        gemm_f32_read(b, p.b, column, inner);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < GEMM_F32_INNER; k++) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                sums[i / 4][i % 4] = fma_rn(a[k * GEMM_F32_PITCH + own_row + i / 4],
                                            b[k * GEMM_F32_PITCH + own_column + i % 4], sums[i / 4][i % 4]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        product_store(p, row + own_row + i / 4, column + own_column + i % 4, sums[i / 4][i % 4]);
}

status gemm_f32(struct cuda_backend *cuda, const struct product *p) {
    LAUNCH(gemm_f32_kernel, gemm_tiles(p, GEMM_F32_TILE), GEMM_F32_THREADS, 2 * GEMM_F32_PIECE * sizeof(float),
           cuda->stream, *p);
    return cuda_launched("gemm_f32");
}
