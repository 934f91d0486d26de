#include "shared/model/text_model.h"

#include <stdlib.h>

enum { rows_a_piece = 2048 }; // patches

status text_embed(struct model *model, struct tensor x, const int32_t *tokens, int64_t count) {
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor index;
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, count, 1, tokens, &index));
    TRY(model->backend->ops->gather(model->backend, x, model->weights->embedding, index));
    workspace_restore(&model->workspace, mark);
    return OK;
}

status text_rope(struct model *model, struct forward_state *fwd, const struct position_id *position_ids) {
    const struct text_config *text = &model->config.text;
    size_t count = (size_t)fwd->rows * (size_t)(text->head_dim / 2);
    float *angles = NULL;
    TRY(NEW(&angles, 2 * count));
    status result = OK;
    rope_angles(angles, angles + count, position_ids, fwd->rows, text, model->weights->type == ELEMENT_BF16);
    TRY_TO(result, done,
           workspace_upload(&model->workspace, ELEMENT_F32, fwd->rows, text->head_dim / 2, angles, &fwd->cos));
    TRY_TO(result, done,
           workspace_upload(&model->workspace, ELEMENT_F32, fwd->rows, text->head_dim / 2, angles + count, &fwd->sin));
done:
    free(angles);
    return result;
}

// I32 [units,1]: the rows of the sequence that hold a piece's merged rows, which stand in the tower's order.
static status put_places(const struct vision_chunk *chunk, struct model *model, const int32_t *order, int64_t units,
                         struct tensor *places) {
    int32_t *rows = NULL;
    TRY(NEW(&rows, (size_t)units));
    for (int64_t i = 0; i < units; i++) rows[i] = (int32_t)chunk->first + order[i];
    status result = workspace_upload(&model->workspace, ELEMENT_I32, units, 1, rows, places);
    free(rows);
    return result;
}

static status place_pieces(struct text_state *state, struct model *model, struct arena *arena) {
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct workspace_mark mark = workspace_save(&model->workspace);
        struct vision_state vision;
        struct tensor places;
        TRY(vision_forward(&vision, model, arena, &state->chunks[i].medium, false));
        TRY(put_places(&state->chunks[i], model, vision.windows.units, vision.merged.rows, &places));
        TRY(model->backend->ops->scatter(model->backend, state->fwd.x, vision.merged, places));
        workspace_restore(&model->workspace, mark);
    }
    return OK;
}

// How many frames of a medium go through the tower together.
static int frames_a_piece(const struct model_config *config, struct grid grid) {
    int64_t pair = (int64_t)grid.height * grid.width;
    int64_t pairs = rows_a_piece / pair > 1 ? rows_a_piece / pair : 1;
    return (int)(pairs < grid.time ? pairs : grid.time) * config->vision.temporal_patch_size;
}

static status add_pieces(struct text_state *state, const struct model_config *config, const struct model_medium *medium,
                         int64_t first) {
    struct grid grid;
    TRY(grid_of(&grid, config, medium));
    int most = frames_a_piece(config, grid);
    int64_t pixels = (int64_t)medium->height * medium->width * 3, units = grid_tokens(grid, config) / grid.time;
    for (int frame = 0; frame < medium->frames; frame += most) {
        struct vision_chunk *chunk = &state->chunks[state->chunk_count++];
        *chunk = (struct vision_chunk){.medium = *medium,
                                       .first = first + frame / config->vision.temporal_patch_size * units};
        chunk->medium.frames = medium->frames - frame < most ? medium->frames - frame : most;
        chunk->medium.pixels = medium->pixels + frame * pixels;
    }
    return OK;
}

static status make_pieces(struct text_state *state, struct model *model, struct arena *arena,
                          const struct model_prompt *prompt) {
    size_t frames = 0;
    for (size_t i = 0; i < prompt->media_count; i++) frames += (size_t)prompt->media[i].frames;
    state->chunks = arena_alloc(arena, frames * sizeof *state->chunks);
    if (!state->chunks) return fail_oom();
    for (size_t i = 0; i < prompt->media_count; i++)
        TRY(add_pieces(state, &model->config, &prompt->media[i], state->sequence->media[i]));
    return OK;
}

// Room for the gradients of the media's rows, below the language model's part of the workspace.
static status take_gradients(struct text_state *state, struct model *model) {
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct grid grid;
        TRY(grid_of(&grid, &model->config, &state->chunks[i].medium));
        TRY(workspace_alloc(&model->workspace, model->weights->type, grid_tokens(grid, &model->config),
                            model->config.text.hidden_size, &state->chunks[i].gradient));
    }
    return OK;
}

