// What device code is written in: bfloat16, rounding, warp collectives, tensor-core products, asynchronous copies and
// dynamic shared memory; and LAUNCH, which starts a kernel. This is the only file with PTX.
//
// A .cu file is compiled twice: by nvcc for GPUs, and by g++ for the emulator, which runs the same source on the CPU
// (CARAVAN_EMULATED is defined, and emulate.h stands in for the PTX). Therefore device code keeps to these rules:
// - Threads of a warp do not run in lockstep. Data goes from lane to lane through a collective only.
// - Every collective is called by all 32 lanes of a warp, __syncthreads() by all threads of a block. No thread returns
//   before the last barrier of its block.
// - Shared memory is dynamic only: dynamic_shared(). There are no __shared__ or __constant__ variables.
// - Atomic operations are on integers only, and no result depends on their order.
// - The compiler fuses no multiplications and additions (--fmad=false, -ffp-contract=off). Where a fused one is wanted,
//   the code says fma_rn.
#pragma once

#include <math.h>
#include <stdint.h>

struct bf16 {
    uint16_t bits;
};

#ifdef CARAVAN_EMULATED

#include "emulate.h"

#else

#include <cuda_runtime.h>

#define DEVICE            static __device__ __forceinline__

// ---- arithmetic, each operation rounded to nearest even ----

DEVICE float mul_rn(float a, float b) {
    return __fmul_rn(a, b);
}

DEVICE float add_rn(float a, float b) {
    return __fadd_rn(a, b);
}

// a * b + c, rounded once.
DEVICE float fma_rn(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}

DEVICE float div_rn(float a, float b) {
    return __fdiv_rn(a, b);
}

DEVICE float sqrt_rn(float a) {
    return __fsqrt_rn(a);
}

// 2^x with a relative error of about 2^-22; a result below the normal numbers is 0.
DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE uint32_t bits_from_f32(float value) {
    return __float_as_uint(value);
}

DEVICE float f32_from_bits(uint32_t bits) {
    return __uint_as_float(bits);
}

// ---- the threads of a warp; every lane calls ----

DEVICE int lane_id() {
    return (int)(threadIdx.x % 32);
}

// Returns v of lane `lane_id() ^ lanes`; 0 < lanes < 32. T has 4 or 8 bytes.
template <typename T> DEVICE T shuffle_xor(T v, int lanes) {
    return __shfl_xor_sync(0xffffffffu, v, lanes);
}

// Returns v of lane `lane`, 0 to 31.
template <typename T> DEVICE T shuffle(T v, int lane) {
    return __shfl_sync(0xffffffffu, v, lane);
}

// Returns a word with the bit of each lane whose condition holds. CUDA's headers have a function of this name for old
// devices.
#define ballot(condition) __ballot_sync(0xffffffffu, (condition))

// Waits for the other lanes; what they wrote to memory before is then visible.
DEVICE void sync_warp() {
    __syncwarp();
}

// ---- shared memory ----

extern __shared__ __align__(128) char dynamic_shared_memory[];

// The block's shared memory, as many bytes as LAUNCH was given, aligned to 128.
DEVICE char *dynamic_shared() {
    return dynamic_shared_memory;
}

DEVICE uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Starts a copy of `bytes` bytes (0 to 16) from global to shared memory, and sets the rest of 16 bytes to 0. Both
// addresses are multiples of 16. With 0 bytes `from` is not read.
DEVICE void cp_async16(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

// The same for 8 bytes (`bytes` is 0 to 8), at multiples of 8.
DEVICE void cp_async8(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

// Makes a group of the copies that this thread has started since the last group.
DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the last N groups of this thread are there. Other threads see them after a barrier.
template <int N> DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- tensor cores; every lane calls ----

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix
// l / 8, a multiple of 16. out[m] of lane l holds the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix m;
// of the transposed matrix with `transpose`.
template <bool transpose> DEVICE void ldmatrix_x4(uint32_t out[4], const void *row) {
    if (transpose)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row))
                     : "memory");
}

// c[16,8] += a[16,16] b[16,8], bfloat16 with float32 sums. Lane l, with g = l / 4 and t = 2 (l % 4), holds
//   a[0..3] = the pairs of columns (g, t) (g + 8, t) (g, t + 8) (g + 8, t + 8), the first column in the low half,
//   b[0..1] = the pairs of rows (t, g) (t + 8, g),
//   c[0..3] = (g, t) (g, t + 1) (g + 8, t) (g + 8, t + 1).
DEVICE void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- starting a kernel, in host code ----

