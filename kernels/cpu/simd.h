// The inner loops of the CPU backend, as a table of functions that is chosen at run time: the plain C versions first,
// then those that the processor's capabilities overwrite. Every version of a function gives the same bits.
//
// Most loops are in elements.inc, tiles.inc and row_kernels.inc, over the sixteen lanes of v16.h; simd.c
// (plain C), simd_avx2.c and simd_avx512.c include them and are compiled for their processors.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum simd_level { SIMD_PLAIN, SIMD_AVX2, SIMD_AVX512 };

// The factors of one AdamW step in float32. With g = grad_scale * grad:
//   exp_avg    = beta1 exp_avg + one_minus_beta1 g
//   exp_avg_sq = beta2 exp_avg_sq + one_minus_beta2 g g
//   param      = decay param - step_size exp_avg / (root_scale sqrt(exp_avg_sq) + eps)
struct adamw_factors {
    float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step_size, root_scale, eps;
};

enum {
    MASS_LIMITS = 8, // of row_mass_above
    KV_BLOCK = 16,   // keys whose scores are computed at once
    // Query rows are packed into panels [D][Q_PANEL]: element (row, d) of a panel is at d * Q_PANEL + row.
    Q_PANEL = 12,
};

// The elements of a row, in float32 or bfloat16.
struct row_view {
    void *data;
    bool bf16;
};

struct simd {
    // Arrays.
    // out = in, from bfloat16.
    void (*f32_from_bf16)(float *out, const uint16_t *in, size_t count);
    // out = in, rounded to bfloat16 (nearest even).
    void (*bf16_from_f32)(uint16_t *out, const float *in, size_t count);
    // Rows of out = rows of in, rounded if out is bfloat16; past the caches where out is aligned to 64 bytes and the
    // processor can, for more memory than they hold.
    void (*stream_rows)(struct row_view out, int64_t out_stride, const float *in, int64_t in_stride, int64_t rows,
                        int64_t columns);
    // out[column][row] = in[row][column], elements of four bytes.
    void (*transpose)(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t rows,
                      int64_t columns);
    // out = even[0], odd[0], even[1], odd[1], ...; 2 * count elements.
    void (*interleave)(uint16_t *out, const uint16_t *even, const uint16_t *odd, size_t count);
    // even, odd = in[0], in[2], ... and in[1], in[3], ..., from bfloat16; `count` elements each.
    void (*f32_from_pairs)(float *even, float *odd, const uint16_t *in, size_t count);
    // out += in.
    void (*add)(float *out, const float *in, size_t count);
    // Returns the sum of squares, taken in eight lanes of double by index.
    double (*square_sum)(const float *in, size_t count);
    // The pairs (out, remainder) = in (kernels/ops.h).
    void (*split_f32)(uint16_t *out, uint16_t *remainder, const float *in, size_t count);
    // out = the pairs (in, remainder).
    void (*join_f32)(float *out, const uint16_t *in, const uint16_t *remainder, size_t count);
    // out = in, rounded to bfloat16 stochastically by the random bits of mix(seed ^ (first + i / 4)) (kernels/ops.h).
    void (*bf16_stochastic)(uint16_t *out, const float *in, size_t count, uint64_t seed, uint64_t first);
    // Returns the sum of mix(w_i ^ mix(first + i)) over the words of 8 bytes, the last one padded with zeros.
    uint64_t (*digest)(const unsigned char *data, size_t bytes, uint64_t first);
    // One AdamW step (struct adamw_factors).
    void (*adamw)(float *param, const float *grad, float *exp_avg, float *exp_avg_sq, size_t count,
                  const struct adamw_factors *factors);
    // average += (in - average) * weight.
    void (*ema)(float *average, const float *in, size_t count, float weight);

    // tiles.inc; av_tile computes products with weights, too (gemm.c). Scores are read and written in whole
    // blocks of 16 columns.

