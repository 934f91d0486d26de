#include "shared/model/vision.h"

// The merger's intermediate rows.
struct merger {
    struct tensor normed, inverse;   // [P,C], F32 [P,1]
    struct tensor joined;            // normed as [units, merge^2 C]
    struct tensor hidden, activated; // [units, merge^2 C]
};

static struct view view_of(const struct encoding *it, const struct model_config *config, int block) {
    if (config->vision.full[block]) return (struct view){it->windows.frames, it->windows.frame_count};
    return (struct view){it->windows.windows, it->windows.window_count};
}

static status put_inputs(struct encoding *it, struct model *model, const struct model_medium *medium) {
    int64_t patches = grid_patches(it->grid);
    int64_t pairs = model->config.vision.head_size / 2;
    struct desk *desk = &model->desk;
    TRY(desk_put(desk, ELEMENT_U8, medium->frames, (int64_t)medium->height * medium->width * 3, medium->pixels,
                 &it->frames));
    TRY(desk_put(desk, ELEMENT_I32, patches, 1, it->windows.order, &it->order));
    TRY(desk_put(desk, ELEMENT_I32, patches, 1, it->windows.back, &it->back));
    TRY(desk_put(desk, ELEMENT_F32, patches, pairs, it->windows.cos, &it->pass.cos));
    return desk_put(desk, ELEMENT_F32, patches, pairs, it->windows.sin, &it->pass.sin);
}

// Cache rows follow the tower's order.
static status put_slots(struct encoding *it, struct model *model, struct arena *arena) {
    int64_t patches = grid_patches(it->grid);
    int32_t *slots = arena_alloc(arena, (size_t)patches * sizeof *slots);
    if (!slots) return fail(UNAVAILABLE, "out of memory");
    for (int64_t i = 0; i < patches; i++) slots[i] = (int32_t)i;
    return desk_put(&model->desk, ELEMENT_I32, patches, 1, slots, &it->pass.slots);
}

static status take_patches(const struct encoding *it, struct model *model, struct tensor *patches) {
    const struct vision_config *vision = &model->config.vision;
    int64_t pixels = (int64_t)3 * vision->time * vision->patch * vision->patch;
    struct patch_shape shape = {.frames = (int)it->frames.rows,
                                .height = it->grid.height * vision->patch,
                                .width = it->grid.width * vision->patch,
                                .patch = vision->patch,
                                .time = vision->time,
                                .merge = vision->merge,
                                .rescale = model->config.rescale};
    for (int i = 0; i < 3; i++) {
        shape.mean[i] = model->config.mean[i];
        shape.deviation[i] = model->config.deviation[i];
    }
    TRY(desk_take(&model->desk, model->weights->type, grid_patches(it->grid), pixels, patches));
    return model->backend->ops->patchify(model->backend, *patches, it->frames, &shape);
}

// pass.x = the patches' embeddings in the tower's order.
static status embed(struct encoding *it, struct model *model) {
    const struct operations *ops = model->backend->ops;
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor patches, embedded;
    TRY(take_patches(it, model, &patches));
    TRY(desk_take(&model->desk, model->weights->type, it->pass.rows, it->pass.tower->hidden, &embedded));
    TRY(ops->linear(model->backend, embedded, patches, model->weights->patch, (struct tensor){0}));
    TRY(ops->gather(model->backend, it->pass.x, embedded, it->order));
    desk_back(&model->desk, mark);
    return OK;
}

static status take_merger(const struct encoding *it, struct model *model, struct merger *merger) {
    enum element type = model->weights->type;
    int64_t units = grid_tokens(it->grid, &model->config), wide = it->pass.rows / units * it->pass.tower->hidden;
    TRY(desk_take(&model->desk, type, it->pass.rows, it->pass.tower->hidden, &merger->normed));
    TRY(desk_take(&model->desk, ELEMENT_F32, it->pass.rows, 1, &merger->inverse));
    TRY(desk_take(&model->desk, type, units, wide, &merger->hidden));
    TRY(desk_take(&model->desk, type, units, wide, &merger->activated));
    merger->joined = tensor_shaped(merger->normed, units, wide);
    return OK;
}

// The merger up to its activation, for pass.x and pass.delta.
static status merge(struct encoding *it, struct model *model, struct merger *merger) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    TRY(pass_norm(&it->pass, merger->normed, weights->merge_norm, merger->inverse));
    TRY(ops->linear(model->backend, merger->hidden, merger->joined, weights->merge_in, weights->merge_in_bias));
    return ops->gelu(model->backend, merger->activated, merger->hidden);
}

static status take_saved(struct encoding *it, struct model *model, struct arena *arena) {
    int depth = it->pass.tower->count;
    it->saved = arena_alloc(arena, (size_t)(depth + 1) * sizeof *it->saved);
    if (!it->saved) return fail(UNAVAILABLE, "out of memory");
    for (int i = 0; i <= depth; i++)
        TRY(desk_take(&model->desk, model->weights->type, it->pass.rows, it->pass.tower->hidden, &it->saved[i]));
    it->pass.saved = it->saved;
    return OK;
}

