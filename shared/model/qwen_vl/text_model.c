#include "shared/model/qwen_vl/text_model.h"

#include <assert.h>
#include <stdlib.h>

// Hugging Face rounds the cosines and sines of the language model to the type of the activations.
void text_rope_init(struct rope_angles *angles, const struct text_config *text, enum element type) {
    int pairs = text->head_dim / 2;
    *angles = (struct rope_angles){
        .theta = (double)text->rope_theta, .pairs = pairs, .period = pairs, .rounded = type == ELEMENT_BF16};
    for (int axis = 0; axis < 3; axis++) angles->table.sections[axis] = text->mrope_section[axis];
}

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

// Computes a chunk in the tower and puts its embeddings, which are in window order, into x.
static status text_embed_chunk(struct vision_chunk *chunk, struct model *model, struct arena *arena, struct tensor x,
                               bool training) {
    struct tensor rows;
    TRY(vision_forward(&chunk->vision, model, arena, &chunk->medium, training));
    const struct vision_layout *layout = &chunk->vision.layout;
    chunk->rows = arena_alloc(arena, (size_t)layout->unit_count * sizeof *chunk->rows);
    for (int64_t i = 0; i < layout->unit_count; i++)
        chunk->rows[i] = (int32_t)chunk->first_row + layout->window_index[i];
    TRY(workspace_upload(&model->workspace, ELEMENT_I32, layout->unit_count, 1, chunk->rows, &rows));
    return model->backend->ops->scatter(model->backend, x, chunk->vision.embeds, rows);
}

// Of each row: x, delta, its gradient and indices; with them the blocks' inputs, and a block or the head
// (group_logprobs.c).
size_t text_pass_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t chunk_rows,
                       bool training) {
    size_t row_bytes = (size_t)rows * (size_t)transformer->hidden_size * element_size(type);
    size_t indices = (size_t)rows * 12 * sizeof(int32_t); // positions, slots, targets, and the head's numbers
    size_t grad = training ? (size_t)(rows * transformer->hidden_size) * sizeof(float) : 0;
    size_t inputs = training ? block_kept_bytes(transformer, type, rows, KEEP_INPUT) : 0;
    size_t head = (training ? 4 : 2) * row_bytes, block = block_work_bytes(transformer, type, rows, chunk_rows);
    return 2 * row_bytes + grad + indices + (size_t)transformer->block_count * inputs + (head > block ? head : block);
}

// Has the working memory of a pass ready in one piece where the device's memory is limited: of several pieces, the
// ends would be lost.
static status text_expect_memory(struct model *model, const struct sequence *sequence,
                                 const struct model_prompt *prompt, int64_t chunk_rows, bool training) {
    const struct vision_config *config = &model->config.vision;
    const struct transformer *vision = &model->weights->vision, *text = &model->weights->text;
    enum element type = model->weights->base.type;
    bool train_vision = training && model->options.train_vision;
    size_t kept = 0, tower = 0, x = (size_t)(sequence->rows * text->hidden_size) * element_size(type);
    if (!model->backend_info.memory) return OK;
    for (size_t i = 0; i < prompt->media_count; i++) {
        struct grid_thw grid;
        TRY(grid_of(&grid, &model->config, &prompt->media[i]));
        int64_t patches = grid_patches(grid);
        size_t outlives = vision_kept_bytes(config, vision, type, patches, train_vision);
        size_t bytes = vision_pass_bytes(config, vision, type, patches, train_vision) + (train_vision ? 0 : outlives);
        if (train_vision) kept += outlives;
        if (bytes > tower) tower = bytes;
    }
    size_t pass = text_pass_bytes(text, type, sequence->rows, chunk_rows, training);
    workspace_expect(&model->workspace, kept + (pass > x + tower ? pass : x + tower));
    return OK;
}

// *left = the bytes of the workspace that a training pass does not need otherwise. A device with memory of its own
// gives it three quarters of what was free before the first pass; the last quarter is for the backend's own use and for
// other processes. On the CPU it does not grow beyond what the largest pass has needed.
static status text_memory_left(struct model *model, const struct forward_state *fwd, size_t *left) {
    struct backend_info info;
    *left = 0;
    TRY(backend_get_info(model->backend, &info));
    if (info.memory && !model->workspace_limit)
        model->workspace_limit = workspace_size(&model->workspace) + (size_t)(info.memory_free / 4 * 3);
    size_t limit = info.memory ? model->workspace_limit : model->workspace.peak;
    const struct transformer *transformer = fwd->transformer;
    enum element type = fwd->type;
    size_t needed = model->workspace.live + text_pass_bytes(transformer, type, fwd->rows, fwd->chunk_rows, true);
    if (needed < limit) *left = limit - needed;
    return OK;
}

// Decides whether the tower's block inputs stay in memory until the backward pass.
static status text_keep_vision(struct text_state *state, struct model *model) {
    const struct transformer *vision = &model->weights->vision;
    size_t bytes = 0, left;
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct grid_thw grid;
        TRY(grid_of(&grid, &model->config, &state->chunks[i].medium));
        bytes += vision_kept_bytes(&model->config.vision, vision, model->weights->base.type, grid_patches(grid), true);
    }
    TRY(text_memory_left(model, &state->fwd, &left));
    state->vision_kept = bytes <= left;
    return OK;
}

