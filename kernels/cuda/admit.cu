// Which algorithm of cuBLASLt gives the canonical bits (products.h): each that is proposed is compared with the own
// product, bit by bit, at several numbers of tokens.
//
// Why some numbers of tokens stand for all of a class: an algorithm is one kernel with fixed tiles. How it adds up a
// tile could change with the number of tokens at some threshold, which shows because both ends of the class are tried;
// or with the number of tiles, where blocks share sums to fill the GPU (stream-K), for which they would have to
// exchange parts of sums, and there is no workspace for that (lt.c). In a weight's gradient the tokens are the inner
// length, so a threshold, or sums that are begun anew after so many elements, again show at an end of the class.
// Lengths that are no multiple of a step are tried too.
//
// The first algorithm of equal bits serves, in cuBLASLt's own order, which goes by the time that it expects for the
// shape itself. A clock would compare the trials, whose matrices may be smaller, and would choose otherwise in every
// run.
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/lt.h"

enum {
    admit_threads = 256,
    admit_most_blocks = 1024,
    admit_operand_elements = 1 << 25, // at most, in a trial: 64 MiB
    admit_outputs = 4096,             // rows, and columns, of a trial's output at most
    admit_tile = 128,                 // rows and columns are left out in multiples of it
    admit_numbers = 3,                // of tokens that are tried
    admit_pair_apart = 32,            // inner elements that have one pair of large ones
};

// ---- elements ----

// Numbers to be made: element (outer, inner) is at outer * outer_stride + inner * inner_stride.
struct admit_fill {
    void *data;
    int64_t outer, inner, outer_stride, inner_stride;
    enum element type;
    uint64_t seed;
    bool pairs;   // some are large
    bool negated; // one of each pair is negative
};

// Elements that show in which order products are added. Most are uniform in [-2, 2). Among each 32 inner elements, one
// of the first and one of the last sixteen are large: 1024 in b, and in a 1024 and -1024 in an order that is the row's.
// Their products cancel, but what lies between them, and the sum before, lose their low bits beside 2^20: how much of
// the output is lost, and where, depends on the order.
DEVICE float admit_value(const struct admit_fill *f, int64_t outer, int64_t k) {
    int64_t group = k / admit_pair_apart, at = k % admit_pair_apart;
    uint64_t own = mix64(f->seed ^ mix64((uint64_t)(outer * f->inner + k))), places = mix64((uint64_t)group);
    bool whole = (group + 1) * admit_pair_apart <= f->inner;
    if (f->pairs && whole && at % 16 == (int64_t)(at < 16 ? places % 16 : places / 16 % 16)) {
        bool negative = f->negated && (at < 16) == (mix64((uint64_t)(outer + group)) % 2 == 0);
        return negative ? -1024.0f : 1024.0f;
    }
    return mul_rn((float)(int32_t)(uint32_t)own, 0x1p-30f);
}

__global__ void __launch_bounds__(admit_threads) admit_fill_kernel(struct admit_fill f) {
    int64_t count = f.outer * f.inner, step = (int64_t)gridDim.x * admit_threads;
    for (int64_t i = (int64_t)blockIdx.x * admit_threads + threadIdx.x; i < count; i += step) {
        int64_t outer = i / f.inner, k = i % f.inner, at = outer * f.outer_stride + k * f.inner_stride;
        float value = admit_value(&f, outer, k);
        if (f.type == ELEMENT_F32)
            ((float *)f.data)[at] = value;
        else
            ((struct bf16 *)f.data)[at] = bf16_from_f32(value);
    }
}

static unsigned admit_blocks(int64_t count) {
    int64_t blocks = (count + admit_threads - 1) / admit_threads;
    return (unsigned)(blocks < admit_most_blocks ? blocks : (int64_t)admit_most_blocks);
}

