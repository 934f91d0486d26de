// Rows of tensors as kernels see them, eight elements at a time, and sums over a block.
//
// A row is divided into octets of eight elements from its first one; the last OCTET may be shorter. A thread reads and
// writes whole octets. So the order in which a kernel adds the elements of a row depends on its length alone, and not
// on how the row lies in memory: aligned rows are read with loads of 16 bytes, others element by element.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.h"

enum { OCTET = 8, ROW_THREADS = 128, GRID_ROWS = 65535 };

// What a kernel is compiled for. LAYOUT_F32 and LAYOUT_BF16: every operand has this type, aligned rows and whole
// octets. LAYOUT_HALVES: every operand is bfloat16 and has rows that begin at multiples of 8 bytes. LAYOUT_ANY: each
// operand's type and alignment are looked up when the kernel runs.
enum layout { LAYOUT_ANY, LAYOUT_F32, LAYOUT_BF16, LAYOUT_HALVES };

// A tensor of floats on the device; none if `data` is NULL.
struct device_rows {
    char *data;
    int64_t stride; // bytes
    enum element type;
    bool aligned; // every row begins at a multiple of 16 bytes
};

// What one load of 16 bytes reads.
struct alignas(16) words16 {
    uint32_t word[4];
};

struct alignas(8) words8 {
    uint32_t word[2];
};

// ---- in host code ----

static inline struct device_rows device_rows_of(struct tensor t) {
    struct device_rows out = {};
    if (tensor_none(t)) return out;
    out.data = (char *)tensor_row(t, 0);
    out.stride = t.stride * (int64_t)element_size(t.type);
    out.type = t.type;
    out.aligned = tensor_aligned16(t);
    return out;
}

// The layout that a kernel may be compiled for, if these are its operands besides those that it reads as LAYOUT_ANY.
// Every operand has `columns` columns; zeroed ones do not count. Not LAYOUT_HALVES, for which halves_of asks.
static inline enum layout layout_of(int64_t columns, const struct device_rows *operands, int count) {
    bool f32 = columns % OCTET == 0, bf16 = f32;
    for (int i = 0; i < count; i++) {
        if (!operands[i].data) continue;
        f32 = f32 && operands[i].aligned && operands[i].type == ELEMENT_F32;
        bf16 = bf16 && operands[i].aligned && operands[i].type == ELEMENT_BF16;
    }
    return f32 ? LAYOUT_F32 : bf16 ? LAYOUT_BF16 : LAYOUT_ANY;
}

static inline bool halves_of(const struct device_rows *operands, int count) {
    bool halves = true;
    for (int i = 0; i < count; i++) {
        if (operands[i].data)
            halves = halves && operands[i].type == ELEMENT_BF16 && (uintptr_t)operands[i].data % 8 == 0 &&
                     operands[i].stride % 8 == 0;
    }
    return halves;
}

// Starts kernel<layout>(...) for one of the three layouts of layout_of.
#define LAUNCH_LAYOUT(layout, kernel, grid, block, shared_bytes, stream, ...)                                          \
    do {                                                                                                               \
        if ((layout) == LAYOUT_F32)                                                                                    \
            LAUNCH((kernel<LAYOUT_F32>), grid, block, shared_bytes, stream, __VA_ARGS__);                              \
        else if ((layout) == LAYOUT_BF16)                                                                              \
            LAUNCH((kernel<LAYOUT_BF16>), grid, block, shared_bytes, stream, __VA_ARGS__);                             \
        else                                                                                                           \
            LAUNCH((kernel<LAYOUT_ANY>), grid, block, shared_bytes, stream, __VA_ARGS__);                              \
    } while (0)

static inline int64_t octets_of(int64_t columns) {
    return (columns + OCTET - 1) / OCTET;
}

// A grid of blocks of ROW_THREADS threads over `units` units of a row (x) and over rows (y). A kernel takes the rows
// blockIdx.y, blockIdx.y + gridDim.y ...
static inline dim3 grid_of(int64_t units, int64_t rows) {
    return dim3((unsigned)((units + ROW_THREADS - 1) / ROW_THREADS),
                (unsigned)(rows < GRID_ROWS ? rows : (int64_t)GRID_ROWS));
}

// ---- octets ----

