// The vision tower: uint8 frames to rows of the language model, one medium at a time, and the gradient back.
//
//   patches -> linear -> tower's order -> blocks -> rmsnorm -> units of merge x merge patches -> linear, GELU, linear
//
// The merged rows stay in the tower's order; windows.units says which token each is.
#ifndef SHARED_MODEL_VISION_H
#define SHARED_MODEL_VISION_H

#include "shared/model/model_internal.h"

// A medium in the tower; what the gradient needs lies on the workspace.
struct vision_state {
    struct grid grid;
    struct windows windows;
    struct forward_state fwd;
    struct tensor frames, order, back; // U8 frames; I32 [P,1]
    struct tensor *saved;              // [depth + 1]: each block's input, and the merger's; NULL without gradient
    struct tensor merged;              // [units, C of the language model]
};

// Computes a medium's rows. With `training`, keeps on the workspace what vision_backward needs. The arena holds the
// host's part.
status vision_forward(struct vision_state *state, struct model *model, struct arena *arena,
                      const struct model_medium *medium, bool training);

// Adds the gradients of the tower's parameters for that of `merged`, in the type of products.
status vision_backward(struct vision_state *state, struct model *model, struct tensor merged_gradient,
                       struct buffer *gradients);

#endif
