#include "shared/model/vision_model.h"

// The merger's intermediate rows.
struct merger {
    struct tensor normed, inverse;   // [P,C], F32 [P,1]
    struct tensor joined;            // normed as [units, merge^2 C]
    struct tensor fc1_out, gelu_out; // [units, merge^2 C]
};

static struct attention_spans view_of(const struct vision_state *state, const struct model_config *config, int block) {
    if (config->vision.fullatt_blocks[block])
        return (struct attention_spans){state->windows.frames, state->windows.frame_count};
    return (struct attention_spans){state->windows.windows, state->windows.window_count};
}

static status put_inputs(struct vision_state *state, struct model *model, const struct model_medium *medium) {
    int64_t patches = grid_patches(state->grid);
    int64_t pairs = model->config.vision.head_dim / 2;
    struct workspace *workspace = &model->workspace;
    TRY(workspace_upload(workspace, ELEMENT_U8, medium->frames, (int64_t)medium->height * medium->width * 3,
                         medium->pixels, &state->frames));
    TRY(workspace_upload(workspace, ELEMENT_I32, patches, 1, state->windows.order, &state->order));
    TRY(workspace_upload(workspace, ELEMENT_I32, patches, 1, state->windows.back, &state->back));
    TRY(workspace_upload(workspace, ELEMENT_F32, patches, pairs, state->windows.cos, &state->fwd.cos));
    return workspace_upload(workspace, ELEMENT_F32, patches, pairs, state->windows.sin, &state->fwd.sin);
}

// Cache rows follow the tower's order.
static status put_slots(struct vision_state *state, struct model *model, struct arena *arena) {
    int64_t patches = grid_patches(state->grid);
    int32_t *slots = arena_alloc(arena, (size_t)patches * sizeof *slots);
    if (!slots) return fail_oom();
    for (int64_t i = 0; i < patches; i++) slots[i] = (int32_t)i;
    return workspace_upload(&model->workspace, ELEMENT_I32, patches, 1, slots, &state->fwd.slots);
}

static status take_patches(const struct vision_state *state, struct model *model, struct tensor *patches) {
    const struct vision_config *vision = &model->config.vision;
    int64_t pixels = (int64_t)3 * vision->temporal_patch_size * vision->patch_size * vision->patch_size;
    struct patch_shape shape = {.frames = (int)state->frames.rows,
                                .height = state->grid.height * vision->patch_size,
                                .width = state->grid.width * vision->patch_size,
                                .patch_size = vision->patch_size,
                                .temporal_patch_size = vision->temporal_patch_size,
                                .merge_size = vision->spatial_merge_size,
                                .rescale_factor = model->config.rescale_factor};
    for (int i = 0; i < 3; i++) {
        shape.image_mean[i] = model->config.image_mean[i];
        shape.image_std[i] = model->config.image_std[i];
    }
    TRY(workspace_alloc(&model->workspace, model->weights->type, grid_patches(state->grid), pixels, patches));
    return model->backend->ops->patchify(model->backend, *patches, state->frames, &shape);
}

// pass.x = the patches' embeddings in the tower's order.
static status embed(struct vision_state *state, struct model *model) {
    const struct operations *ops = model->backend->ops;
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor patches, embedded;
    TRY(take_patches(state, model, &patches));
    TRY(workspace_alloc(&model->workspace, model->weights->type, state->fwd.rows, state->fwd.transformer->hidden_size,
                        &embedded));
    TRY(ops->linear(model->backend, embedded, patches, model->weights->patch, (struct tensor){0}));
    TRY(ops->gather(model->backend, state->fwd.x, embedded, state->order));
    workspace_restore(&model->workspace, mark);
    return OK;
}

static status take_merger(const struct vision_state *state, struct model *model, struct merger *merger) {
    enum element type = model->weights->type;
    int64_t units = grid_tokens(state->grid, &model->config),
            wide = state->fwd.rows / units * state->fwd.transformer->hidden_size;
    TRY(workspace_alloc(&model->workspace, type, state->fwd.rows, state->fwd.transformer->hidden_size,
                        &merger->normed));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, state->fwd.rows, 1, &merger->inverse));
    TRY(workspace_alloc(&model->workspace, type, units, wide, &merger->fc1_out));
    TRY(workspace_alloc(&model->workspace, type, units, wide, &merger->gelu_out));
    merger->joined = tensor_reshape(merger->normed, units, wide);
    return OK;
}

// The merger up to its activation, for pass.x and pass.delta.
static status merge(struct vision_state *state, struct model *model, struct merger *merger) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    TRY(forward_norm(&state->fwd, merger->normed, weights->merger_norm, merger->inverse));
    TRY(ops->linear(model->backend, merger->fc1_out, merger->joined, weights->merger_fc1, weights->merger_fc1_bias));
    return ops->gelu(model->backend, merger->gelu_out, merger->fc1_out);
}

static status take_saved(struct vision_state *state, struct model *model, struct arena *arena) {
    int depth = state->fwd.transformer->count;
    state->saved = arena_alloc(arena, (size_t)(depth + 1) * sizeof *state->saved);
    if (!state->saved) return fail_oom();
    for (int i = 0; i <= depth; i++)
        TRY(workspace_alloc(&model->workspace, model->weights->type, state->fwd.rows,
                            state->fwd.transformer->hidden_size, &state->saved[i]));
    state->fwd.saved = state->saved;
    return OK;
}