// Sets up the medium's rows and what is kept of them.
static status start(struct encoding *it, struct model *model, struct arena *arena, const struct model_medium *medium,
                    bool training) {
    *it = (struct encoding){0};
    TRY(grid_of(&it->grid, &model->config, medium));
    TRY(windows_make(&it->windows, arena, &model->config, it->grid));
    it->pass = (struct pass){.weights = model->weights, .tower = &model->weights->vision, .desk = &model->desk};
    it->pass.rows = grid_patches(it->grid);
    TRY(shelf_fit(&model->vision_shelf, model->backend, it->pass.rows, it->pass.tower->heads));
    it->pass.cache = model->vision_shelf.cache;
    TRY(put_inputs(it, model, medium));
    TRY(put_slots(it, model, arena));
    if (training) TRY(take_saved(it, model, arena));
    return desk_take(&model->desk, model->weights->type, grid_tokens(it->grid, &model->config),
                     model->config.vision.out, &it->merged);
}

static status take_rows(struct encoding *it, struct model *model) {
    enum element type = model->weights->type;
    TRY(desk_take(&model->desk, type, it->pass.rows, it->pass.tower->hidden, &it->pass.x));
    return desk_take(&model->desk, type, it->pass.rows, it->pass.tower->hidden, &it->pass.delta);
}

status vision_forward(struct encoding *encoding, struct model *model, struct arena *arena,
                      const struct model_medium *medium, bool training) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    TRY(start(encoding, model, arena, medium, training));
    struct desk_mark mark = desk_here(&model->desk);
    struct pass *pass = &encoding->pass;
    TRY(take_rows(encoding, model));
    TRY(embed(encoding, model));
    for (int i = 0; i < pass->tower->count; i++) TRY(block_forward(pass, i, view_of(encoding, &model->config, i)));
    struct merger merger;
    TRY(take_merger(encoding, model, &merger));
    TRY(merge(encoding, model, &merger));
    if (training) TRY(ops->copy(model->backend, encoding->saved[pass->tower->count], pass->x));
    TRY(ops->linear(model->backend, encoding->merged, merger.activated, weights->merge_out, weights->merge_out_bias));
    desk_back(&model->desk, mark);
    return OK;
}

// One product's gradient: of its input, weight and bias.
static status product_gradient(struct model *model, struct buffer *gradients, struct tensor in_gradient,
                               struct tensor out_gradient, struct tensor in, struct weight *weight,
                               const struct part *part, const struct part *bias) {
    const struct operations *ops = model->backend->ops;
    TRY(ops->linear_input_gradient(model->backend, in_gradient, out_gradient, weight, false));
    return ops->linear_weight_gradient(model->backend, part_tensor(gradients, part), part_tensor(gradients, bias),
                                       out_gradient, in);
}

// pass.x_gradient = the gradient of the merger's input.
static status merger_gradient(struct encoding *it, struct model *model, struct tensor merged_gradient,
                              struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    const struct weights *weights = model->weights;
    const struct parameter_table *table = model->table;
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor hidden_gradient, activated_gradient;
    struct merger merger;
    TRY(take_merger(it, model, &merger));
    TRY(desk_take(&model->desk, weights->type, merger.hidden.rows, merger.hidden.columns, &hidden_gradient));
    TRY(desk_take(&model->desk, weights->type, merger.hidden.rows, merger.hidden.columns, &activated_gradient));
    TRY(ops->copy(model->backend, it->pass.x, it->saved[it->pass.tower->count]));
    it->pass.pending = false;
    TRY(merge(it, model, &merger));
    TRY(product_gradient(model, gradients, activated_gradient, merged_gradient, merger.activated, weights->merge_out,
                         &table->merge_out, &table->merge_out_bias));
    TRY(ops->gelu_gradient(model->backend, hidden_gradient, activated_gradient, merger.hidden));
    struct tensor joined_gradient = activated_gradient; // it is not needed any more, and of the same shape
    TRY(product_gradient(model, gradients, joined_gradient, hidden_gradient, merger.joined, weights->merge_in,
                         &table->merge_in, &table->merge_in_bias));
    TRY(ops->zero(model->backend, it->pass.x_gradient));
    TRY(ops->rmsnorm_gradient(model->backend, it->pass.x_gradient, part_tensor(gradients, &table->merge_norm),
                              tensor_shaped(joined_gradient, it->pass.rows, it->pass.tower->hidden), it->pass.x,
                              weights->merge_norm, merger.inverse));
    desk_back(&model->desk, mark);
    return OK;
}

// The patch embedding's gradient: rows go back to the processor's order, and the patches are cut again.
static status embed_gradient(struct encoding *it, struct model *model, struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    struct tensor patches, embedded_gradient;
    TRY(take_patches(it, model, &patches));
    TRY(desk_take(&model->desk, model->weights->type, it->pass.rows, it->pass.tower->hidden, &embedded_gradient));
    TRY(ops->gather(model->backend, embedded_gradient, it->pass.x_gradient, it->back));
    return ops->linear_weight_gradient(model->backend, part_tensor(gradients, &model->table->patch), (struct tensor){0},
                                       embedded_gradient, patches);
}

status vision_gradient(struct encoding *encoding, struct model *model, struct tensor merged_gradient,
                       struct buffer *gradients) {
    struct desk_mark mark = desk_here(&model->desk);
    struct pass *pass = &encoding->pass;
    pass->gradients = gradients;
    TRY(take_rows(encoding, model));
    TRY(desk_take(&model->desk, ELEMENT_F32, pass->rows, pass->tower->hidden, &pass->x_gradient));
    TRY(merger_gradient(encoding, model, merged_gradient, gradients));
    for (int i = pass->tower->count - 1; i >= 0; i--)
        TRY(block_gradient(pass, i, view_of(encoding, &model->config, i)));
    TRY(embed_gradient(encoding, model, gradients));
    desk_back(&model->desk, mark);
    return OK;
}