static status take_pass(struct text_state *state, struct model *model, struct arena *arena, struct kv_cache *per_layer,
                        bool training) {
    enum element type = model->weights->type;
    int64_t hidden_size = model->config.text.hidden_size, rows = state->sequence->rows;
    struct workspace *workspace = &model->workspace;
    state->fwd = (struct forward_state){
        .weights = model->weights, .transformer = &model->weights->text, .workspace = workspace, .rows = rows};
    state->fwd.per_layer = per_layer != NULL;
    if (!per_layer)
        TRY(kv_scratch_reserve(&model->text_kv, model->backend, state->sequence->cache_rows,
                               state->fwd.transformer->heads));
    state->fwd.cache = per_layer ? per_layer : model->text_kv.cache;
    TRY(workspace_upload(workspace, ELEMENT_I32, rows, 1, state->sequence->slots, &state->fwd.slots));
    TRY(text_rope(model, &state->fwd, state->sequence->position_ids));
    TRY(workspace_alloc(workspace, type, rows, hidden_size, &state->fwd.x));
    TRY(workspace_alloc(workspace, type, rows, hidden_size, &state->fwd.delta));
    if (!training) return OK;
    state->saved = arena_alloc(arena, (size_t)state->fwd.transformer->count * sizeof *state->saved);
    if (!state->saved) return fail_oom();
    for (int i = 0; i < state->fwd.transformer->count; i++)
        TRY(workspace_alloc(workspace, type, rows, hidden_size, &state->saved[i]));
    state->fwd.saved = state->saved;
    return OK;
}

status text_forward(struct text_state *state, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct kv_cache *per_layer,
                    bool training) {
    *state = (struct text_state){.sequence = sequence};
    TRY(make_pieces(state, model, arena, prompt));
    if (training && model->options.train_vision) TRY(take_gradients(state, model));
    state->below = workspace_save(&model->workspace);
    TRY(take_pass(state, model, arena, per_layer, training));
    TRY(text_embed(model, state->fwd.x, sequence->tokens, sequence->rows));
    TRY(place_pieces(state, model, arena));
    struct attention_spans spans = {sequence->spans, sequence->span_count};
    for (int i = 0; i < state->fwd.transformer->count; i++) TRY(block_forward(&state->fwd, i, spans));
    return OK;
}

// The embedding's gradient; placeholders have none.
static status embedding_gradient(struct text_state *state, struct model *model, struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = state->sequence;
    if (sequence->words == 0) return OK;
    struct workspace_mark mark = workspace_save(&model->workspace);
    struct tensor rows, tokens, words;
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, sequence->words, 1, sequence->text_rows, &rows));
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, sequence->words, 1, sequence->text_ids, &tokens));
    TRY(workspace_alloc(&model->workspace, ELEMENT_F32, sequence->words, model->config.text.hidden_size, &words));
    TRY(ops->gather(model->backend, words, state->fwd.x_grad, rows));
    TRY(ops->scatter_add(model->backend, param_tensor(gradients, &model->table->embedding), words, tokens));
    workspace_restore(&model->workspace, mark);
    return OK;
}

// What the media's rows get, kept below the language model's part of the workspace.
static status gather_gradients(struct text_state *state, struct model *model, struct arena *arena) {
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct workspace_mark mark = workspace_save(&model->workspace);
        struct grid grid;
        struct windows windows;
        struct tensor places;
        TRY(grid_of(&grid, &model->config, &state->chunks[i].medium));
        TRY(windows_make(&windows, arena, &model->config, grid));
        TRY(put_places(&state->chunks[i], model, windows.units, grid_tokens(grid, &model->config), &places));
        TRY(model->backend->ops->gather(model->backend, state->chunks[i].gradient, state->fwd.x_grad, places));
        workspace_restore(&model->workspace, mark);
    }
    return OK;
}

status text_backward(struct text_state *state, struct model *model, struct arena *arena, struct buffer *gradients) {
    struct attention_spans spans = {state->sequence->spans, state->sequence->span_count};
    state->fwd.gradients = gradients;
    for (int i = state->fwd.transformer->count - 1; i >= 0; i--) TRY(block_backward(&state->fwd, i, spans));
    TRY(embedding_gradient(state, model, gradients));
    if (!model->options.train_vision) return OK;
    TRY(gather_gradients(state, model, arena));
    workspace_restore(&model->workspace, state->below);
    for (size_t i = state->chunk_count; i-- > 0;) {
        struct workspace_mark mark = workspace_save(&model->workspace);
        struct vision_state vision;
        TRY(vision_forward(&vision, model, arena, &state->chunks[i].medium, true));
        TRY(vision_backward(&vision, model, state->chunks[i].gradient, gradients));
        workspace_restore(&model->workspace, mark);
    }
    return OK;
}
