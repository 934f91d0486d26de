// The vision tower, forward and backward.
#include "shared/model/qwen_vl/model_internal.h"

#include <assert.h>
#include <string.h>

// The row rotates the first quarter of a head's dimensions, the column the second. rope_theta is 10000 in every
// published model.
void vision_rope_init(struct rope_angles *angles, const struct vision_config *vision) {
    int quarter = vision->head_dim / 4;
    assert(vision->head_dim % 4 == 0);
    *angles = (struct rope_angles){.theta = 10000, .pairs = 2 * quarter, .period = quarter};
    angles->table.sections[0] = angles->table.sections[1] = quarter;
}

// Everything is allocated in the arena.
static void vision_layout_make(struct vision_layout *layout, struct arena *arena, const struct model_config *config,
                               struct grid_thw grid) {
    const struct vision_config *vision = &config->vision;
    int merge = vision->spatial_merge_size;
    size_t patches = (size_t)grid_patches(grid), tokens = (size_t)grid_tokens(grid, config);
    *layout = (struct vision_layout){
        .patch_order = arena_alloc(arena, patches * sizeof *layout->patch_order),
        .patch_rows = arena_alloc(arena, patches * sizeof *layout->patch_rows),
        .window_index = arena_alloc(arena, tokens * sizeof *layout->window_index),
        .window_spans = arena_alloc(arena, tokens * sizeof *layout->window_spans),
        .frame_spans = arena_alloc(arena, (size_t)grid.time * sizeof *layout->frame_spans),
        .position_ids = arena_alloc(arena, patches * sizeof *layout->position_ids),
    };
    // A frame pair and a window, which is smaller at the edges, in units.
    const int height = grid.height / merge, width = grid.width / merge, larger = height > width ? height : width;
    const int side = vision->window_size ? vision->window_size / merge / vision->patch_size : larger;
    assert(side > 0);
    const int across = (width + side - 1) / side, windows = (height + side - 1) / side * across;
    const int64_t per_unit = (int64_t)merge * merge, frame_rows = (int64_t)grid.height * grid.width;
    for (int time = 0; time < grid.time; time++) {
        for (int window = 0; window < windows; window++) {
            const int y = window / across * side, x = window % across * side;
            const int64_t first = layout->unit_count * per_unit;
            for (int row = y; row < y + side && row < height; row++) {
                for (int column = x; column < x + side && column < width; column++) {
                    const int64_t unit = ((int64_t)time * height + row) * width + column;
                    layout->window_index[layout->unit_count] = (int32_t)unit;
                    for (int64_t p = 0; p < per_unit; p++) {
                        layout->patch_order[layout->unit_count * per_unit + p] = (int32_t)(unit * per_unit + p);
                        layout->patch_rows[unit * per_unit + p] = (int32_t)(layout->unit_count * per_unit + p);
                    }
                    layout->unit_count++;
                }
            }
            const int64_t rows = layout->unit_count * per_unit - first;
            layout->window_spans[layout->window_count++] =
                (struct attention_span){.q_begin = first, .q_len = rows, .kv_begin = first, .visible = rows};
        }
        layout->frame_spans[layout->frame_count++] = (struct attention_span){
            .q_begin = time * frame_rows, .q_len = frame_rows, .kv_begin = time * frame_rows, .visible = frame_rows};
    }
    assert((size_t)layout->unit_count == tokens && layout->window_count <= tokens);

    // Row and column of every patch, the same in all frame pairs.
    for (int64_t i = 0; i < frame_rows; i++) {
        int32_t unit = (int32_t)(layout->patch_order[i] / per_unit);
        int32_t in_unit = (int32_t)(layout->patch_order[i] % per_unit);
        int32_t row = unit / width * merge + in_unit / merge, column = unit % width * merge + in_unit % merge;
        for (int time = 0; time < grid.time; time++)
            layout->position_ids[time * frame_rows + i] = (struct position_id){{row, column}};
    }
}

// The plan of one block: all others have window attention.
static const struct attention_plan *vision_plan(const struct vision_state *state, const struct model_config *config,
                                                int block) {
    return config->vision.fullatt_blocks[block] ? state->frame_plan : state->window_plan;
}

