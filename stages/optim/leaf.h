// The leaves of a step: its groups, or parts of them, in the one order in which their gradients are computed and added.
// The order depends on the groups alone.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/model/model.h"

// A run of a group's completions.
struct leaf {
    size_t group; // its place in the step, where groups stand in their order of issue
    int part;
    size_t first, count; // completions
    int64_t cost;        // rows of its forward pass; three times as many if it has a gradient
};

// Appends the leaves of a group to out[*count..]: `parts` runs of its completions as long as each other, or one
// shorter, without those that would be empty. `has_grad`: whether the group's loss can have a gradient.
void leaf_divide(struct leaf *out, size_t *count, size_t group, int parts, int64_t prompt_tokens, const size_t *lengths,
                 size_t completions, bool has_grad);

// A leaf with everything that its pass reads, so that any process can compute it.
struct leaf_input {
    const char *group; // its id
    struct model_prompt prompt;
    struct train_completion *completions;
    size_t count; // 0: there is no leaf
    struct loss_options loss;
    double weight; // of the group's loss
};

// Puts leaves into their order: the most expensive first, so that those that several processes compute at the same time
// take about as long; then by group, then by part.
void leaf_sort(struct leaf *leaves, size_t count);

// Adds what a leaf says to what other leaves of its group have said, or to zeros.
void leaf_add_result(struct train_result *group, const struct train_result *leaf);

// Appends a leaf's bytes, pixels included, for a process of the same program on the same type of machine. UNAVAILABLE
// when memory is short.
status leaf_write(const struct leaf_input *leaf, struct buf *out);

// Reads what leaf_write has written. `data` is aligned to 8, and *leaf refers to it and to the arena. BUG when it is
// damaged: every size is checked here, tokens and the fit of media to the prompt by model_accumulate.
status leaf_read(struct leaf_input *leaf, struct arena *arena, const void *data, size_t size);
