// One packed sequence: the prompt, then each completion as a branch behind it. A branch holds all tokens of its
// completion but the last, which nothing follows; the row that predicts a completion's first token is the prompt's
// last.
#ifndef SHARED_MODEL_SEQUENCE_H
#define SHARED_MODEL_SEQUENCE_H

#include "shared/base/memory.h"
#include "shared/model/positions.h"

enum { BRANCH_ALIGNMENT = 16 }; // rows of the cache: each branch starts at a multiple

struct sequence {
    int64_t rows;        // T: prompt and branches
    int64_t prompt_rows; // the first of them
    int64_t cache_rows;
    int32_t next; // the position after the prompt
    int32_t *tokens, *slots;
    struct position_id *position_ids;
    struct attention_span *spans;
    size_t span_count;
    int64_t *media;      // first placeholder of each medium
    int64_t targets;     // N: tokens of all completions
    int32_t *logit_rows; // the row that predicts each
    int32_t *target;
    int64_t words; // rows that are no placeholders of the prompt
    int32_t *text_rows, *text_ids;
};

// Lays out a prompt and its completions (which may be none). Everything stands in the arena. BAD_SAMPLE as in
// model_score.
status sequence_make(struct sequence *sequence, struct arena *arena, const struct model_config *config,
                     const struct model_prompt *prompt, const struct model_completion *completions, size_t count);

#endif
