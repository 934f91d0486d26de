// The language model head: log-probabilities of given tokens and their gradient. Logits are float32 and exist only for
// one block of rows at a time.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/gemm.h"

enum {
    BLOCK_LOGITS = 1 << 22, // logits of a block: 16 MiB,
    MIN_BLOCK_ROWS = 128,   // or 128 rows
    PART_VOCABULARY = 4096, // tokens of the vocabulary that are packed at a time
    GRAD_ROWS = 1024,       // rows whose logits of one part exist at a time
};

static_assert(PART_VOCABULARY % PACKED_BLOCK == 0, "a part begins at a packed block");

int64_t logits_block(int64_t rows, int64_t vocabulary) {
    int64_t most = BLOCK_LOGITS / vocabulary / MIN_BLOCK_ROWS * MIN_BLOCK_ROWS;
    return gemm_min(rows, most < MIN_BLOCK_ROWS ? MIN_BLOCK_ROWS : most);
}

float logits_lse(const struct cpu_backend *cpu, const float *logits, int64_t vocabulary) {
    float max = cpu->simd.row_max(logits, vocabulary);
    return (float)((double)max + log(cpu->simd.row_sum_exp(logits, vocabulary, max)));
}

// ---- log-probabilities ----

struct logprob_job {
    const struct cpu_backend *cpu;
    struct tensor logits, logprob, lse, targets; // the rows of one block
};

static void lm_head_logprob_task(void *context, struct task_range range) {
    const struct logprob_job *job = context;
    for (int64_t row = range.first; row < range.end; row++) {
        const float *logits = tensor_f32(job->logits, row);
        float lse = logits_lse(job->cpu, logits, job->logits.columns);
        *tensor_f32(job->logprob, row) = logits[*tensor_i32(job->targets, row)] - lse;
        if (!tensor_none(job->lse)) *tensor_f32(job->lse, row) = lse;
    }
}

status cpu_logprob(struct backend *backend, struct tensor logprob, struct tensor lse, struct tensor in,
                   struct weight *lm_head, struct tensor targets) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = lm_head->packed.outputs, block = logits_block(in.rows, vocabulary);
    // A head that is not prepacked is packed in parts.
    int64_t part = lm_head->packed.data ? vocabulary : PART_VOCABULARY;
    CHECK(tensor_is(in, (int)lm_head->packed.type, in.rows, lm_head->packed.inner) &&
          tensor_is(logprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_in_range(targets, in.rows, 1, 0, vocabulary));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, in.rows, 1));
    struct buffer buffer;
    struct tensor logits;
    TRY(cpu_scratch_tensor(cpu, SCRATCH_LOGITS, &buffer, &logits, ELEMENT_F32, block, vocabulary));
    for (int64_t first = 0; first < in.rows; first += block) {
        int64_t rows = gemm_min(block, in.rows - first);
        struct logprob_job job = {cpu, tensor_rows(logits, 0, rows), tensor_rows(logprob, first, rows), lse,
                                  tensor_rows(targets, first, rows)};
        if (!tensor_none(lse)) job.lse = tensor_rows(lse, first, rows);
        for (int64_t token = 0; token < vocabulary; token += part) {
            int64_t count = gemm_min(part, vocabulary - token);
            struct packed_matrix matrix;
            TRY(weight_packed(cpu, lm_head, token, count, &matrix));
            TRY(linear_packed(cpu, tensor_columns(job.logits, token, count), tensor_rows(in, first, rows), matrix,
                              (struct tensor){0}, false));
        }
        parallel_for(cpu, rows, 1, lm_head_logprob_task, &job);
    }
    return OK;
}

// ---- the gradient of log-probabilities ----

// Some rows of one part of the vocabulary.
struct dlogits_job {
    const struct cpu_backend *cpu;
    struct tensor logits, dlogits, targets, lse, dlogprob;
    int64_t token; // the part's first
};

// dlogits = dlogprob * (onehot(target) - softmax(logits)); in place if dlogits are F32.
static void lm_head_dlogits_task(void *context, struct task_range range) {
    const struct dlogits_job *job = context;
    int64_t columns = job->logits.columns;
    for (int64_t row = range.first; row < range.end; row++) {
        float *logits = tensor_f32(job->logits, row), dlogprob = *tensor_f32(job->dlogprob, row);
        int64_t target = *tensor_i32(job->targets, row) - job->token;
        job->cpu->simd.row_scaled_exp(logits, logits, columns, *tensor_f32(job->lse, row), 1, -dlogprob);
        if (target >= 0 && target < columns) logits[target] += dlogprob;
        if (job->dlogits.type != ELEMENT_F32) cpu_row_write(job->cpu, job->dlogits, row, logits);
    }
}

