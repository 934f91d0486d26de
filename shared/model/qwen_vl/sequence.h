// What the language model reads, laid out on the host: the prompt's multimodal position ids, and one packed sequence of
// the prompt and its completions.
//
// A completion is a branch behind the prompt. A branch holds every token of its completion but the last, which predicts
// nothing. The prompt's last row predicts the first token of every completion.
#ifndef SHARED_MODEL_SEQUENCE_H
#define SHARED_MODEL_SEQUENCE_H

#include "shared/base/memory.h"
#include "shared/model/model.h"
#include "shared/model/qwen_vl/model_config.h"

enum {
    BRANCH_ALIGNMENT = 16,  // a branch starts at a multiple of this row of the cache
    MAX_POSITION = 1 << 18, // the published models' positions are below 128,000
};

// A position in time, height and width; the three are equal for text.
struct position_id {
    int32_t axis[3];
};

// The grid of a medium's patches: Hugging Face's image_grid_thw or video_grid_thw.
struct grid_thw {
    int time, height, width; // height and width in patches
};

// Returns the grid of a medium that sequence_make has accepted, or of some frame pairs of one.
struct grid_thw grid_of(const struct model_config *config, const struct model_medium *medium);

// The number of patches.
int64_t grid_patches(struct grid_thw grid);

// The number of tokens: each merges spatial_merge_size x spatial_merge_size patches.
int64_t grid_tokens(struct grid_thw grid, const struct model_config *config);

struct sequence {
    int64_t rows;          // T: prompt and branches
    int64_t prompt_rows;   // the first of these
    int64_t cache_rows;    // of the cache, with the alignment of the branches
    int32_t next_position; // the first position after the prompt
    int32_t *tokens;       // [T]
    int32_t *cache_slots;  // [T]: the cache row of each row
    struct position_id *position_ids;
    struct attention_span *spans;
    size_t span_count;
    int64_t *media_rows; // the first placeholder of each medium
    // All tokens of all completions, one completion after another.
    int64_t target_count; // N
    int32_t *logit_rows;  // [N]: the row that predicts each token
    int32_t *target_ids;  // [N]
    // The rows that are not placeholders, whose embeddings are looked up.
    int64_t text_count;
    int32_t *text_rows, *text_ids;
};

// Lays out a prompt and its completions (count may be 0). Everything is allocated in the arena. BAD_SAMPLE if tokens
// and media do not match, a medium's height or width is not a multiple of patch_size x spatial_merge_size, it has no
// frames, a token is outside the vocabulary, a completion is empty or a position is above MAX_POSITION.
status sequence_make(struct sequence *sequence, struct arena *arena, const struct model_config *config,
                     const struct model_prompt *prompt, const struct model_completion *completions, size_t count);

// Gives each branch `room` cache rows more than it has tokens, for tokens that are decoded behind it.
// branch_begins[i] = the first cache row of branch i.
void sequence_place_branches(struct sequence *sequence, const struct model_completion *completions, size_t count,
                             int64_t room, int64_t *branch_begins);

// BAD_SAMPLE if a token is outside the vocabulary.
status sequence_check_tokens(const struct model_config *config, const int64_t *tokens, size_t count);

// BAD_SAMPLE if the position is above MAX_POSITION.
status sequence_check_position(int64_t position);

// Rounds a number of cache rows up to a multiple of BRANCH_ALIGNMENT.
int64_t cache_round_up(int64_t rows);

// Returns the cache rows of a generator whose requests have `count` completions and prompts of prompt_rows cache rows.
// *prompt_area_rows = those of the prompt area (generator.c).
int64_t generator_cache_rows(int64_t slots, int64_t rows_per_slot, int64_t count, int64_t prompt_rows,
                             int64_t *prompt_area_rows);

#endif