// Sets up the medium's rows and what is kept of them.
static status start(struct vision_state *state, struct model *model, struct arena *arena,
                    const struct model_medium *medium, bool training) {
    *state = (struct vision_state){0};
    TRY(grid_of(&state->grid, &model->config, medium));
    TRY(windows_make(&state->windows, arena, &model->config, state->grid));
    state->fwd = (struct forward_state){
        .weights = model->weights, .transformer = &model->weights->vision, .workspace = &model->workspace};
    state->fwd.rows = grid_patches(state->grid);
    TRY(kv_scratch_reserve(&model->vision_kv, model->backend, state->fwd.rows, state->fwd.transformer->heads));
    state->fwd.cache = model->vision_kv.cache;
    TRY(put_inputs(state, model, medium));
    TRY(put_slots(state, model, arena));
    if (training) TRY(take_saved(state, model, arena));
    return workspace_alloc(&model->workspace, model->weights->type, grid_tokens(state->grid, &model->config),
                           model->config.vision.out_hidden_size, &state->merged);
}

static status take_rows(struct vision_state *state, struct model *model) {
    enum element type = model->weights->type;
    TRY(workspace_alloc(&model->workspace, type, state->fwd.rows, state->fwd.transformer->hidden_size, &state->fwd.x));
    return workspace_alloc(&model->workspace, type, state->fwd.rows, state->fwd.transformer->hidden_size,
                           &state->fwd.delta);
}

status vision_forward(struct vision_state *state, struct model *model, struct arena *arena,
                      const struct model_medium *medium, bool training) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    TRY(start(state, model, arena, medium, training));
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct forward_state *fwd = &state->fwd;
    TRY(take_rows(state, model));
    TRY(embed(state, model));
    for (int i = 0; i < fwd->transformer->count; i++) TRY(block_forward(fwd, i, view_of(state, &model->config, i)));
    struct merger merger;
    TRY(take_merger(state, model, &merger));
    TRY(merge(state, model, &merger));
    if (training) TRY(ops->copy(model->backend, state->saved[fwd->transformer->count], fwd->x));
    TRY(ops->linear(model->backend, state->merged, merger.gelu_out, weights->merger_fc2, weights->merger_fc2_bias));
    workspace_restore(&model->workspace, mark);
    return OK;
}

// One product's gradient: of its input, weight and bias.
static status product_gradient(struct model *model, struct buffer *gradients, struct tensor in_gradient,
                               struct tensor out_gradient, struct tensor in, struct weight *weight,
                               const struct fused_param *param, const struct fused_param *bias) {
    const struct operations *ops = model->backend->ops;
    TRY(ops->linear_grad_input(model->backend, in_gradient, out_gradient, weight, false));
    return ops->linear_grad_weight(model->backend, param_tensor(gradients, param), param_tensor(gradients, bias),
                                   out_gradient, in);
}

// pass.x_gradient = the gradient of the merger's input.
static status merger_gradient(struct vision_state *state, struct model *model, struct tensor merged_gradient,
                              struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    const struct parameter_table *table = model->table;
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor fc1_grad, gelu_grad;
    struct merger merger;
    TRY(take_merger(state, model, &merger));
    TRY(workspace_alloc(&model->workspace, weights->type, merger.fc1_out.rows, merger.fc1_out.columns, &fc1_grad));
    TRY(workspace_alloc(&model->workspace, weights->type, merger.fc1_out.rows, merger.fc1_out.columns, &gelu_grad));
    TRY(ops->copy(model->backend, state->fwd.x, state->saved[state->fwd.transformer->count]));
    state->fwd.has_delta = false;
    TRY(merge(state, model, &merger));
    TRY(product_gradient(model, gradients, gelu_grad, merged_gradient, merger.gelu_out, weights->merger_fc2,
                         &table->merger_fc2, &table->merger_fc2_bias));
    TRY(ops->gelu_grad(model->backend, fc1_grad, gelu_grad, merger.fc1_out));
    struct tensor joined_gradient = gelu_grad; // it is not needed any more, and of the same shape
    TRY(product_gradient(model, gradients, joined_gradient, fc1_grad, merger.joined, weights->merger_fc1,
                         &table->merger_fc1, &table->merger_fc1_bias));
    TRY(ops->zero(model->backend, state->fwd.x_grad));
    TRY(ops->rmsnorm_grad(model->backend, state->fwd.x_grad, param_tensor(gradients, &table->merger_norm),
                          tensor_reshape(joined_gradient, state->fwd.rows, state->fwd.transformer->hidden_size),
                          state->fwd.x, weights->merger_norm, merger.inverse));
    workspace_restore(&model->workspace, mark);
    return OK;
}

// The patch embedding's gradient: rows go back to the processor's order, and the patches are cut again.
static status embed_gradient(struct vision_state *state, struct model *model, struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    struct tensor patches, embedded_gradient;
    TRY(take_patches(state, model, &patches));
    TRY(workspace_alloc(&model->workspace, model->weights->type, state->fwd.rows, state->fwd.transformer->hidden_size,
                        &embedded_gradient));
    TRY(ops->gather(model->backend, embedded_gradient, state->fwd.x_grad, state->back));
    return ops->linear_grad_weight(model->backend, param_tensor(gradients, &model->table->patch), (struct tensor){0},
                                   embedded_gradient, patches);
}

status vision_backward(struct vision_state *state, struct model *model, struct tensor merged_gradient,
                       struct buffer *gradients) {
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct forward_state *fwd = &state->fwd;
    fwd->gradients = gradients;
    TRY(take_rows(state, model));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, fwd->rows, fwd->transformer->hidden_size, &fwd->x_grad));
    TRY(merger_gradient(state, model, merged_gradient, gradients));
    for (int i = fwd->transformer->count - 1; i >= 0; i--)
        TRY(block_backward(fwd, i, view_of(state, &model->config, i)));
    TRY(embed_gradient(state, model, gradients));
    workspace_restore(&model->workspace, mark);
    return OK;
}
