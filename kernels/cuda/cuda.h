// What the files of the CUDA backend share, in C and in C++: its struct, views of tensors and their checks, scratch
// memory, errors, and the list of operations.
//
// Every operation NAME of kernels/ops.h is the function cuda_NAME. Its kernels and the host function that starts them
// are in one .cu file. All work of a backend is in one stream, in the order of the calls. The same sources are compiled
// for GPUs and, with g++, for the emulator (device.h).
#pragma once

#include <assert.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h"
#include "shared/base/memory.h"

// Scratch memory, by what it is used for. One operation at a time uses a slot.
enum cuda_scratch_slot {
    CUDA_SCRATCH_CONVERT,   // values of an upload or a download, in the other type
    CUDA_SCRATCH_SUMS,      // sums of blocks, which are added up afterwards
    CUDA_SCRATCH_LOGITS,    // a block of logits
    CUDA_SCRATCH_DLOGITS,   // the gradients of a block of logits, in bfloat16
    CUDA_SCRATCH_GRAD_IN,   // float32 sums of the gradient of the head's input
    CUDA_SCRATCH_ATTENTION, // sums of its gradient
    CUDA_SCRATCH_A,         // copies of a product's matrices whose rows are not aligned
    CUDA_SCRATCH_B,
    CUDA_SCRATCH_OUT,
    CUDA_SCRATCH_SLOTS,
};

// Broken promises about contents, which kernels find (report_error of device.h). One bit each.
enum cuda_report {
    CUDA_REPORT_INDEX = 1,    // of a row of a table
    CUDA_REPORT_SLOT = 2,     // of a row of a key/value cache
    CUDA_REPORT_TARGET = 4,   // a token outside the vocabulary
    CUDA_REPORT_POSITION = 8, // a row outside a rope table
};

struct buffer {
    unsigned char *data; // on the device, aligned to 256
    size_t bytes;
    bool imported; // another process's memory
    bool exported; // other processes may have it
};

struct cuda_staging; // pinned host memory through which uploads and downloads go (buffer.c)

struct cuda_backend {
    struct backend base;
    int device;
    char name[24];          // "cuda:0"
    char kind[256];         // "NVIDIA H100 80GB HBM3"
    cudaUUID_t uuid;        // of the GPU
    int compute_capability; // 80, 90, ...
    int processors;         // streaming multiprocessors
    cudaStream_t stream;
    uint32_t *reports; // on the device: the bits of enum cuda_report that kernels have set since the last wait
    struct cuda_staging *staging;
    struct lt *lt;     // cuBLASLt, NULL if it is not there (cublaslt.cu)
    struct nccl *nccl; // NCCL, NULL if nobody has asked for it or it is not there (nccl.c)
    struct buffer scratch[CUDA_SCRATCH_SLOTS];
    struct graph *recording; // operations are recorded into it, and may not allocate or wait; NULL: they are computed
    int graphs;              // that exist
    void **outgrown;         // scratch memory that graphs may still use
    size_t outgrown_count;
};

#ifdef CARAVAN_EMULATED
#define DEVICE_NAME "emulated"
#else
#define DEVICE_NAME "cuda"
#endif

// Returns the backend, and makes its GPU the one of the calling thread. Every operation begins with it.
struct cuda_backend *cuda_of(struct backend *backend);

// ---- errors ----

// Returns UNAVAILABLE with the text of `error`; BUG for an error that only a wrong argument or a wrong kernel causes.
status cuda_failed(cudaError_t error, const char *expression);

#ifdef __clang_analyzer__ // it does not see that the function never returns OK
#define cuda_failed(error, expression) ((cuda_failed)((error), (expression)), UNAVAILABLE)
#endif

