#include "shared/model/text.h"

#include <stdlib.h>

enum { rows_a_piece = 2048 }; // patches

status text_embed(struct model *model, struct tensor x, const int32_t *tokens, int64_t count) {
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor index;
    TRY(desk_put(&model->desk, ELEMENT_I32, count, 1, tokens, &index));
    TRY(model->backend->ops->gather(model->backend, x, model->weights->embedding, index));
    desk_back(&model->desk, mark);
    return OK;
}

status text_turn(struct model *model, struct pass *pass, const struct position *positions) {
    const struct text_config *text = &model->config.text;
    size_t count = (size_t)pass->rows * (size_t)(text->head_size / 2);
    float *angles = NULL;
    TRY(NEW(&angles, 2 * count));
    status result = OK;
    text_angles(angles, angles + count, positions, pass->rows, text, model->weights->type == ELEMENT_BF16);
    TRY_TO(result, done, desk_put(&model->desk, ELEMENT_F32, pass->rows, text->head_size / 2, angles, &pass->cos));
    TRY_TO(result, done,
           desk_put(&model->desk, ELEMENT_F32, pass->rows, text->head_size / 2, angles + count, &pass->sin));
done:
    free(angles);
    return result;
}

// I32 [units,1]: the rows of the sequence that hold a piece's merged rows, which stand in the tower's order.
static status put_places(const struct piece *piece, struct model *model, const int32_t *order, int64_t units,
                         struct tensor *places) {
    int32_t *rows = NULL;
    TRY(NEW(&rows, (size_t)units));
    for (int64_t i = 0; i < units; i++) rows[i] = (int32_t)piece->first + order[i];
    status result = desk_put(&model->desk, ELEMENT_I32, units, 1, rows, places);
    free(rows);
    return result;
}

static status place_pieces(struct reading *it, struct model *model, struct arena *arena) {
    for (size_t i = 0; i < it->piece_count; i++) {
        struct desk_mark mark = desk_here(&model->desk);
        struct encoding encoding;
        struct tensor places;
        TRY(vision_forward(&encoding, model, arena, &it->pieces[i].medium, false));
        TRY(put_places(&it->pieces[i], model, encoding.windows.units, encoding.merged.rows, &places));
        TRY(model->backend->ops->scatter(model->backend, it->pass.x, encoding.merged, places));
        desk_back(&model->desk, mark);
    }
    return OK;
}

// How many frames of a medium go through the tower together.
static int frames_a_piece(const struct model_config *config, struct grid grid) {
    int64_t pair = (int64_t)grid.height * grid.width;
    int64_t pairs = rows_a_piece / pair > 1 ? rows_a_piece / pair : 1;
    return (int)(pairs < grid.time ? pairs : grid.time) * config->vision.time;
}

static status add_pieces(struct reading *it, const struct model_config *config, const struct model_medium *medium,
                         int64_t first) {
    struct grid grid;
    TRY(grid_of(&grid, config, medium));
    int most = frames_a_piece(config, grid);
    int64_t pixels = (int64_t)medium->height * medium->width * 3, units = grid_tokens(grid, config) / grid.time;
    for (int frame = 0; frame < medium->frames; frame += most) {
        struct piece *piece = &it->pieces[it->piece_count++];
        *piece = (struct piece){.medium = *medium, .first = first + frame / config->vision.time * units};
        piece->medium.frames = medium->frames - frame < most ? medium->frames - frame : most;
        piece->medium.pixels = medium->pixels + frame * pixels;
    }
    return OK;
}

static status make_pieces(struct reading *it, struct model *model, struct arena *arena,
                          const struct model_prompt *prompt) {
    size_t frames = 0;
    for (size_t i = 0; i < prompt->media_count; i++) frames += (size_t)prompt->media[i].frames;
    it->pieces = arena_alloc(arena, frames * sizeof *it->pieces);
    if (!it->pieces) return fail(UNAVAILABLE, "out of memory");
    for (size_t i = 0; i < prompt->media_count; i++)
        TRY(add_pieces(it, &model->config, &prompt->media[i], it->sequence->media[i]));
    return OK;
}

// Room for the gradients of the media's rows, below the language model's part of the desk.
static status take_gradients(struct reading *it, struct model *model) {
    for (size_t i = 0; i < it->piece_count; i++) {
        struct grid grid;
        TRY(grid_of(&grid, &model->config, &it->pieces[i].medium));
        TRY(desk_take(&model->desk, model->weights->type, grid_tokens(grid, &model->config), model->config.text.hidden,
                      &it->pieces[i].gradient));
    }
    return OK;
}