// Returns the numbers of a patch: its channels and pixels.
static int64_t vision_patch_values(const struct vision_config *vision) {
    return (int64_t)3 * vision->temporal_patch_size * vision->patch_size * vision->patch_size;
}

// *patches [P, 3 * temporal_patch_size * patch_size^2] = the normalized pixels, in the processor's order.
static status vision_patchify(const struct vision_state *state, struct model *model, struct tensor *patches) {
    const struct model_config *config = &model->config;
    const struct vision_config *vision = &config->vision;
    struct patch_shape shape = {.frames = (int)state->frames.rows,
                                .height = state->grid.height * vision->patch_size,
                                .width = state->grid.width * vision->patch_size,
                                .patch_size = vision->patch_size,
                                .temporal_patch_size = vision->temporal_patch_size,
                                .merge_size = vision->spatial_merge_size,
                                .rescale_factor = config->rescale_factor};
    static_assert(sizeof shape.image_mean == sizeof config->image_mean, "one mean a channel");
    static_assert(sizeof shape.image_std == sizeof config->image_std, "one standard deviation a channel");
    memcpy(shape.image_mean, config->image_mean, sizeof shape.image_mean);
    memcpy(shape.image_std, config->image_std, sizeof shape.image_std);
    TRY(workspace_alloc(&model->workspace, model->weights->base.type, grid_patches(state->grid),
                        vision_patch_values(vision), patches));
    return model->backend->ops->patchify(model->backend, *patches, state->frames, &shape);
}

// What the merger computes on the way.
struct merger_activations {
    struct tensor normed;            // [P,C]
    struct tensor statistics;        // of the norm, F32
    struct tensor joined;            // normed as [units, merge^2 C]
    struct tensor fc1_out, gelu_out; // [units, merge^2 C]
};

// The merger up to its activation: fwd.x and fwd.delta to gelu_out.
static status vision_merge(struct vision_state *state, struct model *model, struct merger_activations *out) {
    const struct operations *ops = model->backend->ops;
    const struct qwen_weights *weights = model->weights;
    int64_t rows = state->fwd.rows, hidden_size = state->fwd.transformer->hidden_size;
    int64_t units = grid_tokens(state->grid, &model->config), merged_size = rows / units * hidden_size;
    TRY(workspace_alloc(&model->workspace, weights->base.type, rows, hidden_size, &out->normed));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, rows, norm_statistics_size(state->fwd.transformer),
                        &out->statistics));
    TRY(workspace_alloc(&model->workspace, weights->base.type, units, merged_size, &out->fc1_out));
    TRY(workspace_alloc(&model->workspace, weights->base.type, units, merged_size, &out->gelu_out));
    out->joined = tensor_reshape(out->normed, units, merged_size);
    TRY(forward_norm(&state->fwd, out->normed, &weights->merger_norm, &weights->merger_norm_bias, out->statistics));
    TRY(ops->linear(model->backend, out->fc1_out, out->joined, weights->merger_fc1.weight,
                    weights->merger_fc1_bias.values, false));
    return ops->activation(model->backend, ACTIVATION_GELU, out->gelu_out, out->fc1_out);
}