static void admit_fill_operand(struct cuda_backend *cuda, void *data, struct operand *o, uint64_t seed, bool negated) {
    struct admit_fill f = {
        data, o->outer, o->inner, o->transposed ? 1 : o->stride, o->transposed ? o->stride : 1, ELEMENT_BF16,
        seed, true,     negated};
    LAUNCH(admit_fill_kernel, admit_blocks(o->outer * o->inner), admit_threads, 0, cuda->stream, f);
    o->data = data;
}

static void admit_fill_rows(struct cuda_backend *cuda, void *data, enum element type, int64_t rows, int64_t columns,
                            uint64_t seed) {
    struct admit_fill f = {data, rows, columns, columns, 1, type, seed, false, false};
    LAUNCH(admit_fill_kernel, admit_blocks(rows * columns), admit_threads, 0, cuda->stream, f);
}

// Sets *differ if the words are not the same.
__global__ void __launch_bounds__(admit_threads)
    admit_compare_kernel(const uint16_t *a, const uint16_t *b, int64_t count, uint32_t *differ) {
    int64_t step = (int64_t)gridDim.x * admit_threads;
    for (int64_t i = (int64_t)blockIdx.x * admit_threads + threadIdx.x; i < count; i += step)
        if (a[i] != b[i]) atomicOr(differ, 1u);
}

// ---- trials ----

// A product in memory of its own, all of it one allocation.
struct admit_trial {
    struct product product; // its output is the canonical one
    void *memory, *out;     // the algorithm's output
    uint32_t *differ;
};

static int64_t admit_padded(int64_t columns) {
    return (columns + 7) / 8 * 8;
}

static struct operand admit_operand(int64_t outer, int64_t inner, bool transposed) {
    return {NULL, outer, inner, admit_padded(transposed ? outer : inner), transposed};
}

// A product of a shape, with rows of whole 16 bytes and without data.
static struct product admit_product(const struct lt_shape *shape) {
    struct product p = {};
    p.a = admit_operand(shape->a_outer, shape->inner, shape->flags & LT_A_TRANSPOSED);
    p.b = admit_operand(shape->b_outer, shape->inner, shape->flags & LT_B_TRANSPOSED);
    p.type = ELEMENT_BF16;
    p.out_type = p.bias_type = shape->flags & LT_OUT_F32 ? ELEMENT_F32 : ELEMENT_BF16;
    p.out_stride = admit_padded(shape->b_outer);
    p.add = shape->flags & LT_ADD;
    return p;
}

// An outer length of a trial, which is smaller if memory would be large.
static int64_t admit_cut(int64_t outer, int64_t inner) {
    int64_t most = admit_operand_elements / inner / admit_tile * admit_tile;
    if (most > admit_outputs) most = admit_outputs;
    return outer <= most + admit_tile ? outer : most + outer % admit_tile;
}

static size_t admit_place(size_t *end, int64_t count, enum element type) {
    size_t at = *end;
    *end = (at + (size_t)count * element_size(type) + 255) / 256 * 256;
    return at;
}

static int64_t admit_operand_size(const struct operand *o) {
    return (o->transposed ? o->inner : o->outer) * o->stride;
}

// Allocates and fills a trial, and computes its canonical output. *fits = false if memory is too short. The caller
// frees out->memory in every case.
static status admit_trial_new(struct cuda_backend *cuda, const struct lt_shape *shape, struct admit_trial *out,
                              bool *fits) {
    struct lt_shape cut = *shape;
    cut.a_outer = admit_cut(shape->a_outer, shape->inner);
    cut.b_outer = admit_cut(shape->b_outer, shape->inner);
    struct product p = admit_product(&cut);
    int64_t count = cut.a_outer * p.out_stride;
    size_t end = 0, a = admit_place(&end, admit_operand_size(&p.a), ELEMENT_BF16),
           b = admit_place(&end, admit_operand_size(&p.b), ELEMENT_BF16),
           bias = admit_place(&end, cut.b_outer, p.out_type), canonical = admit_place(&end, count, p.out_type),
           given = admit_place(&end, count, p.out_type), differ = admit_place(&end, 1, ELEMENT_F32);
    *fits = cut.a_outer > 0 && cut.b_outer > 0 && cudaMalloc(&out->memory, end) == cudaSuccess;
    if (!*fits) {
        (void)cudaGetLastError();
        return OK;
    }
    char *data = (char *)out->memory;
    admit_fill_operand(cuda, data + a, &p.a, 1, true);
    admit_fill_operand(cuda, data + b, &p.b, 2, false);
    p.bias = shape->flags & LT_BIAS ? data + bias : NULL;
    p.out = data + canonical;
    out->product = p;
    out->out = data + given;
    out->differ = (uint32_t *)(data + differ);
    admit_fill_rows(cuda, data + bias, p.bias_type, 1, cut.b_outer, 3);
    admit_fill_rows(cuda, p.out, p.out_type, cut.a_outer, p.out_stride, 4);
    return gemm_bf16(cuda, &p);
}

