// Sums of squares, the digest, AdamW, the exponential moving average, and the conversion of pairs: one pass over
// dense memory each.
//
// A thread works on one OCTET. The arithmetic is that of the CPU, step by step, so the results have the same bits. The
// sums go to the host: of squares one for each unit, which a block adds up; of the digest one for each block, whose
// share depends on the length alone, and the host adds these in order.
#include <math.h>

#include "kernels/cuda/rows.h"

// ---- numbers: float32, bfloat16, or pairs ----

// A dense range of numbers as one row. It consists of pairs if there are remainders.
struct number_row {
    struct device_rows values, remainders;
};

// out = the 16-bit integers of the OCTET at element i, of `count`.
DEVICE void number_load_u16(uint32_t out[OCTET], const struct device_rows &in, int64_t i, int64_t count) {
    const uint16_t *from = (const uint16_t *)in.data + i;
    if (in.aligned && count - i >= OCTET) {
        struct words16 words = *(const struct words16 *)from;
#pragma unroll
        for (int e = 0; e < OCTET; e++) out[e] = words.word[e / 2] >> 16 * (e % 2) & 0xffff;
    } else {
#pragma unroll
        for (int e = 0; e < OCTET; e++) {
            out[e] = 0;
            if (i + e < count) out[e] = from[e];
        }
    }
}

DEVICE void number_store_u16(const struct device_rows &out, int64_t i, int64_t count, const uint32_t values[OCTET]) {
    uint16_t *to = (uint16_t *)out.data + i;
    if (out.aligned && count - i >= OCTET) {
        struct words16 words;
#pragma unroll
        for (int j = 0; j < 4; j++) words.word[j] = (values[2 * j] & 0xffff) | values[2 * j + 1] << 16;
        *(struct words16 *)to = words;
    } else {
#pragma unroll
        for (int e = 0; e < OCTET; e++)
            if (i + e < count) to[e] = (uint16_t)values[e];
    }
}

DEVICE void pair_load(float out[OCTET], const struct number_row &in, int64_t i, int64_t count) {
    uint32_t high[OCTET], low[OCTET];
    number_load_u16(high, in.values, i, count);
    number_load_u16(low, in.remainders, i, count);
#pragma unroll
    for (int e = 0; e < OCTET; e++) out[e] = f32_from_bits((high[e] - (low[e] > 0x8000)) << 16 | low[e]);
}

// A remainder of 0x8000 under an odd high half is rounded up: it becomes 0x8001.
template <int layout>
DEVICE void pair_store(const struct number_row &out, int64_t i, int64_t count, const float in[OCTET]) {
    uint32_t low[OCTET];
#pragma unroll
    for (int e = 0; e < OCTET; e++) {
        uint32_t bits = bits_from_f32(in[e]);
        low[e] = (bits + ((bits & 0x1ffff) == 0x18000)) & 0xffff;
    }
    octet_store<layout>(out.values, 0, i, count, in);
    number_store_u16(out.remainders, i, count, low);
}

// `layout`: LAYOUT_F32 for float32, LAYOUT_BF16 for pairs, all aligned; or LAYOUT_ANY.
template <int layout> DEVICE void number_load(float out[OCTET], const struct number_row &in, int64_t i, int64_t count) {
    if (layout == LAYOUT_F32 || (layout == LAYOUT_ANY && !in.remainders.data))
        octet_load<layout>(out, in.values, 0, i, count);
    else
        pair_load(out, in, i, count);
}

template <int layout>
DEVICE void number_store(const struct number_row &out, int64_t i, int64_t count, const float in[OCTET]) {
    if (layout == LAYOUT_F32 || (layout == LAYOUT_ANY && !out.remainders.data))
        octet_store<layout>(out.values, 0, i, count, in);
    else
        pair_store<layout>(out, i, count, in);
}

// ---- in host code ----

static struct number_row number_row_of(struct tensor t, struct tensor remainder) {
    struct number_row out = {};
    int64_t count = t.rows * t.columns;
    out.values = device_rows_of(tensor_reshape(t, 1, count));
    if (!tensor_none(remainder)) out.remainders = device_rows_of(tensor_reshape(remainder, 1, count));
    return out;
}

static bool optimizer_dense(struct tensor t, int type, int64_t count) {
    return tensor_is(t, type, t.rows, t.columns) && tensor_dense(t) && t.rows * t.columns == count;
}

// Whether t and its remainder are F32 and none, or a pair.
static bool optimizer_number(struct tensor t, struct tensor remainder, int64_t count) {
    if (tensor_none(remainder)) return optimizer_dense(t, ELEMENT_F32, count);
    return optimizer_dense(t, ELEMENT_BF16, count) && optimizer_dense(remainder, ELEMENT_U16, count);
}

