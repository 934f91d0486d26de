// What the kernels of the canonical product share: copying pieces of the operands to shared memory, reading fragments
// from there, and storing sums.
//
// A piece is what one step of the inner length needs of an operand. It keeps the order of the matrix in memory, so its
// rows are the outer index and its columns the inner one, or the other way round if the operand is transposed; then it
// is turned when fragments are read. Elements outside the matrix are zeros.
#ifndef KERNELS_CUDA_GEMM_TILES_H
#define KERNELS_CUDA_GEMM_TILES_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/products.h"

enum {
    chunk_elements = 8, // a copy of 16 bytes
    piece_pad = 8,      // elements between rows, so that eight rows in a column lie in different banks
};

// What one thread copies of an operand: some chunks in each step, `rows_apart` rows apart.
template <int outer_count, int inner_count, int threads, bool transposed> struct piece_reader {
    static constexpr int rows = transposed ? inner_count : outer_count; // of a piece
    static constexpr int columns = transposed ? outer_count : inner_count;
    static constexpr int pitch = columns + piece_pad;
    static constexpr int elements = rows * pitch; // of shared memory
    static constexpr int rows_apart = threads / (columns / chunk_elements);
    static_assert(rows % rows_apart == 0, "every thread copies as many chunks");

    const struct bf16 *start, *from;
    int64_t jump, advance;
    int row, column, outer_left;

    // For the piece whose first outer index is `outer`.
    __device__ __forceinline__ piece_reader(const struct operand &o, int64_t outer) {
        row = (int)threadIdx.x / (columns / chunk_elements);
        column = (int)threadIdx.x % (columns / chunk_elements) * chunk_elements;
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
            count = count < 0 ? 0 : count > chunk_elements ? chunk_elements : count;
            struct bf16 *to = piece + r * pitch + column;
            const struct bf16 *source = count ? from + i * jump : start;
            if (alignment == 16) {
                cp_async16(to, source, (uint32_t)count * (uint32_t)sizeof *to);
            } else if (alignment == 8) {
                int second = count > 4 ? count - 4 : 0;
                cp_async8(to, source, (uint32_t)(count - second) * (uint32_t)sizeof *to);
                cp_async8(to + 4, second ? source + 4 : start, (uint32_t)second * (uint32_t)sizeof *to);
            } else {
                for (int e = 0; e < chunk_elements; e++) to[e].bits = e < count ? source[e].bits : (uint16_t)0;
            }
        }
        from += advance;
    }
};

// The fragment a of mma_bf16: outer indices [outer, outer + 16), inner ones [k, k + 16) of a piece.
template <bool transposed, int pitch>
static __device__ __forceinline__ void fragment_a(uint32_t out[4], const struct bf16 *piece, int outer, int k) {
    int lane = lane_id();
    if (transposed)
        ldmatrix_x4<true>(out, piece + (k + lane % 8 + lane / 16 * 8) * pitch + outer + lane / 8 % 2 * 8);
    else
        ldmatrix_x4<false>(out, piece + (outer + lane % 16) * pitch + k + lane / 16 * 8);
}

// Two fragments b: outer indices [outer, outer + 8) in out[0] and out[1], the next eight in out[2] and out[3].
template <bool transposed, int pitch>
static __device__ __forceinline__ void fragment_b(uint32_t out[4], const struct bf16 *piece, int outer, int k) {
    int lane = lane_id();
    if (transposed)
        ldmatrix_x4<true>(out, piece + (k + lane % 16) * pitch + outer + lane / 16 * 8);
    else
        ldmatrix_x4<false>(out, piece + (outer + lane / 16 * 8 + lane % 8) * pitch + k + lane / 8 % 2 * 8);
}

static __device__ __forceinline__ float product_read(const void *data, enum element type, int64_t at) {
    return type == ELEMENT_F32 ? ((const float *)data)[at] : f32_from_bf16(((const struct bf16 *)data)[at]);
}

// Stores `sum` as out[row, column], if that is inside.
static __device__ __forceinline__ void product_store(const struct product &p, int64_t row, int64_t column, float sum) {
    if (row >= p.a.outer || column >= p.b.outer) return;
    int64_t at = row * p.out_stride + column;
    if (p.bias) sum = add_rn(sum, product_read(p.bias, p.bias_type, column));
    if (p.add) sum = add_rn(product_read(p.out, p.out_type, at), sum);
    if (p.out_type == ELEMENT_F32)
        ((float *)p.out)[at] = sum;
    else
        ((struct bf16 *)p.out)[at] = bf16_from_f32(sum);
}

#endif