static status take_pass(struct reading *it, struct model *model, struct arena *arena, struct cache *deep,
                        bool training) {
    enum element type = model->weights->type;
    int64_t hidden = model->config.text.hidden, rows = it->sequence->rows;
    struct desk *desk = &model->desk;
    it->pass = (struct pass){.weights = model->weights, .tower = &model->weights->text, .desk = desk, .rows = rows};
    it->pass.deep = deep != NULL;
    if (!deep) TRY(shelf_fit(&model->text_shelf, model->backend, it->sequence->cache_rows, it->pass.tower->heads));
    it->pass.cache = deep ? deep : model->text_shelf.cache;
    TRY(desk_put(desk, ELEMENT_I32, rows, 1, it->sequence->slots, &it->pass.slots));
    TRY(text_turn(model, &it->pass, it->sequence->positions));
    TRY(desk_take(desk, type, rows, hidden, &it->pass.x));
    TRY(desk_take(desk, type, rows, hidden, &it->pass.delta));
    if (!training) return OK;
    it->saved = arena_alloc(arena, (size_t)it->pass.tower->count * sizeof *it->saved);
    if (!it->saved) return fail(UNAVAILABLE, "out of memory");
    for (int i = 0; i < it->pass.tower->count; i++) TRY(desk_take(desk, type, rows, hidden, &it->saved[i]));
    it->pass.saved = it->saved;
    return OK;
}

status text_forward(struct reading *reading, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct cache *deep,
                    bool training) {
    *reading = (struct reading){.sequence = sequence};
    TRY(make_pieces(reading, model, arena, prompt));
    if (training && model->options.train_vision) TRY(take_gradients(reading, model));
    reading->below = desk_here(&model->desk);
    TRY(take_pass(reading, model, arena, deep, training));
    TRY(text_embed(model, reading->pass.x, sequence->tokens, sequence->rows));
    TRY(place_pieces(reading, model, arena));
    struct view view = {sequence->segments, sequence->segment_count};
    for (int i = 0; i < reading->pass.tower->count; i++) TRY(block_forward(&reading->pass, i, view));
    return OK;
}

// The embedding's gradient; placeholders have none.
static status embedding_gradient(struct reading *it, struct model *model, struct buffer *gradients) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = it->sequence;
    if (sequence->words == 0) return OK;
    struct desk_mark mark = desk_here(&model->desk);
    struct tensor rows, tokens, words;
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->words, 1, sequence->word_rows, &rows));
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->words, 1, sequence->word_tokens, &tokens));
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->words, model->config.text.hidden, &words));
    TRY(ops->gather(model->backend, words, it->pass.x_gradient, rows));
    TRY(ops->scatter_add(model->backend, part_tensor(gradients, &model->table->embedding), words, tokens));
    desk_back(&model->desk, mark);
    return OK;
}

// What the media's rows get, kept below the language model's part of the desk.
static status gather_gradients(struct reading *it, struct model *model, struct arena *arena) {
    for (size_t i = 0; i < it->piece_count; i++) {
        struct desk_mark mark = desk_here(&model->desk);
        struct grid grid;
        struct windows windows;
        struct tensor places;
        TRY(grid_of(&grid, &model->config, &it->pieces[i].medium));
        TRY(windows_make(&windows, arena, &model->config, grid));
        TRY(put_places(&it->pieces[i], model, windows.units, grid_tokens(grid, &model->config), &places));
        TRY(model->backend->ops->gather(model->backend, it->pieces[i].gradient, it->pass.x_gradient, places));
        desk_back(&model->desk, mark);
    }
    return OK;
}

status text_gradient(struct reading *reading, struct model *model, struct arena *arena, struct buffer *gradients) {
    struct view view = {reading->sequence->segments, reading->sequence->segment_count};
    reading->pass.gradients = gradients;
    for (int i = reading->pass.tower->count - 1; i >= 0; i--) TRY(block_gradient(&reading->pass, i, view));
    TRY(embedding_gradient(reading, model, gradients));
    if (!model->options.train_vision) return OK;
    TRY(gather_gradients(reading, model, arena));
    desk_back(&model->desk, reading->below);
    for (size_t i = reading->piece_count; i-- > 0;) {
        struct desk_mark mark = desk_here(&model->desk);
        struct encoding encoding;
        TRY(vision_forward(&encoding, model, arena, &reading->pieces[i].medium, true));
        TRY(vision_gradient(&encoding, model, reading->pieces[i].gradient, gradients));
        desk_back(&model->desk, mark);
    }
    return OK;
}