    // out[r][16 b + i] = scale * sum over d of q[d][r] keys[b][d][i], b < blocks; q [size][Q_PANEL] is one panel,
    // rows <= Q_PANEL.
    void (*qk_tile)(float *out, int64_t stride, const float *q, int rows, const float *keys, int64_t blocks, int size,
                    float scale);
    // out[r][c] += sum over i < inner of a[r row_step + i inner_step] b[i][c]; columns is a multiple of 16.
    void (*av_tile)(float *out, int64_t stride, const float *a, int64_t row_step, int64_t inner_step, int rows,
                    const float *b, int64_t b_stride, int64_t inner, int columns);
    // Returns the maximum of `max` and scores[0..count).
    float (*scores_max)(const float *scores, int64_t count, float max);
    // scores = exp(scores - max), added to sums[i % 16]; then zeros from count to `len` rounded up to 16.
    void (*scores_exp)(float *scores, int64_t count, int64_t len, float max, float sums[16]);
    // scores = p = exp(scores - lse), grads = p (grads - delta) scale; then zeros from count to `len` rounded up to 16.
    void (*scores_grad)(float *scores, float *grads, int64_t count, int64_t len, float lse, float delta, float scale);
    // Returns the sum of sixteen floats, added in pairs.
    float (*sum_lanes)(const float sums[16]);
    // Returns the sum of a[i] b[i], taken in sixteen lanes by index.
    float (*dot)(const float *a, const float *b, int64_t count);

    // row_kernels.inc: norms, activations, rope and rows of logits, over the `count` elements of one row.
    // x += delta (none if its data is NULL); out = scale * round(x rstd), where scale and round(...) have the precision
    // of x. Returns rstd.
    float (*rmsnorm)(struct row_view out, struct row_view x, struct row_view delta, struct row_view scale,
                     int64_t count, float epsilon);
    // grad_x += the gradient of x; sums (or NULL) += the gradient of scale.
    void (*rmsnorm_grad)(struct row_view grad_x, float *sums, struct row_view grad_out, struct row_view x,
                         struct row_view scale, int64_t count, float rstd);
    // x += delta (none if its data is NULL); out = scale * (x - mean) * rstd + bias (none if its data is NULL).
    // statistics = mean, rstd.
    void (*layernorm)(struct row_view out, struct row_view x, struct row_view delta, struct row_view scale,
                      struct row_view bias, int64_t count, float epsilon, float statistics[2]);
    // grad_x += the gradient of x; scale_sums and bias_sums (each may be NULL) += the gradients of scale and bias.
    void (*layernorm_grad)(struct row_view grad_x, float *scale_sums, float *bias_sums, struct row_view grad_out,
                           struct row_view x, struct row_view scale, int64_t count, const float statistics[2]);
    // out = the activation of `in`; of the first half of `in`, times the second, if it is gated. The activation of
    // ACTIVATION_SWIGLU is rounded to the type of `in`. out has `count` elements.
    void (*activation)(enum activation kind, struct row_view out, struct row_view in, int64_t count);
    // Its gradient; grad_in may be `in` or, unless it is gated, grad_out.
    void (*activation_grad)(enum activation kind, struct row_view grad_in, struct row_view grad_out, struct row_view in,
                            int64_t count);
    // Rotates the pairs (x[i], x[i + half]) by the angles of cos and sin, or by the negative angles if `back`.
    void (*rope)(float *x, const float *cos, const float *sin, int64_t half, bool back);
    // Returns the maximum; NaN is ignored.
    float (*row_max)(const float *x, int64_t count);
    // Returns the sum of exp(x - max), taken in float32 over blocks of 4096 elements, which are added in double.
    double (*row_sum_exp)(const float *x, int64_t count, float max);
    // out = factor * exp((x - shift) * rate); out may be x.
    void (*row_scaled_exp)(float *out, const float *x, int64_t count, float shift, float rate, float factor);
    // masses[j] = the sum of exp((x - shift) * rate) over x >= limits[j].
    void (*row_mass_above)(const float *x, int64_t count, float shift, float rate, const float limits[MASS_LIMITS],
                           double masses[MASS_LIMITS]);
    // Writes the indices of x >= limit in ascending order. Returns how many there are, or max_indices + 1 if there are
    // more than max_indices.
    int64_t (*row_compact_ge)(const float *x, int64_t count, float limit, int32_t *indices, int64_t max_indices);
};

// Returns the best level that this processor and this build have.
enum simd_level simd_best(void);

// Enters every function for a level, which must not exceed simd_best().
void simd_choose(struct simd *simd, enum simd_level level);

// Enters the versions for AVX2. Called by simd_choose alone, on processors that have it.
void simd_avx2(struct simd *simd);

// Enters the versions for AVX-512. Called by simd_choose alone, on processors that have it.
void simd_avx512(struct simd *simd);
