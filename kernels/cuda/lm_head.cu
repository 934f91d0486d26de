// The language model head: log-probabilities of given tokens, and their gradient. Logits are float32 and exist only for
// one block of rows, or for one part of the vocabulary, at a time.
#include <assert.h>

#include "kernels/cuda/products.h"
#include "kernels/cuda/rows.h"

enum {
    block_logits = 1 << 27, // logits of a block of rows: 512 MiB,
    block_rows_least = 128, // or 128 rows
    part_vocabulary = 8192, // tokens of the vocabulary whose gradients exist at a time; sums depend on it
    dlogits_threads = 256,
};

// A column of numbers of a tensor [T,1].
template <typename T> struct lm_head_column {
    T *data;
    int64_t stride;

    __device__ T &operator[](int64_t row) const {
        return data[row * stride];
    }
};

template <typename T> static struct lm_head_column<T> lm_head_column_of(struct tensor t) {
    return {(T *)tensor_row(t, 0), t.stride};
}

// A dense tensor in scratch memory is an operand and an output of products.
static struct operand
lm_head_operand(const void *data, int64_t rows, int64_t columns, bool transposed) {
    return {data, transposed ? columns : rows, transposed ? rows : columns, columns, transposed};
}

static bool lm_head_arguments_fit(struct tensor in, const struct weight *lm_head, struct tensor targets) {
    return tensor_is(in, (int)lm_head->plain.type, in.rows, lm_head->plain.columns) &&
           tensor_is(targets, ELEMENT_I32, in.rows, 1);
}

// ---- log-probabilities ----

// One block a row. A row whose target is outside the vocabulary stays as it was.
__global__ void __launch_bounds__(logits_threads)
    logprob_kernel(const float *all_logits, int vocabulary, struct lm_head_column<const int32_t> targets,
                   struct lm_head_column<float> logprob, struct lm_head_column<float> lse, uint32_t *reports) {
    const float *logits = all_logits + (int64_t)blockIdx.x * vocabulary;
    float max = logits_max(logits, vocabulary, dynamic_shared());
    float row_lse = logits_lse(logits, vocabulary, max, dynamic_shared());
    if (threadIdx.x > 0) return;
    int32_t target = targets[blockIdx.x];
    if (target < 0 || target >= vocabulary) {
        report_error(reports, CUDA_REPORT_TARGET);
        return;
    }
    logprob[blockIdx.x] = add_rn(logits[target], -row_lse);
    if (lse.data) lse[blockIdx.x] = row_lse;
}

status cuda_logprob(struct backend *backend, struct tensor logprob, struct tensor lse, struct tensor in,
                    struct weight *lm_head, struct tensor targets) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t vocabulary = lm_head->plain.rows, block = (int64_t)block_logits / vocabulary;
    CHECK(lm_head_arguments_fit(in, lm_head, targets) && tensor_is(logprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, in.rows, 1));
    if (block < block_rows_least) block = block_rows_least;
    if (block > in.rows) block = in.rows;
    float *logits;
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_LOGITS, (size_t)(block * vocabulary) * sizeof *logits, &logits));
    for (int64_t first = 0; first < in.rows; first += block) {
        int64_t rows = in.rows - first < block ? in.rows - first : block;
        TRY(product_logits(cuda, logits, tensor_rows(in, first, rows), lm_head->plain));
        LAUNCH(logprob_kernel, (unsigned)rows, logits_threads, logits_warps * sizeof(double), cuda->stream, logits,
               (int)vocabulary, lm_head_column_of<const int32_t>(tensor_rows(targets, first, rows)),
               lm_head_column_of<float>(tensor_rows(logprob, first, rows)),
               lm_head_column_of<float>(tensor_none(lse) ? lse : tensor_rows(lse, first, rows)), cuda->reports);
    }
    return cuda_launched("logprob");
}

// ---- the gradient of log-probabilities ----

// Some columns of logits and of their gradients, dense.
struct dlogits {
    const float *logits;
    void *out; // may be `logits`
    enum element type;
    int columns;
    int64_t token, vocabulary; // the part's first token
};

