// The vision tower: the uint8 frames of one medium to rows of the language model, and the gradient back.
//
//   patches -> linear -> window order -> blocks -> rmsnorm -> units of merge x merge patches -> linear, GELU, linear
//
// A unit (spatial_merge_size x spatial_merge_size patches) becomes one token. The embeddings stay in window order;
// layout.window_index says which token each of them is. UNAVAILABLE when memory is short.
#ifndef SHARED_MODEL_VISION_MODEL_H
#define SHARED_MODEL_VISION_MODEL_H

#include "shared/model/qwen_vl/model_internal.h"

// The order in which the tower computes a medium's P patches. Each frame pair is divided into windows; the units of a
// window are consecutive, and so are the patches of a unit.
struct vision_layout {
    int32_t *patch_order;  // [P]: row i holds the processor's patch patch_order[i]
    int32_t *patch_rows;   // [P]: the inverse: the row of each of the processor's patches
    int32_t *window_index; // [units]: row i of the embeddings is token window_index[i], as in Hugging Face
    int64_t unit_count;
    struct attention_span *window_spans; // for the blocks with window attention
    size_t window_count;
    struct attention_span *frame_spans; // for the blocks with full attention: a frame pair each
    size_t frame_count;
    struct position_id *position_ids; // [P]: the row and column of each row's patch
};

// One medium in the tower. What the backward pass needs is in the workspace.
struct vision_state {
    struct grid_thw grid;
    struct vision_layout layout;
    struct forward_state fwd;
    struct attention_plan *window_plan, *frame_plan;
    struct tensor frames, patch_order, patch_rows; // U8 frames; I32 [P,1]
    struct tensor merger_input;                    // [P,C]: the merger's x; none: not kept
    struct tensor embeds;                          // [units, out_hidden_size]
};

// Sets what the tower rotates by: a patch's row and column.
void vision_rope_init(struct rope_angles *angles, const struct vision_config *vision);

// Computes state->embeds. With `training`, keeps what vision_backward needs in the workspace. The arena holds the
// host's part. The caller calls vision_release, also after a failure.
status vision_forward(struct vision_state *state, struct model *model, struct arena *arena,
                      const struct model_medium *medium, bool training);

// Returns the bytes that vision_forward keeps for a medium of `patches` patches.
size_t vision_kept_bytes(const struct vision_config *config, const struct transformer *transformer, enum element type,
                         int64_t patches, bool training);

// Returns the bytes of working memory that the tower's passes over `patches` patches need beside what is kept.
size_t vision_pass_bytes(const struct vision_config *config, const struct transformer *transformer, enum element type,
                         int64_t patches, bool training);

// Adds the gradients of the tower's parameters to grads, given the gradient of state->embeds in the type of the
// products; it may be state->embeds. Other media may have been computed since vision_forward.
status vision_backward(struct vision_state *state, struct model *model, struct tensor grad_embeds,
                       const struct param_array *grads);

// Frees what is not in the workspace or the arena. A zeroed state is fine.
void vision_release(struct vision_state *state, struct model *model);

#endif
