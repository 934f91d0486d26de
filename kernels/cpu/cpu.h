// What the files of the CPU backend share: its struct, pages and scratch memory (buffer.c), parallel loops, views of
// tensors and conversions (cpu.c), and the list of operations.
//
// Every operation NAME of kernels/ops.h is the function cpu_NAME. Its body is plain C and takes its inner loops from
// the SIMD table (simd.h), which the processor's capabilities overwrite.
#pragma once

#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "shared/base/pool.h"

// Scratch memory, by what it is used for. One operation at a time uses a slot.
enum scratch_slot {
    SCRATCH_PACKED,     // a weight, packed for one product
    SCRATCH_TRANSPOSED, // a weight, packed for the gradient of its input
    SCRATCH_OPERAND,    // activations, packed for the gradient of a weight
    SCRATCH_GEMM,       // for each thread: a tile, rows, oneDNN's own scratch memory
    SCRATCH_GEMM_ROWS,  // rows, packed for the matrix unit
    SCRATCH_LOGITS,     // a block of logits
    SCRATCH_DLOGITS,    // the gradients of a block of logits, in bfloat16
    SCRATCH_GRAD_IN,    // float32 sums of the gradient of the head's input
    SCRATCH_GRAD_HEAD,  // float32 sums of the gradient of a part of the head
    SCRATCH_ROWS,       // for each thread: rows in float32
    SCRATCH_ATTENTION,  // scores, a share for each thread
    SCRATCH_SUMS,       // partial sums; the bias of a product in float32
    SCRATCH_SLOTS,
};

// Whole pages of memory (buffer.c).
struct pages {
    void *data;
    size_t bytes;
};

struct buffer {
    unsigned char *data;
    size_t bytes;
    struct pages pages;             // the memory of `data`; none for a small buffer, which is on the heap
    struct buffer *previous, *next; // in the backend's list
};

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    struct simd simd;
    struct buffer *buffers; // every buffer that exists
    struct pages *idle;     // pages that wait for reuse
    size_t idle_count, idle_bytes, used_bytes, peak_bytes;
    struct pages scratch[SCRATCH_SLOTS];
    struct onednn *onednn; // its products, by shape (onednn.h)
    bool amx;              // the matrix unit computes products of bfloat16 (amx.h)
    int f32_parts;         // and those of float32, from so many parts; 0: oneDNN does
    size_t heap_bytes;     // a buffer of fewer bytes is on the heap
};

// *out = at least `bytes` bytes, aligned to 64, of undefined content, valid until the next call for this slot. A slot
// never shrinks, so that a repeated step allocates nothing. UNAVAILABLE when memory is short.
status cpu_scratch(struct cpu_backend *cpu, enum scratch_slot slot, size_t bytes, void *out);

// *out = a tensor of undefined content in scratch memory; *buffer, which the caller keeps as long as the tensor, is the
// buffer that it refers to. UNAVAILABLE when memory is short.
status cpu_scratch_tensor(struct cpu_backend *cpu, enum scratch_slot slot, struct buffer *buffer, struct tensor *out,
                          enum element type, int64_t rows, int64_t columns);

// *out = new zeroed pages of at least `bytes` bytes. The caller unmaps them. UNAVAILABLE when memory is short.
status pages_map(size_t bytes, struct pages *out);

// Returns pages to the system and clears *pages. Zeroed pages are fine.
void pages_unmap(struct pages *pages);

// *out = pages of at least `bytes` bytes, of undefined content: idle ones of about that size, or new ones. The caller
// puts them back with pages_put. UNAVAILABLE when memory is short.
status pages_get(struct cpu_backend *cpu, size_t bytes, struct pages *out);

// Keeps pages for the next pages_get and clears *pages. Zeroed pages are fine.
void pages_put(struct cpu_backend *cpu, struct pages *pages);

// Returns the idle pages to the system.
void pages_release_idle(struct cpu_backend *cpu);

// What a task of a parallel loop works on: the elements [first, end), in the thread with this number.
struct task_range {
    int64_t first, end;
    int thread;
};

// Calls work for the ranges [0,block), [block,2 block) ... of [0,count), distributed over the threads, and waits for
// all of them. The ranges depend on count and block alone; a block below 1 means 1.
void parallel_for(struct cpu_backend *cpu, int64_t count, int64_t block,
                  void (*work)(void *context, struct task_range range), void *context);

