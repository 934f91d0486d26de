#include "shared/model/tower.h"

// Rows whose inner activations, the widest there are, exist at one time, in turns of one length. In training each turn
// packs the weights again, which weighs more beside bfloat16's faster products, whose rows are half as large.
static int64_t rows_inside(const struct pass *pass) {
    int64_t most = pass->weights->type == ELEMENT_BF16 ? 4096 : 1152;
    int64_t turns = (pass->rows + most - 1) / most;
    return (pass->rows + turns - 1) / turns;
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

static struct tensor gradient_of(const struct pass *pass, const struct part *part) {
    return part->count && pass->gradients ? part_tensor(pass->gradients, part) : (struct tensor){0};
}

status pass_norm(struct pass *pass, struct tensor out, struct tensor scale, struct tensor inverse) {
    struct backend *backend = pass->weights->backend;
    struct tensor delta = pass->pending ? pass->delta : (struct tensor){0};
    pass->pending = false;
    return backend->ops->rmsnorm(backend, out, pass->x, delta, scale, pass->tower->epsilon, inverse);
}

// mixed = attention of the rows in `normed`.
static status attend(struct pass *pass, int index, struct view view, struct tensor normed, struct tensor qkv,
                     struct tensor mixed, struct tensor log_sums) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct tower *tower = pass->tower;
    const struct block *block = &tower->blocks[index];
    int layer = pass->deep ? index : 0;
    TRY(ops->linear(backend, qkv, normed, block->qkv, block->qkv_bias));
    TRY(ops->rotate(backend, qkv, pass->cos, pass->sin, tower->heads, pass->cache, layer, pass->slots));
    return ops->attention(backend, mixed, qkv, tower->heads, tower->scale, pass->cache, layer, view.segments,
                          view.count, log_sums);
}

// delta = down(swiglu(gate_up(normed))), some rows at a time.
static status feed_forward(struct pass *pass, const struct block *block, struct tensor normed) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    int64_t inner = pass->tower->inner, most = rows_inside(pass);
    struct tensor gate_up, gated;
    TRY(desk_take(pass->desk, pass->weights->type, most, 2 * inner, &gate_up));
    TRY(desk_take(pass->desk, pass->weights->type, most, inner, &gated));
    for (int64_t first = 0; first < pass->rows; first += most) {
        int64_t rows = pass->rows - first < most ? pass->rows - first : most;
        struct tensor wide = tensor_rows(gate_up, 0, rows), thin = tensor_rows(gated, 0, rows);
        TRY(ops->linear(backend, wide, tensor_rows(normed, first, rows), block->gate_up, block->gate_up_bias));
        TRY(ops->swiglu(backend, thin, wide));
        TRY(ops->linear(backend, tensor_rows(pass->delta, first, rows), thin, block->down, block->down_bias));
    }
    return OK;
}

status block_forward(struct pass *pass, int index, struct view view) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct tower *tower = pass->tower;
    const struct block *block = &tower->blocks[index];
    enum element type = pass->weights->type;
    struct desk_mark mark = desk_here(pass->desk);
    struct tensor normed, qkv, mixed;
    TRY(desk_take(pass->desk, type, pass->rows, tower->hidden, &normed));
    TRY(desk_take(pass->desk, type, pass->rows, qkv_columns(tower->heads), &qkv));
    TRY(desk_take(pass->desk, type, pass->rows, (int64_t)tower->heads.query * tower->heads.size, &mixed));
    TRY(pass_norm(pass, normed, block->norm1, (struct tensor){0}));
    if (pass->saved) TRY(ops->copy(backend, pass->saved[index], pass->x));
    TRY(attend(pass, index, view, normed, qkv, mixed, (struct tensor){0}));
    TRY(ops->linear(backend, pass->delta, mixed, block->out, block->out_bias));
    pass->pending = true;
    TRY(pass_norm(pass, normed, block->norm2, (struct tensor){0}));
    TRY(feed_forward(pass, block, normed));
    pass->pending = true;
    desk_back(pass->desk, mark);
    return OK;
}

static status take_values(struct pass *pass, int index, struct values *it) {
    const struct tower *tower = pass->tower;
    struct desk *desk = pass->desk;
    enum element type = pass->weights->type;
    *it = (struct values){.input = pass->saved[index], .middle = pass->x};
    TRY(desk_take(desk, type, pass->rows, tower->hidden, &it->normed));
    TRY(desk_take(desk, ELEMENT_F32, pass->rows, 1, &it->inverse1));
    TRY(desk_take(desk, ELEMENT_F32, pass->rows, 1, &it->inverse2));
    TRY(desk_take(desk, type, pass->rows, qkv_columns(tower->heads), &it->qkv));
    TRY(desk_take(desk, type, pass->rows, (int64_t)tower->heads.query * tower->heads.size, &it->mixed));
    return desk_take(desk, ELEMENT_F32, pass->rows, tower->heads.query, &it->log_sums);
}

// Computes a block again up to its second norm; the feed-forward part follows with its gradient.
static status recompute(struct pass *pass, int index, struct view view, struct values *it) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &pass->tower->blocks[index];
    TRY(ops->copy(backend, pass->x, it->input));
    pass->pending = false;
    TRY(pass_norm(pass, it->normed, block->norm1, it->inverse1));
    TRY(attend(pass, index, view, it->normed, it->qkv, it->mixed, it->log_sums));
    TRY(ops->linear(backend, pass->delta, it->mixed, block->out, block->out_bias));
    pass->pending = true;
    return pass_norm(pass, it->normed, block->norm2, it->inverse2);
}

