// The head: log-probabilities of given tokens, their gradient, and sampling. Logits are float32 and never more than a
// block of rows of them exist.
#include "kernels/cpu/logits.h"
#include "kernels/cpu/weight.h"

enum {
    block_elements = 1 << 22, // logits a block: 16 MiB,
    least_rows = 128,         // or 128 rows
    part_columns = 4096,      // of the vocabulary that are packed at a time
    gradient_rows = 1024,     // whose logits of a part exist at a time
};

// A tensor over scratch memory; `shell` is the buffer that it points to.
static status scratch_tensor(struct cpu_backend *cpu, enum scratch_slot place, struct buffer *shell, struct tensor *out,
                             enum element type, int64_t rows, int64_t columns) {
    *shell = (struct buffer){.bytes = (size_t)(rows * columns) * element_size(type)};
    TRY(cpu_scratch(cpu, place, shell->bytes, &shell->data));
    *out = (struct tensor){.buffer = shell, .type = type, .rows = rows, .columns = columns, .stride = columns};
    return OK;
}

static int64_t block_rows(int64_t rows, int64_t vocabulary) {
    int64_t most = block_elements / vocabulary / least_rows * least_rows;
    if (most < least_rows) most = least_rows;
    return rows < most ? rows : most;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool targets_fit(struct tensor targets, int64_t rows, int64_t vocabulary) {
    if (!tensor_is(targets, ELEMENT_I32, rows, 1)) return false;
    for (int64_t row = 0; row < rows; row++) {
        int32_t target = *tensor_i32(targets, row);
        if (target < 0 || target >= vocabulary) return false;
    }
    return true;
}

static bool fits_head(struct tensor in, const struct weight *lm_head) {
    return tensor_is(in, (int)weight_type(lm_head), in.rows, weight_inner(lm_head));
}

// ---- log-probabilities ----

struct scoring {
    const struct cpu_backend *cpu;
    struct tensor logits, logprob, lse, targets; // the rows of one block
};

static void score_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct scoring *s = context;
    for (int64_t row = first; row < end; row++) {
        const float *logits = tensor_f32(s->logits, row);
        float lse = logits_lse(s->cpu, logits, s->logits.columns);
        *tensor_f32(s->logprob, row) = logits[*tensor_i32(s->targets, row)] - lse;
        if (!tensor_none(s->lse)) *tensor_f32(s->lse, row) = lse;
    }
}

// A head that is not kept is packed a part at a time.
static status make_logits(struct cpu_backend *cpu, struct tensor logits, struct tensor in,
                          const struct weight *lm_head) {
    int64_t vocabulary = weight_outputs(lm_head), most = weight_prepacked(lm_head) ? vocabulary : part_columns;
    for (int64_t first = 0; first < vocabulary; first += most) {
        int64_t count = smaller(most, vocabulary - first);
        struct packed_matrix matrix;
        TRY(weight_packed(cpu, lm_head, first, count, &matrix));
        TRY(linear_packed(cpu, tensor_columns(logits, first, count), in, matrix, (struct tensor){0}, false));
    }
    return OK;
}

status cpu_logprob(struct backend *backend, struct tensor logprob, struct tensor lse, struct tensor in,
                   struct weight *lm_head, struct tensor targets) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(lm_head), most = block_rows(in.rows, vocabulary);
    CHECK(fits_head(in, lm_head) && tensor_is(logprob, ELEMENT_F32, in.rows, 1) &&
          targets_fit(targets, in.rows, vocabulary));
    CHECK(tensor_none(lse) || tensor_is(lse, ELEMENT_F32, in.rows, 1));
    struct buffer shell;
    struct tensor logits;
    TRY(scratch_tensor(cpu, SCRATCH_LOGITS, &shell, &logits, ELEMENT_F32, most, vocabulary));
    for (int64_t first = 0; first < in.rows; first += most) {
        int64_t rows = smaller(most, in.rows - first);
        struct scoring scoring = {cpu, tensor_rows(logits, 0, rows), tensor_rows(logprob, first, rows), lse,
                                  tensor_rows(targets, first, rows)};
        if (!tensor_none(lse)) scoring.lse = tensor_rows(lse, first, rows);
        TRY(make_logits(cpu, scoring.logits, tensor_rows(in, first, rows), lm_head));
        parallel_for(cpu, rows, 1, score_rows, &scoring);
    }
    return OK;
}

// ---- their gradient ----

// Some rows' logits of one part of the vocabulary.
struct sloping {
    const struct cpu_backend *cpu;
    struct tensor logits, dlogits, targets, lse, dlogprob; // `dlogits`: d loss / d logits, in the type of the products
    int64_t column;                                        // the part's first
};

// dlogits = dlogprob * (onehot(target) - softmax(logits)); in place where dlogits are F32.
static void slope_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sloping *s = context;
    int64_t columns = s->logits.columns;
    for (int64_t row = first; row < end; row++) {
        float *logits = tensor_f32(s->logits, row), dlogprob = *tensor_f32(s->dlogprob, row);
        int64_t target = *tensor_i32(s->targets, row) - s->column;
        logits_softmax(s->cpu, logits, columns, *tensor_f32(s->lse, row), -dlogprob);
        if (target >= 0 && target < columns) logits[target] += dlogprob;
        if (s->dlogits.type != ELEMENT_F32) cpu_row_write(s->cpu, s->dlogits, row, logits);
    }
}

// What the gradient's parts share.
struct lm_head_grad_job {
    struct cpu_backend *cpu;
    struct tensor grad_in;      // F32: sums over the parts
    struct tensor grad_lm_head; // or none
    struct tensor in, targets, lse, dlogprob;
    struct tensor logits, dlogits; // room for some rows of a part
};