// LAYOUT_F32 if all are aligned float32, LAYOUT_BF16 if all are aligned and numbers are pairs, or LAYOUT_ANY.
static enum layout optimizer_layout(int64_t count, const struct number_row *numbers, int number_count,
                                    const struct device_rows *others, int other_count) {
    enum layout layout = layout_of(count, others, other_count);
    for (int i = 0; i < number_count; i++) {
        const struct number_row *n = &numbers[i];
        bool pairs = n->remainders.data != NULL, aligned = n->values.aligned && (!pairs || n->remainders.aligned);
        enum layout own = !aligned || count % OCTET != 0 ? LAYOUT_ANY : pairs ? LAYOUT_BF16 : LAYOUT_F32;
        if (i == 0 && other_count == 0) layout = own;
        if (own != layout) layout = LAYOUT_ANY;
    }
    return layout;
}

// ---- AdamW ----

// One step of a range. The bias correction of the first moment is part of the step size, that of the second is under
// the root: root_scale = 1 / sqrt(1 - beta2^step).
struct adamw_args {
    struct number_row param;
    struct device_rows grad, exp_avg, exp_avg_sq;
    int64_t count;
    uint64_t seed, first_word; // of the random bits
    float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_scale, eps, decay;
};

// Stores the second moment in bfloat16: adds random bits below the last place, and drops what is below it. NaN stays
// NaN.
DEVICE void adamw_store_stochastic(const struct adamw_args &a, int64_t i, const float values[OCTET]) {
    uint64_t random[2];
    uint32_t high[OCTET];
    for (int j = 0; j < 2; j++) random[j] = mix64(a.seed ^ (a.first_word + (uint64_t)i / 4 + (uint64_t)j));
#pragma unroll
    for (int e = 0; e < OCTET; e++) {
        uint32_t bits = bits_from_f32(values[e]);
        bool nan = (bits & 0x7fffffff) > 0x7f800000;
        high[e] = (nan ? bits | 0x400000 : bits + (uint32_t)(random[e / 4] >> 16 * (e % 4) & 0xffff)) >> 16;
    }
    number_store_u16(a.exp_avg_sq, i, a.count, high);
}

template <int layout> __global__ void __launch_bounds__(ROW_THREADS, 8) adamw_kernel(struct adamw_args a) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.count) return;
    float param[OCTET], grad[OCTET], m[OCTET], v[OCTET];
    number_load<layout>(param, a.param, i, a.count);
    octet_load<layout>(grad, a.grad, 0, i, a.count);
    octet_load<layout>(m, a.exp_avg, 0, i, a.count);
    octet_load<layout>(v, a.exp_avg_sq, 0, i, a.count);
#pragma unroll
    for (int e = 0; e < OCTET; e++) {
        float g = mul_rn(grad[e], a.grad_scale);
        m[e] = add_rn(mul_rn(m[e], a.beta1), mul_rn(g, a.one_minus_beta1));
        v[e] = add_rn(mul_rn(v[e], a.beta2), mul_rn(mul_rn(g, g), a.one_minus_beta2));
        float divisor = add_rn(mul_rn(sqrt_rn(v[e]), a.root_scale), a.eps);
        param[e] = add_rn(mul_rn(param[e], a.decay), -div_rn(mul_rn(m[e], a.step_size), divisor));
    }
    number_store<layout>(a.param, i, a.count, param);
    octet_store<layout>(a.exp_avg, 0, i, a.count, m);
    if (layout == LAYOUT_BF16 || (layout == LAYOUT_ANY && a.exp_avg_sq.type == ELEMENT_BF16))
        adamw_store_stochastic(a, i, v);
    else
        octet_store<layout>(a.exp_avg_sq, 0, i, a.count, v);
}

