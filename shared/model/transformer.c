#include "shared/model/transformer.h"

// Rows whose inner activations, the widest there are, exist at one time, in turns of one length. In training each turn
// packs the weights again, which weighs more beside bfloat16's faster products, whose rows are half as large.
static int64_t rows_inside(const struct forward_state *fwd) {
    int64_t most = fwd->weights->type == ELEMENT_BF16 ? 4096 : 1152;
    int64_t turns = (fwd->rows + most - 1) / most;
    return (fwd->rows + turns - 1) / turns;
}

// A block's intermediate values; what the gradient alone needs is none otherwise.
struct values {
    struct tensor input, middle;              // x before and after attention
    struct tensor normed, inverse1, inverse2; // of the first norm, then of the second, then of the first again
    struct tensor qkv, mixed, log_sums;
};

static int64_t qkv_columns(struct heads heads) {
    return (int64_t)(heads.query + 2 * heads.key) * heads.size;
}

static struct tensor gradient_of(const struct forward_state *fwd, const struct fused_param *param) {
    return param->count && fwd->gradients ? param_tensor(fwd->gradients, param) : (struct tensor){0};
}

status forward_norm(struct forward_state *fwd, struct tensor out, struct tensor scale, struct tensor inverse) {
    struct backend *backend = fwd->weights->backend;
    struct tensor delta = fwd->has_delta ? fwd->delta : (struct tensor){0};
    fwd->has_delta = false;
    return backend->ops->rmsnorm(backend, out, fwd->x, delta, scale, fwd->transformer->eps, inverse);
}

// mixed = attention of the rows in `normed`.
static status attend(struct forward_state *fwd, int index, struct attention_spans spans, struct tensor normed,
                     struct tensor qkv, struct tensor mixed, struct tensor log_sums) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct transformer *transformer = fwd->transformer;
    const struct block *block = &transformer->blocks[index];
    int layer = fwd->per_layer ? index : 0;
    TRY(ops->linear(backend, qkv, normed, block->qkv, block->qkv_bias));
    TRY(ops->rope(backend, qkv, fwd->cos, fwd->sin, transformer->heads, fwd->cache, layer, fwd->slots));
    return ops->attention(backend, mixed, qkv, transformer->heads, transformer->scale, fwd->cache, layer, spans.items,
                          spans.count, log_sums);
}

// delta = down(swiglu(gate_up(normed))), some rows at a time.
static status feed_forward(struct forward_state *fwd, const struct block *block, struct tensor normed) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    int64_t intermediate_size = fwd->transformer->intermediate_size, most = rows_inside(fwd);
    struct tensor gate_up, gated;
    TRY(workspace_alloc(fwd->workspace, fwd->weights->type, most, 2 * intermediate_size, &gate_up));
    TRY(workspace_alloc(fwd->workspace, fwd->weights->type, most, intermediate_size, &gated));
    for (int64_t first = 0; first < fwd->rows; first += most) {
        int64_t rows = fwd->rows - first < most ? fwd->rows - first : most;
        struct tensor wide = tensor_rows(gate_up, 0, rows), thin = tensor_rows(gated, 0, rows);
        TRY(ops->linear(backend, wide, tensor_rows(normed, first, rows), block->gate_up, block->gate_up_bias));
        TRY(ops->swiglu(backend, thin, wide));
        TRY(ops->linear(backend, tensor_rows(fwd->delta, first, rows), thin, block->down, block->down_bias));
    }
    return OK;
}