// One part of the vocabulary, both forms of it packed, for all rows.
static status slope_part(const struct lm_head_grad_job *g, struct packed_matrix matrix, struct packed_matrix transposed,
                         int64_t column) {
    int64_t columns = matrix.outputs, most = g->logits.rows;
    for (int64_t first = 0; first < g->in.rows; first += most) {
        int64_t rows = smaller(most, g->in.rows - first);
        struct tensor part = tensor_rows(g->in, first, rows);
        struct sloping sloping = {g->cpu,
                                  tensor_reshape(g->logits, rows, columns),
                                  tensor_reshape(g->dlogits, rows, columns),
                                  tensor_rows(g->targets, first, rows),
                                  tensor_rows(g->lse, first, rows),
                                  tensor_rows(g->dlogprob, first, rows),
                                  column};
        TRY(linear_packed(g->cpu, sloping.logits, part, matrix, (struct tensor){0}, false));
        parallel_for(g->cpu, rows, 1, slope_rows, &sloping);
        TRY(linear_packed(g->cpu, tensor_rows(g->grad_in, first, rows), sloping.dlogits, transposed, (struct tensor){0},
                          column > 0));
        if (!tensor_none(g->grad_lm_head))
            TRY(cpu_linear_grad_weight(&g->cpu->base, tensor_rows(g->grad_lm_head, column, columns), (struct tensor){0},
                                       sloping.dlogits, part));
    }
    return OK;
}

// Each part is packed once and serves all rows: the sums of exponentials are known.
static status slope_all(const struct lm_head_grad_job *g, const struct weight *lm_head) {
    int64_t vocabulary = weight_outputs(lm_head);
    for (int64_t first = 0; first < vocabulary; first += part_columns) {
        int64_t count = smaller(part_columns, vocabulary - first);
        struct packed_matrix matrix, transposed;
        TRY(weight_packed(g->cpu, lm_head, first, count, &matrix));
        TRY(weight_packed_transpose(g->cpu, lm_head, first, count, &transposed));
        TRY(slope_part(g, matrix, transposed, first));
    }
    return OK;
}

status cpu_logprob_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
                        struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(lm_head), most = smaller(in.rows, gradient_rows);
    CHECK(fits_head(in, lm_head) && tensor_is(grad_in, -1, in.rows, in.columns) &&
          targets_fit(targets, in.rows, vocabulary));
    CHECK(tensor_is(lse, ELEMENT_F32, in.rows, 1) && tensor_is(dlogprob, ELEMENT_F32, in.rows, 1));
    CHECK(tensor_none(grad_lm_head) || tensor_is(grad_lm_head, ELEMENT_F32, vocabulary, in.columns));
    struct lm_head_grad_job g = {cpu, grad_in, grad_lm_head, in, targets, lse, dlogprob, {0}, {0}};
    struct buffer logits_shell, slopes_shell, sums_shell;
    int64_t columns = smaller(part_columns, vocabulary);
    TRY(scratch_tensor(cpu, SCRATCH_LOGITS, &logits_shell, &g.logits, ELEMENT_F32, most, columns));
    g.dlogits = g.logits;
    if (in.type != ELEMENT_F32)
        TRY(scratch_tensor(cpu, SCRATCH_DLOGITS, &slopes_shell, &g.dlogits, in.type, most, columns));
    if (grad_in.type == ELEMENT_F32) return slope_all(&g, lm_head);
    TRY(scratch_tensor(cpu, SCRATCH_GRAD_IN, &sums_shell, &g.grad_in, ELEMENT_F32, in.rows, in.columns));
    TRY(slope_all(&g, lm_head));
    return cpu_copy(backend, grad_in, g.grad_in);
}

// ---- sampling ----

struct drawing {
    const struct cpu_backend *cpu;
    struct tensor logits, tokens, logprobs;
    const struct sampling *settings;
    const double *uniform;
};

static void draw_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct drawing *d = context;
    for (int64_t row = first; row < end; row++) {
        logits_sample(d->cpu, tensor_i32(d->tokens, row), tensor_f32(d->logprobs, row), tensor_f32(d->logits, row),
                      d->logits.columns, d->settings[row], d->uniform[row]);
    }
}

status cpu_sample(struct backend *backend, struct tensor tokens, struct tensor logprobs, struct tensor in,
                  struct weight *lm_head, const struct sampling *settings, const double *uniform) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(lm_head), most = block_rows(in.rows, vocabulary);
    CHECK(fits_head(in, lm_head));
    CHECK(tensor_is(tokens, ELEMENT_I32, in.rows, 1) && tensor_is(logprobs, ELEMENT_F32, in.rows, 1));
    struct packed_matrix matrix;
    TRY(weight_packed(cpu, lm_head, 0, vocabulary, &matrix));
    struct buffer shell;
    struct tensor logits;
    TRY(scratch_tensor(cpu, SCRATCH_LOGITS, &shell, &logits, ELEMENT_F32, most, vocabulary));
    for (int64_t first = 0; first < in.rows; first += most) {
        int64_t rows = in.rows - first < most ? in.rows - first : most;
        struct drawing drawing = {cpu,
                                  tensor_rows(logits, 0, rows),
                                  tensor_rows(tokens, first, rows),
                                  tensor_rows(logprobs, first, rows),
                                  settings + first,
                                  uniform + first};
        TRY(linear_packed(cpu, drawing.logits, tensor_rows(in, first, rows), matrix, (struct tensor){0}, false));
        parallel_for(cpu, rows, 1, draw_rows, &drawing);
    }
    return OK;
}
