// Several texts in one pass, forward and backward. Each text attends to itself alone, so its logits do not depend on
// the others.
#include <assert.h>

#include "shared/model/modernbert/classifier_internal.h"

static status classifier_alloc(const struct classifier_pass *pass, int64_t rows, int64_t columns, struct tensor *out) {
    return workspace_alloc(pass->fwd.workspace, pass->fwd.type, rows, columns, out);
}

status classifier_check_texts(const struct classifier *classifier, const struct classifier_text *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (texts[i].count == 0) return fail(BAD_SAMPLE, "text %zu is empty", i);
        for (size_t t = 0; t < texts[i].count; t++)
            if (texts[i].tokens[t] < 0 || texts[i].tokens[t] >= classifier->config.vocab_size)
                return fail(BAD_SAMPLE, "text %zu has the token %lld, which is not in the vocabulary", i,
                            (long long)texts[i].tokens[t]);
    }
    return OK;
}

size_t classifier_pass_texts(const struct classifier_text *texts, size_t count, int64_t rows) {
    int64_t sum = 0;
    size_t taken = 0;
    while (taken < count && (taken == 0 || sum + (int64_t)texts[taken].count <= rows))
        sum += (int64_t)texts[taken++].count;
    return taken;
}

// Uploads the indices of the texts' rows, and makes the attention plans.
static status classifier_pass_layout(struct classifier_pass *pass, struct classifier *classifier, struct arena *arena,
                                     const struct classifier_text *texts) {
    struct forward_state *fwd = &pass->fwd;
    const struct operations *ops = classifier->backend->ops;
    size_t rows = (size_t)fwd->rows;
    int32_t *ids = arena_alloc(arena, rows * sizeof *ids), *slots = arena_alloc(arena, rows * sizeof *slots);
    int32_t *positions = arena_alloc(arena, 3 * rows * sizeof *positions);
    int32_t *begins = arena_alloc(arena, (pass->texts + 1) * sizeof *begins);
    struct attention_span *spans = arena_alloc(arena, pass->texts * sizeof *spans);
    size_t row = 0, longest = 0;
    for (size_t i = 0; i < pass->texts; i++) {
        int64_t first = (int64_t)row, count = (int64_t)texts[i].count;
        begins[i] = (int32_t)first;
        spans[i] = (struct attention_span){.q_begin = first, .q_len = count, .kv_begin = first, .visible = count};
        if (texts[i].count > longest) longest = texts[i].count;
        for (size_t t = 0; t < texts[i].count; t++, row++) {
            ids[row] = (int32_t)texts[i].tokens[t];
            slots[row] = (int32_t)row;
            for (int axis = 0; axis < 3; axis++) positions[3 * row + (size_t)axis] = (int32_t)t;
        }
    }
    assert(row == rows);
    begins[pass->texts] = (int32_t)row;
    TRY(rope_angles_reserve(&classifier->global_rope, classifier->backend, (int64_t)longest));
    TRY(rope_angles_reserve(&classifier->local_rope, classifier->backend, (int64_t)longest));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 1, ids, &pass->token_ids));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 3, positions, &fwd->position_ids));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 1, slots, &fwd->cache_slots));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, (int64_t)pass->texts + 1, 1, begins, &pass->begins));
    struct tensor grad_slots = classifier->training ? fwd->cache_slots : (struct tensor){0};
    TRY(ops->attention_plan_new(classifier->backend, &pass->global_plan, fwd->transformer->heads, spans, pass->texts,
                                grad_slots));
    for (size_t i = 0; i < pass->texts; i++) spans[i].window = classifier->config.window;
    return ops->attention_plan_new(classifier->backend, &pass->local_plan, fwd->transformer->heads, spans, pass->texts,
                                   grad_slots);
}

// Prepares layer `index`: global or local.
static void classifier_pass_layer(struct classifier_pass *pass, const struct classifier *classifier, int index) {
    const bool full = classifier->config.full_attention[index];
    pass->fwd.plan = full ? pass->global_plan : pass->local_plan;
    pass->fwd.rope = full ? &classifier->global_rope.table : &classifier->local_rope.table;
}

// Allocates what outlives a layer, and what the backward pass needs.
static status classifier_pass_alloc(struct classifier_pass *pass, const struct classifier *classifier,
                                    struct arena *arena) {
    struct forward_state *fwd = &pass->fwd;
    int64_t texts = (int64_t)pass->texts, hidden_size = fwd->transformer->hidden_size;
    TRY(forward_alloc(fwd));
    TRY(classifier_alloc(pass, texts, hidden_size, &pass->pooled));
    TRY(classifier_alloc(pass, texts, hidden_size, &pass->dense_out));
    TRY(classifier_alloc(pass, texts, hidden_size, &pass->gelu_out));
    TRY(classifier_alloc(pass, texts, hidden_size, &pass->head_out));
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, texts, classifier->info.labels, &pass->logits));
    if (!classifier->training) return OK;
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, fwd->rows, 2, &pass->embedding_norm));
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, fwd->rows, 2, &pass->final_norm));
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, texts, 2, &pass->head_norm));
    int layers = fwd->transformer->block_count;
    fwd->kept = arena_alloc(arena, (size_t)layers * sizeof *fwd->kept);
    for (int i = 0; i < layers; i++) TRY(block_keep(fwd, KEEP_INPUT, &fwd->kept[i]));
    return OK;
}