status cuda_adamw(struct backend *backend, const struct adamw_range *ranges, size_t count,
                  const struct adamw_options *options) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(options->step >= 1);
    struct adamw_args args = {};
    args.seed = ops_mix64(ops_mix64(options->key) ^ (uint64_t)options->step);
    args.grad_scale = (float)options->grad_scale;
    args.beta1 = (float)options->beta1;
    args.one_minus_beta1 = (float)(1 - options->beta1);
    args.beta2 = (float)options->beta2;
    args.one_minus_beta2 = (float)(1 - options->beta2);
    args.step_size = (float)(options->lr / (1 - pow(options->beta1, (double)options->step)));
    args.root_scale = (float)(1 / sqrt(1 - pow(options->beta2, (double)options->step)));
    args.eps = (float)options->eps;
    for (size_t i = 0; i < count; i++) {
        const struct adamw_range *r = &ranges[i];
        int64_t elements = r->param.rows * r->param.columns;
        CHECK(optimizer_number(r->param, r->remainder, elements) && optimizer_dense(r->grad, -1, elements));
        CHECK(optimizer_dense(r->exp_avg, -1, elements) && optimizer_dense(r->exp_avg_sq, -1, elements));
        CHECK(r->offset >= 0 && r->offset % 4 == 0);
        if (elements == 0) continue;
        struct device_rows others[] = {device_rows_of(tensor_reshape(r->grad, 1, elements)),
                                       device_rows_of(tensor_reshape(r->exp_avg, 1, elements)),
                                       device_rows_of(tensor_reshape(r->exp_avg_sq, 1, elements))};
        args.param = number_row_of(r->param, r->remainder);
        args.grad = others[0];
        args.exp_avg = others[1];
        args.exp_avg_sq = others[2];
        args.count = elements;
        args.first_word = (uint64_t)r->offset / 4;
        args.decay = r->decay ? (float)(1 - options->lr * options->weight_decay) : 1.0f;
        LAUNCH_LAYOUT(optimizer_layout(elements, &args.param, 1, others, 3), adamw_kernel,
                      grid_of(octets_of(elements), 1), ROW_THREADS, 0, cuda->stream, args);
    }
    return cuda_launched("adamw");
}

// ---- the moving average, and pairs ----

struct ema_args {
    struct number_row average, in;
    int64_t count;
    float weight; // of `in`
};

// In this form an average that equals `in` stays as it is.
template <int layout> __global__ void __launch_bounds__(ROW_THREADS) ema_kernel(struct ema_args a) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.count) return;
    float average[OCTET], in[OCTET];
    number_load<layout>(average, a.average, i, a.count);
    number_load<layout>(in, a.in, i, a.count);
#pragma unroll
    for (int e = 0; e < OCTET; e++) average[e] = add_rn(average[e], mul_rn(add_rn(in[e], -average[e]), a.weight));
    number_store<layout>(a.average, i, a.count, average);
}

status cuda_ema(struct backend *backend, struct tensor average, struct tensor average_remainder, struct tensor in,
                struct tensor in_remainder, double decay) {
    int64_t count = average.rows * average.columns;
    CHECK(optimizer_number(average, average_remainder, count) && optimizer_number(in, in_remainder, count));
    if (count == 0) return OK;
    struct number_row numbers[] = {number_row_of(average, average_remainder), number_row_of(in, in_remainder)};
    struct ema_args args = {numbers[0], numbers[1], count, (float)(1 - decay)};
    LAUNCH_LAYOUT(optimizer_layout(count, numbers, 2, NULL, 0), ema_kernel, grid_of(octets_of(count), 1), ROW_THREADS,
                  0, cuda_of(backend)->stream, args);
    return cuda_launched("ema");
}

// out = in; one of the two consists of pairs.
__global__ void __launch_bounds__(ROW_THREADS)
    pairs_kernel(struct number_row out, struct number_row in, int64_t count) {
    int64_t i = grid_unit() * OCTET;
    if (i >= count) return;
    float values[OCTET];
    number_load<LAYOUT_ANY>(values, in, i, count);
    number_store<LAYOUT_ANY>(out, i, count, values);
}

static status optimizer_pairs(struct backend *backend, struct tensor out, struct tensor out_remainder, struct tensor in,
                              struct tensor in_remainder) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t count = in.rows * in.columns;
    CHECK(optimizer_number(out, out_remainder, count) && optimizer_number(in, in_remainder, count));
    CHECK(tensor_none(out_remainder) != tensor_none(in_remainder));
    if (count == 0) return OK;
    LAUNCH(pairs_kernel, grid_of(octets_of(count), 1), ROW_THREADS, 0, cuda->stream, number_row_of(out, out_remainder),
           number_row_of(in, in_remainder), count);
    return cuda_launched("pairs");
}

status cuda_split_f32(struct backend *backend, struct tensor out, struct tensor remainder, struct tensor in) {
    return optimizer_pairs(backend, out, remainder, in, {});
}

status cuda_join_f32(struct backend *backend, struct tensor out, struct tensor in, struct tensor remainder) {
    return optimizer_pairs(backend, out, {}, in, remainder);
}

// ---- sums ----

enum { MAX_SUM_BLOCKS = 1024, SUM_BLOCK_THREADS = 256 };

