// The head: log-probabilities of given tokens, their gradient, and sampling. Logits are float32 and never more than a
// block of rows of them exist.
#include "kernels/cpu/weight.h"

enum {
    block_elements = 1 << 22, // logits a block: 16 MiB,
    least_rows = 128,         // or 128 rows
    kept_bytes = 8 << 20,     // what a head packed for one use and its logits take goes again
};

// A tensor over scratch memory; `shell` is the buffer that it points to.
static status scratch_tensor(cpu_backend *cpu, cpu_place place, buffer *shell, tensor *out, element type, int64_t rows,
                             int64_t columns) {
    *shell = (buffer){.bytes = (size_t)(rows * columns) * element_size(type)};
    TRY(cpu_scratch_get(cpu, place, shell->bytes, &shell->data));
    *out = (tensor){.buffer = shell, .type = type, .rows = rows, .columns = columns, .stride = columns};
    return OK;
}

static int64_t block_rows(int64_t rows, int64_t vocabulary) {
    int64_t most = block_elements / vocabulary / least_rows * least_rows;
    if (most < least_rows) most = least_rows;
    return rows < most ? rows : most;
}

// A head packed for one use takes more than any other matrix.
static void drop_scratch(cpu_backend *cpu, const weight *head) {
    if (weight_kept(head)) return;
    cpu_scratch_drop(cpu, PLACE_PACKED, kept_bytes);
    cpu_scratch_drop(cpu, PLACE_TRANSPOSED, kept_bytes);
    cpu_scratch_drop(cpu, PLACE_LOGITS, kept_bytes);
    cpu_scratch_drop(cpu, PLACE_SLOPES, kept_bytes);
}

static bool targets_fit(tensor targets, int64_t rows, int64_t vocabulary) {
    if (!tensor_is(targets, ELEMENT_I32, rows, 1)) return false;
    for (int64_t row = 0; row < rows; row++) {
        int32_t target = *tensor_i32(targets, row);
        if (target < 0 || target >= vocabulary) return false;
    }
    return true;
}

static bool fits_head(tensor in, const weight *head) {
    return tensor_is(in, (int)weight_type(head), in.rows, weight_inner(head));
}

// ---- log-probabilities ----

typedef struct scoring {
    const cpu_backend *cpu;
    tensor logits, logprob, log_sums, targets; // the rows of one block
} scoring;

static void score_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const scoring *s = context;
    for (int64_t row = first; row < end; row++) {
        const float *logits = tensor_f32(s->logits, row);
        float log_sum = logits_logsum(s->cpu, logits, s->logits.columns);
        *tensor_f32(s->logprob, row) = logits[*tensor_i32(s->targets, row)] - log_sum;
        if (!tensor_none(s->log_sums)) *tensor_f32(s->log_sums, row) = log_sum;
    }
}

status cpu_logprob(backend *backend, tensor logprob, tensor log_sums, tensor in, weight *head, tensor targets) {
    cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(head), most = block_rows(in.rows, vocabulary);
    CHECK(fits_head(in, head) && tensor_is(logprob, ELEMENT_F32, in.rows, 1) &&
          targets_fit(targets, in.rows, vocabulary));
    CHECK(tensor_none(log_sums) || tensor_is(log_sums, ELEMENT_F32, in.rows, 1));
    packed matrix;
    TRY(weight_packed(cpu, head, &matrix));
    buffer shell;
    tensor logits;
    TRY(scratch_tensor(cpu, PLACE_LOGITS, &shell, &logits, ELEMENT_F32, most, vocabulary));
    for (int64_t first = 0; first < in.rows; first += most) {
        int64_t rows = in.rows - first < most ? in.rows - first : most;
        scoring scoring = {cpu, tensor_rows(logits, 0, rows), tensor_rows(logprob, first, rows), log_sums,
                           tensor_rows(targets, first, rows)};
        if (!tensor_none(log_sums)) scoring.log_sums = tensor_rows(log_sums, first, rows);
        TRY(linear_packed(cpu, scoring.logits, tensor_rows(in, first, rows), matrix, (tensor){0}, false));
        cpu_blocks(cpu, rows, 1, score_rows, &scoring);
    }
    drop_scratch(cpu, head);
    return OK;
}

// ---- their gradient ----

typedef struct sloping {
    const cpu_backend *cpu;
    tensor logits, slopes, targets, log_sums, slope; // `slopes`: d loss / d logits, in the type of the products
} sloping;