// Computes all media and puts their embeddings into x.
static status text_embed_media(struct text_state *state, struct model *model, struct arena *arena, bool training) {
    struct workspace *workspace = &model->workspace;
    bool train_vision = training && model->options.train_vision;
    if (train_vision) TRY(text_keep_vision(state, model));
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct vision_chunk *chunk = &state->chunks[i];
        if (train_vision && !state->vision_kept) {
            struct grid_thw grid;
            TRY(grid_of(&grid, &model->config, &chunk->medium));
            TRY(workspace_alloc(workspace, model->weights->base.type, grid_tokens(grid, &model->config),
                                model->config.text.hidden_size, &chunk->grad_embeds));
        }
        struct workspace_mark mark = workspace_save(workspace);
        TRY(text_embed_chunk(chunk, model, arena, state->fwd.x, state->vision_kept));
        if (state->vision_kept) {
            chunk->grad_embeds = chunk->vision.embeds; // which are not needed any more
            continue;
        }
        vision_release(&chunk->vision, model);
        workspace_restore(workspace, mark);
    }
    return OK;
}

// Allocates what each layer keeps.
static status text_keep(struct forward_state *fwd, struct model *model, struct arena *arena) {
    int layers = fwd->transformer->block_count, wanted = model->options.kept_activations;
    size_t left = 0, bytes[KEPT_LEVELS];
    fwd->kept = arena_alloc(arena, (size_t)layers * sizeof *fwd->kept);
    for (enum kept_level level = 0; level < KEPT_LEVELS; level++)
        bytes[level] = block_kept_bytes(fwd->transformer, fwd->type, fwd->rows, level);
    if (wanted < 0 && model->backend_info.memory) TRY(text_memory_left(model, fwd, &left));
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
    enum element type = model->weights->base.type;
    int64_t hidden_size = model->config.text.hidden_size;
    *state = (struct text_state){.sequence = sequence};
    TRY(text_split_media(state, model, arena, prompt));
    *fwd = (struct forward_state){.backend = model->backend,
                                  .type = model->weights->base.type,
                                  .transformer = &model->weights->text,
                                  .workspace = workspace,
                                  .rows = sequence->rows,
                                  .chunk_rows = model->backend_info.chunk_rows[type],
                                  .layered = cache != NULL,
                                  .cache = cache};
    if (!cache) {
        TRY(kv_scratch_reserve(&model->text_kv, model->backend, model->weights->base.type, sequence->cache_rows,
                               fwd->transformer->heads));
        fwd->cache = model->text_kv.cache;
    }
    TRY(text_expect_memory(model, sequence, prompt, fwd->chunk_rows, training));
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->x));
    TRY(text_embed(model, fwd->x, sequence->tokens, sequence->rows));
    TRY(text_embed_media(state, model, arena, training));
    state->mark = workspace_save(workspace);
    TRY(workspace_upload(workspace, ELEMENT_I32, fwd->rows, 1, sequence->cache_slots, &fwd->cache_slots));
    struct tensor grad_slots = training ? fwd->cache_slots : (struct tensor){0};
    TRY(model->backend->ops->attention_plan_new(model->backend, &state->plan, fwd->transformer->heads, sequence->spans,
                                                sequence->span_count, grad_slots));
    fwd->plan = state->plan;
    TRY(text_set_positions(model, fwd, sequence->position_ids));
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->delta));
    if (training) TRY(text_keep(fwd, model, arena));
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
        TRY(ops->scatter_add(model->backend, param_tensor(grads, &model->params->embedding), grad_rows, ids));
        workspace_restore(workspace, mark);
    }
    if (!model->options.train_vision) return OK;

    // The gradients of the media's rows are copied to below state->mark, where they outlive the language model's part.
    for (size_t i = 0; i < state->chunk_count; i++) {
        const struct vision_chunk *chunk = &state->chunks[i];
        struct workspace_mark mark = workspace_save(workspace);
        struct tensor rows;
        TRY(workspace_upload(workspace, ELEMENT_I32, chunk->grad_embeds.rows, 1, chunk->rows, &rows));
        TRY(ops->gather(model->backend, chunk->grad_embeds, state->fwd.grad_x, rows));
        workspace_restore(workspace, mark);
    }
    workspace_restore(workspace, state->mark);
    for (size_t i = state->chunk_count; i-- > 0;) {
        struct vision_chunk *chunk = &state->chunks[i];
        struct workspace_mark mark = workspace_save(workspace);
        if (!state->vision_kept) TRY(vision_forward(&chunk->vision, model, arena, &chunk->medium, true));
        TRY(vision_backward(&chunk->vision, model, chunk->grad_embeds, grads));
        vision_release(&chunk->vision, model);
        workspace_restore(workspace, mark);
    }
    return OK;
}

void text_release(struct text_state *state, struct model *model) {
    for (size_t i = 0; i < state->chunk_count; i++) vision_release(&state->chunks[i].vision, model);
    model->backend->ops->attention_plan_free(model->backend, &state->plan);
}
