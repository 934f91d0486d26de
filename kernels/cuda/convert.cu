// Conversions between element types: `copy`, and the conversions of uploads and downloads.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.h"

enum { convert_threads = 256, convert_most_blocks = 8192 };

// An IEEE half.
struct f16 {
    uint16_t bits;
};

DEVICE float convert_to_f32(float value) {
    return value;
}

DEVICE float convert_to_f32(struct bf16 value) {
    return f32_from_bf16(value);
}

DEVICE float convert_to_f32(struct f16 value) {
    uint32_t sign = (uint32_t)(value.bits & 0x8000) << 16, rest = value.bits & 0x7fff;
    if (rest >= 0x7c00) return f32_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13); // infinity, NaN
    if (rest >= 0x400) return f32_from_bits(sign | ((rest << 13) + (112u << 23)));
    return f32_from_bits(sign | bits_from_f32((float)rest * 0x1p-24f));
}

DEVICE void convert_from_f32(float *out, float value) {
    *out = value;
}

DEVICE void convert_from_f32(struct bf16 *out, float value) {
    *out = bf16_from_f32(value);
}

// Rounds to nearest even; NaN becomes the quiet NaN of its sign.
DEVICE void convert_from_f32(struct f16 *out, float value) {
    uint32_t bits = bits_from_f32(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) {
        out->bits = (uint16_t)(sign | 0x7e00);
    } else if (bits >= 0x477ff000) { // 65520 and more
        out->bits = (uint16_t)(sign | 0x7c00);
    } else if (bits < 0x38800000) { // below the smallest normal half: a multiple of 2^-24
        // The sum has its last place at 2^-24, and rounds to even.
        out->bits = (uint16_t)(sign | (bits_from_f32(add_rn(f32_from_bits(bits), 0.5f)) - 0x3f000000));
    } else {
        bits += 0xfff + (bits >> 13 & 1);
        out->bits = (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
    }
}

template <typename T> DEVICE void convert_element(T *out, T value) {
    *out = value;
}

template <typename T, typename F> DEVICE void convert_element(T *out, F value) {
    convert_from_f32(out, convert_to_f32(value));
}

template <typename T, typename F>
__global__ void convert_kernel(T *out, int64_t out_stride, const F *in, int64_t in_stride, int64_t rows,
                               int64_t columns) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
        int64_t row = i / columns, column = i - row * columns;
        convert_element(out + row * out_stride + column, in[row * in_stride + column]);
    }
}

template <typename T, typename F>
static void convert_launch(struct cuda_backend *cuda, void *out, int64_t out_stride, const void *in, int64_t in_stride,
                           int64_t rows, int64_t columns) {
    int64_t blocks = (rows * columns + convert_threads - 1) / convert_threads;
    if (blocks > convert_most_blocks) blocks = convert_most_blocks;
    LAUNCH((convert_kernel<T, F>), (unsigned)blocks, convert_threads, 0, cuda->stream, (T *)out, out_stride,
           (const F *)in, in_stride, rows, columns);
}

template <typename T>
static void convert_to(struct cuda_backend *cuda, void *out, int64_t out_stride, const void *in, enum element from,
                       int64_t in_stride, int64_t rows, int64_t columns) {
    if (from == ELEMENT_F32) convert_launch<T, float>(cuda, out, out_stride, in, in_stride, rows, columns);
    if (from == ELEMENT_BF16) convert_launch<T, struct bf16>(cuda, out, out_stride, in, in_stride, rows, columns);
    if (from == ELEMENT_F16) convert_launch<T, struct f16>(cuda, out, out_stride, in, in_stride, rows, columns);
}

extern "C" status cuda_convert(struct cuda_backend *cuda, void *out, enum element to, int64_t out_stride,
                               const void *in, enum element from, int64_t in_stride, int64_t rows, int64_t columns) {
    if (rows == 0 || columns == 0) return OK;
    if (to == from) {
        size_t size = element_size(to), width = (size_t)columns * size;
        if (rows == 1 || (out_stride == columns && in_stride == columns)) {
            CUDA_TRY(cudaMemcpyAsync(out, in, (size_t)rows * width, cudaMemcpyDeviceToDevice, cuda->stream));
        } else {
            CUDA_TRY(cudaMemcpy2DAsync(out, (size_t)out_stride * size, in, (size_t)in_stride * size, width,
                                       (size_t)rows, cudaMemcpyDeviceToDevice, cuda->stream));
        }
        return OK;
    }
    if (to == ELEMENT_F32) convert_to<float>(cuda, out, out_stride, in, from, in_stride, rows, columns);
    if (to == ELEMENT_BF16) convert_to<struct bf16>(cuda, out, out_stride, in, from, in_stride, rows, columns);
    if (to == ELEMENT_F16) convert_to<struct f16>(cuda, out, out_stride, in, from, in_stride, rows, columns);
    return cuda_launched("convert");
}