// *out = rows of x_gradient in the type of products: themselves, or rounded on the desk.
static status rounded_gradient(struct pass *pass, int64_t first, int64_t rows, struct tensor *out) {
    struct backend *backend = pass->weights->backend;
    struct tensor exact = tensor_rows(pass->x_gradient, first, rows);
    *out = exact;
    if (pass->weights->type == ELEMENT_F32) return OK;
    TRY(desk_take(pass->desk, pass->weights->type, rows, exact.columns, out));
    return backend->ops->copy(backend, *out, exact);
}

// The gradient of one product: of its weight and its bias, then of its input, which may take the input's own place.
static status linear_gradient(struct pass *pass, struct tensor in_gradient, struct tensor out_gradient,
                              struct tensor in, struct weight *weight, const struct part *part,
                              const struct part *bias) {
    struct backend *backend = pass->weights->backend;
    TRY(backend->ops->linear_weight_gradient(backend, gradient_of(pass, part), gradient_of(pass, bias), out_gradient,
                                             in));
    return backend->ops->linear_input_gradient(backend, in_gradient, out_gradient, weight, false);
}

// normed_gradient [T,C] = the gradient of `normed` through the feed-forward part, some rows at a time.
static status feed_forward_gradient(struct pass *pass, int index, struct tensor normed_gradient, struct tensor normed) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &pass->tower->blocks[index];
    const struct block_parts *parts = &pass->tower->parts[index];
    enum element type = pass->weights->type;
    int64_t inner = pass->tower->inner, most = rows_inside(pass);
    struct desk_mark mark = desk_here(pass->desk);
    struct tensor gate_up, gated; // each gives its place to its gradient
    TRY(desk_take(pass->desk, type, most, 2 * inner, &gate_up));
    TRY(desk_take(pass->desk, type, most, inner, &gated));
    for (int64_t first = 0; first < pass->rows; first += most) {
        int64_t rows = pass->rows - first < most ? pass->rows - first : most;
        struct tensor in = tensor_rows(normed, first, rows), out;
        struct tensor wide = tensor_rows(gate_up, 0, rows), thin = tensor_rows(gated, 0, rows);
        struct desk_mark some = desk_here(pass->desk);
        TRY(rounded_gradient(pass, first, rows, &out));
        TRY(ops->linear(backend, wide, in, block->gate_up, block->gate_up_bias));
        TRY(ops->swiglu(backend, thin, wide));
        TRY(linear_gradient(pass, thin, out, thin, block->down, &parts->down, &parts->down_bias));
        TRY(ops->swiglu_gradient(backend, wide, thin, wide));
        TRY(linear_gradient(pass, tensor_rows(normed_gradient, first, rows), wide, in, block->gate_up, &parts->gate_up,
                            &parts->gate_up_bias));
        desk_back(pass->desk, some);
    }
    desk_back(pass->desk, mark);
    return OK;
}

// normed_gradient [T,C] = the gradient of the first norm's output through attention.
static status attention_part_gradient(struct pass *pass, int index, struct view view, struct tensor normed_gradient,
                                      const struct values *it) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct tower *tower = pass->tower;
    const struct block *block = &tower->blocks[index];
    const struct block_parts *parts = &tower->parts[index];
    struct desk_mark mark = desk_here(pass->desk);
    struct tensor out_gradient, mixed_gradient, qkv_gradient;
    TRY(rounded_gradient(pass, 0, pass->rows, &out_gradient));
    TRY(desk_take(pass->desk, pass->weights->type, pass->rows, it->mixed.columns, &mixed_gradient));
    TRY(desk_take(pass->desk, pass->weights->type, pass->rows, it->qkv.columns, &qkv_gradient));
    TRY(linear_gradient(pass, mixed_gradient, out_gradient, it->mixed, block->out, &parts->out, &parts->out_bias));
    TRY(ops->attention_gradient(backend, qkv_gradient, mixed_gradient, it->mixed, it->qkv, tower->heads, tower->scale,
                                pass->cache, pass->deep ? index : 0, pass->slots, view.segments, view.count,
                                it->log_sums));
    TRY(ops->rotate_gradient(backend, qkv_gradient, pass->cos, pass->sin, tower->heads));
    TRY(linear_gradient(pass, normed_gradient, qkv_gradient, it->normed, block->qkv, &parts->qkv, &parts->qkv_bias));
    desk_back(pass->desk, mark);
    return OK;
}

status block_gradient(struct pass *pass, int index, struct view view) {
    struct backend *backend = pass->weights->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &pass->tower->blocks[index];
    const struct block_parts *parts = &pass->tower->parts[index];
    struct desk_mark mark = desk_here(pass->desk);
    struct values values;
    struct tensor normed_gradient = pass->delta; // which nothing needs after the second norm
    TRY(take_values(pass, index, &values));
    TRY(recompute(pass, index, view, &values));
    TRY(feed_forward_gradient(pass, index, normed_gradient, values.normed));
    TRY(ops->rmsnorm_gradient(backend, pass->x_gradient, gradient_of(pass, &parts->norm2), normed_gradient,
                              values.middle, block->norm2, values.inverse2));
    TRY(ops->rmsnorm(backend, values.normed, values.input, (struct tensor){0}, block->norm1, pass->tower->epsilon,
                     values.inverse1));
    TRY(attention_part_gradient(pass, index, view, normed_gradient, &values));
    TRY(ops->rmsnorm_gradient(backend, pass->x_gradient, gradient_of(pass, &parts->norm1), normed_gradient,
                              values.input, block->norm1, values.inverse1));
    desk_back(pass->desk, mark);
    return OK;
}