// Starts kernel(arguments...) on a stream; cuda_launched (cuda.h) then tells whether that went well. A kernel of a
// template with a comma in it stands in parentheses. `grid` and `block` are numbers or dim3. A kernel must be allowed
// to have more than 48 KiB of dynamic shared memory; a refusal shows at cuda_launched.
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                         \
    do {                                                                                                               \
        if ((shared_bytes) > 48 << 10)                                                                                 \
            (void)cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,            \
                                       (int)(shared_bytes));                                                           \
        (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);                                          \
    } while (0)

// Loads a kernel, which otherwise its first launch does.
#define LOAD(kernel)                                                                                                   \
    do {                                                                                                               \
        struct cudaFuncAttributes attributes;                                                                          \
        (void)cudaFuncGetAttributes(&attributes, (const void *)(kernel));                                              \
    } while (0)

#endif

// ---- the same for both: bfloat16, and what follows from the above ----

DEVICE float f32_from_bf16(struct bf16 v) {
    return f32_from_bits((uint32_t)v.bits << 16);
}

// Rounds to nearest even; NaN stays NaN.
DEVICE struct bf16 bf16_from_f32(float value) {
    struct bf16 out;
#ifdef CARAVAN_EMULATED
    uint32_t wide = bits_from_f32(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u)
        out.bits = (uint16_t)(wide >> 16 | 0x40);
    else
        out.bits = (uint16_t)((wide + 0x7fffu + (wide >> 16 & 1)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
#endif
    return out;
}

// The two numbers rounded to bfloat16, `lo` in the low half.
DEVICE uint32_t pack_bf16(float lo, float hi) {
#ifdef CARAVAN_EMULATED
    return bf16_from_f32(lo).bits | (uint32_t)bf16_from_f32(hi).bits << 16;
#else
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
#endif
}

// 1 / sqrt(a): the root is rounded, and the quotient is rounded.
DEVICE float rsqrt_rn(float a) {
    return div_rn(1.0f, sqrt_rn(a));
}

// A kernel that meets contents out of range notes it with one of the codes of cuda.h, and leaves the row alone.
DEVICE void report_error(uint32_t *word, uint32_t code) {
    atomicOr(word, code);
}

// ---- functions of float32, and random bits, in the same steps as the CPU's (kernels/cpu/v16.h) ----
//
// Every step is one operation that IEEE 754 rounds. So a GPU, the emulator and the CPU give the same bits, whatever
// version of CUDA's or the host's library of functions there is.

// exp(x), with an error of at most 2 ulp. Returns 0 below -87, where exp(x) < 1.7e-38, infinity above 88, and NaN for
// NaN.
DEVICE float exp_f32(float x) {
    const float magic = 0x1.8p23f; // adding it rounds to an integer, in the low bits
    float shifted = fma_rn(x, 0x1.715476p0f, magic), n = add_rn(shifted, -magic);
    float r = fma_rn(n, -0x1.7f7d1cp-20f, fma_rn(n, -0x1.62e4p-1f, x));
    float sum = 0.0013950496908208185f;
    sum = fma_rn(sum, r, 0.00836889402990454f);
    sum = fma_rn(sum, r, 0.041666205713515946f);
    sum = fma_rn(sum, r, 0.16666518800306326f);
    sum = fma_rn(sum, r, 0.5000000095214968f);
    sum = fma_rn(sum, r, 1.0f);
    sum = fma_rn(sum, r, 1.0f);
    sum = f32_from_bits(bits_from_f32(sum) + (bits_from_f32(shifted) << 23)); // 2^n exp(r)
    if (x < -87.0f) sum = 0;
    return x < 88.0f ? sum : add_rn(x, f32_from_bits(0x7f800000));
}

// The standard normal's cumulative distribution function Phi(x) with an absolute error below 1e-7: exp(P(|x|)) for
// negative x, 1 minus it for others.
DEVICE float normal_cdf_f32(float x) {
    float magnitude = fabsf(x), sum = -1.5775102610859904e-06f;
    sum = fma_rn(sum, magnitude, 2.2851636458653957e-05f);
    sum = fma_rn(sum, magnitude, -0.00010901708446908742f);
    sum = fma_rn(sum, magnitude, -0.00014034839114174247f);
    sum = fma_rn(sum, magnitude, 0.004951000213623047f);
    sum = fma_rn(sum, magnitude, -0.03642241656780243f);
    sum = fma_rn(sum, magnitude, -0.3182883858680725f);
    sum = fma_rn(sum, magnitude, -0.7978865504264832f);
    float tail = exp_f32(fma_rn(sum, magnitude, -0.6931471228599548f));
    return x < 0 ? tail : add_rn(1.0f, -tail);
}

// 1 / (1 + exp(-x)).
DEVICE float sigmoid_f32(float x) {
    float e = exp_f32(-fabsf(x));
    return div_rn(x < 0 ? e : 1.0f, add_rn(1.0f, e));
}

// The mixer ops_mix64 of kernels/ops.h.
DEVICE uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
