// The language model over one packed sequence: embeddings, the media's rows in place of their placeholders, blocks,
// final norm.
#ifndef SHARED_MODEL_TEXT_H
#define SHARED_MODEL_TEXT_H

#include "shared/model/vision_model.h"

// Some frame pairs of a medium. The tower sees one frame pair at a time, so a clip may go through it in pieces; they
// bound its memory.
struct vision_chunk {
    struct model_medium medium;
    int64_t first;          // row of the sequence where its placeholders begin
    struct tensor gradient; // of its merged rows; only where the tower is trained
};

// A packed sequence in the language model; what the gradient needs lies on the workspace.
struct text_state {
    const struct sequence *sequence;
    struct vision_chunk *chunks;
    size_t chunk_count;
    struct forward_state fwd;
    struct tensor *saved;        // [layers]: each block's input; NULL without gradient
    struct workspace_mark below; // the workspace before the language model's part
};

// Computes the media and all blocks. Afterwards pass.x and pass.delta are to be normed. `cache` is deep for generation;
// NULL: the model's own of one layer. The arena holds the host's part.
status text_forward(struct text_state *state, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct kv_cache *per_layer,
                    bool training);

// Adds the gradients of all blocks, the embedding and the tower for pass.x_gradient, the gradient of the last block's
// output. The tower is computed again, piece by piece; the language model's part of the workspace is free by then.
status text_backward(struct text_state *state, struct model *model, struct arena *arena, struct buffer *gradients);

// x [T,C] = the embeddings of the host's tokens.
status text_embed(struct model *model, struct tensor x, const int32_t *tokens, int64_t count);

// pass.cos and pass.sin for the host's positions.
status text_rope(struct model *model, struct forward_state *fwd, const struct position_id *position_ids);

#endif
