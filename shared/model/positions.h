// Where tokens and patches stand: multimodal rotary positions of a prompt, windows and rotary angles of the vision
// tower. Plain numbers on the host; angles in float32 as Hugging Face computes them.
#ifndef SHARED_MODEL_POSITIONS_H
#define SHARED_MODEL_POSITIONS_H

#include "shared/model/model_config.h"
#include "shared/model/model.h"

// A position in time, height and width; the three are equal for text.
struct position_id {
    int32_t axis[3];
};

// A medium's grid of patches.
struct grid {
    int time, height, width; // height and width in patches
};

// Of a medium, in patches. BAD_SAMPLE where its size is no multiple of patch x merge, or it has no frames.
status grid_of(struct grid *grid, const struct model_config *config, const struct model_medium *medium);

// How many patches a grid has.
int64_t grid_patches(struct grid grid);

// How many tokens: merged units of patches.
int64_t grid_tokens(struct grid grid, const struct model_config *config);

// positions[i] of the prompt's tokens; *next is the first position after them; first[k] the index of medium k's first
// placeholder. BAD_SAMPLE if tokens and media do not match or a token is outside the vocabulary.
status prompt_positions(struct position_id *position_ids, int32_t *next, int64_t *first,
                        const struct model_config *config, const struct model_prompt *prompt);

// BAD_SAMPLE unless every token lies in the vocabulary.
status tokens_check(const struct model_config *config, const int64_t *tokens, size_t count);

// Cosines and sines [count, head_size / 2] of positions; rounded to bfloat16 where the model computes in it.
void rope_angles(float *cos, float *sin, const struct position_id *position_ids, int64_t count,
                 const struct text_config *text, bool rounded);

// The order in which the tower works on a grid, and its windows.
struct windows {
    int32_t *order;                 // [P]: patch number order[i] of the processor's order stands in row i
    int32_t *back;                  // [P]: the other way
    int32_t *units;                 // [P / merge^2]: row i of the merged ones is unit units[i]
    struct attention_span *windows; // of the blocks with windows
    size_t window_count;
    struct attention_span *frames; // of the full blocks: a frame pair each
    size_t frame_count;
    float *cos, *sin; // [P, head_size / 2], in the tower's order
};

// Everything stands in the arena. UNAVAILABLE when memory is short.
status windows_make(struct windows *windows, struct arena *arena, const struct model_config *config, struct grid grid);

#endif