// A block adds up a unit: its threads take the unit's octets in turn.
template <int layout>
__global__ void __launch_bounds__(SUM_BLOCK_THREADS)
    square_sums_kernel(double *sums, struct device_rows in, int64_t count, int64_t unit) {
    int64_t end = ((int64_t)blockIdx.x + 1) * unit;
    if (end > count) end = count;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * unit + (int64_t)threadIdx.x * OCTET; i < end;
         i += SUM_BLOCK_THREADS * OCTET) {
        float values[OCTET];
        octet_load<layout>(values, in, 0, i, count);
#pragma unroll
        for (int e = 0; e < OCTET; e++) sum += (double)values[e] * (double)values[e];
    }
    sum = block_sum(sum, (double *)dynamic_shared());
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The w-th word of `bytes` bytes at any address.
DEVICE uint64_t digest_word(const unsigned char *data, int64_t bytes, int64_t w) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        if (w * 8 + i < bytes) word |= (uint64_t)data[w * 8 + i] << 8 * i;
    return word;
}

// A thread takes two words at a time.
__global__ void __launch_bounds__(SUM_BLOCK_THREADS)
    digest_kernel(uint64_t *sums, const unsigned char *data, int64_t bytes, uint64_t first) {
    int64_t step = (int64_t)gridDim.x * SUM_BLOCK_THREADS, words = (bytes + 7) / 8;
    bool aligned = (uintptr_t)data % 16 == 0;
    uint64_t sum = 0;
    for (int64_t w = 2 * ((int64_t)blockIdx.x * SUM_BLOCK_THREADS + threadIdx.x); w < words; w += 2 * step) {
        uint64_t word[2];
        if (aligned && w * 8 + 16 <= bytes) {
            struct words16 in = *(const struct words16 *)(data + w * 8);
            word[0] = in.word[0] | (uint64_t)in.word[1] << 32;
            word[1] = in.word[2] | (uint64_t)in.word[3] << 32;
        } else {
            word[0] = digest_word(data, bytes, w);
            word[1] = digest_word(data, bytes, w + 1);
        }
        sum += mix64(word[0] ^ mix64(first + (uint64_t)w));
        if (w + 1 < words) sum += mix64(word[1] ^ mix64(first + (uint64_t)w + 1));
    }
    sum = block_sum(sum, (uint64_t *)dynamic_shared());
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

static int64_t optimizer_range_units(const struct square_range *range) {
    return (range->in.rows * range->in.columns + range->unit - 1) / range->unit;
}

status cuda_square_sums(struct backend *backend, double *sums, const struct square_range *ranges, size_t count) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t units = 0, at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tensor in = ranges[i].in;
        CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_dense(in));
        CHECK(ranges[i].unit > 0 && ranges[i].unit % 64 == 0 && optimizer_range_units(&ranges[i]) <= INT32_MAX);
        units += optimizer_range_units(&ranges[i]);
    }
    if (units == 0) return OK;
    struct tensor scratch;
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_SUMS, ELEMENT_U8, units, sizeof *sums, &scratch));
    for (size_t i = 0; i < count; i++) {
        const struct square_range *range = &ranges[i];
        const int64_t elements = range->in.rows * range->in.columns, blocks = optimizer_range_units(range);
        if (blocks == 0) continue;
        struct device_rows row = device_rows_of(tensor_reshape(range->in, 1, elements));
        LAUNCH_LAYOUT(layout_of(elements, &row, 1), square_sums_kernel, (unsigned)blocks, SUM_BLOCK_THREADS,
                      SUM_BLOCK_THREADS / 32 * sizeof(double), cuda->stream, (double *)tensor_row(scratch, at), row,
                      elements, range->unit);
        TRY(cuda_launched("square_sums"));
        at += blocks;
    }
    return cuda_download(backend, sums, ELEMENT_U8, scratch);
}

status cuda_digest(struct backend *backend, struct tensor in, uint64_t first, uint64_t *sum) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_fits(in) && tensor_dense(in));
    int64_t bytes = in.rows * in.columns * (int64_t)element_size(in.type);
    if (bytes == 0) return OK;
    int64_t blocks = ((bytes + 15) / 16 + SUM_BLOCK_THREADS - 1) / SUM_BLOCK_THREADS;
    if (blocks > MAX_SUM_BLOCKS) blocks = MAX_SUM_BLOCKS;
    uint64_t host[MAX_SUM_BLOCKS];
    struct tensor sums;
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_SUMS, ELEMENT_U8, blocks, sizeof *host, &sums));
    LAUNCH(digest_kernel, (unsigned)blocks, SUM_BLOCK_THREADS, SUM_BLOCK_THREADS / 32 * sizeof(uint64_t), cuda->stream,
           (uint64_t *)tensor_row(sums, 0), (const unsigned char *)tensor_row(in, 0), bytes, first);
    TRY(cuda_launched("digest"));
    TRY(cuda_download(backend, host, ELEMENT_U8, sums));
    for (int64_t i = 0; i < blocks; i++) *sum += host[i];
    return OK;
}
