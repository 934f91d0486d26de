// The language model head: log-probabilities of given tokens, and their gradient. Logits are float32 and exist only for
// one block of rows, or for one part of the vocabulary, at a time.
#include <assert.h>

#include "kernels/cuda/products.h"
#include "kernels/cuda/rows.h"

enum {
    BLOCK_LOGITS = 1 << 27, // logits of a block of rows: 512 MiB,
    MIN_BLOCK_ROWS = 128,   // or 128 rows
    PART_VOCABULARY = 8192, // tokens of the vocabulary whose gradients exist at a time; sums depend on it
    DLOGITS_THREADS = 256,
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

static bool
lm_head_arguments_fit(struct tensor in, const struct weight *lm_head, struct tensor targets) {
    return tensor_is(in, (int)lm_head->plain.type, in.rows, lm_head->plain.columns) &&
           tensor_is(targets, ELEMENT_I32, in.rows, 1);
}

// ---- log-probabilities ----

// One block a row. A row whose target is outside the vocabulary stays as it was.
__global__ void __launch_bounds__(LOGITS_THREADS)
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
    int64_t vocabulary = lm_head->plain.rows, block = (int64_t)BLOCK_LOGITS / vocabulary;
    CHECK(lm_head_arguments_fit(in, lm_head, targets) && tensor_is(logprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, in.rows, 1));
    if (block < MIN_BLOCK_ROWS) block = MIN_BLOCK_ROWS;
    if (block > in.rows) block = in.rows;
    struct tensor logits;
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_LOGITS, ELEMENT_F32, block, vocabulary, &logits));
    for (int64_t first = 0; first < in.rows; first += block) {
        int64_t rows = in.rows - first < block ? in.rows - first : block;
        TRY(product_logits(cuda, tensor_rows(logits, 0, rows), tensor_rows(in, first, rows), lm_head->plain));
        LAUNCH(logprob_kernel, (unsigned)rows, LOGITS_THREADS, LOGITS_WARPS * sizeof(double), cuda->stream,
               (const float *)tensor_row(logits, 0), (int)vocabulary,
               lm_head_column_of<const int32_t>(tensor_rows(targets, first, rows)),
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
// DLOGITS_THREADS columns of a row.
__global__ void __launch_bounds__(DLOGITS_THREADS)
    dlogits_kernel(struct dlogits part, struct lm_head_column<const int32_t> targets,
                   struct lm_head_column<const float> lse, struct lm_head_column<const float> dlogprob,
                   uint32_t *reports) {
    int column = (int)(blockIdx.y * DLOGITS_THREADS + threadIdx.x);
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

// All rows at once, so that the head's gradient is read, added to and rounded once.
status cuda_logprob_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
                         struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t rows = in.rows, vocabulary = lm_head->plain.rows;
    int64_t most = vocabulary < PART_VOCABULARY ? vocabulary : (int64_t)PART_VOCABULARY;
    CHECK(!lm_head->prepacked && lm_head_arguments_fit(in, lm_head, targets));
    CHECK(tensor_is(grad_in, -1, rows, in.columns));
    CHECK(tensor_is(lse, ELEMENT_F32, rows, 1) && tensor_is(dlogprob, ELEMENT_F32, rows, 1));
    CHECK(tensor_none(grad_lm_head) || tensor_is(grad_lm_head, -1, vocabulary, in.columns));
    if (rows == 0) return OK;
    struct tensor logits, dlogits, sums = grad_in; // sums: float32, of the gradient of `in` over the parts
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_LOGITS, ELEMENT_F32, rows, most, &logits));
    dlogits = logits; // in place, unless products are of another type
    if (in.type != ELEMENT_F32) TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_DLOGITS, in.type, rows, most, &dlogits));
    if (grad_in.type != ELEMENT_F32)
        TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_GRAD_IN, ELEMENT_F32, rows, in.columns, &sums));
    for (int64_t token = 0; token < vocabulary; token += PART_VOCABULARY) {
        // The tokens [token, token + columns) of the vocabulary, for all rows.
        int64_t columns = vocabulary - token < most ? vocabulary - token : most;
        struct tensor plain = tensor_rows(lm_head->plain, token, columns);
        logits = tensor_reshape(logits, rows, columns);
        dlogits = tensor_reshape(dlogits, rows, columns);
        TRY(product_logits(cuda, logits, in, plain));
        struct dlogits part = {
            (const float *)tensor_row(logits, 0), tensor_row(dlogits, 0), in.type, (int)columns, token, vocabulary};
        LAUNCH(dlogits_kernel, dim3((unsigned)rows, (unsigned)((columns + DLOGITS_THREADS - 1) / DLOGITS_THREADS)),
               DLOGITS_THREADS, 0, cuda->stream, part, lm_head_column_of<const int32_t>(targets),
               lm_head_column_of<const float>(lse), lm_head_column_of<const float>(dlogprob), cuda->reports);
        TRY(cuda_launched("logprob_grad"));
        struct product p = product_of(sums, operand_of(dlogits, false), operand_of(plain, true), in.type);
        p.add = token > 0;
        TRY(product_run(cuda, &p));
        if (tensor_none(grad_lm_head)) continue;
        p = product_of(tensor_rows(grad_lm_head, token, columns), operand_of(dlogits, true), operand_of(in, true),
                       in.type);
        p.add = true;
        TRY(product_run(cuda, &p));
    }
    return grad_in.type == ELEMENT_F32 ? OK : cuda_convert(cuda, grad_in, sums);
}