status vision_forward(struct vision_state *state, struct model *model, struct arena *arena,
                      const struct model_medium *medium, bool training) {
    struct workspace *workspace = &model->workspace;
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    const struct qwen_weights *weights = model->weights;
    const enum element type = weights->base.type;
    struct forward_state *fwd = &state->fwd;
    *state = (struct vision_state){.grid = grid_of(&model->config, medium)};
    const struct vision_layout *layout = &state->layout;
    vision_layout_make(&state->layout, arena, &model->config, state->grid);
    *fwd = forward_start(&weights->vision, workspace, &model->backend_info, type, grid_patches(state->grid));
    const struct heads heads = fwd->transformer->heads;
    const int64_t rows = fwd->rows, hidden_size = fwd->transformer->hidden_size;
    const int depth = fwd->transformer->block_count;
    TRY(kv_scratch_reserve(&model->vision_kv, backend, type, rows, heads));
    fwd->cache = model->vision_kv.cache;

    // Upload the medium and its layout, and allocate what outlives the blocks.
    int32_t *cache_slots = arena_alloc(arena, (size_t)rows * sizeof *cache_slots);
    for (int64_t i = 0; i < rows; i++) cache_slots[i] = (int32_t)i;
    int64_t pixels = (int64_t)medium->height * medium->width * 3;
    int positions = state->grid.height > state->grid.width ? state->grid.height : state->grid.width;
    TRY(rope_angles_reserve(&model->vision_rope, backend, positions));
    fwd->rope = &model->vision_rope.table;
    TRY(workspace_upload(workspace, ELEMENT_U8, medium->frames, pixels, medium->pixels, &state->frames));
    TRY(workspace_upload(workspace, ELEMENT_I32, rows, 1, layout->patch_order, &state->patch_order));
    TRY(workspace_upload(workspace, ELEMENT_I32, rows, 1, layout->patch_rows, &state->patch_rows));
    TRY(workspace_upload(workspace, ELEMENT_I32, rows, 3, layout->position_ids, &fwd->position_ids));
    TRY(workspace_upload(workspace, ELEMENT_I32, rows, 1, cache_slots, &fwd->cache_slots));
    struct tensor grad_slots = training ? fwd->cache_slots : (struct tensor){0};
    TRY(ops->attention_plan_new(backend, &state->window_plan, heads, layout->window_spans, layout->window_count,
                                grad_slots));
    TRY(ops->attention_plan_new(backend, &state->frame_plan, heads, layout->frame_spans, layout->frame_count,
                                grad_slots));
    if (training) {
        fwd->kept = arena_alloc(arena, (size_t)depth * sizeof *fwd->kept);
        for (int i = 0; i < depth; i++) TRY(block_keep(fwd, KEEP_INPUT, &fwd->kept[i]));
        TRY(workspace_alloc(workspace, type, rows, hidden_size, &state->merger_input));
    }
    TRY(workspace_alloc(workspace, type, layout->unit_count, model->config.vision.out_hidden_size, &state->embeds));
    struct workspace_mark mark = workspace_save(workspace);
    TRY(forward_alloc(fwd));

    // fwd.x = the patch embeddings in window order.
    struct workspace_mark embed_mark = workspace_save(workspace);
    struct tensor patches, embedded;
    TRY(vision_patchify(state, model, &patches));
    TRY(workspace_alloc(workspace, type, rows, hidden_size, &embedded));
    TRY(ops->linear(backend, embedded, patches, weights->patch_embed.weight, (struct tensor){0}, false));
    TRY(ops->gather(backend, fwd->x, embedded, state->patch_order));
    workspace_restore(workspace, embed_mark);

    for (int i = 0; i < depth; i++) {
        fwd->plan = vision_plan(state, &model->config, i);
        TRY(block_forward(fwd, i));
    }
    struct merger_activations merger;
    TRY(vision_merge(state, model, &merger));
    if (training) TRY(ops->copy(backend, state->merger_input, fwd->x));
    TRY(ops->linear(backend, state->embeds, merger.gelu_out, weights->merger_fc2.weight,
                    weights->merger_fc2_bias.values, false));
    workspace_restore(workspace, mark);
    return OK;
}

// The frames, indices and embeddings; in training also the blocks' and the merger's inputs.
size_t vision_kept_bytes(const struct qwen_weights *weights, enum element type, int64_t patches, bool training) {
    const struct vision_config *config = &weights->config->vision;
    const struct transformer *transformer = &weights->vision;
    size_t indices = 6 * sizeof(int32_t), merge = (size_t)config->spatial_merge_size;
    size_t embeds = (size_t)patches / (merge * merge) * (size_t)config->out_hidden_size * element_size(type);
    size_t inputs = training ? block_kept_bytes(transformer, type, patches, KEEP_INPUT) : 0;
    return (size_t)patches * ((size_t)vision_patch_values(config) + indices) + embeds +
           (size_t)(transformer->block_count + 1) * inputs;
}

