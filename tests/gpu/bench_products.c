// The items that arithmetic limits, or the memory of weights and of the KV cache: products, attention, the language
// model head, and rope, which feeds the cache.
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "tests/gpu/bench.h"

// ---- products ----

// in [m, l], `count` weights [n, l] one below the other, which are used in turn, out [m, n].
static status bench_set_up_weights(struct bench *b, int count) {
    int64_t size[3];
    for (int i = 0; i < 3; i++) memcpy(&size[i], (const char *)b->shape + b->item->sizes[i], sizeof size[i]);
    TRY(bench_tensor(b, ELEMENT_BF16, size[0], size[2]));
    TRY(bench_tensor(b, ELEMENT_BF16, count * size[1], size[2]));
    return bench_tensor(b, ELEMENT_BF16, size[0], size[1]);
}

static status bench_set_up_product(struct bench *b) {
    return bench_set_up_weights(b, 1);
}

static status bench_set_up_decoding(struct bench *b) {
    return bench_set_up_weights(b, BENCH_WEIGHTS);
}

static status bench_prepare_weights(struct bench *b, int count) {
    int64_t rows = b->tensors[1].rows / count;
    for (int i = 0; i < count; i++) {
        TRY(b->ops->weight_new(b->backend, &b->weights[i], tensor_rows(b->tensors[1], i * rows, rows), false));
        b->weight_count++;
    }
    return OK;
}

static status bench_prepare_weight(struct bench *b) {
    return bench_prepare_weights(b, 1);
}

static status bench_prepare_decoding(struct bench *b) {
    return bench_prepare_weights(b, BENCH_WEIGHTS);
}

static status bench_linear(struct bench *b) {
    struct weight *weight = b->weights[b->turn++ % b->weight_count];
    return b->ops->linear(b->backend, b->tensors[2], b->tensors[0], weight, (struct tensor){0}, false);
}

static status bench_linear_grad_input(struct bench *b) {
    return b->ops->linear_grad_input(b->backend, b->tensors[0], b->tensors[2], b->weights[0], false);
}

static status bench_linear_grad_weight(struct bench *b) {
    return b->ops->linear_grad_weight(b->backend, b->tensors[1], (struct tensor){0}, b->tensors[2], b->tensors[0]);
}

static double bench_grad_weight_bytes(const struct bench *b) {
    return bench_all_bytes(b) + bench_tensor_bytes(b, 1); // it is read and written
}

static double bench_decoding_bytes(const struct bench *b) {
    return bench_all_bytes(b) - (BENCH_WEIGHTS - 1) * bench_tensor_bytes(b, 1) / BENCH_WEIGHTS;
}

static double bench_product_flops(const struct bench *b) {
    const struct tensor *in = &b->tensors[0];
    return 2.0 * (double)(in->rows * in->columns) * (double)b->tensors[1].rows;
}

static double bench_decoding_flops(const struct bench *b) {
    return bench_product_flops(b) / BENCH_WEIGHTS;
}

// ---- attention ----

// A tensor of I32 gets the number of the row in each of its columns.
static status bench_number_rows(struct bench *b, struct tensor out) {
    int32_t *numbers;
    NEW(&numbers, (size_t)(out.rows * out.columns));
    for (int64_t i = 0; i < out.rows * out.columns; i++) numbers[i] = (int32_t)(i / out.columns);
    status result = b->ops->upload(b->backend, out, numbers, ELEMENT_I32);
    free(numbers);
    return result;
}

static int64_t bench_qkv_columns(struct heads heads) {
    return (int64_t)(heads.query + 2 * heads.key) * heads.size;
}

enum { QKV, OUT, LSE, SLOTS, POSITIONS, COS, SIN, GRAD_QKV };

// The first seven tensors, for `rows` rows; positions are those of the rows.
static status bench_attention_tensors(struct bench *b, struct heads heads, int64_t rows) {
    TRY(bench_tensor(b, ELEMENT_BF16, rows, bench_qkv_columns(heads)));
    TRY(bench_tensor(b, ELEMENT_BF16, rows, (int64_t)heads.query * heads.size));
    TRY(bench_tensor(b, ELEMENT_F32, rows, heads.query));
    TRY(bench_tensor(b, ELEMENT_I32, rows, 1));
    TRY(bench_tensor(b, ELEMENT_I32, rows, 3));
    TRY(bench_tensor(b, ELEMENT_F32, rows, heads.size / 2));
    return bench_tensor(b, ELEMENT_F32, rows, heads.size / 2);
}