// The index of the thread in a grid of grid_of: the unit of a row that it works on.
DEVICE int64_t grid_unit() {
    return (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
}

DEVICE float f32_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return f32_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13); // infinity, NaN
    if (rest >= 0x400) return f32_from_bits(sign | ((rest << 13) + (112u << 23)));
    return f32_from_bits(sign | bits_from_f32(mul_rn((float)rest, 0x1p-24f)));
}

// Rounds to nearest even; NaN becomes the quiet NaN of its sign.
DEVICE uint16_t f16_from_f32(float value) {
    uint32_t bits = bits_from_f32(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // 65520 and more
    if (bits < 0x38800000) {                                  // below the smallest normal half: a multiple of 2^-24
        // The sum's last place is 2^-24: it rounds to even.
        return (uint16_t)(sign | (bits_from_f32(add_rn(f32_from_bits(bits), 0.5f)) - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
}

// Element `at` of an array of F32 or BF16.
DEVICE float element_read(const void *data, enum element type, int64_t at) {
    return type == ELEMENT_F32 ? ((const float *)data)[at] : f32_from_bf16(((const struct bf16 *)data)[at]);
}

DEVICE float element_load(const char *row, enum element type, int64_t i) {
    if (type == ELEMENT_F32) return ((const float *)row)[i];
    if (type == ELEMENT_BF16) return f32_from_bf16(((const struct bf16 *)row)[i]);
    return f32_from_f16(((const uint16_t *)row)[i]);
}

DEVICE void element_store(char *row, enum element type, int64_t i, float value) {
    if (type == ELEMENT_F32)
        ((float *)row)[i] = value;
    else if (type == ELEMENT_BF16)
        ((struct bf16 *)row)[i] = bf16_from_f32(value);
    else
        ((uint16_t *)row)[i] = f16_from_f32(value);
}

DEVICE void octet_unpack_bf16(float out[OCTET], struct words16 in) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = f32_from_bits(in.word[i] << 16);
        out[2 * i + 1] = f32_from_bits(in.word[i] & 0xffff0000);
    }
}

DEVICE struct words16 octet_pack_bf16(const float in[OCTET]) {
    struct words16 out;
#pragma unroll
    for (int i = 0; i < 4; i++) out.word[i] = pack_bf16(in[2 * i], in[2 * i + 1]);
    return out;
}

DEVICE void octet_load_f32(float out[OCTET], const char *from) {
    struct words16 low = ((const struct words16 *)from)[0], high = ((const struct words16 *)from)[1];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = f32_from_bits(low.word[i]);
        out[4 + i] = f32_from_bits(high.word[i]);
    }
}

DEVICE void octet_store_f32(char *to, const float in[OCTET]) {
    struct words16 low, high;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low.word[i] = bits_from_f32(in[i]);
        high.word[i] = bits_from_f32(in[4 + i]);
    }
    ((struct words16 *)to)[0] = low;
    ((struct words16 *)to)[1] = high;
}

// out = the OCTET of `row` that begins at column i, of `columns`; elements after the row's end are 0.
template <int layout>
DEVICE void octet_load(float out[OCTET], const struct device_rows &rows, int64_t row, int64_t i, int64_t columns) {
    const char *from = rows.data + row * rows.stride;
    bool whole = rows.aligned && columns - i >= OCTET;
    if (layout == LAYOUT_F32 || (layout == LAYOUT_ANY && whole && rows.type == ELEMENT_F32)) {
        octet_load_f32(out, from + i * 4);
    } else if (layout == LAYOUT_BF16 || (layout == LAYOUT_ANY && whole && rows.type == ELEMENT_BF16)) {
        octet_unpack_bf16(out, *(const struct words16 *)(from + i * 2));
    } else if (layout == LAYOUT_HALVES && columns - i >= OCTET) {
        const struct words8 *half = (const struct words8 *)(from + i * 2);
        octet_unpack_bf16(out, {{half[0].word[0], half[0].word[1], half[1].word[0], half[1].word[1]}});
    } else {
#pragma unroll
        for (int e = 0; e < OCTET; e++) {
            out[e] = 0;
            if (i + e < columns) out[e] = element_load(from, rows.type, i + e);
        }
    }
}