static inline struct cpu_backend *cpu_of(struct backend *backend) {
    return (struct cpu_backend *)backend;
}

// Whether the view lies within its buffer.
static inline bool tensor_fits(struct tensor t) {
    return !tensor_none(t) && tensor_within(t, t.buffer->bytes);
}

// Whether the view lies within its buffer and has this type and shape; type -1 means F32 or BF16.
static inline bool tensor_is(struct tensor t, int type, int64_t rows, int64_t columns) {
    return tensor_shaped(t, type, rows, columns) && tensor_fits(t);
}

// Whether `t` lies within its buffer, is I32 [rows, columns], and has numbers in [least, end) only.
bool tensor_in_range(struct tensor t, int64_t rows, int64_t columns, int32_t least, int64_t end);

// The address of a row's first element.
static inline void *tensor_row(struct tensor t, int64_t row) {
    size_t size = t.type == ELEMENT_U8 ? 1 : t.type == ELEMENT_F32 || t.type == ELEMENT_I32 ? 4 : 2;
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

// Row `row` of an F32 or BF16 tensor, for the row kernels; a view without data if the tensor is none.
static inline struct row_view row_view_of(struct tensor t, int64_t row) {
    if (tensor_none(t)) return (struct row_view){0};
    return (struct row_view){tensor_row(t, row), t.type == ELEMENT_BF16};
}

// From IEEE half.
static inline float f32_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    float magnitude;
    if (rest >= 0x7c00) { // infinity, NaN
        uint32_t bits = 0x7f800000 | (rest & 0x3ff) << 13;
        memcpy(&magnitude, &bits, 4);
    } else if (rest >= 0x400) {
        uint32_t bits = (rest << 13) + (112u << 23);
        memcpy(&magnitude, &bits, 4);
    } else {
        magnitude = (float)rest * 0x1p-24f;
    }
    uint32_t bits;
    memcpy(&bits, &magnitude, 4);
    bits |= sign;
    memcpy(&magnitude, &bits, 4);
    return magnitude;
}

// To IEEE half; rounds to nearest even, NaN becomes the quiet NaN of its sign.
static inline uint16_t f16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00; // 65520 and more
    if (bits < 0x38800000) {                      // below the smallest normal half: a multiple of 2^-24
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f; // aligns the last place to 2^-24 and rounds to even
        memcpy(&bits, &magnitude, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits >> 13) - (112u << 10));
}

// Row `row` of an F32, BF16 or F16 tensor as float32: the tensor's own memory if it is F32, otherwise converted into
// `scratch`.
const float *cpu_row_read(const struct cpu_backend *cpu, struct tensor t, int64_t row, float *scratch);

// Stores float32 values as row `row` of an F32, BF16 or F16 tensor, rounding to nearest even.
void cpu_row_write(const struct cpu_backend *cpu, struct tensor t, int64_t row, const float *values);

// Converts `count` elements. Both types are float types, or they are the same.
void cpu_convert(const struct cpu_backend *cpu, void *out, enum element to, const void *in, enum element from,
                 size_t count);

// out [1,C] F32 += the rows of `in`, in their order (gather_scatter.c).
void cpu_add_rows(struct cpu_backend *cpu, struct tensor out, struct tensor in);

// How many of `rows` rows of logits exist at a time (lm_head.c).
int64_t logits_block(int64_t rows, int64_t vocabulary);

// Returns log(sum(exp(logits))) of one row, summed in an order that depends on the vocabulary's size alone (lm_head.c).
float logits_lse(const struct cpu_backend *cpu, const float *logits, int64_t vocabulary);

// Opens the CPU's backend; the caller closes it with backend_close (kernels/ops.c).
status cpu_backend_open(struct backend **out, const struct backend_options *options);

// Returns UNAVAILABLE with the reason if products in `type` cannot be computed on this processor.
status cpu_supports(struct backend *backend, enum element type);

// Its memory is not shared, and it records no graphs.
#define CPU_DECLARE(name) extern __typeof__(*((struct operations *)0)->name) cpu_##name;
BACKEND_OPERATIONS(CPU_DECLARE)