// slopes = slope * (onehot(target) - softmax(logits)); in place where slopes are F32.
static void slope_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const sloping *s = context;
    int64_t vocabulary = s->logits.columns;
    for (int64_t row = first; row < end; row++) {
        float *logits = tensor_f32(s->logits, row), slope = *tensor_f32(s->slope, row);
        logits_softmax(s->cpu, logits, vocabulary, *tensor_f32(s->log_sums, row), -slope);
        logits[*tensor_i32(s->targets, row)] += slope;
        if (s->slopes.type != ELEMENT_F32) cpu_row_write(s->cpu, s->slopes, row, logits);
    }
}

status cpu_logprob_gradient(backend *backend, tensor in_gradient, tensor head_gradient, tensor in, weight *head,
                            tensor targets, tensor log_sums, tensor slope) {
    cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(head), most = block_rows(in.rows, vocabulary);
    CHECK(fits_head(in, head) && tensor_is(in_gradient, -1, in.rows, in.columns) &&
          targets_fit(targets, in.rows, vocabulary));
    CHECK(tensor_is(log_sums, ELEMENT_F32, in.rows, 1) && tensor_is(slope, ELEMENT_F32, in.rows, 1));
    packed matrix, transposed;
    TRY(weight_packed(cpu, head, &matrix));
    TRY(weight_transposed(cpu, head, &transposed));
    buffer shell, slopes_shell;
    tensor logits, slopes;
    TRY(scratch_tensor(cpu, PLACE_LOGITS, &shell, &logits, ELEMENT_F32, most, vocabulary));
    slopes = logits;
    if (in.type != ELEMENT_F32)
        TRY(scratch_tensor(cpu, PLACE_SLOPES, &slopes_shell, &slopes, in.type, most, vocabulary));
    for (int64_t first = 0; first < in.rows; first += most) {
        int64_t rows = in.rows - first < most ? in.rows - first : most;
        tensor part = tensor_rows(in, first, rows);
        sloping sloping = {cpu,
                           tensor_rows(logits, 0, rows),
                           tensor_rows(slopes, 0, rows),
                           tensor_rows(targets, first, rows),
                           tensor_rows(log_sums, first, rows),
                           tensor_rows(slope, first, rows)};
        TRY(linear_packed(cpu, sloping.logits, part, matrix, (tensor){0}, false));
        cpu_blocks(cpu, rows, 1, slope_rows, &sloping);
        TRY(linear_packed(cpu, tensor_rows(in_gradient, first, rows), sloping.slopes, transposed, (tensor){0}, false));
        if (!tensor_none(head_gradient))
            TRY(cpu_linear_weight_gradient(backend, head_gradient, (tensor){0}, sloping.slopes, part));
    }
    drop_scratch(cpu, head);
    return OK;
}

// ---- sampling ----

typedef struct drawing {
    const cpu_backend *cpu;
    tensor logits, tokens, logprobs;
    const sampling *settings;
    const double *chance;
} drawing;

static void draw_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const drawing *d = context;
    for (int64_t row = first; row < end; row++) {
        sample_row(d->cpu, tensor_i32(d->tokens, row), tensor_f32(d->logprobs, row), tensor_f32(d->logits, row),
                   d->logits.columns, d->settings[row], d->chance[row]);
    }
}

status cpu_sample(backend *backend, tensor tokens, tensor logprobs, tensor in, weight *head, const sampling *settings,
                  const double *chance) {
    cpu_backend *cpu = cpu_of(backend);
    int64_t vocabulary = weight_outputs(head), most = block_rows(in.rows, vocabulary);
    CHECK(fits_head(in, head));
    CHECK(tensor_is(tokens, ELEMENT_I32, in.rows, 1) && tensor_is(logprobs, ELEMENT_F32, in.rows, 1));
    packed matrix;
    TRY(weight_packed(cpu, head, &matrix));
    buffer shell;
    tensor logits;
    TRY(scratch_tensor(cpu, PLACE_LOGITS, &shell, &logits, ELEMENT_F32, most, vocabulary));
    for (int64_t first = 0; first < in.rows; first += most) {
        int64_t rows = in.rows - first < most ? in.rows - first : most;
        drawing drawing = {cpu,
                           tensor_rows(logits, 0, rows),
                           tensor_rows(tokens, first, rows),
                           tensor_rows(logprobs, first, rows),
                           settings + first,
                           chance + first};
        TRY(linear_packed(cpu, drawing.logits, tensor_rows(in, first, rows), matrix, (tensor){0}, false));
        cpu_blocks(cpu, rows, 1, draw_rows, &drawing);
    }
    return OK;
}