status cpu_logprob_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
                        struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = lm_head->packed.outputs;
    CHECK(tensor_is(in, (int)lm_head->packed.type, in.rows, lm_head->packed.inner) &&
          tensor_is(grad_in, -1, in.rows, in.columns));
    CHECK(tensor_in_range(targets, in.rows, 1, 0, vocabulary));
    CHECK(tensor_is(lse, ELEMENT_F32, in.rows, 1) && tensor_is(dlogprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_none(grad_lm_head) || tensor_is(grad_lm_head, -1, vocabulary, in.columns));
    struct buffer logits_buffer, dlogits_buffer, sums_buffer, head_buffer;
    struct tensor logits, dlogits, sums = grad_in; // F32: added up over the parts
    struct tensor head_sums = {0};                 // F32: of a part of a BF16 grad_lm_head, added up over the blocks
    int64_t block = gemm_min(in.rows, GRAD_ROWS), most = gemm_min(PART_VOCABULARY, vocabulary);
    TRY(cpu_scratch_tensor(cpu, SCRATCH_LOGITS, &logits_buffer, &logits, ELEMENT_F32, block, most));
    dlogits = logits; // in place, unless the products are of another type
    if (in.type != ELEMENT_F32)
        TRY(cpu_scratch_tensor(cpu, SCRATCH_DLOGITS, &dlogits_buffer, &dlogits, in.type, block, most));
    if (grad_in.type != ELEMENT_F32)
        TRY(cpu_scratch_tensor(cpu, SCRATCH_GRAD_IN, &sums_buffer, &sums, ELEMENT_F32, in.rows, in.columns));
    if (grad_lm_head.type != ELEMENT_F32)
        TRY(cpu_scratch_tensor(cpu, SCRATCH_GRAD_HEAD, &head_buffer, &head_sums, ELEMENT_F32, most, in.columns));
    for (int64_t token = 0; token < vocabulary; token += PART_VOCABULARY) {
        // The two packed forms of a part of the vocabulary serve all rows.
        int64_t columns = gemm_min(PART_VOCABULARY, vocabulary - token);
        struct packed_matrix matrix, transpose;
        TRY(weight_packed(cpu, lm_head, token, columns, &matrix));
        TRY(weight_packed_transpose(cpu, lm_head, token, columns, &transpose));
        struct tensor part = {0}, part_sums = {0}; // of grad_lm_head
        if (!tensor_none(grad_lm_head)) part = part_sums = tensor_rows(grad_lm_head, token, columns);
        if (!tensor_none(head_sums)) {
            part_sums = tensor_rows(head_sums, 0, columns);
            TRY(cpu_zero(backend, part_sums));
        }
        for (int64_t first = 0; first < in.rows; first += block) {
            int64_t rows = gemm_min(block, in.rows - first);
            struct tensor block_in = tensor_rows(in, first, rows);
            struct dlogits_job job = {cpu,
                                      tensor_reshape(logits, rows, columns),
                                      tensor_reshape(dlogits, rows, columns),
                                      tensor_rows(targets, first, rows),
                                      tensor_rows(lse, first, rows),
                                      tensor_rows(dlogprob, first, rows),
                                      token};
            TRY(linear_packed(cpu, job.logits, block_in, matrix, (struct tensor){0}, false));
            parallel_for(cpu, rows, 1, lm_head_dlogits_task, &job);
            TRY(linear_packed(cpu, tensor_rows(sums, first, rows), job.dlogits, transpose, (struct tensor){0},
                              token > 0));
            if (!tensor_none(part_sums))
                TRY(cpu_linear_grad_weight(backend, part_sums, (struct tensor){0}, job.dlogits, block_in));
        }
        if (!tensor_none(head_sums)) TRY(cpu_add(backend, part, part_sums));
    }
    return grad_in.type == ELEMENT_F32 ? OK : cpu_copy(backend, grad_in, sums);
}
