// What the files of the CPU backend share: its struct, views of tensors, conversions, scratch memory, loops.
//
// Every operation `name` of kernels/ops.h is the function cpu_name, in the file of its family. Its body is plain C and
// takes its inner loops from the SIMD table (simd.h), which the processor's capabilities overwrite.
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <string.h>

#include "kernels/cpu/simd.h"
#include "kernels/ops.h"
#include "shared/base/pool.h"

// What scratch memory is for. A place is used by one operation at a time.
enum scratch_slot {
    SCRATCH_PACKED,     // a weight prepared for this use only
    SCRATCH_TRANSPOSED, // the same for the gradient of its input
    SCRATCH_OPERAND,    // activations prepared for the gradient of a weight
    SCRATCH_GEMM,       // a tile, rows, oneDNN's own: a share for each thread
    SCRATCH_LOGITS,     // a block of logits
    SCRATCH_DLOGITS,    // their gradients in bfloat16
    SCRATCH_GRAD_IN,    // of the head's input, before they are rounded
    SCRATCH_ROWS,       // rows in float32, a share for each thread
    SCRATCH_ATTENTION,  // scores, a share for each thread
    SCRATCH_SUMS,       // partial sums
    SCRATCH_SLOTS,
};

// Whole pages of memory (blocks.c).
struct pages {
    void *data;
    size_t bytes;
};

struct buffer {
    unsigned char *data;
    size_t bytes;
    struct pages block;             // what holds the data; none for a small buffer, which is on the heap
    struct buffer *previous, *next; // in the backend's list
};

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    struct simd simd;
    struct buffer *buffers; // all that live
    struct pages *idle;     // blocks that were put back
    size_t idle_count, idle_bytes, used_bytes, most_bytes;
    struct pages scratch[SCRATCH_SLOTS];
    struct onednn *onednn; // its products, by shape (onednn.h)
    bool guarded;
    bool open; // guarded: buffers can be read at present
};

// *out = at least `bytes` bytes, aligned to 64, of unknown content, until the next call for this place. UNAVAILABLE
// when memory is short. It only grows, so that a repeated step allocates nothing.
status cpu_scratch(struct cpu_backend *cpu, enum scratch_slot place, size_t bytes, void *out);

// *out = fresh pages, zeroed. UNAVAILABLE when memory is short.
status pages_map(size_t bytes, struct pages *out);

// Returns pages to the system; none is fine. Clears *block.
void pages_unmap(struct pages *block);

// *out = a block of at least `bytes` bytes of unknown content, one that was put back where there is one of about that
// size. UNAVAILABLE when memory is short.
status pages_get(struct cpu_backend *cpu, size_t bytes, struct pages *out);

// Puts a block back for the next that asks; none is fine. Clears *block.
void pages_put(struct cpu_backend *cpu, struct pages *block);

// Returns the blocks that nobody uses to the system.
void pages_release_idle(struct cpu_backend *cpu);

// Calls work(context, first, end, thread) for the ranges [0,block), [block,2 block) ... of [0,count), shared among the
// threads. The ranges depend on count and block alone.
void parallel_for(struct cpu_backend *cpu, int64_t count, int64_t block,
                  void (*work)(void *context, int64_t first, int64_t end, int thread), void *context);

// Makes every buffer readable and writable (open) or neither; only in guarded mode.
void cpu_guard(struct cpu_backend *cpu, bool open);

// Fails with BUG, naming what does not hold: a caller broke the contract of ops.h.
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) return fail(BUG, "%s: not so: %s", __func__, #condition);                                    \
    } while (0)

static inline struct cpu_backend *cpu_of(struct backend *backend) {
    return (struct cpu_backend *)backend;
}

static inline bool tensor_none(struct tensor t) {
    return !t.buffer;
}

// Whether the view lies within its buffer.
bool tensor_fits(struct tensor t);

// Whether it fits and has this type and shape; type -1 means F32 or BF16.
bool tensor_is(struct tensor t, int type, int64_t rows, int64_t columns);

static inline bool tensor_dense(struct tensor t) {
    return t.stride == t.columns || t.rows <= 1;
}

// Where a row starts.
static inline void *tensor_row(struct tensor t, int64_t row) {
    size_t size = t.type == ELEMENT_U8 ? 1 : t.type == ELEMENT_BF16 || t.type == ELEMENT_F16 ? 2 : 4;
    return t.buffer->data + t.offset + (size_t)(row * t.stride) * size;
}

static inline float *tensor_f32(struct tensor t, int64_t row) {
    return tensor_row(t, row);
}

static inline uint16_t *tensor_bf16(struct tensor t, int64_t row) {
    return tensor_row(t, row);
}

static inline int32_t *tensor_i32(struct tensor t, int64_t row) {
    return tensor_row(t, row);
}

static inline float f32_from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// Rounds to nearest even; a NaN stays one.
static inline uint16_t bf16_from_f32(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(wide >> 16 | 0x40);
    return (uint16_t)((wide + 0x7fffu + (wide >> 16 & 1)) >> 16);
}

// Row `row` of an F32, BF16 or F16 tensor as float32: its own memory when it is F32, else converted into `room`.
const float *cpu_row_read(const struct cpu_backend *cpu, struct tensor t, int64_t row, float *room);

// Stores float32 values as row `row` of an F32, BF16 or F16 tensor, rounding to nearest even.
void cpu_row_write(const struct cpu_backend *cpu, struct tensor t, int64_t row, const float *values);

// `count` elements converted between types; both floats, or the same type.
void cpu_convert(const struct cpu_backend *cpu, void *out, enum element to, const void *in, enum element from,
                 size_t count);

// Fails with UNAVAILABLE where products in `type` cannot run on this processor.
status cpu_supports(struct cpu_backend *cpu, enum element type);

// Every operation of the contract.
#define CPU_OPERATIONS(X)                                                                                              \
    X(buffer_new)                                                                                                      \
    X(buffer_free)                                                                                                     \
    X(upload)                                                                                                          \
    X(download)                                                                                                        \
    X(zero)                                                                                                            \
    X(copy)                                                                                                            \
    X(wait)                                                                                                            \
    X(gather)                                                                                                          \
    X(scatter)                                                                                                         \
    X(scatter_add)                                                                                                     \
    X(add)                                                                                                             \
    X(patchify)                                                                                                        \
    X(weight_new)                                                                                                      \
    X(weight_free)                                                                                                     \
    X(linear)                                                                                                          \
    X(linear_grad_input)                                                                                               \
    X(linear_grad_weight)                                                                                              \
    X(rmsnorm)                                                                                                         \
    X(rmsnorm_grad)                                                                                                    \
    X(swiglu)                                                                                                          \
    X(swiglu_grad)                                                                                                     \
    X(gelu)                                                                                                            \
    X(gelu_grad)                                                                                                       \
    X(kv_cache_new)                                                                                                    \
    X(kv_cache_free)                                                                                                   \
    X(rope)                                                                                                            \
    X(rope_grad)                                                                                                       \
    X(attention)                                                                                                       \
    X(attention_grad)                                                                                                  \
    X(logprob)                                                                                                         \
    X(logprob_grad)                                                                                                    \
    X(sample)                                                                                                          \
    X(square_sum)                                                                                                      \
    X(adamw)                                                                                                           \
    X(ema)

#define CPU_DECLARE(name) extern __typeof__(*((struct operations *)0)->name) cpu_##name;
CPU_OPERATIONS(CPU_DECLARE)

extern const struct operations cpu_operations;         // plain
extern const struct operations cpu_guarded_operations; // opens the buffers for the time of a call

#endif
