#include "shared/model/transformer.h"

#include <assert.h>

static int64_t block_qkv_size(const struct transformer *transformer) {
    return (int64_t)(transformer->heads.query + 2 * transformer->heads.key) * transformer->heads.size;
}

static int64_t block_attended_size(const struct transformer *transformer) {
    return (int64_t)transformer->heads.query * transformer->heads.size;
}

struct forward_state forward_start(const struct transformer *transformer, struct workspace *workspace,
                                   const struct backend_info *info, enum element type, int64_t rows) {
    return (struct forward_state){.backend = workspace->backend,
                                  .type = type,
                                  .transformer = transformer,
                                  .workspace = workspace,
                                  .rows = rows,
                                  .chunk_rows = info->chunk_rows[type]};
}

status forward_alloc(struct forward_state *fwd) {
    const int64_t hidden_size = fwd->transformer->hidden_size;
    TRY(workspace_alloc(fwd->workspace, fwd->type, fwd->rows, hidden_size, &fwd->x));
    return workspace_alloc(fwd->workspace, fwd->type, fwd->rows, hidden_size, &fwd->delta);
}

// Columns of gate_up.
static int64_t block_up_size(const struct transformer *transformer) {
    return (activation_gated(transformer->activation) ? 2 : 1) * transformer->intermediate_size;
}

int64_t norm_statistics_size(const struct transformer *transformer) {
    return transformer->norm == NORM_LAYERNORM ? 2 : 1;
}

// The backward pass alone needs statistics and lse; without it they are none.
static status block_alloc_attention(const struct forward_state *fwd, bool backward, struct block_activations *out) {
    struct workspace *workspace = fwd->workspace;
    enum element type = fwd->type;
    struct heads heads = fwd->transformer->heads;
    assert(fwd->rows > 0 && heads.query % heads.key == 0);
    TRY(workspace_alloc(workspace, type, fwd->rows, block_qkv_size(fwd->transformer), &out->qkv));
    TRY(workspace_alloc(workspace, type, fwd->rows, block_attended_size(fwd->transformer), &out->attended));
    if (!backward) return OK;
    int64_t statistics = norm_statistics_size(fwd->transformer);
    TRY(workspace_alloc(workspace, ELEMENT_F32, fwd->rows, statistics, &out->statistics1));
    TRY(workspace_alloc(workspace, ELEMENT_F32, fwd->rows, statistics, &out->statistics2));
    return workspace_alloc(workspace, ELEMENT_F32, fwd->rows, heads.query, &out->lse);
}

status block_keep(const struct forward_state *fwd, enum kept_level level, struct block_activations *kept) {
    struct workspace *workspace = fwd->workspace;
    const struct transformer *transformer = fwd->transformer;
    enum element type = fwd->type;
    *kept = (struct block_activations){0};
    TRY(workspace_alloc(workspace, type, fwd->rows, transformer->hidden_size, &kept->input));
    if (level < KEEP_ATTENTION) return OK;
    TRY(workspace_alloc(workspace, type, fwd->rows, transformer->hidden_size, &kept->residual));
    TRY(block_alloc_attention(fwd, true, kept));
    if (level < KEEP_MLP) return OK;
    return workspace_alloc(workspace, type, fwd->rows, block_up_size(transformer), &kept->gate_up);
}

// The bytes of working memory beside a product of `rows` rows: what an adapter has of its `parts`, exact and rounded,
// and the rounded gradient.
static size_t adapter_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t parts) {
    return (size_t)(rows * parts * transformer->adapter_rank) * (sizeof(float) + 2 * element_size(type));
}

size_t block_kept_bytes(const struct transformer *transformer, enum element type, int64_t rows, enum kept_level level) {
    int64_t columns = transformer->hidden_size, statistics = 0;
    if (level >= KEEP_ATTENTION) {
        columns += transformer->hidden_size + block_qkv_size(transformer) + block_attended_size(transformer);
        statistics = 2 * norm_statistics_size(transformer) + transformer->heads.query;
    }
    if (level >= KEEP_MLP) columns += block_up_size(transformer);
    return (size_t)rows * ((size_t)columns * element_size(type) + (size_t)statistics * sizeof(float));
}