// The rows' x, delta and indices, the head, and a block. What is allocated after the last block is smaller than that.
size_t classifier_pass_bytes(const struct transformer *encoder, enum element type, int64_t rows, int64_t texts,
                             int64_t labels, int64_t chunk_rows) {
    size_t row_bytes = (size_t)encoder->hidden_size * element_size(type), indices = 5 * sizeof(int32_t);
    size_t head = 4 * row_bytes + sizeof(int32_t) + (size_t)labels * sizeof(float);
    return (size_t)rows * (2 * row_bytes + indices) + (size_t)texts * head +
           block_work_bytes(encoder, type, rows, chunk_rows);
}

status classifier_forward(struct classifier_pass *pass, struct classifier *classifier, struct arena *arena,
                          const struct classifier_text *texts, size_t count, float **logits) {
    const struct classifier_weights *weights = classifier->weights;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    const struct tensor none = {0};
    enum element type = weights->base.type;
    int64_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += (int64_t)texts[i].count;
    *pass = (struct classifier_pass){
        .texts = count,
        .fwd = forward_start(&weights->encoder, &classifier->workspace, &classifier->backend_info, type, rows)};
    struct forward_state *fwd = &pass->fwd;
    if (classifier->backend_info.memory && !classifier->training) // one chunk: the end of each of several stays unused
        workspace_expect(fwd->workspace, classifier_pass_bytes(fwd->transformer, type, fwd->rows, (int64_t)count,
                                                               classifier->info.labels, fwd->chunk_rows));
    TRY(kv_scratch_reserve(&classifier->kv, backend, type, fwd->rows, fwd->transformer->heads));
    fwd->cache = classifier->kv.cache;
    TRY(classifier_pass_layout(pass, classifier, arena, texts));
    TRY(classifier_pass_alloc(pass, classifier, arena));

    TRY(ops->gather(backend, fwd->x, weights->embedding, pass->token_ids));
    TRY(ops->layernorm(backend, fwd->x, fwd->x, none, weights->embedding_norm, weights->embedding_norm_bias,
                       fwd->transformer->eps, pass->embedding_norm));
    for (int i = 0; i < fwd->transformer->block_count; i++) {
        classifier_pass_layer(pass, classifier, i);
        TRY(block_forward(fwd, i));
    }
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor normed;
    TRY(classifier_alloc(pass, fwd->rows, fwd->x.columns, &normed));
    TRY(forward_norm(fwd, normed, weights->final_norm, weights->final_norm_bias, pass->final_norm));
    if (classifier->config.pools_mean)
        TRY(ops->segment_mean(backend, pass->pooled, normed, pass->begins));
    else
        TRY(ops->gather(backend, pass->pooled, normed, tensor_rows(pass->begins, 0, (int64_t)count)));
    workspace_restore(fwd->workspace, mark);
    TRY(ops->linear(backend, pass->dense_out, pass->pooled, weights->dense, weights->dense_bias));
    TRY(ops->gelu(backend, pass->gelu_out, pass->dense_out));
    TRY(ops->layernorm(backend, pass->head_out, pass->gelu_out, none, weights->head_norm, weights->head_norm_bias,
                       fwd->transformer->eps, pass->head_norm));
    TRY(ops->linear(backend, pass->logits, pass->head_out, weights->classifier, weights->classifier_bias));
    *logits = arena_alloc(arena, count * (size_t)classifier->info.labels * sizeof **logits);
    return ops->download(backend, *logits, ELEMENT_F32, pass->logits);
}