static status bench_set_up_text(struct bench *b) {
    TRY(bench_attention_tensors(b, b->shape->heads, b->shape->rows));
    return bench_tensor(b, ELEMENT_BF16, b->shape->rows, bench_qkv_columns(b->shape->heads));
}

static status bench_set_up_windows(struct bench *b) {
    TRY(bench_attention_tensors(b, b->shape->vision_heads, b->shape->patches));
    return bench_tensor(b, ELEMENT_BF16, b->shape->patches, bench_qkv_columns(b->shape->vision_heads));
}

static status bench_set_up_decoded(struct bench *b) {
    return bench_attention_tensors(b, b->shape->heads, b->shape->decoded);
}

static status bench_call_rope(struct bench *b, struct heads heads) {
    const struct tensor *t = b->tensors;
    struct rope_table table = {t[COS], t[SIN], {heads.size / 8, heads.size / 8, heads.size / 4}};
    return b->ops->rope(b->backend, t[QKV], &table, t[POSITIONS], heads, b->cache, 0, t[SLOTS]);
}

// A cache of `rows` rows that holds the keys and values of the item's rows, and the plan for `spans`.
static status bench_prepare_attention(struct bench *b, struct heads heads, int64_t rows,
                                      const struct attention_span *spans, size_t count) {
    const struct tensor *t = b->tensors;
    TRY(bench_number_rows(b, t[SLOTS]));
    TRY(bench_number_rows(b, t[POSITIONS]));
    TRY(b->ops->kv_cache_new(b->backend, &b->cache, ELEMENT_BF16, 1, rows, heads));
    TRY(bench_call_rope(b, heads));
    return b->ops->attention_plan_new(b->backend, &b->plan, heads, spans, count, t[SLOTS]);
}

static status bench_attention(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->attention(b->backend, t[OUT], t[QKV], 0.1f, b->cache, 0, b->plan, t[LSE]);
}

static status bench_attention_grad(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->attention_grad(b->backend, t[GRAD_QKV], t[OUT], t[OUT], t[QKV], 0.1f, b->cache, 0, b->plan, t[LSE]);
}

// A prompt, and branches of equal length behind it.
static status bench_prepare_text(struct bench *b) {
    const struct bench_shape *s = b->shape;
    int64_t len = (s->rows - s->prompt) / s->branches;
    struct attention_span *spans;
    NEW(&spans, (size_t)s->branches + 1);
    spans[0] = (struct attention_span){.q_len = s->prompt, .visible = 1, .causal = true};
    for (int64_t i = 0; i < s->branches; i++) {
        int64_t first = s->prompt + i * len;
        spans[i + 1] = (struct attention_span){first, len, 0, s->prompt, first, 1, true, 0};
    }
    status result = bench_prepare_attention(b, s->heads, s->rows, spans, (size_t)s->branches + 1);
    free(spans);
    return result == OK ? bench_attention(b) : result; // the gradient needs lse
}

static status bench_prepare_windows(struct bench *b) {
    const struct bench_shape *s = b->shape;
    size_t count = (size_t)((s->patches + s->window - 1) / s->window);
    struct attention_span *spans;
    NEW(&spans, count);
    for (size_t i = 0; i < count; i++) {
        int64_t first = (int64_t)i * s->window, left = s->patches - first, len = left < s->window ? left : s->window;
        spans[i] = (struct attention_span){.q_begin = first, .q_len = len, .kv_begin = first, .visible = len};
    }
    status result = bench_prepare_attention(b, s->vision_heads, s->patches, spans, count);
    free(spans);
    return result == OK ? bench_attention(b) : result;
}

static int64_t bench_decoded_keys(const struct bench_shape *s) {
    return (s->decoded + 7) / 8 * s->prompt + s->decoded * s->own;
}

static status bench_prepare_decoded(struct bench *b) {
    const struct bench_shape *s = b->shape;
    int64_t prompts = (s->decoded + 7) / 8;
    struct attention_span *spans;
    NEW(&spans, (size_t)s->decoded);
    for (int64_t i = 0; i < s->decoded; i++) {
        int64_t own = prompts * s->prompt + i * s->own;
        spans[i] = (struct attention_span){i, 1, i / 8 * s->prompt, s->prompt, own, s->own, false, 0};
    }
    status result = bench_prepare_attention(b, s->heads, bench_decoded_keys(s), spans, (size_t)s->decoded);
    free(spans);
    return result;
}

static status bench_rope(struct bench *b) {
    return bench_call_rope(b, b->shape->heads);
}