// The reverse: rounds to the type of `rows`; elements after the row's end are dropped.
template <int layout>
DEVICE void octet_store(const struct device_rows &rows, int64_t row, int64_t i, int64_t columns,
                        const float in[OCTET]) {
    char *to = rows.data + row * rows.stride;
    bool whole = rows.aligned && columns - i >= OCTET;
    if (layout == LAYOUT_F32 || (layout == LAYOUT_ANY && whole && rows.type == ELEMENT_F32)) {
        octet_store_f32(to + i * 4, in);
    } else if (layout == LAYOUT_BF16 || (layout == LAYOUT_ANY && whole && rows.type == ELEMENT_BF16)) {
        *(struct words16 *)(to + i * 2) = octet_pack_bf16(in);
    } else if (layout == LAYOUT_HALVES && columns - i >= OCTET) {
        struct words16 words = octet_pack_bf16(in);
        ((struct words8 *)(to + i * 2))[0] = {{words.word[0], words.word[1]}};
        ((struct words8 *)(to + i * 2))[1] = {{words.word[2], words.word[3]}};
    } else {
#pragma unroll
        for (int e = 0; e < OCTET; e++)
            if (i + e < columns) element_store(to, rows.type, i + e, in[e]);
    }
}

// Rounds an OCTET to the type of `rows`, F32 or BF16.
template <int layout> DEVICE void octet_round(float values[OCTET], const struct device_rows &rows) {
    if (layout == LAYOUT_BF16 || layout == LAYOUT_HALVES || (layout == LAYOUT_ANY && rows.type == ELEMENT_BF16))
        octet_unpack_bf16(values, octet_pack_bf16(values));
}

// ---- sums over a block ----

// Returns the sum of the threads' values, added in an order that the number of threads fixes. Every thread of the block
// calls. `shared` has room for a T of each warp; it may be used again after the next barrier.
template <typename T> DEVICE T block_sum(T value, T *shared) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value += shuffle_xor(value, lanes);
    if (lane_id() == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = shared[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; warp++) sum += shared[warp];
    return sum;
}

// ---- a row of logits, on which a block works ----
//
// Log-probabilities and sampling use the same operations, and get the same bits.

enum {
    LOGITS_THREADS = 512,
    LOGITS_WARPS = LOGITS_THREADS / 32,
};

#define LOG2_E 1.44269504f

// The larger one, and any number rather than NaN.
DEVICE float logits_larger(float a, float b) {
    return a > b || b != b ? a : b;
}

// Returns combine(v of all lanes). Every lane calls.
template <typename T, typename F> DEVICE T logits_reduce_warp(T v, F combine) {
    for (int lanes = 16; lanes > 0; lanes /= 2) v = combine(v, shuffle_xor(v, lanes));
    return v;
}

// Returns combine(v of all threads), in an order that the number of threads determines; `shared` has room for a T of
// each warp. Every thread calls.
template <typename T, typename F> DEVICE T logits_reduce(T v, T *shared, F combine) {
    v = logits_reduce_warp(v, combine);
    __syncthreads(); // everybody has read what was in `shared` before
    if (lane_id() == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int warp = 1; warp < LOGITS_WARPS; warp++) v = combine(v, shared[warp]);
    return v;
}

DEVICE float logits_max(const float *logits, int vocabulary, char *shared) {
    float max = -INFINITY;
    for (int i = (int)threadIdx.x; i < vocabulary; i += LOGITS_THREADS) max = logits_larger(max, logits[i]);
    return logits_reduce(max, (float *)shared, logits_larger);
}

// exp((logit - max) * inverse_temperature)
DEVICE float logits_weight(float logit, float max, float inverse_temperature) {
    return exp2_approx(mul_rn(mul_rn(add_rn(logit, -max), inverse_temperature), LOG2_E));
}

// Returns log(sum(exp(logits))), given the sum of each thread's exp(logit - max): thread t adds those of the tokens t,
// t + LOGITS_THREADS ... in this order. `shared` has room for a double of each warp.
DEVICE float logits_lse_of_sums(double sum, float max, char *shared) {
    sum = logits_reduce(sum, (double *)shared, [](double a, double b) { return a + b; });
    return (float)((double)max + log(sum));
}

// Returns log(sum(exp(logits))).
DEVICE float logits_lse(const float *logits, int vocabulary, float max, char *shared) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < vocabulary; i += LOGITS_THREADS) sum += (double)logits_weight(logits[i], max, 1);
    return logits_lse_of_sums(sum, max, shared);
}
