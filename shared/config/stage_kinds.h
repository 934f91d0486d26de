// The table of the stages: the name of each, its options, and what a pipeline must know about it.
#pragma once

#include <stdbool.h>

#include "shared/config/options.h"

// Indexes of stage_kinds[], in the order of the flow.
enum stage_id {
    STAGE_SOURCE,
    STAGE_FRAMES,
    STAGE_ROLLOUT,
    STAGE_REFSCORE,
    STAGE_CONSISTENCY,
    STAGE_REWARD,
    STAGE_SCORE,
    STAGE_JUDGE,
    STAGE_OPTIM,
    STAGE_COUNT
};

struct stage_kind {
    const char *name;            // of the stage in a pipeline file
    struct option_table options; // its program and options
    bool single;                 // has one replica at most
    bool follows_weights;        // computes with the weights that optim publishes
    bool needs_frames;           // computes with the frames of a group's media: has the options `frames.NAME`
    bool scores;                 // writes scores under the reference into the group
    bool trains;                 // takes the groups of a whole step at once, and publishes the weights
};

extern const struct stage_kind stage_kinds[STAGE_COUNT];

// The options of every stage (stdio, config, device, threads, precision, store). Ends with a NULL name. Their offsets
// are in struct common_options, the first member of every stage's struct.
extern const struct option common_options[];

// What the supervisor sets in every stage, in the same struct. Ends with a NULL name.
extern const struct option internal_options[];

// Returns the kind of that name, NULL if there is none.
const struct stage_kind *stage_kind_find(const char *name);

// Appends the reference of all stages' options as Markdown tables.
void stage_kinds_markdown(struct buf *out);