size_t block_work_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t chunk_rows) {
    int64_t hidden_size = transformer->hidden_size, chunk = rows < chunk_rows ? rows : chunk_rows;
    int64_t attention = block_qkv_size(transformer) + block_attended_size(transformer);
    size_t activations = block_kept_bytes(transformer, type, rows, KEEP_ATTENTION) -
                         block_kept_bytes(transformer, type, rows, KEEP_INPUT); // with `normed` for `residual`
    size_t in_mlp = (size_t)(chunk * (hidden_size + block_up_size(transformer) + transformer->intermediate_size)) *
                        element_size(type) +
                    adapter_bytes(transformer, type, chunk, 2);
    size_t in_attention = (size_t)(rows * (hidden_size + attention)) * element_size(type) +
                          adapter_bytes(transformer, type, rows, ADAPTED_PARTS);
    return activations + (in_mlp > in_attention ? in_mlp : in_attention);
}

// *out = what the block keeps, and working memory for the rest but `residual` and `gate_up`.
static status block_alloc(const struct forward_state *fwd, int index, bool backward, struct block_activations *out) {
    *out = fwd->kept ? fwd->kept[index] : (struct block_activations){0};
    TRY(workspace_alloc(fwd->workspace, fwd->type, fwd->rows, fwd->transformer->hidden_size, &out->normed));
    return out->qkv.buffer ? OK : block_alloc_attention(fwd, backward, out);
}

// The number of rows whose MLP activations, the widest of all, exist at the same time: the rows are divided into chunks
// of equal length.
static int64_t block_mlp_chunk(const struct forward_state *fwd) {
    assert(fwd->chunk_rows > 0);
    int64_t chunks = (fwd->rows - 1) / fwd->chunk_rows + 1;
    return (fwd->rows - 1) / chunks + 1;
}

// x += delta (or none), and out = norm(x).
static status block_norm(const struct forward_state *fwd, struct tensor out, struct tensor x, struct tensor delta,
                         const struct fused_param *scale, const struct fused_param *bias, struct tensor statistics) {
    const struct operations *ops = fwd->backend->ops;
    float eps = fwd->transformer->eps;
    if (fwd->transformer->norm == NORM_LAYERNORM)
        return ops->layernorm(fwd->backend, out, x, delta, scale->values, bias->values, eps, statistics);
    assert(!bias || !bias->count);
    return ops->rmsnorm(fwd->backend, out, x, delta, scale->values, eps, statistics);
}

status forward_norm(struct forward_state *fwd, struct tensor out, const struct fused_param *scale,
                    const struct fused_param *bias, struct tensor statistics) {
    struct tensor delta = fwd->has_delta ? fwd->delta : (struct tensor){0};
    fwd->has_delta = false;
    return block_norm(fwd, out, fwd->x, delta, scale, bias, statistics);
}

// *out = n: the first norm of x, or x itself.
static status block_norm1(struct forward_state *fwd, const struct block *block, const struct block_activations *act,
                          struct tensor *out) {
    *out = block->norm1.count ? act->normed : fwd->x;
    if (block->norm1.count) return forward_norm(fwd, *out, &block->norm1, &block->norm1_bias, act->statistics1);
    assert(!fwd->has_delta);
    return OK;
}

// An adapter's tensors beside one product.
struct adapter_pass {
    struct tensor exact; // F32 [T, parts * rank]
    struct tensor h;     // the same scaled, in the type of the products
    struct workspace_mark mark;
};

// pass->h = scale * (in A^T). The caller restores the mark.
static status adapter_enter(const struct forward_state *fwd, struct tensor in, const struct adapter *adapter,
                            struct adapter_pass *pass) {
    const struct operations *ops = fwd->backend->ops;
    struct workspace *workspace = fwd->workspace;
    pass->mark = workspace_save(workspace);
    TRY(workspace_alloc(workspace, ELEMENT_F32, in.rows, adapter->a.rows, &pass->exact));
    TRY(workspace_alloc(workspace, fwd->type, in.rows, adapter->a.rows, &pass->h));
    TRY(ops->linear(fwd->backend, pass->exact, in, adapter->a.weight, (struct tensor){0}, false));
    return ops->scale(fwd->backend, pass->h, pass->exact, fwd->transformer->adapter_scale);
}

// The columns of h, or of its gradient, that belong to a part.
static struct tensor adapter_part(const struct forward_state *fwd, struct tensor h, int part) {
    return tensor_columns(h, part * fwd->transformer->adapter_rank, fwd->transformer->adapter_rank);
}

