// Transposing 4-byte elements, and weaving two rows of 2-byte elements.
#include "kernels/cpu/simd_families.h"

static void transpose(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t rows,
                      int64_t columns) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            out[column * out_stride + row] = in[row * in_stride + column];
        }
    }
}

static void interleave(uint16_t *out, const uint16_t *even, const uint16_t *odd, size_t count) {
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = even[i];
        out[2 * i + 1] = odd[i];
    }
}

void simd_transpose(struct simd *simd) {
    simd->transpose = transpose;
    simd->interleave = interleave;
}