// From the gradient of the logits to that of what was pooled, in the type of the products.
static status classifier_head_backward(struct classifier_pass *pass, struct classifier *classifier,
                                       const float *grad_logits, struct tensor grad_pooled) {
    const struct classifier_weights *weights = classifier->weights;
    const struct classifier_parameters *params = classifier->params;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    int64_t texts = (int64_t)pass->texts;
    const struct forward_state *fwd = &pass->fwd;
    struct workspace *workspace = fwd->workspace;
    struct workspace_mark mark = workspace_save(workspace);
    struct tensor exact, grad_out, grad_gelu_out, grad_hidden;
    TRY(workspace_upload(workspace, ELEMENT_F32, texts, classifier->info.labels, grad_logits, &exact));
    TRY(classifier_alloc(pass, texts, classifier->info.labels, &grad_out));
    TRY(workspace_alloc(workspace, ELEMENT_F32, texts, pass->pooled.columns, &grad_gelu_out));
    TRY(classifier_alloc(pass, texts, pass->pooled.columns, &grad_hidden));
    TRY(ops->copy(backend, grad_out, exact));
    TRY(backward_linear(fwd, grad_hidden, grad_out, pass->head_out, weights->classifier, &params->classifier,
                        &params->classifier_bias));
    TRY(ops->zero(backend, grad_gelu_out));
    TRY(ops->layernorm_grad(backend, grad_gelu_out, backward_param(fwd, &params->head_norm),
                            backward_param(fwd, &params->head_norm_bias), grad_hidden, pass->gelu_out,
                            weights->head_norm, pass->head_norm));
    TRY(ops->copy(backend, grad_pooled, grad_gelu_out));
    TRY(ops->gelu_grad(backend, grad_hidden, grad_pooled, pass->dense_out));
    TRY(backward_linear(fwd, grad_pooled, grad_hidden, pass->pooled, weights->dense, &params->dense,
                        &params->dense_bias));
    workspace_restore(workspace, mark);
    return OK;
}

// From fwd.grad_x, the gradient of the first layer's input, to the gradients of the embedding and its norm. The padding
// token's embedding has none.
static status classifier_embedding_backward(struct classifier_pass *pass, struct classifier *classifier) {
    const struct classifier_weights *weights = classifier->weights;
    const struct classifier_parameters *params = classifier->params;
    struct forward_state *fwd = &pass->fwd;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor embedded = fwd->x, grad_normed, grad_embedded; // x is not needed any more
    struct tensor grad_embedding = param_tensor(fwd->grads, &params->embedding);
    TRY(classifier_alloc(pass, fwd->rows, embedded.columns, &grad_normed));
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, fwd->rows, embedded.columns, &grad_embedded));
    TRY(ops->gather(backend, embedded, weights->embedding, pass->token_ids));
    TRY(ops->copy(backend, grad_normed, fwd->grad_x));
    TRY(ops->zero(backend, grad_embedded));
    TRY(ops->layernorm_grad(backend, grad_embedded, backward_param(fwd, &params->embedding_norm),
                            backward_param(fwd, &params->embedding_norm_bias), grad_normed, embedded,
                            weights->embedding_norm, pass->embedding_norm));
    TRY(ops->scatter_add(backend, grad_embedding, grad_embedded, pass->token_ids));
    if (classifier->config.pad_token_id >= 0)
        TRY(ops->zero(backend, tensor_rows(grad_embedding, classifier->config.pad_token_id, 1)));
    workspace_restore(fwd->workspace, mark);
    return OK;
}

status classifier_backward(struct classifier_pass *pass, struct classifier *classifier, const float *grad_logits) {
    const struct classifier_weights *weights = classifier->weights;
    const struct classifier_parameters *params = classifier->params;
    struct forward_state *fwd = &pass->fwd;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    fwd->grads = &classifier->optimizer.grads;
    struct tensor grad_pooled, grad_normed = fwd->delta; // delta is free after the final norm
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, fwd->rows, fwd->x.columns, &fwd->grad_x));
    TRY(classifier_alloc(pass, (int64_t)pass->texts, fwd->x.columns, &grad_pooled));
    TRY(classifier_head_backward(pass, classifier, grad_logits, grad_pooled));
    if (classifier->config.pools_mean) {
        TRY(ops->segment_mean_grad(backend, grad_normed, grad_pooled, pass->begins));
    } else {
        TRY(ops->zero(backend, grad_normed));
        TRY(ops->scatter(backend, grad_normed, grad_pooled, tensor_rows(pass->begins, 0, (int64_t)pass->texts)));
    }
    TRY(ops->zero(backend, fwd->grad_x));
    TRY(backward_norm(fwd, &params->final_norm, &params->final_norm_bias, grad_normed, fwd->x, weights->final_norm,
                      pass->final_norm));
    for (int i = fwd->transformer->block_count - 1; i >= 0; i--) {
        classifier_pass_layer(pass, classifier, i);
        TRY(block_backward(fwd, i));
    }
    return classifier_embedding_backward(pass, classifier);
}

void classifier_pass_release(struct classifier_pass *pass, struct classifier *classifier) {
    classifier->backend->ops->attention_plan_free(classifier->backend, &pass->global_plan);
    classifier->backend->ops->attention_plan_free(classifier->backend, &pass->local_plan);
    workspace_restore(&classifier->workspace, (struct workspace_mark){0});
}
