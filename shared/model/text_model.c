#include "shared/model/text_model.h"

#include <assert.h>
#include <stdlib.h>

status text_embed(struct model *model, struct tensor x, const int32_t *tokens, int64_t count) {
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor index;
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, count, 1, tokens, &index));
    TRY(model->backend->ops->gather(model->backend, x, model->weights->embedding, index));
    workspace_restore(&model->workspace, mark);
    return OK;
}

status text_set_positions(struct model *model, struct forward_state *fwd, const struct position_id *position_ids) {
    int32_t largest = 0;
    for (int64_t i = 0; i < fwd->rows; i++) {
        for (int axis = 0; axis < 3; axis++)
            if (position_ids[i].axis[axis] > largest) largest = position_ids[i].axis[axis];
    }
    TRY(rope_angles_reserve(&model->text_rope, model->backend, (int64_t)largest + 1));
    fwd->rope = &model->text_rope.table;
    return workspace_upload(&model->workspace, ELEMENT_I32, fwd->rows, 3, position_ids, &fwd->position_ids);
}

// Divides the prompt's media into chunks of at most chunk_patches patches; a chunk of one frame pair may be larger.
static status text_split_media(struct text_state *state, const struct model *model, struct arena *arena,
                               const struct model_prompt *prompt) {
    const struct model_config *config = &model->config;
    int64_t chunk_patches = model->backend_info.chunk_patches;
    int frames_per_pair = config->vision.temporal_patch_size;
    size_t frames = 0;
    for (size_t i = 0; i < prompt->media_count; i++) frames += (size_t)prompt->media[i].frames;
    state->chunks = arena_alloc(arena, frames * sizeof *state->chunks);
    if (!state->chunks) return fail_oom();
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *medium = &prompt->media[i];
        struct grid_thw grid;
        TRY(grid_of(&grid, config, medium));
        int64_t pair_patches = (int64_t)grid.height * grid.width, pair_tokens = grid_tokens(grid, config) / grid.time;
        int64_t pairs = chunk_patches / pair_patches > 1 ? chunk_patches / pair_patches : 1;
        int chunk_frames = (int)(pairs < grid.time ? pairs : grid.time) * frames_per_pair;
        for (int frame = 0; frame < medium->frames; frame += chunk_frames) {
            struct vision_chunk *chunk = &state->chunks[state->chunk_count++];
            *chunk = (struct vision_chunk){.medium = *medium};
            chunk->first_row = state->sequence->media_rows[i] + frame / frames_per_pair * pair_tokens;
            chunk->medium.frames = medium->frames - frame < chunk_frames ? medium->frames - frame : chunk_frames;
            chunk->medium.pixels = medium->pixels + (int64_t)frame * medium->height * medium->width * 3;
        }
    }
    assert(state->chunk_count <= frames);
    return OK;
}

// *rows I32 [units,1] = the row of the sequence of each of a chunk's embeddings, which are in window order.
static status text_chunk_rows(const struct vision_chunk *chunk, struct model *model, const struct vision_layout *layout,
                              struct tensor *rows) {
    int32_t *host = NULL;
    TRY(NEW(&host, (size_t)layout->unit_count));
    for (int64_t i = 0; i < layout->unit_count; i++) host[i] = (int32_t)chunk->first_row + layout->window_index[i];
    status result = workspace_upload(&model->workspace, ELEMENT_I32, layout->unit_count, 1, host, rows);
    free(host);
    return result;
}

// *left = the bytes of the workspace that a training pass does not need otherwise. A device with memory of its own
// gives it three quarters of what was free before the first pass; the last quarter is for the backend's own use and for
// other processes.
static status text_memory_left(struct model *model, const struct forward_state *fwd, size_t *left) {
    struct backend_info info;
    *left = 0;
    TRY(backend_get_info(model->backend, &info));
    if (!info.memory) return OK;
    if (!model->workspace_limit)
        model->workspace_limit = workspace_size(&model->workspace) + (size_t)(info.memory_free / 4 * 3);
    const struct transformer *transformer = fwd->transformer;
    enum element type = fwd->weights->type;
    // x, delta, the gradients of the rows, and what the head needs of them (group_logprobs.c).
    size_t row_bytes = (size_t)transformer->hidden_size * (5 * element_size(type) + 2 * sizeof(float));
    size_t needed = model->workspace.live + (size_t)fwd->rows * row_bytes +
                    block_work_bytes(transformer, type, fwd->rows, fwd->chunk_rows) +
                    (size_t)transformer->block_count * block_kept_bytes(transformer, type, fwd->rows, KEEP_INPUT);
    if (needed < model->workspace_limit) *left = model->workspace_limit - needed;
    return OK;
}

// Allocates what each layer keeps.
static status text_keep(struct forward_state *fwd, struct model *model, struct arena *arena) {
    int layers = fwd->transformer->block_count, wanted = model->options.kept_activations;
    size_t left = 0, bytes[KEPT_LEVELS];
    fwd->kept = arena_alloc(arena, (size_t)layers * sizeof *fwd->kept);
    if (!fwd->kept) return fail_oom();
    for (enum kept_level level = 0; level < KEPT_LEVELS; level++)
        bytes[level] = block_kept_bytes(fwd->transformer, fwd->weights->type, fwd->rows, level);
    if (wanted < 0) TRY(text_memory_left(model, fwd, &left));
    for (int i = 0; i < layers; i++) {
        enum kept_level level = wanted < 0 ? KEEP_MLP : (enum kept_level)wanted;
        if (wanted < 0) {
            while (level > KEEP_INPUT && bytes[level] - bytes[KEEP_INPUT] > left) level--;
            left -= bytes[level] - bytes[KEEP_INPUT];
        }
        TRY(block_keep(fwd, level, &fwd->kept[i]));
    }
    return OK;
}