// Returns from the enclosing function with cuda_failed unless the runtime's call succeeds.
#define CUDA_TRY(expression)                                                                                           \
    do {                                                                                                               \
        cudaError_t cuda_try_error = (expression);                                                                     \
        if (cuda_try_error != cudaSuccess) {                                                                           \
            status cuda_try_status = cuda_failed(cuda_try_error, #expression);                                         \
            fail_trace(cuda_try_status, #expression, __FILE__, __LINE__);                                              \
            return cuda_try_status;                                                                                    \
        }                                                                                                              \
    } while (0)

// Returns OK if the launches since the last call were accepted; otherwise BUG or UNAVAILABLE with `operation`. The
// last line of a host function that starts kernels: return cuda_launched("rmsnorm").
status cuda_launched(const char *operation);

// ---- memory ----

// *out = the address of at least `bytes` bytes on the device, aligned to 256, of undefined content, valid until the
// next call for this slot; what graphs were recorded with stays valid as long as there are graphs. A slot never
// shrinks, so that a repeated step allocates nothing. UNAVAILABLE when memory is short, BUG when it would have to grow
// while a graph is recorded. `out` is the address of a pointer.
status cuda_scratch(struct cuda_backend *cuda, enum cuda_scratch_slot slot, size_t bytes, void *out);

// Returns the offset of `bytes` bytes of a buffer that is divided among arrays, aligned to 256; *end moves behind them.
static inline size_t cuda_place(size_t *end, size_t bytes) {
    size_t at = *end;
    *end = (at + bytes + 255) / 256 * 256;
    return at;
}

// The same as a dense tensor, *out; a slot is one buffer.
status cuda_scratch_tensor(struct cuda_backend *cuda, enum cuda_scratch_slot slot, enum element type, int64_t rows,
                           int64_t columns, struct tensor *out);

// Frees scratch memory that was outgrown while there were graphs.
void cuda_scratch_free_outgrown(struct cuda_backend *cuda);

// out = in, converted between float types or copied; both have the same shape (gather_scatter.cu). Does not wait.
status cuda_convert(struct cuda_backend *cuda, struct tensor out, struct tensor in);

// *out = new staging memory. The caller frees it with cuda_staging_free, also when this fails. UNAVAILABLE.
status cuda_staging_new(struct cuda_staging **out);

// NULL is fine; sets *staging to NULL.
void cuda_staging_free(struct cuda_staging **staging);

// ---- libraries ----

// Calls `load` with one file after another that a library of NVIDIA may be, until it returns true: `names`, up to NULL,
// for which the loader looks; then `file`, a pattern, in the places where it is installed. Returns whether it did.
bool cuda_find_library(const char *const *names, const char *file, bool (*load)(void *self, const char *path),
                       void *self);

// ---- tensors ----

// Whether elements can be copied, or converted between float types.
static inline bool elements_convertible(enum element out, enum element in) {
    static_assert(ELEMENT_F32 < ELEMENT_F16 && ELEMENT_BF16 < ELEMENT_F16 && ELEMENT_F16 < ELEMENT_I32,
                  "the float types come first");
    return out == in || (out <= ELEMENT_F16 && in <= ELEMENT_F16);
}

// Whether the view lies within its buffer.
static inline bool tensor_fits(struct tensor t) {
    return !tensor_none(t) && tensor_within(t, t.buffer->bytes);
}

// Whether the view lies within its buffer and has this type and shape; type -1 means F32 or BF16.
static inline bool tensor_is(struct tensor t, int type, int64_t rows, int64_t columns) {
    return tensor_shaped(t, type, rows, columns) && tensor_fits(t);
}

// The device's address of a row's first element; NULL if the tensor is none.
static inline void *tensor_row(struct tensor t, int64_t row) {
    if (tensor_none(t)) return NULL;
    return t.buffer->data + t.offset + (size_t)(row * t.stride) * element_size(t.type);
}

// Whether every row begins at a multiple of 16 bytes.
static inline bool tensor_aligned16(struct tensor t) {
    return t.offset % 16 == 0 && (t.rows <= 1 || (size_t)t.stride * element_size(t.type) % 16 == 0);
}

// ---- operations ----

// Every operation that this backend has.
#define CUDA_OPERATIONS(X)                                                                                             \
    BACKEND_OPERATIONS(X)                                                                                              \
    X(buffer_export)                                                                                                   \
    X(buffer_import)                                                                                                   \
    X(comm_library)                                                                                                    \
    X(comm_id)                                                                                                         \
    X(comm_new)                                                                                                        \
    X(comm_free)                                                                                                       \
    X(comm_exchange)                                                                                                   \
    X(comm_test)                                                                                                       \
    X(graph_begin)                                                                                                     \
    X(graph_end)                                                                                                       \
    X(graph_launch)                                                                                                    \
    X(graph_free)

#define CUDA_DECLARE(name) extern __typeof__(*((struct operations *)0)->name) cuda_##name;
CUDA_OPERATIONS(CUDA_DECLARE)

#ifdef __cplusplus
}
#endif