// out = in W^T + bias, and the adapter's product if there is one.
static status block_linear(const struct forward_state *fwd, struct tensor out, struct tensor in,
                           const struct fused_param *matrix, const struct fused_param *bias,
                           const struct adapter *adapter) {
    const struct operations *ops = fwd->backend->ops;
    struct adapter_pass pass;
    int64_t column = 0;
    TRY(ops->linear(fwd->backend, out, in, matrix->weight, bias->values, false));
    if (!adapter->a.count) return OK;
    TRY(adapter_enter(fwd, in, adapter, &pass));
    for (int i = 0; i < ADAPTED_PARTS && adapter->b[i].count; i++) {
        const struct fused_param *b = &adapter->b[i];
        TRY(ops->linear(fwd->backend, tensor_columns(out, column, b->rows), adapter_part(fwd, pass.h, i), b->weight,
                        (struct tensor){0}, true));
        column += b->rows;
    }
    workspace_restore(fwd->workspace, pass.mark);
    return OK;
}

// From n to m: delta = out(attention(rope(qkv(n)))), then normed = norm(x + delta; norm2).
static status block_attention_forward(struct forward_state *fwd, int index, struct tensor n,
                                      const struct block_activations *act) {
    struct backend *backend = fwd->backend;
    const struct operations *ops = backend->ops;
    const struct transformer *transformer = fwd->transformer;
    const struct block *block = &transformer->blocks[index];
    int layer = fwd->layered ? index : 0;
    TRY(block_linear(fwd, act->qkv, n, &block->qkv, &block->qkv_bias, &block->qkv_adapter));
    TRY(ops->rope(backend, act->qkv, fwd->rope, fwd->position_ids, transformer->heads, fwd->cache, layer,
                  fwd->cache_slots));
    TRY(ops->attention(backend, act->attended, act->qkv, transformer->attention_scale, fwd->cache, layer, fwd->plan,
                       act->lse));
    TRY(block_linear(fwd, fwd->delta, act->attended, &block->out, &block->out_bias, &block->out_adapter));
    fwd->has_delta = true;
    return forward_norm(fwd, act->normed, &block->norm2, &block->norm2_bias, act->statistics2);
}

status block_forward(struct forward_state *fwd, int index) {
    assert(index >= 0 && index < fwd->transformer->block_count);
    struct backend *backend = fwd->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &fwd->transformer->blocks[index];
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct block_activations act;
    struct tensor n;
    TRY(block_alloc(fwd, index, false, &act));
    TRY(block_norm1(fwd, block, &act, &n));
    if (act.input.buffer) TRY(ops->copy(backend, act.input, fwd->x));
    TRY(block_attention_forward(fwd, index, n, &act));
    if (act.residual.buffer) TRY(ops->copy(backend, act.residual, fwd->x));

    // delta = down(activation(gate_up(normed))), one chunk of rows after another.
    int64_t intermediate_size = fwd->transformer->intermediate_size, chunk = block_mlp_chunk(fwd);
    bool kept = act.gate_up.buffer;
    struct tensor hidden_chunk;
    if (!kept) TRY(workspace_alloc(fwd->workspace, fwd->type, chunk, block_up_size(fwd->transformer), &act.gate_up));
    TRY(workspace_alloc(fwd->workspace, fwd->type, chunk, intermediate_size, &hidden_chunk));
    for (int64_t first = 0; first < fwd->rows; first += chunk) {
        int64_t rows = fwd->rows - first < chunk ? fwd->rows - first : chunk;
        struct tensor gate_up = tensor_rows(act.gate_up, kept ? first : 0, rows);
        struct tensor hidden = tensor_rows(hidden_chunk, 0, rows);
        TRY(block_linear(fwd, gate_up, tensor_rows(act.normed, first, rows), &block->gate_up, &block->gate_up_bias,
                         &block->gate_up_adapter));
        TRY(ops->activation(backend, fwd->transformer->activation, hidden, gate_up));
        TRY(block_linear(fwd, tensor_rows(fwd->delta, first, rows), hidden, &block->down, &block->down_bias,
                         &block->down_adapter));
    }
    fwd->has_delta = true;
    workspace_restore(fwd->workspace, mark);
    return OK;
}

struct tensor backward_param(const struct forward_state *fwd, const struct fused_param *param) {
    return param->count && fwd->grads && fwd->transformer->adapter_rank == 0 ? step_sums_grad(fwd->grads, param)
                                                                             : (struct tensor){0};
}

