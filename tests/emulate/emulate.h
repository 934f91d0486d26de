// CUDA's threads on one thread of the CPU: what kernels/cuda/device.h is made of in the emulated build.
//
// Each thread of a block is a fibre, which runs until it must wait in a barrier or a collective. One block runs at a
// time. Misuse ends the process with a message that names the kernel, the block, the thread and the line:
// - a barrier or a collective that not every thread reaches, or that threads reach in different lines,
// - a shuffle from a lane that does not exist, a collective in a warp of fewer than 32 threads,
// - an address that is not aligned, or a copy or a matrix that is not within the block's shared memory,
// - a thread that ends before its asynchronous copies are waited for.
// Dynamic shared memory is an allocation of its own, of the exact size, full of NaN when a block begins. So the address
// sanitizer finds what lies outside, and a value that nobody wrote shows in the results.
//
// How threads are ordered and when asynchronous copies happen depends on the device (emulate_devices in emulate.cpp).
// Not emulated: wgmma, TMA, mbarrier, clusters, cooperative groups, textures.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "emulated.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define DEVICE           static inline

// One, two or three numbers of blocks or threads.
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {
    }
};

namespace emulate {

// Where a collective stands in the source.
struct site {
    const char *file;
    int line;
};

// What a thread of a kernel sees of itself.
struct position {
    dim3 thread, block, block_size, grid_size;
};

extern struct position position; // of the thread that runs

// The thread that runs waits until all threads of the block have called it.
void barrier(struct site site);

// The thread that runs waits until all lanes of its warp have called it with the same `operation`. The last one calls
// operation(arguments), with the argument of each lane.
void collective(void (*operation)(void *const arguments[32]), void *argument, struct site site);

// Ends the process: a thread misused something.
[[noreturn]] void misuse(struct site site, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The block's shared memory.
char *shared_memory();

// Ends the process unless [p, p + size) lies in the block's shared memory and p is a multiple of `size`.
void check_shared(const void *p, size_t size, const char *what, struct site site);

// What device.h says of cp_async16 and cp_async8 (`size` is 16 or 8), cp_async_commit and cp_async_wait.
void copy_async(void *to, const void *from, uint32_t bytes, uint32_t size, struct site site);
// See copy_async.
void copy_commit();
// See copy_async.
void copy_wait(int groups_left);

struct mma_operands {
    float *c;
    const uint32_t *a, *b;
};

// Of 32 struct mma_operands.
void multiply_matrices(void *const arguments[32]);

// A kernel that some LAUNCH names, whether it is ever launched or not. The list of them is emulated_kernels.
struct kernel_record {
    struct emulated_kernel seen;
    std::string name;
    explicit kernel_record(const char *signature); // "... [with auto kernel = NAME]"
};

template <auto kernel> struct kernel_of {
    static const char *signature() {
        return __PRETTY_FUNCTION__;
    }
    static kernel_record record;
};
template <auto kernel> kernel_record kernel_of<kernel>::record(signature());

// Runs kernel() as every thread of the grid, now or when the stream gets there.
void launch(kernel_record *record, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> kernel);

// The same for kernel(arguments...). The arguments are converted and copied when the kernel is launched.
template <typename... P>
void launch_with(kernel_record *record, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                 void (*kernel)(P...), std::common_type_t<P>... arguments) {
    std::tuple<P...> copies(arguments...);
    launch(record, grid, block, shared_bytes, stream, [kernel, copies] { std::apply(kernel, copies); });
}

// ---- shuffles ----

template <typename T> struct shuffle_argument {
    T in, out;
    int from;
};

template <typename T> void shuffle_lanes(void *const arguments[32]) {
    for (int lane = 0; lane < 32; lane++) {
        auto *own = static_cast<shuffle_argument<T> *>(arguments[lane]);
        own->out = static_cast<shuffle_argument<T> *>(arguments[own->from])->in;
    }
}

template <typename T> T shuffle_from(T v, int from, struct site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what a shuffle can carry");
    if (from < 0 || from > 31) misuse(site, "a shuffle from lane %d", from);
    shuffle_argument<T> argument = {v, v, from};
    collective(shuffle_lanes<T>, &argument, site);
    return argument.out;
}

// ---- matrices ----

struct ldmatrix_argument {
    const void *row;
    uint32_t out[4];
};

template <bool transpose> void load_matrices(void *const arguments[32]) {
    for (int matrix = 0; matrix < 4; matrix++) {
        for (int lane = 0; lane < 32; lane++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, column = 2 * (lane % 4) + i;
                const auto *from =
                    static_cast<const ldmatrix_argument *>(arguments[8 * matrix + (transpose ? column : row)]);
                memcpy(&pair[i], static_cast<const char *>(from->row) + 2 * (transpose ? row : column), 2);
            }
            static_cast<ldmatrix_argument *>(arguments[lane])->out[matrix] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

struct ballot_argument {
    bool condition;
    uint32_t out;
};

inline void count_ballot(void *const arguments[32]) {
    uint32_t word = 0;
    for (int lane = 0; lane < 32; lane++)
        word |= (uint32_t) static_cast<ballot_argument *>(arguments[lane])->condition << lane;
    for (int lane = 0; lane < 32; lane++) static_cast<ballot_argument *>(arguments[lane])->out = word;
}

inline void meet(void *const arguments[32]) {
    (void)arguments;
}

} // namespace emulate

// The line of the caller, as the last parameter of a function.
#define EMULATE_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- the names of CUDA and of device.h ----

#define threadIdx (emulate::position.thread)
#define blockIdx  (emulate::position.block)
#define blockDim  (emulate::position.block_size)
#define gridDim   (emulate::position.grid_size)

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                         \
    emulate::launch_with(&emulate::kernel_of<(kernel)>::record, (grid), (block), (shared_bytes), (stream), (kernel),   \
                         __VA_ARGS__)

#define LOAD(kernel) (emulate::kernel_of<(kernel)>::record.seen.loaded = true)

inline void __syncthreads(EMULATE_SITE) {
    emulate::barrier({file, line});
}

inline int lane_id() {
    return (int)(threadIdx.x % 32);
}

template <typename T> T shuffle_xor(T v, int lanes, EMULATE_SITE) {
    if (lanes < 1 || lanes > 31) emulate::misuse({file, line}, "a shuffle_xor by %d", lanes);
    return emulate::shuffle_from(v, lane_id() ^ lanes, {file, line});
}

template <typename T> T shuffle(T v, int lane, EMULATE_SITE) {
    return emulate::shuffle_from(v, lane, {file, line});
}

inline uint32_t ballot(bool condition, EMULATE_SITE) {
    emulate::ballot_argument argument = {condition, 0};
    emulate::collective(emulate::count_ballot, &argument, {file, line});
    return argument.out;
}

inline void sync_warp(EMULATE_SITE) {
    emulate::collective(emulate::meet, nullptr, {file, line});
}

inline char *dynamic_shared() {
    return emulate::shared_memory();
}

inline void cp_async16(void *to, const void *from, uint32_t bytes, EMULATE_SITE) {
    emulate::copy_async(to, from, bytes, 16, {file, line});
}

inline void cp_async8(void *to, const void *from, uint32_t bytes, EMULATE_SITE) {
    emulate::copy_async(to, from, bytes, 8, {file, line});
}

inline void cp_async_commit() {
    emulate::copy_commit();
}

template <int N> void cp_async_wait() {
    emulate::copy_wait(N);
}

template <bool transpose> void ldmatrix_x4(uint32_t out[4], const void *row, EMULATE_SITE) {
    emulate::check_shared(row, 16, "a row of ldmatrix", {file, line});
    emulate::ldmatrix_argument argument = {row, {}};
    emulate::collective(emulate::load_matrices<transpose>, &argument, {file, line});
    memcpy(out, argument.out, sizeof argument.out);
}

inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], EMULATE_SITE) {
    emulate::mma_operands operands = {c, a, b};
    emulate::collective(emulate::multiply_matrices, &operands, {file, line});
}

inline float mul_rn(float a, float b) {
    return a * b;
}

inline float add_rn(float a, float b) {
    return a + b;
}

inline float fma_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}

inline float div_rn(float a, float b) {
    return a / b;
}

inline float sqrt_rn(float a) {
    return sqrtf(a);
}

inline float exp2_approx(float x) {
    return exp2f(x);
}

inline uint32_t bits_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// One thread runs at a time: these are atomic.
template <typename T> T atomicAdd(T *address, T value) {
    static_assert(std::is_integral_v<T>, "the order of atomic additions is not fixed: integers only");
    T old = *address;
    *address = old + value;
    return old;
}

template <typename T> T atomicOr(T *address, T value) {
    static_assert(std::is_integral_v<T>, "integers only");
    T old = *address;
    *address = old | value;
    return old;
}