status text_forward(struct text_state *state, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct kv_cache *cache,
                    bool training) {
    struct workspace *workspace = &model->workspace;
    struct forward_state *fwd = &state->fwd;
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size;
    *state = (struct text_state){.sequence = sequence};
    TRY(text_split_media(state, model, arena, prompt));
    for (size_t i = 0; training && model->options.train_vision && i < state->chunk_count; i++) {
        struct grid_thw grid;
        TRY(grid_of(&grid, &model->config, &state->chunks[i].medium));
        TRY(workspace_alloc(workspace, type, grid_tokens(grid, &model->config), hidden_size,
                            &state->chunks[i].grad_embeds));
    }
    state->mark = workspace_save(workspace);
    *fwd = (struct forward_state){.weights = model->weights,
                                  .transformer = &model->weights->text,
                                  .workspace = workspace,
                                  .rows = sequence->rows,
                                  .chunk_rows = model->backend_info.chunk_rows[type],
                                  .layered = cache != NULL,
                                  .cache = cache};
    if (!cache) {
        TRY(kv_scratch_reserve(&model->text_kv, model->backend, model->weights->type, sequence->cache_rows,
                               fwd->transformer->heads));
        fwd->cache = model->text_kv.cache;
    }
    TRY(workspace_upload(workspace, ELEMENT_I32, fwd->rows, 1, sequence->cache_slots, &fwd->cache_slots));
    struct tensor grad_slots = training ? fwd->cache_slots : (struct tensor){0};
    TRY(model->backend->ops->attention_plan_new(model->backend, &state->plan, fwd->transformer->heads, sequence->spans,
                                                sequence->span_count, grad_slots));
    fwd->plan = state->plan;
    TRY(text_set_positions(model, fwd, sequence->position_ids));
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->x));
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->delta));
    if (training) TRY(text_keep(fwd, model, arena));
    TRY(text_embed(model, fwd->x, sequence->tokens, sequence->rows));
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct workspace_mark mark = workspace_save(workspace);
        struct vision_state vision;
        struct tensor rows;
        status result = vision_forward(&vision, model, arena, &state->chunks[i].medium, false);
        vision_release(&vision, model);
        TRY(result);
        TRY(text_chunk_rows(&state->chunks[i], model, &vision.layout, &rows));
        TRY(model->backend->ops->scatter(model->backend, fwd->x, vision.embeds, rows));
        workspace_restore(workspace, mark);
    }
    for (int i = 0; i < fwd->transformer->block_count; i++) TRY(block_forward(fwd, i));
    return OK;
}

status text_backward(struct text_state *state, struct model *model, struct arena *arena,
                     const struct param_array *grads) {
    const struct operations *ops = model->backend->ops;
    struct workspace *workspace = &model->workspace;
    state->fwd.grads = grads;
    for (int i = state->fwd.transformer->block_count - 1; i >= 0; i--) TRY(block_backward(&state->fwd, i));

    // The gradient of the embedding matrix. Placeholders have none.
    const struct sequence *sequence = state->sequence;
    if (sequence->text_count) {
        int64_t count = sequence->text_count;
        struct workspace_mark mark = workspace_save(workspace);
        struct tensor rows, ids, grad_rows;
        TRY(workspace_upload(workspace, ELEMENT_I32, count, 1, sequence->text_rows, &rows));
        TRY(workspace_upload(workspace, ELEMENT_I32, count, 1, sequence->text_ids, &ids));
        TRY(workspace_alloc(workspace, ELEMENT_F32, count, model->config.text.hidden_size, &grad_rows));
        TRY(ops->gather(model->backend, grad_rows, state->fwd.grad_x, rows));
        TRY(ops->scatter_add(model->backend, param_tensor(grads, &model->table->embedding), grad_rows, ids));
        workspace_restore(workspace, mark);
    }
    if (!model->options.train_vision) return OK;

    // The gradients of the media's rows are copied to below state->mark, where they outlive the language model's part.
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct workspace_mark mark = workspace_save(workspace);
        struct grid_thw grid;
        struct vision_layout layout;
        struct tensor rows;
        TRY(grid_of(&grid, &model->config, &state->chunks[i].medium));
        TRY(vision_layout_make(&layout, arena, &model->config, grid));
        TRY(text_chunk_rows(&state->chunks[i], model, &layout, &rows));
        TRY(ops->gather(model->backend, state->chunks[i].grad_embeds, state->fwd.grad_x, rows));
        workspace_restore(workspace, mark);
    }
    workspace_restore(workspace, state->mark);
    for (size_t i = state->chunk_count; i-- > 0;) {
        struct workspace_mark mark = workspace_save(workspace);
        struct vision_state vision;
        status result = vision_forward(&vision, model, arena, &state->chunks[i].medium, true);
        if (result == OK) result = vision_backward(&vision, model, state->chunks[i].grad_embeds, grads);
        vision_release(&vision, model);
        TRY(result);
        workspace_restore(workspace, mark);
    }
    return OK;
}

void text_release(struct text_state *state, struct model *model) {
    model->backend->ops->attention_plan_free(model->backend, &state->plan);
}