// *out = rows of grad_x in the type of the products: the rows themselves, or a rounded copy.
static status block_round_grad(struct forward_state *fwd, int64_t first, int64_t rows, struct tensor *out) {
    struct backend *backend = fwd->backend;
    struct tensor exact = tensor_rows(fwd->grad_x, first, rows);
    *out = exact;
    if (fwd->type == ELEMENT_F32) return OK;
    TRY(workspace_alloc(fwd->workspace, fwd->type, rows, exact.columns, out));
    return backend->ops->copy(backend, *out, exact);
}

status backward_linear(const struct forward_state *fwd, struct tensor grad_in, struct tensor grad_out, struct tensor in,
                       const struct fused_param *matrix, const struct fused_param *bias) {
    struct backend *backend = fwd->backend;
    TRY(backend->ops->linear_grad_weight(backend, backward_param(fwd, matrix), backward_param(fwd, bias), grad_out,
                                         in));
    return backend->ops->linear_grad_input(backend, grad_in, grad_out, matrix->weight, false);
}

status backward_norm(const struct forward_state *fwd, const struct fused_param *scale, const struct fused_param *bias,
                     struct tensor grad_out, struct tensor x, struct tensor statistics) {
    const struct operations *ops = fwd->backend->ops;
    struct tensor grad_scale = backward_param(fwd, scale), grad_bias = backward_param(fwd, bias);
    if (fwd->transformer->norm == NORM_LAYERNORM)
        return ops->layernorm_grad(fwd->backend, fwd->grad_x, grad_scale, grad_bias, grad_out, x, scale->values,
                                   statistics);
    return ops->rmsnorm_grad(fwd->backend, fwd->grad_x, grad_scale, grad_out, x, scale->values, statistics);
}

// backward_linear. If there is an adapter, its gradients are added, and no others.
static status block_backward_linear(const struct forward_state *fwd, struct tensor grad_in, struct tensor grad_out,
                                    struct tensor in, const struct fused_param *matrix, const struct fused_param *bias,
                                    const struct adapter *adapter) {
    const struct operations *ops = fwd->backend->ops;
    struct backend *backend = fwd->backend;
    struct tensor grad_h, none = {0};
    struct adapter_pass pass;
    int64_t column = 0;
    if (!adapter->a.count) return backward_linear(fwd, grad_in, grad_out, in, matrix, bias);
    TRY(adapter_enter(fwd, in, adapter, &pass));
    TRY(workspace_alloc(fwd->workspace, fwd->type, in.rows, adapter->a.rows, &grad_h));
    for (int i = 0; i < ADAPTED_PARTS && adapter->b[i].count; i++) {
        const struct fused_param *b = &adapter->b[i];
        struct tensor part = tensor_columns(grad_out, column, b->rows);
        TRY(ops->linear_grad_weight(backend, step_sums_grad(fwd->grads, b), none, part, adapter_part(fwd, pass.h, i)));
        TRY(ops->linear_grad_input(backend, adapter_part(fwd, pass.exact, i), part, b->weight, false));
        column += b->rows;
    }
    TRY(ops->scale(backend, grad_h, pass.exact, fwd->transformer->adapter_scale));
    TRY(ops->linear_grad_weight(backend, step_sums_grad(fwd->grads, &adapter->a), none, grad_h, in));
    TRY(ops->linear_grad_input(backend, grad_in, grad_out, matrix->weight, false));
    TRY(ops->linear_grad_input(backend, grad_in, grad_h, adapter->a.weight, true));
    workspace_restore(fwd->workspace, pass.mark);
    return OK;
}

// grad_normed [T,C] = the gradient of n through attention.
static status block_attention_backward(struct forward_state *fwd, int index, struct tensor n, struct tensor grad_normed,
                                       const struct block_activations *act) {
    struct backend *backend = fwd->backend;
    const struct operations *ops = backend->ops;
    const struct transformer *transformer = fwd->transformer;
    const struct block *block = &transformer->blocks[index];
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor grad_out, grad_attended, grad_qkv;
    TRY(block_round_grad(fwd, 0, fwd->rows, &grad_out));
    TRY(workspace_alloc(fwd->workspace, fwd->type, fwd->rows, act->attended.columns, &grad_attended));
    TRY(workspace_alloc(fwd->workspace, fwd->type, fwd->rows, act->qkv.columns, &grad_qkv));
    TRY(block_backward_linear(fwd, grad_attended, grad_out, act->attended, &block->out, &block->out_bias,
                              &block->out_adapter));
    TRY(ops->attention_grad(backend, grad_qkv, grad_attended, act->attended, act->qkv, transformer->attention_scale,
                            fwd->cache, fwd->layered ? index : 0, fwd->plan, act->lse));
    TRY(ops->rope_grad(backend, grad_qkv, fwd->rope, fwd->position_ids, transformer->heads));
    TRY(block_backward_linear(fwd, grad_normed, grad_qkv, n, &block->qkv, &block->qkv_bias, &block->qkv_adapter));
    workspace_restore(fwd->workspace, mark);
    return OK;
}