// Queries and keys are rotated in place; keys and values go to the cache.
static double bench_rope_bytes(const struct bench *b) {
    const struct heads *heads = &b->shape->heads;
    return 2.0 * (double)b->shape->rows * heads->size * (2 * heads->query + 5 * heads->key);
}

static double bench_attention_bytes(const struct bench *b) {
    return bench_tensor_bytes(b, QKV) + bench_tensor_bytes(b, OUT) + bench_tensor_bytes(b, LSE);
}

static double bench_attention_grad_bytes(const struct bench *b) {
    return 2 * bench_attention_bytes(b) + bench_tensor_bytes(b, OUT); // out and its gradient
}

static double bench_decoded_bytes(const struct bench *b) {
    const struct heads *heads = &b->shape->heads;
    return 4.0 * (double)bench_decoded_keys(b->shape) * heads->key * heads->size + 2 * bench_tensor_bytes(b, OUT);
}

// Two products for each pair of a query and a key that it sees.
static double bench_pair_flops(struct heads heads, double pairs) {
    return 4 * pairs * heads.query * heads.size;
}

static double bench_text_flops(const struct bench *b) {
    const struct bench_shape *s = b->shape;
    double prompt = (double)s->prompt, len = (double)(s->rows - s->prompt) / (double)s->branches;
    double branch = len * prompt + len * (len + 1) / 2;
    return bench_pair_flops(s->heads, prompt * (prompt + 1) / 2 + (double)s->branches * branch);
}

static double bench_text_grad_flops(const struct bench *b) {
    return 2.5 * bench_text_flops(b); // five products for two
}

static double bench_window_flops(const struct bench *b) {
    return bench_pair_flops(b->shape->vision_heads, (double)(b->shape->patches * b->shape->window));
}

static double bench_window_grad_flops(const struct bench *b) {
    return 2.5 * bench_window_flops(b);
}

// ---- the language model head ----

// in, weight, targets, lse, logprob, grad_in, grad of the weight, dlogprob; rows are the completions' tokens.
static status bench_set_up_head(struct bench *b) {
    const struct bench_shape *s = b->shape;
    int64_t rows = s->rows - s->prompt;
    TRY(bench_tensor(b, ELEMENT_BF16, rows, s->hidden));
    TRY(bench_tensor(b, ELEMENT_BF16, s->vocabulary, s->hidden));
    TRY(bench_tensor(b, ELEMENT_I32, rows, 1));
    TRY(bench_tensor(b, ELEMENT_F32, rows, 1));
    return bench_tensor(b, ELEMENT_F32, rows, 1);
}

static status bench_set_up_head_grad(struct bench *b) {
    const struct bench_shape *s = b->shape;
    TRY(bench_set_up_head(b));
    TRY(bench_tensor(b, ELEMENT_BF16, s->rows - s->prompt, s->hidden));
    TRY(bench_tensor(b, ELEMENT_BF16, s->vocabulary, s->hidden));
    return bench_tensor(b, ELEMENT_F32, s->rows - s->prompt, 1);
}

static status bench_logprob(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->logprob(b->backend, t[4], t[3], t[0], b->weights[0], t[2]);
}

static status bench_prepare_head(struct bench *b) {
    TRY(bench_prepare_weight(b));
    return bench_logprob(b); // the gradient needs lse
}

static status bench_logprob_grad(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->logprob_grad(b->backend, t[5], t[6], t[0], b->weights[0], t[2], t[3], t[7]);
}

static double bench_head_grad_bytes(const struct bench *b) {
    return bench_all_bytes(b) + bench_tensor_bytes(b, 6);
}

static double bench_head_grad_flops(const struct bench *b) {
    return 3 * bench_product_flops(b); // the logits once more, and both gradients
}

// in, weight.
static status bench_set_up_sample(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, b->shape->decoded, b->shape->hidden));
    return bench_tensor(b, ELEMENT_BF16, b->shape->vocabulary, b->shape->hidden);
}

static status bench_prepare_batch(struct bench *b, struct sampling sampling) {
    TRY(bench_prepare_weight(b));
    TRY(b->ops->decode_batch_new(b->backend, &b->batch, (int)b->shape->decoded, b->shape->heads, NULL, 0));
    for (int i = 0; i < b->shape->decoded; i++) {
        struct decode_row row = {.kv_begin = i, .max_len = 1 << 20, .sampling = sampling, .key = 1};
        row.completion = (uint64_t)i;
        TRY(b->ops->decode_batch_set(b->backend, b->batch, i, &row));
    }
    return OK;
}

