// The language model over one packed sequence: token embeddings, the vision tower's embeddings in place of the
// placeholders, and the blocks. The final norm and the head are the caller's. UNAVAILABLE when memory is short.
#ifndef SHARED_MODEL_TEXT_MODEL_H
#define SHARED_MODEL_TEXT_MODEL_H

#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/qwen_vl/vision_model.h"

// Some frame pairs of a medium. Frame pairs do not attend to each other in the tower, so a clip is computed in chunks,
// which bounds the memory.
struct vision_chunk {
    struct model_medium medium;
    int64_t first_row; // the row of the sequence where its placeholders begin
    struct vision_state vision;
    int32_t *rows;             // [units], on the host: the row of the sequence of each of its embeddings
    struct tensor grad_embeds; // only where the tower is trained
};

// A packed sequence in the language model. What the backward pass needs is in the workspace.
struct text_state {
    const struct sequence *sequence;
    struct vision_chunk *chunks;
    size_t chunk_count;
    bool vision_kept; // the tower's activations stay in the workspace until the backward pass
    struct forward_state fwd;
    struct attention_plan *plan;
    struct workspace_mark mark; // the workspace before the language model's part, with x and the tower's below it
};

// Sets what the language model rotates by; `type` is that of the activations.
void text_rope_init(struct rope_angles *angles, const struct text_config *text, enum element type);

// Computes the media and all blocks; the caller norms fwd.x + fwd.delta. `cache` has a layer for each block
// (generation); NULL: a scratch cache of one layer. With `training`, keeps what text_backward needs in the workspace.
// The arena holds the host's part. The caller calls text_release, also after a failure.
status text_forward(struct text_state *state, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct kv_cache *cache,
                    bool training);

// Adds the gradients of all blocks, the embedding and the tower to grads, given fwd.grad_x, the gradient of the last
// block's output. The tower comes last, chunk by chunk, when the language model's part of the workspace is free; what
// was not kept of it is computed again.
status text_backward(struct text_state *state, struct model *model, struct arena *arena,
                     const struct param_array *grads);

// Frees what is not in the workspace or the arena. A zeroed state is fine.
void text_release(struct text_state *state, struct model *model);

// Returns the bytes of working memory that a pass over `rows` rows needs; in training with the layers' inputs.
size_t text_pass_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t chunk_rows,
                       bool training);

// ---- group ----

// The forward pass over a group: the log-probabilities of its completions.

// Computes the sequence of a prompt and its completions, and the logprobs of model_score. `cache` has a layer for each
// block, and keeps the keys and values of all rows; NULL: a scratch cache of one layer, and nothing is computed if no
// token is wanted. The arena holds the host's part. BAD_SAMPLE as in model_check; UNAVAILABLE when memory is short.
status group_score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                   struct sequence *sequence, const struct model_completion *completions, size_t count,
                   const struct token_range *wanted, struct kv_cache *cache, float *const *logprobs);

#endif
