#include "shared/model/text.h"

#include <stdlib.h>

status text_embed(model *model, tensor x, const int32_t *tokens, int64_t count) {
    desk_mark mark = desk_here(&model->desk);
    tensor index;
    TRY(desk_put(&model->desk, ELEMENT_I32, count, 1, tokens, &index));
    TRY(model->backend->ops->gather(model->backend, x, model->weights->embedding, index));
    desk_back(&model->desk, mark);
    return OK;
}

status text_turn(model *model, pass *pass, const position *positions) {
    const text_config *text = &model->config.text;
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

// I32 [units,1]: the rows of the sequence that hold a medium's merged rows.
static status put_places(const reading *it, model *model, size_t medium, tensor *places) {
    const encoding *encoding = &it->media[medium];
    int64_t units = encoding->merged.rows;
    int32_t *rows = NULL;
    TRY(NEW(&rows, (size_t)units));
    for (int64_t i = 0; i < units; i++) rows[i] = (int32_t)it->sequence->media[medium] + encoding->windows.units[i];
    status result = desk_put(&model->desk, ELEMENT_I32, units, 1, rows, places);
    free(rows);
    return result;
}

// Without training a medium's memory is free again once its rows are in x.
static status place_media(reading *it, model *model, arena *arena, const model_prompt *prompt) {
    const operations *ops = model->backend->ops;
    for (size_t i = 0; i < prompt->media_count; i++) {
        desk_mark mark = desk_here(&model->desk);
        TRY(vision_forward(&it->media[i], model, arena, &prompt->media[i], false));
        tensor places;
        TRY(put_places(it, model, i, &places));
        TRY(ops->scatter(model->backend, it->pass.x, it->media[i].merged, places));
        desk_back(&model->desk, mark);
    }
    return OK;
}

static status place_kept_media(reading *it, model *model) {
    for (size_t i = 0; i < it->media_count; i++) {
        tensor places;
        desk_mark mark = desk_here(&model->desk);
        TRY(put_places(it, model, i, &places));
        TRY(model->backend->ops->scatter(model->backend, it->pass.x, it->media[i].merged, places));
        desk_back(&model->desk, mark);
    }
    return OK;
}

static status take_pass(reading *it, model *model, arena *arena, cache *deep, bool training) {
    element type = model->weights->type;
    int64_t hidden = model->config.text.hidden, rows = it->sequence->rows;
    desk *desk = &model->desk;
    it->pass = (pass){.weights = model->weights, .tower = &model->weights->text, .desk = desk, .rows = rows};
    it->pass.deep = deep != NULL;
    if (!deep) TRY(shelf_fit(&model->text_shelf, model->backend, it->sequence->cache_rows, it->pass.tower->heads));
    it->pass.cache = deep ? deep : model->text_shelf.cache;
    TRY(desk_put(desk, ELEMENT_I32, rows, 1, it->sequence->slots, &it->pass.slots));
    TRY(text_turn(model, &it->pass, it->sequence->positions));
    TRY(desk_take(desk, type, rows, hidden, &it->pass.x));
    TRY(desk_take(desk, type, rows, hidden, &it->pass.delta));
    if (!training) return OK;
    it->saved = arena_get(arena, (size_t)it->pass.tower->count * sizeof *it->saved);
    if (!it->saved) return fail(SERVICE, "out of memory");
    for (int i = 0; i < it->pass.tower->count; i++) TRY(desk_take(desk, type, rows, hidden, &it->saved[i]));
    it->pass.saved = it->saved;
    return OK;
}

status text_forward(reading *reading, model *model, arena *arena, const model_prompt *prompt, const sequence *sequence,
                    cache *deep, bool training) {
    bool keep_media = training && model->options.train_vision;
    *reading = (struct reading){.sequence = sequence, .media_count = prompt->media_count};
    reading->media = arena_get(arena, prompt->media_count * sizeof *reading->media);
    if (!reading->media) return fail(SERVICE, "out of memory");
    for (size_t i = 0; keep_media && i < prompt->media_count; i++)
        TRY(vision_forward(&reading->media[i], model, arena, &prompt->media[i], true));
    TRY(take_pass(reading, model, arena, deep, training));
    TRY(text_embed(model, reading->pass.x, sequence->tokens, sequence->rows));
    if (keep_media)
        TRY(place_kept_media(reading, model));
    else
        TRY(place_media(reading, model, arena, prompt));
    view view = {sequence->segments, sequence->segment_count};
    for (int i = 0; i < reading->pass.tower->count; i++) TRY(block_forward(&reading->pass, i, view));
    return OK;
}

// The embedding's gradient; placeholders have none.
static status embedding_gradient(reading *it, model *model, buffer *gradients) {
    const operations *ops = model->backend->ops;
    const sequence *sequence = it->sequence;
    if (sequence->words == 0) return OK;
    desk_mark mark = desk_here(&model->desk);
    tensor rows, tokens, words;
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->words, 1, sequence->word_rows, &rows));
    TRY(desk_put(&model->desk, ELEMENT_I32, sequence->words, 1, sequence->word_tokens, &tokens));
    TRY(desk_take(&model->desk, ELEMENT_F32, sequence->words, model->config.text.hidden, &words));
    TRY(ops->gather(model->backend, words, it->pass.x_gradient, rows));
    TRY(ops->scatter_add(model->backend, part_tensor(gradients, &model->table->embedding), words, tokens));
    desk_back(&model->desk, mark);
    return OK;
}

static status media_gradient(reading *it, model *model, buffer *gradients) {
    if (!model->options.train_vision) return OK;
    for (size_t i = it->media_count; i-- > 0;) {
        desk_mark mark = desk_here(&model->desk);
        tensor places, merged_gradient;
        TRY(put_places(it, model, i, &places));
        TRY(desk_take(&model->desk, model->weights->type, places.rows, model->config.text.hidden, &merged_gradient));
        TRY(model->backend->ops->gather(model->backend, merged_gradient, it->pass.x_gradient, places));
        TRY(vision_gradient(&it->media[i], model, merged_gradient, gradients));
        desk_back(&model->desk, mark);
    }
    return OK;
}

status text_gradient(reading *reading, model *model, buffer *gradients) {
    view view = {reading->sequence->segments, reading->sequence->segment_count};
    reading->pass.gradients = gradients;
    for (int i = reading->pass.tower->count - 1; i >= 0; i--) TRY(block_gradient(&reading->pass, i, view));
    TRY(embedding_gradient(reading, model, gradients));
    return media_gradient(reading, model, gradients);
}
