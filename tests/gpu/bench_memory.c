// The items that memory limits: rows, norms, activations, the optimizer.
#include <stdlib.h>

#include "shared/base/memory.h"
#include "tests/gpu/bench.h"

// ---- rows ----

static status bench_set_up_two(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, 4 * b->shape->rows, b->shape->inner / 2));
    return bench_tensor(b, ELEMENT_BF16, 4 * b->shape->rows, b->shape->inner / 2);
}

static status bench_copy(struct bench *b) {
    return b->ops->copy(b->backend, b->tensors[1], b->tensors[0]);
}

static status bench_add(struct bench *b) {
    return b->ops->add(b->backend, b->tensors[1], b->tensors[0]);
}

static double bench_add_bytes(const struct bench *b) {
    return 3 * bench_tensor_bytes(b, 0);
}

static status bench_set_up_convert(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, b->shape->rows, b->shape->inner));
    return bench_tensor(b, ELEMENT_BF16, b->shape->rows, b->shape->inner);
}

// in BF16, out F32, and an index in which every 16th row is repeated.
static status bench_set_up_indexed(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, b->shape->rows, b->shape->hidden));
    TRY(bench_tensor(b, ELEMENT_F32, b->shape->rows, b->shape->hidden));
    return bench_tensor(b, ELEMENT_I32, b->shape->rows, 1);
}

static status bench_prepare_indexed(struct bench *b) {
    int64_t rows = b->shape->rows;
    int32_t *index;
    NEW(&index, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) index[i] = (int32_t)(i % 16 ? rows - 1 - i : 0);
    status result = b->ops->upload(b->backend, b->tensors[2], index, ELEMENT_I32);
    free(index);
    return result;
}

static status bench_gather(struct bench *b) {
    return b->ops->gather(b->backend, b->tensors[1], b->tensors[0], b->tensors[2]);
}

static status bench_scatter_add(struct bench *b) {
    return b->ops->scatter_add(b->backend, b->tensors[1], b->tensors[0], b->tensors[2]);
}

static double bench_scatter_add_bytes(const struct bench *b) {
    return bench_tensor_bytes(b, 0) + 2.0 * 15 / 16 * bench_tensor_bytes(b, 1);
}

// ---- norms and activations ----

// x, delta, out, scale, rstd, grad_scale; grad_x F32 as in training.
static status bench_set_up_norm(struct bench *b, int64_t rows, int64_t columns) {
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_BF16, rows, columns));
    TRY(bench_tensor(b, ELEMENT_BF16, 1, columns));
    TRY(bench_tensor(b, ELEMENT_F32, rows, 1));
    TRY(bench_tensor(b, ELEMENT_F32, 1, columns));
    return bench_tensor(b, ELEMENT_F32, rows, columns);
}

static status bench_set_up_text_norm(struct bench *b) {
    return bench_set_up_norm(b, b->shape->rows, b->shape->hidden);
}

static status bench_set_up_vision_norm(struct bench *b) {
    return bench_set_up_norm(b, b->shape->patches, b->shape->vision_hidden);
}

static status bench_rmsnorm(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->rmsnorm(b->backend, t[2], t[0], t[1], t[3], 1e-6f, t[4]);
}

static double bench_rmsnorm_bytes(const struct bench *b) {
    return 4 * bench_tensor_bytes(b, 0); // x is read and written
}

static status bench_rmsnorm_grad(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->rmsnorm_grad(b->backend, t[6], t[5], t[2], t[0], t[3], t[4]);
}

static double bench_rmsnorm_grad_bytes(const struct bench *b) {
    return 2 * bench_tensor_bytes(b, 0) + 2 * bench_tensor_bytes(b, 6);
}

// gate_up, out.
static status bench_set_up_swiglu(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, b->shape->rows, 2 * b->shape->inner));
    return bench_tensor(b, ELEMENT_BF16, b->shape->rows, b->shape->inner);
}

static status bench_swiglu(struct bench *b) {
    return b->ops->activation(b->backend, ACTIVATION_SWIGLU, b->tensors[1], b->tensors[0]);
}

static status bench_swiglu_grad(struct bench *b) {
    return b->ops->activation_grad(b->backend, ACTIVATION_SWIGLU, b->tensors[0], b->tensors[1], b->tensors[0]);
}

static double bench_swiglu_grad_bytes(const struct bench *b) {
    return 2 * bench_tensor_bytes(b, 0) + bench_tensor_bytes(b, 1); // in place
}

static status bench_gelu(struct bench *b) {
    return b->ops->activation(b->backend, ACTIVATION_GELU, b->tensors[1], b->tensors[0]);
}

static status bench_gelu_grad(struct bench *b) {
    return b->ops->activation_grad(b->backend, ACTIVATION_GELU, b->tensors[1], b->tensors[1], b->tensors[0]);
}

// ---- the optimizer ----

// param, remainder, grad, moments.
static status bench_set_up_pairs(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    TRY(bench_tensor(b, ELEMENT_U16, 1, b->shape->params));
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    return OK;
}

// Second moments are not negative.
static status bench_prepare_moments(struct bench *b) {
    return b->ops->zero(b->backend, b->tensors[4]);
}