// x, delta and their gradient; with them a block, the merger with its gradients, or the patches and their embeddings.
size_t vision_pass_bytes(const struct qwen_weights *weights, enum element type, int64_t patches, bool training) {
    const struct transformer *transformer = &weights->vision;
    size_t size = element_size(type), hidden_size = (size_t)transformer->hidden_size;
    size_t always = (size_t)patches * hidden_size * (2 * size + (training ? sizeof(float) : 0));
    size_t block = block_work_bytes(transformer, type, patches, patches);
    size_t merger = (size_t)patches * (training ? 5 : 3) * hidden_size * size;
    size_t embedding = (size_t)patches * ((size_t)vision_patch_values(&weights->config->vision) + hidden_size) * size;
    size_t most = block > merger ? block : merger;
    return always + (most > embedding ? most : embedding);
}

status vision_backward(struct vision_state *state, struct model *model, struct tensor grad_embeds,
                       struct step_sums *grads) {
    const struct operations *ops = model->backend->ops;
    struct workspace *workspace = &model->workspace;
    struct workspace_mark mark = workspace_save(workspace);
    struct forward_state *fwd = &state->fwd;
    const struct qwen_weights *weights = model->weights;
    int64_t hidden_size = fwd->transformer->hidden_size;
    fwd->grads = grads;
    fwd->cache = model->vision_kv.cache; // a later medium may have needed a larger one
    TRY(forward_alloc(fwd));
    TRY(workspace_alloc(workspace, ELEMENT_F32, fwd->rows, hidden_size, &fwd->grad_x));

    // The merger: fwd.grad_x = the gradient of its input.
    struct workspace_mark merger_mark = workspace_save(workspace);
    struct tensor grad_fc1, grad_gelu;
    struct merger_activations merger;
    TRY(ops->copy(model->backend, fwd->x, state->merger_input));
    fwd->has_delta = false;
    TRY(vision_merge(state, model, &merger));
    TRY(workspace_alloc(workspace, weights->base.type, merger.fc1_out.rows, merger.fc1_out.columns, &grad_fc1));
    TRY(workspace_alloc(workspace, weights->base.type, merger.fc1_out.rows, merger.fc1_out.columns, &grad_gelu));
    TRY(backward_linear(fwd, grad_gelu, grad_embeds, merger.gelu_out, &weights->merger_fc2, &weights->merger_fc2_bias));
    TRY(ops->activation_grad(model->backend, ACTIVATION_GELU, grad_fc1, grad_gelu, merger.fc1_out));
    struct tensor grad_joined = grad_gelu; // which is free now, and has the same shape
    TRY(backward_linear(fwd, grad_joined, grad_fc1, merger.joined, &weights->merger_fc1, &weights->merger_fc1_bias));
    TRY(ops->zero(model->backend, fwd->grad_x));
    TRY(backward_norm(fwd, &weights->merger_norm, &weights->merger_norm_bias,
                      tensor_reshape(grad_joined, fwd->rows, hidden_size), fwd->x, merger.statistics));
    workspace_restore(workspace, merger_mark);

    for (int i = fwd->transformer->block_count - 1; i >= 0; i--) {
        fwd->plan = vision_plan(state, &model->config, i);
        TRY(block_backward(fwd, i));
    }

    // The patch embedding: the rows go back to the processor's order, and the patches are computed again.
    struct tensor patches, grad_embedded;
    TRY(vision_patchify(state, model, &patches));
    TRY(workspace_alloc(workspace, weights->base.type, fwd->rows, hidden_size, &grad_embedded));
    TRY(ops->gather(model->backend, grad_embedded, fwd->grad_x, state->patch_rows));
    TRY(ops->linear_grad_weight(model->backend, step_sums_grad(grads, &weights->patch_embed), (struct tensor){0},
                                grad_embedded, patches));
    workspace_restore(workspace, mark);
    return OK;
}

void vision_release(struct vision_state *state, struct model *model) {
    model->backend->ops->attention_plan_free(model->backend, &state->window_plan);
    model->backend->ops->attention_plan_free(model->backend, &state->frame_plan);
}