status block_backward(struct forward_state *fwd, int index) {
    assert(index >= 0 && index < fwd->transformer->block_count && fwd->kept && fwd->kept[index].input.buffer);
    struct backend *backend = fwd->backend;
    const struct operations *ops = backend->ops;
    const struct block *block = &fwd->transformer->blocks[index];
    struct tensor none = {0};
    struct tensor grad_normed = fwd->delta; // delta is free after the second norm
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct block_activations act;
    TRY(block_alloc(fwd, index, true, &act));

    // The block again, up to its second norm, as far as it was not kept: normed, residual, and the cache that the
    // blocks share.
    if (act.residual.buffer) {
        TRY(ops->kv_cache_write(backend, act.qkv, fwd->transformer->heads, fwd->cache, fwd->layered ? index : 0,
                                fwd->cache_slots));
        TRY(block_norm(fwd, act.normed, act.residual, none, &block->norm2, &block->norm2_bias, act.statistics2));
    } else {
        struct tensor n;
        TRY(ops->copy(backend, fwd->x, act.input));
        fwd->has_delta = false;
        TRY(block_norm1(fwd, block, &act, &n));
        TRY(block_attention_forward(fwd, index, n, &act));
        act.residual = fwd->x;
    }

    // grad_normed [T,C] = the gradient of m through the MLP, one chunk of rows after another.
    int64_t intermediate_size = fwd->transformer->intermediate_size, chunk = block_mlp_chunk(fwd);
    struct workspace_mark mlp_mark = workspace_save(fwd->workspace);
    bool kept = act.gate_up.buffer;
    struct tensor hidden_chunk; // like gate_up, it is overwritten by its own gradient
    if (!kept) TRY(workspace_alloc(fwd->workspace, fwd->type, chunk, block_up_size(fwd->transformer), &act.gate_up));
    TRY(workspace_alloc(fwd->workspace, fwd->type, chunk, intermediate_size, &hidden_chunk));
    for (int64_t first = 0; first < fwd->rows; first += chunk) {
        int64_t rows = fwd->rows - first < chunk ? fwd->rows - first : chunk;
        struct tensor in = tensor_rows(act.normed, first, rows), grad_out;
        struct tensor gate_up = tensor_rows(act.gate_up, kept ? first : 0, rows);
        struct tensor hidden = tensor_rows(hidden_chunk, 0, rows);
        struct workspace_mark chunk_mark = workspace_save(fwd->workspace);
        TRY(block_round_grad(fwd, first, rows, &grad_out));
        if (!kept) TRY(block_linear(fwd, gate_up, in, &block->gate_up, &block->gate_up_bias, &block->gate_up_adapter));
        TRY(ops->activation(backend, fwd->transformer->activation, hidden, gate_up));
        TRY(block_backward_linear(fwd, hidden, grad_out, hidden, &block->down, &block->down_bias,
                                  &block->down_adapter));
        TRY(ops->activation_grad(backend, fwd->transformer->activation, gate_up, hidden, gate_up));
        TRY(block_backward_linear(fwd, tensor_rows(grad_normed, first, rows), gate_up, in, &block->gate_up,
                                  &block->gate_up_bias, &block->gate_up_adapter));
        workspace_restore(fwd->workspace, chunk_mark);
    }
    workspace_restore(fwd->workspace, mlp_mark);
    TRY(backward_norm(fwd, &block->norm2, &block->norm2_bias, grad_normed, act.residual, act.statistics2));

    // n again: the second norm has overwritten the output of the first.
    if (!block->norm1.count) {
        TRY(block_attention_backward(fwd, index, act.input, grad_normed, &act));
        TRY(ops->add(backend, fwd->grad_x, grad_normed));
    } else {
        TRY(block_norm(fwd, act.normed, act.input, none, &block->norm1, &block->norm1_bias, act.statistics1));
        TRY(block_attention_backward(fwd, index, act.normed, grad_normed, &act));
        TRY(backward_norm(fwd, &block->norm1, &block->norm1_bias, grad_normed, act.input, act.statistics1));
    }
    workspace_restore(fwd->workspace, mark);
    return OK;
}
