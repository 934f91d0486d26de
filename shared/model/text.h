// The language model over one packed sequence: embeddings, the media's rows in place of their placeholders, blocks,
// final norm.
#ifndef SHARED_MODEL_TEXT_H
#define SHARED_MODEL_TEXT_H

#include "shared/model/vision.h"

// Some frame pairs of a medium. The tower sees one frame pair at a time, so a clip may go through it in pieces; they
// bound its memory.
typedef struct piece {
    model_medium medium;
    int64_t first;   // row of the sequence where its placeholders begin
    tensor gradient; // of its merged rows; only where the tower is trained
} piece;

// A packed sequence in the language model; what the gradient needs lies on the desk.
typedef struct reading {
    const sequence *sequence;
    piece *pieces;
    size_t piece_count;
    pass pass;
    tensor *saved;   // [layers]: each block's input; NULL without gradient
    desk_mark below; // the desk before the language model's part
} reading;

// Computes the media and all blocks. Afterwards pass.x and pass.delta are to be normed. `cache` is deep for generation;
// NULL: the model's own of one layer. The arena holds the host's part.
status text_forward(reading *reading, model *model, arena *arena, const model_prompt *prompt, const sequence *sequence,
                    cache *deep, bool training);

// Adds the gradients of all blocks, the embedding and the tower for pass.x_gradient, the gradient of the last block's
// output. The tower is computed again, piece by piece; the language model's part of the desk is free by then.
status text_gradient(reading *reading, model *model, arena *arena, buffer *gradients);

// x [T,C] = the embeddings of the host's tokens.
status text_embed(model *model, tensor x, const int32_t *tokens, int64_t count);

// pass.cos and pass.sin for the host's positions.
status text_turn(model *model, pass *pass, const position *positions);

#endif