status block_forward(struct forward_state *fwd, int index, struct attention_spans spans) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct transformer *transformer = fwd->transformer;
    const struct block *block = &transformer->blocks[index];
    enum element type = fwd->weights->type;
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor normed, qkv, mixed;
    TRY(workspace_alloc(fwd->workspace, type, fwd->rows, transformer->hidden_size, &normed));
    TRY(workspace_alloc(fwd->workspace, type, fwd->rows, qkv_columns(transformer->heads), &qkv));
    TRY(workspace_alloc(fwd->workspace, type, fwd->rows, (int64_t)transformer->heads.query * transformer->heads.size,
                        &mixed));
    TRY(forward_norm(fwd, normed, block->norm1, (struct tensor){0}));
    if (fwd->saved) TRY(ops->copy(backend, fwd->saved[index], fwd->x));
    TRY(attend(fwd, index, spans, normed, qkv, mixed, (struct tensor){0}));
    TRY(ops->linear(backend, fwd->delta, mixed, block->out, block->out_bias));
    fwd->has_delta = true;
    TRY(forward_norm(fwd, normed, block->norm2, (struct tensor){0}));
    TRY(feed_forward(fwd, block, normed));
    fwd->has_delta = true;
    workspace_restore(fwd->workspace, mark);
    return OK;
}

static status take_values(struct forward_state *fwd, int index, struct values *it) {
    const struct transformer *transformer = fwd->transformer;
    struct workspace *workspace = fwd->workspace;
    enum element type = fwd->weights->type;
    *it = (struct values){.input = fwd->saved[index], .middle = fwd->x};
    TRY(workspace_alloc(workspace, type, fwd->rows, transformer->hidden_size, &it->normed));
    TRY(workspace_alloc(workspace, ELEMENT_F32, fwd->rows, 1, &it->inverse1));
    TRY(workspace_alloc(workspace, ELEMENT_F32, fwd->rows, 1, &it->inverse2));
    TRY(workspace_alloc(workspace, type, fwd->rows, qkv_columns(transformer->heads), &it->qkv));
    TRY(workspace_alloc(workspace, type, fwd->rows, (int64_t)transformer->heads.query * transformer->heads.size,
                        &it->mixed));
    return workspace_alloc(workspace, ELEMENT_F32, fwd->rows, transformer->heads.query, &it->log_sums);
}

// Computes a block again up to its second norm; the feed-forward part follows with its gradient.
static status recompute(struct forward_state *fwd, int index, struct attention_spans spans, struct values *it) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &fwd->transformer->blocks[index];
    TRY(ops->copy(backend, fwd->x, it->input));
    fwd->has_delta = false;
    TRY(forward_norm(fwd, it->normed, block->norm1, it->inverse1));
    TRY(attend(fwd, index, spans, it->normed, it->qkv, it->mixed, it->log_sums));
    TRY(ops->linear(backend, fwd->delta, it->mixed, block->out, block->out_bias));
    fwd->has_delta = true;
    return forward_norm(fwd, it->normed, block->norm2, it->inverse2);
}

// *out = rows of x_gradient in the type of products: themselves, or rounded on the workspace.
static status rounded_gradient(struct forward_state *fwd, int64_t first, int64_t rows, struct tensor *out) {
    struct backend *backend = fwd->weights->backend;
    struct tensor exact = tensor_rows(fwd->x_grad, first, rows);
    *out = exact;
    if (fwd->weights->type == ELEMENT_F32) return OK;
    TRY(workspace_alloc(fwd->workspace, fwd->weights->type, rows, exact.columns, out));
    return backend->ops->copy(backend, *out, exact);
}

// The gradient of one product: of its weight and its bias, then of its input, which may take the input's own place.
static status linear_gradient(struct forward_state *fwd, struct tensor in_gradient, struct tensor out_gradient,
                              struct tensor in, struct weight *weight, const struct fused_param *param,
                              const struct fused_param *bias) {
    struct backend *backend = fwd->weights->backend;
    TRY(backend->ops->linear_grad_weight(backend, gradient_of(fwd, param), gradient_of(fwd, bias), out_gradient, in));
    return backend->ops->linear_grad_input(backend, in_gradient, out_gradient, weight, false);
}

