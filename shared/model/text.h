// The language model over one packed sequence: embeddings, the media's rows in place of their placeholders, blocks,
// final norm.
#ifndef SHARED_MODEL_TEXT_H
#define SHARED_MODEL_TEXT_H

#include "shared/model/vision.h"

// A packed sequence in the language model; what the gradient needs lies on the desk.
typedef struct reading {
    const sequence *sequence;
    encoding *media; // of the prompt
    size_t media_count;
    pass pass;
    tensor *saved; // [layers]: each block's input; NULL without gradient
} reading;

// Computes the media and all blocks. Afterwards pass.x and pass.delta are to be normed. `cache` is deep for generation;
// NULL: the model's own of one layer. The arena holds the host's part.
status text_forward(reading *reading, model *model, arena *arena, const model_prompt *prompt, const sequence *sequence,
                    cache *deep, bool training);

// Adds the gradients of all blocks, the embedding and the media for pass.x_gradient, the gradient of the last block's
// output.
status text_gradient(reading *reading, model *model, buffer *gradients);

// x [T,C] = the embeddings of the host's tokens.
status text_embed(model *model, tensor x, const int32_t *tokens, int64_t count);

// pass.cos and pass.sin for the host's positions.
status text_turn(model *model, pass *pass, const position *positions);

#endif
