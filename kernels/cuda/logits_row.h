// Operations of a block of threads on one row of logits. Log-probabilities and sampling use the same ones, and get the
// same bits.
#ifndef KERNELS_CUDA_LOGITS_ROW_H
#define KERNELS_CUDA_LOGITS_ROW_H

#include "kernels/cuda/device.h"

enum {
    logits_threads = 512,
    logits_warps = logits_threads / 32,
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
    for (int warp = 1; warp < logits_warps; warp++) v = combine(v, shared[warp]);
    return v;
}

DEVICE float logits_max(const float *logits, int vocabulary, char *shared) {
    float max = -INFINITY;
    for (int i = (int)threadIdx.x; i < vocabulary; i += logits_threads) max = logits_larger(max, logits[i]);
    return logits_reduce(max, (float *)shared, logits_larger);
}

// exp((logit - max) * inverse_temperature)
DEVICE float logits_weight(float logit, float max, float inverse_temperature) {
    return exp2_approx(mul_rn(mul_rn(add_rn(logit, -max), inverse_temperature), LOG2_E));
}

// Returns log(sum(exp(logits))). `shared` has room for a double of each warp.
DEVICE float logits_lse(const float *logits, int vocabulary, float max, char *shared) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < vocabulary; i += logits_threads) sum += (double)logits_weight(logits[i], max, 1);
    sum = logits_reduce(sum, (double *)shared, [](double a, double b) { return a + b; });
    return (float)((double)max + log(sum));
}

#endif