static status bench_set_up_f32(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params / 2));
    TRY(bench_tensor(b, ELEMENT_U16, 1, 0)); // no remainder
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params / 2));
    return OK;
}

static status bench_adamw(struct bench *b) {
    const struct tensor *t = b->tensors, none = {0};
    struct adamw_options options = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .grad_scale = 1, .step = 3};
    struct adamw_range range = {.param = t[0],
                                .remainder = t[1].columns ? t[1] : none,
                                .grad = t[2],
                                .exp_avg = t[3],
                                .exp_avg_sq = t[4],
                                .decay = true};
    return b->ops->adamw(b->backend, &range, 1, &options);
}

static double bench_adamw_bytes(const struct bench *b) {
    return 2 * bench_all_bytes(b) - bench_tensor_bytes(b, 2);
}

// Two ranges of pairs.
static status bench_set_up_ema(struct bench *b) {
    for (int i = 0; i < 2; i++) {
        TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
        TRY(bench_tensor(b, ELEMENT_U16, 1, b->shape->params));
    }
    return OK;
}

static status bench_ema(struct bench *b) {
    return b->ops->ema(b->backend, b->tensors[0], b->tensors[1], b->tensors[2], b->tensors[3], 0.995);
}

static double bench_ema_bytes(const struct bench *b) {
    return 1.5 * bench_all_bytes(b);
}

// F32, and its pair.
static status bench_set_up_split(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params));
    TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    return bench_tensor(b, ELEMENT_U16, 1, b->shape->params);
}

static status bench_split_f32(struct bench *b) {
    return b->ops->split_f32(b->backend, b->tensors[1], b->tensors[2], b->tensors[0]);
}

static status bench_join_f32(struct bench *b) {
    return b->ops->join_f32(b->backend, b->tensors[0], b->tensors[1], b->tensors[2]);
}

static status bench_set_up_one(struct bench *b) {
    return bench_tensor(b, ELEMENT_BF16, 1, 2 * b->shape->params);
}

static status bench_square_sums(struct bench *b) { // of units as shard_unit makes them
    enum { MOST_UNITS = 4096 };
    static double sums[MOST_UNITS];
    const int64_t elements = b->tensors[0].rows * b->tensors[0].columns, most = 64 * (int64_t)MOST_UNITS;
    const struct square_range range = {b->tensors[0], (elements + most - 1) / most * 64};
    return b->ops->square_sums(b->backend, sums, &range, 1);
}

static status bench_digest(struct bench *b) {
    uint64_t sum = 0;
    return b->ops->digest(b->backend, b->tensors[0], 0, &sum);
}

// ---- the items ----

#define ITEM(name, operation, set_up, prepare, bytes)                                                                  \
    BENCH_ITEM(name, operation, bench_##operation, bench_set_up_##set_up, prepare, bytes, NULL)
#define ACTIVATION(name, operation, call, set_up, bytes)                                                               \
    BENCH_ITEM(name, operation, bench_##call, bench_set_up_##set_up, NULL, bytes, NULL)
const struct bench_item bench_memory_items[] = {
    ITEM("copy", copy, two, NULL, bench_all_bytes),
    ITEM("convert", copy, convert, NULL, bench_all_bytes),
    ITEM("add", add, two, NULL, bench_add_bytes),
    ITEM("gather", gather, indexed, bench_prepare_indexed, bench_all_bytes),
    ITEM("scatter_add", scatter_add, indexed, bench_prepare_indexed, bench_scatter_add_bytes),
    ITEM("rmsnorm", rmsnorm, text_norm, NULL, bench_rmsnorm_bytes),
    ITEM("rmsnorm of patches", rmsnorm, vision_norm, NULL, bench_rmsnorm_bytes),
    ITEM("rmsnorm_grad", rmsnorm_grad, text_norm, NULL, bench_rmsnorm_grad_bytes),
    ITEM("rmsnorm_grad of patches", rmsnorm_grad, vision_norm, NULL, bench_rmsnorm_grad_bytes),
    ACTIVATION("swiglu", activation, swiglu, swiglu, bench_all_bytes),
    ACTIVATION("swiglu_grad", activation_grad, swiglu_grad, swiglu, bench_swiglu_grad_bytes),
    ACTIVATION("gelu", activation, gelu, two, bench_all_bytes),
    ACTIVATION("gelu_grad", activation_grad, gelu_grad, two, bench_add_bytes),
    ITEM("adamw of pairs", adamw, pairs, bench_prepare_moments, bench_adamw_bytes),
    ITEM("adamw of float32", adamw, f32, bench_prepare_moments, bench_adamw_bytes),
    ITEM("ema", ema, ema, NULL, bench_ema_bytes),
    ITEM("split_f32", split_f32, split, NULL, bench_all_bytes),
    ITEM("join_f32", join_f32, split, NULL, bench_all_bytes),
    ITEM("square_sums", square_sums, one, NULL, bench_all_bytes),
    ITEM("digest", digest, one, NULL, bench_all_bytes),
};
const size_t bench_memory_count = sizeof bench_memory_items / sizeof *bench_memory_items;