static status bench_prepare_sample(struct bench *b) {
    return bench_prepare_batch(b, (struct sampling){1, 0.95f, 50});
}

// Many tokens are kept: the noise gives logits with a standard deviation of sqrt(hidden), divided by 60 that is
// about 1.
static status bench_prepare_sample_top_p(struct bench *b) {
    return bench_prepare_batch(b, (struct sampling){60, 0.95f, 0});
}

static status bench_sample(struct bench *b) {
    return b->ops->sample(b->backend, b->batch, b->tensors[0], b->weights[0]);
}

// ---- the items ----

#define PRODUCT(name, operation, m, n, l, set_up, prepare, bytes, flops)                                               \
    {                                                                                                                  \
        name, #operation, offsetof(struct operations, operation), set_up, prepare, bench_##operation, bytes, flops, {  \
            offsetof(struct bench_shape, m), offsetof(struct bench_shape, n), offsetof(struct bench_shape, l)          \
        }                                                                                                              \
    }
#define LINEAR(name, operation, m, n, l, bytes)                                                                        \
    PRODUCT(name, operation, m, n, l, bench_set_up_product, bench_prepare_weight, bytes, bench_product_flops)
#define DECODING(name, n, l)                                                                                           \
    PRODUCT(name, linear, decoded, n, l, bench_set_up_decoding, bench_prepare_decoding, bench_decoding_bytes,          \
            bench_decoding_flops)
#define ATTENTION(name, operation, call, set_up, bytes, flops)                                                         \
    BENCH_ITEM(name, operation, call, bench_set_up_##set_up, bench_prepare_##set_up, bytes, flops)
const struct bench_item bench_product_items[] = {
    LINEAR("large product", linear, square, square, square, bench_all_bytes),
    LINEAR("qkv", linear, rows, qkv, hidden, bench_all_bytes),
    LINEAR("out", linear, rows, hidden, hidden, bench_all_bytes),
    LINEAR("gate_up", linear, rows, gate_up, hidden, bench_all_bytes),
    LINEAR("down", linear, rows, hidden, inner, bench_all_bytes),
    LINEAR("gradient of gate_up's input", linear_grad_input, rows, gate_up, hidden, bench_all_bytes),
    LINEAR("gradient of down's input", linear_grad_input, rows, hidden, inner, bench_all_bytes),
    LINEAR("gradient of gate_up", linear_grad_weight, rows, gate_up, hidden, bench_grad_weight_bytes),
    LINEAR("gradient of down", linear_grad_weight, rows, hidden, inner, bench_grad_weight_bytes),
    LINEAR("gate_up of patches", linear, patches, vision_gate_up, vision_hidden, bench_all_bytes),
    LINEAR("down of patches", linear, patches, vision_hidden, vision_inner, bench_all_bytes),
    DECODING("qkv, decoding", qkv, hidden),
    DECODING("out, decoding", hidden, hidden),
    DECODING("gate_up, decoding", gate_up, hidden),
    DECODING("down, decoding", hidden, inner),
    ATTENTION("rope", rope, bench_rope, text, bench_rope_bytes, NULL),
    ATTENTION("attention", attention, bench_attention, text, bench_attention_bytes, bench_text_flops),
    ATTENTION("attention_grad", attention_grad, bench_attention_grad, text, bench_attention_grad_bytes,
              bench_text_grad_flops),
    ATTENTION("attention of windows", attention, bench_attention, windows, bench_attention_bytes, bench_window_flops),
    ATTENTION("attention_grad of windows", attention_grad, bench_attention_grad, windows, bench_attention_grad_bytes,
              bench_window_grad_flops),
    ATTENTION("attention, decoding", attention, bench_attention, decoded, bench_decoded_bytes, NULL),
    BENCH_ITEM("logprob", logprob, bench_logprob, bench_set_up_head, bench_prepare_head, bench_all_bytes,
               bench_product_flops),
    BENCH_ITEM("logprob_grad", logprob_grad, bench_logprob_grad, bench_set_up_head_grad, bench_prepare_head,
               bench_head_grad_bytes, bench_head_grad_flops),
    BENCH_ITEM("sample, decoding", sample, bench_sample, bench_set_up_sample, bench_prepare_sample, bench_all_bytes,
               NULL),
    BENCH_ITEM("sample of top_p, decoding", sample, bench_sample, bench_set_up_sample, bench_prepare_sample_top_p,
               bench_all_bytes, NULL),
};
const size_t bench_product_count = sizeof bench_product_items / sizeof *bench_product_items;
