// What the files of the model share. Callers include model.h only.
#pragma once

#include "shared/model/model.h"
#include "shared/model/qwen_vl/qwen_weights.h"
#include "shared/model/shared_weights.h"
#include "shared/model/training_state.h"
#include "shared/model/transformer.h"
#include "shared/model/workspace.h"

// All training state: the optimizer's, and the reference, an exponential moving average (EMA) of the weights.
struct trainer {
    struct optimizer optimizer;
    struct param_array reference;  // in the form of the weights; no array: there is no reference
    struct shared_weights lent[2]; // the weights and the reference, for other processes; zeroed: not lent
    bool vision_has_grad;          // a group with media was accumulated since the last step
    struct rank_share share;       // what this rank owns
    struct rank_devices *devices;  // of the ranks; NULL: what they exchange goes through the hosts, or there are none
    bool leaf_awaited;             // of this rank, in the present turn
};

struct model {
    struct arena arena; // the strings below
    struct backend *backend;
    struct backend_info backend_info; // memory_free is that of the opening
    struct model_options options;
    const char *dir;
    struct model_config config;
    struct safetensors *store; // training: stays open for its names, types and first values
    struct qwen_weights *weights;
    struct shared_weights borrowed; // another process's weights; zeroed: none
    struct buffer *copied;          // own memory with a copy of them; NULL: they are used in place
    struct buffer *borrowed_base;   // the base of adapters, that process's; stays for adapters from files; NULL: none
    int64_t weights_replaced;       // how often model_swap and model_reset have replaced them
    struct model_info info;
    int64_t version;
    struct workspace workspace;
    size_t workspace_limit; // what it may grow to with kept activations; 0: not known yet
    struct rope_angles text_rope, vision_rope;
    struct kv_scratch text_kv, vision_kv; // for scoring and training
    struct trainer trainer;
};

// ---- sequence ----

// What the language model reads, laid out on the host: the prompt's multimodal position ids, and one packed sequence of
// the prompt and its completions.
//
// A completion is a branch behind the prompt. A branch holds every token of its completion but the last, which predicts
// nothing. The prompt's last row predicts the first token of every completion.

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

// ---- the vision tower ----

// The uint8 frames of one medium to rows of the language model, and the gradient back:
//
//   patches -> linear -> window order -> blocks -> rmsnorm -> units of merge x merge patches -> linear, GELU, linear
//
// A unit (spatial_merge_size x spatial_merge_size patches) becomes one token. The embeddings stay in window order;
// layout.window_index says which token each of them is.

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
size_t vision_kept_bytes(const struct qwen_weights *weights, enum element type, int64_t patches, bool training);

// Returns the bytes of working memory that the tower's passes over `patches` patches need beside what is kept.
size_t vision_pass_bytes(const struct qwen_weights *weights, enum element type, int64_t patches, bool training);

// Adds the gradients of the tower's parameters to grads, given the gradient of state->embeds in the type of the
// products; it may be state->embeds. Other media may have been computed since vision_forward.
status vision_backward(struct vision_state *state, struct model *model, struct tensor grad_embeds,
                       struct step_sums *grads);

// Frees what is not in the workspace or the arena. A zeroed state is fine.
void vision_release(struct vision_state *state, struct model *model);

// ---- the language model ----

// One packed sequence: token embeddings, the vision tower's embeddings in place of the
// placeholders, and the blocks. The final norm and the head are the caller's.

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

// Adds the gradients of all blocks, the embedding and the tower to those of the present leaf, which is fwd.grads, given
// fwd.grad_x, the gradient of the last block's output. The tower comes last, chunk by chunk, when the language model's
// part of the workspace is free; what was not kept of it is computed again.
status text_backward(struct text_state *state, struct model *model, struct arena *arena, struct step_sums *grads);

// Frees what is not in the arena, and empties the workspace. A zeroed state is fine.
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