// normed_gradient [T,C] = the gradient of `normed` through the feed-forward part, some rows at a time.
static status feed_forward_gradient(struct forward_state *fwd, int index, struct tensor normed_gradient,
                                    struct tensor normed) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &fwd->transformer->blocks[index];
    const struct block_params *params = &fwd->transformer->params[index];
    enum element type = fwd->weights->type;
    int64_t intermediate_size = fwd->transformer->intermediate_size, most = rows_inside(fwd);
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor gate_up, gated; // each gives its place to its gradient
    TRY(workspace_alloc(fwd->workspace, type, most, 2 * intermediate_size, &gate_up));
    TRY(workspace_alloc(fwd->workspace, type, most, intermediate_size, &gated));
    for (int64_t first = 0; first < fwd->rows; first += most) {
        int64_t rows = fwd->rows - first < most ? fwd->rows - first : most;
        struct tensor in = tensor_rows(normed, first, rows), out;
        struct tensor wide = tensor_rows(gate_up, 0, rows), thin = tensor_rows(gated, 0, rows);
        struct workspace_mark some = workspace_save(fwd->workspace);
        TRY(rounded_gradient(fwd, first, rows, &out));
        TRY(ops->linear(backend, wide, in, block->gate_up, block->gate_up_bias));
        TRY(ops->swiglu(backend, thin, wide));
        TRY(linear_gradient(fwd, thin, out, thin, block->down, &params->down, &params->down_bias));
        TRY(ops->swiglu_grad(backend, wide, thin, wide));
        TRY(linear_gradient(fwd, tensor_rows(normed_gradient, first, rows), wide, in, block->gate_up, &params->gate_up,
                            &params->gate_up_bias));
        workspace_restore(fwd->workspace, some);
    }
    workspace_restore(fwd->workspace, mark);
    return OK;
}

// normed_gradient [T,C] = the gradient of the first norm's output through attention.
static status attention_part_gradient(struct forward_state *fwd, int index, struct attention_spans spans,
                                      struct tensor normed_gradient, const struct values *it) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct transformer *transformer = fwd->transformer;
    const struct block *block = &transformer->blocks[index];
    const struct block_params *params = &transformer->params[index];
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor out_gradient, mixed_gradient, qkv_gradient;
    TRY(rounded_gradient(fwd, 0, fwd->rows, &out_gradient));
    TRY(workspace_alloc(fwd->workspace, fwd->weights->type, fwd->rows, it->mixed.columns, &mixed_gradient));
    TRY(workspace_alloc(fwd->workspace, fwd->weights->type, fwd->rows, it->qkv.columns, &qkv_gradient));
    TRY(linear_gradient(fwd, mixed_gradient, out_gradient, it->mixed, block->out, &params->out, &params->out_bias));
    TRY(ops->attention_grad(backend, qkv_gradient, mixed_gradient, it->mixed, it->qkv, transformer->heads,
                            transformer->scale, fwd->cache, fwd->per_layer ? index : 0, fwd->slots, spans.items,
                            spans.count, it->log_sums));
    TRY(ops->rope_grad(backend, qkv_gradient, fwd->cos, fwd->sin, transformer->heads));
    TRY(linear_gradient(fwd, normed_gradient, qkv_gradient, it->normed, block->qkv, &params->qkv, &params->qkv_bias));
    workspace_restore(fwd->workspace, mark);
    return OK;
}

status block_backward(struct forward_state *fwd, int index, struct attention_spans spans) {
    struct backend *backend = fwd->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &fwd->transformer->blocks[index];
    const struct block_params *params = &fwd->transformer->params[index];
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct values values;
    struct tensor normed_gradient = fwd->delta; // which nothing needs after the second norm
    TRY(take_values(fwd, index, &values));
    TRY(recompute(fwd, index, spans, &values));
    TRY(feed_forward_gradient(fwd, index, normed_gradient, values.normed));
    TRY(ops->rmsnorm_grad(backend, fwd->x_grad, gradient_of(fwd, &params->norm2), normed_gradient, values.middle,
                          block->norm2, values.inverse2));
    TRY(ops->rmsnorm(backend, values.normed, values.input, (struct tensor){0}, block->norm1, fwd->transformer->eps,
                     values.inverse1));
    TRY(attention_part_gradient(fwd, index, spans, normed_gradient, &values));
    TRY(ops->rmsnorm_grad(backend, fwd->x_grad, gradient_of(fwd, &params->norm1), normed_gradient, values.input,
                          block->norm1, values.inverse1));
    workspace_restore(fwd->workspace, mark);
    return OK;
}