// out = dlogprob * (onehot(target) - softmax(logits)); zeros for a target outside the vocabulary. One block for
// dlogits_threads columns of a row.
__global__ void __launch_bounds__(dlogits_threads)
    dlogits_kernel(struct dlogits part, struct lm_head_column<const int32_t> targets,
                   struct lm_head_column<const float> lse, struct lm_head_column<const float> dlogprob,
                   uint32_t *reports) {
    int column = (int)(blockIdx.y * dlogits_threads + threadIdx.x);
    if (column >= part.columns) return;
    int64_t row = blockIdx.x, at = row * part.columns + column;
    int32_t target = targets[row];
    float sum = mul_rn(-dlogprob[row], logits_weight(part.logits[at], lse[row], 1));
    if (target == part.token + column) sum = add_rn(sum, dlogprob[row]);
    if (target < 0 || target >= part.vocabulary) {
        report_error(reports, CUDA_REPORT_TARGET);
        sum = 0;
    }
    if (part.type == ELEMENT_F32)
        ((float *)part.out)[at] = sum;
    else
        ((struct bf16 *)part.out)[at] = bf16_from_f32(sum);
}

struct logprob_grad {
    struct tensor in, plain, targets, lse, dlogprob, grad_lm_head;
    float *logits, *grad_in; // float32 sums of the gradient of `in`, over the parts of the vocabulary
    int64_t grad_in_stride;
    void *dlogits; // in the type of `in`
};

// The tokens [token, token + columns) of the vocabulary, for all rows.
static status lm_head_grad_part(struct cuda_backend *cuda, const struct logprob_grad *g, int64_t token,
                                int64_t columns) {
    int64_t rows = g->in.rows;
    struct tensor plain = tensor_rows(g->plain, token, columns);
    TRY(product_logits(cuda, g->logits, g->in, plain));
    struct dlogits part = {g->logits, g->dlogits, g->in.type, (int)columns, token, g->plain.rows};
    LAUNCH(dlogits_kernel, dim3((unsigned)rows, (unsigned)((columns + dlogits_threads - 1) / dlogits_threads)),
           dlogits_threads, 0, cuda->stream, part, lm_head_column_of<const int32_t>(g->targets),
           lm_head_column_of<const float>(g->lse), lm_head_column_of<const float>(g->dlogprob), cuda->reports);
    struct product p = {lm_head_operand(g->dlogits, rows, columns, false),
                        operand_of(plain, true),
                        g->in.type,
                        g->grad_in,
                        ELEMENT_F32,
                        g->grad_in_stride,
                        NULL,
                        ELEMENT_F32,
                        token > 0};
    TRY(product_run(cuda, &p));
    if (tensor_none(g->grad_lm_head)) return cuda_launched("logprob_grad");
    p = product_of(tensor_rows(g->grad_lm_head, token, columns), lm_head_operand(g->dlogits, rows, columns, true),
                   operand_of(g->in, true), g->in.type);
    p.add = true;
    return product_run(cuda, &p);
}

// The tokens of the part that begins with `token`.
static int64_t lm_head_part(int64_t vocabulary, int64_t token) {
    int64_t left = vocabulary - token;
    return left < part_vocabulary ? left : (int64_t)part_vocabulary;
}

// All rows at once, so that the head's gradient is read, added to and rounded once.
status cuda_logprob_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
                         struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t vocabulary = lm_head->plain.rows, most = lm_head_part(vocabulary, 0);
    CHECK(!lm_head->prepacked && lm_head_arguments_fit(in, lm_head, targets));
    CHECK(tensor_is(grad_in, -1, in.rows, in.columns));
    CHECK(tensor_is(lse, ELEMENT_F32, in.rows, 1) && tensor_is(dlogprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_none(grad_lm_head) || tensor_is(grad_lm_head, -1, vocabulary, in.columns));
    if (in.rows == 0) return OK;
    struct logprob_grad g = {in, lm_head->plain, targets, lse, dlogprob, grad_lm_head, NULL, NULL, in.columns, NULL};
    size_t logits = (size_t)(in.rows * most), sums = (size_t)(in.rows * in.columns);
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_LOGITS, logits * sizeof(float), &g.logits));
    g.dlogits = g.logits; // in place, unless products are of another type
    if (in.type != ELEMENT_F32)
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_DLOGITS, logits * element_size(in.type), &g.dlogits));
    if (grad_in.type == ELEMENT_F32) {
        g.grad_in = (float *)tensor_row(grad_in, 0);
        g.grad_in_stride = grad_in.stride;
    } else {
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_GRAD_IN, sums * sizeof(float), &g.grad_in));
    }
    for (int64_t token = 0; token < vocabulary; token += part_vocabulary)
        TRY(lm_head_grad_part(cuda, &g, token, lm_head_part(vocabulary, token)));
    if (grad_in.type == ELEMENT_F32) return OK;
    return cuda_convert(cuda, tensor_row(grad_in, 0), grad_in.type, grad_in.stride, g.grad_in, ELEMENT_F32, in.columns,
                        in.rows, in.columns);
}