// *equal = whether the algorithm gives the canonical bits.
static status admit_trial_run(struct cuda_backend *cuda, const struct admit_trial *trial,
                              const cublasLtMatmulAlgo_t *algo, bool *equal) {
    struct product p = trial->product;
    int64_t words = p.a.outer * p.out_stride * (int64_t)(element_size(p.out_type) / sizeof(uint16_t));
    uint32_t differ;
    *equal = false;
    CUDA_TRY(cudaMemsetAsync(trial->differ, 0, sizeof differ, cuda->stream));
    p.out = trial->out;
    admit_fill_rows(cuda, p.out, p.out_type, p.a.outer, p.out_stride, 4);
    if (!lt_run(cuda, &p, algo)) return OK;
    LAUNCH(admit_compare_kernel, admit_blocks(words), admit_threads, 0, cuda->stream,
           (const uint16_t *)trial->product.out, (const uint16_t *)p.out, words, trial->differ);
    TRY(cuda_launched("admit_compare"));
    CUDA_TRY(cudaMemcpyAsync(&differ, trial->differ, sizeof differ, cudaMemcpyDeviceToHost, cuda->stream));
    CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    *equal = differ == 0;
    return OK;
}

// Leaves the candidates that give the canonical bits for a shape; asks for them first if there are none yet.
static status admit_filter(struct cuda_backend *cuda, const struct lt_shape *shape, cublasLtMatmulAlgo_t *candidates,
                           int *count, bool *fits) {
    struct admit_trial trial = {};
    status result;
    int kept = 0;
    TRY_TO(result, done, admit_trial_new(cuda, shape, &trial, fits));
    if (!*fits) goto done;
    if (*count < 0) {
        struct product whole = admit_product(shape);
        whole.bias = trial.product.bias;
        lt_candidates(cuda->lt, &whole, candidates, count);
    }
    for (int i = 0; i < *count; i++) {
        bool equal;
        TRY_TO(result, done, admit_trial_run(cuda, &trial, &candidates[i], &equal));
        if (equal) candidates[kept++] = candidates[i];
    }
    *count = kept;
done:
    (void)cudaFree(trial.memory);
    return result;
}

status admit_algorithm(struct cuda_backend *cuda, struct lt_entry *entry, bool *tried) {
    struct lt_shape shape = entry->shape;
    int64_t *tokens = shape.flags & LT_A_TRANSPOSED ? &shape.inner : &shape.a_outer, most = *tokens;
    const int64_t numbers[admit_numbers] = {most, most / 2 + 1, most - most / 4 - 3}; // both ends, and an odd one
    cublasLtMatmulAlgo_t candidates[LT_CANDIDATES];
    int count = -1; // not asked yet
    *tried = true;
    for (int i = 0; i < admit_numbers && count != 0 && *tried; i++) {
        *tokens = numbers[i];
        TRY(admit_filter(cuda, &shape, candidates, &count, tried));
    }
    entry->admitted = *tried && count > 0;
    if (entry->admitted) entry->algo = candidates[0];
    return OK;
}
