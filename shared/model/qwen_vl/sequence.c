// Position ids follow Hugging Face's get_rope_index: text counts on by one; a medium spans its own grid from there; the
// text after it continues after the largest of the three axes.
#include "shared/model/qwen_vl/model_internal.h"

#include <assert.h>
#include <math.h>

static_assert(sizeof(struct position_id) == 3 * sizeof(int32_t), "position ids are packed");
static_assert((BRANCH_ALIGNMENT & (BRANCH_ALIGNMENT - 1)) == 0, "an alignment is a power of two");

enum { MAX_ROWS = INT32_MAX / 4 }; // rows and cache slots are int32

struct grid_thw grid_of(const struct model_config *config, const struct model_medium *medium) {
    const struct vision_config *vision = &config->vision;
    return (struct grid_thw){.time = (medium->frames + vision->temporal_patch_size - 1) / vision->temporal_patch_size,
                             .height = medium->height / vision->patch_size,
                             .width = medium->width / vision->patch_size};
}

int64_t grid_patches(struct grid_thw grid) {
    return (int64_t)grid.time * grid.height * grid.width;
}

int64_t grid_tokens(struct grid_thw grid, const struct model_config *config) {
    return grid_patches(grid) / (config->vision.spatial_merge_size * config->vision.spatial_merge_size);
}

int64_t cache_round_up(int64_t rows) {
    return (rows + BRANCH_ALIGNMENT - 1) / BRANCH_ALIGNMENT * BRANCH_ALIGNMENT;
}

status sequence_check_tokens(const struct model_config *config, const int64_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= config->text.vocab_size)
            return fail(BAD_SAMPLE, "token %lld is outside the vocabulary of %lld", (long long)tokens[i],
                        (long long)config->text.vocab_size);
    }
    return OK;
}

status sequence_check_position(int64_t position) {
    if (position <= MAX_POSITION) return OK;
    return fail(BAD_SAMPLE, "position id %lld is above %d", (long long)position, MAX_POSITION);
}

static void sequence_add_text(struct sequence *sequence, int64_t row) {
    sequence->text_rows[sequence->text_count] = (int32_t)row;
    sequence->text_ids[sequence->text_count++] = sequence->tokens[row];
}

static status sequence_add_prompt(struct sequence *sequence, const struct model_config *config,
                                  const struct model_prompt *prompt) {
    const int merge = config->vision.spatial_merge_size, unit = config->vision.patch_size * merge;
    size_t media = 0;
    for (size_t i = 0; i < prompt->count;) {
        int64_t token = prompt->tokens[i];
        if (token != config->image_token_id && token != config->video_token_id) {
            int32_t position = sequence->next_position++;
            TRY(sequence_check_position(position));
            sequence->position_ids[i++] = (struct position_id){{position, position, position}};
            continue;
        }
        if (media == prompt->media_count || prompt->media[media].video != (token == config->video_token_id))
            return fail(BAD_SAMPLE, "placeholder %lld of the prompt belongs to no medium", (long long)token);
        // Token i is the first placeholder of the next medium.
        sequence->media_rows[media] = (int64_t)i;
        const struct model_medium *medium = &prompt->media[media++];
        const struct grid_thw grid = grid_of(config, medium);
        if (medium->frames < 1 || medium->height < unit || medium->width < unit || medium->height % unit ||
            medium->width % unit)
            return fail(BAD_SAMPLE, "a medium of %d frames of %d x %d does not divide into units of %d", medium->frames,
                        medium->height, medium->width, unit);
        if (!medium->video && medium->frames != 1) return fail(BAD_SAMPLE, "an image has %d frames", medium->frames);
        bool timed = medium->video && config->vision.kind == VISION_QWEN2_5;
        if (timed && !(medium->seconds_per_grid >= 0 && medium->seconds_per_grid < 1e4))
            return fail(BAD_SAMPLE, "seconds_per_grid is %g", medium->seconds_per_grid);
        int64_t count = grid_tokens(grid, config), found = 0;
        while (found < count && i + (size_t)found < prompt->count && prompt->tokens[i + (size_t)found] == token)
            found++;
        if (found < count)
            return fail(BAD_SAMPLE, "%s of %lld tokens has %lld placeholders", medium->video ? "a clip" : "an image",
                        (long long)count, (long long)found);
        int height = grid.height / merge, width = grid.width / merge;
        int32_t start = sequence->next_position, largest = start + (height > width ? height : width) - 1;
        for (int t = 0; t < grid.time; t++) {
            float scaled = (float)t; // an image has one frame pair
            if (timed) {
                scaled = scaled * (float)medium->seconds_per_grid;
                scaled = scaled * config->vision.tokens_per_second;
            }
            if (!(scaled <= (float)MAX_POSITION))
                return fail(BAD_SAMPLE, "position id %.0f is above %d: seconds_per_grid is %g",
                            (double)start + floor((double)scaled), MAX_POSITION, medium->seconds_per_grid);
            int32_t time = start + (int32_t)scaled;
            for (int k = 0; k < height * width; k++)
                sequence->position_ids[i++] = (struct position_id){{time, start + k / width, start + k % width}};
            if (time > largest) largest = time;
        }
        TRY(sequence_check_position(largest));
        sequence->next_position = largest + 1;
    }
    if (media < prompt->media_count)
        return fail(BAD_SAMPLE, "the prompt has placeholders for %zu of %zu media", media, prompt->media_count);
    for (int64_t i = 0; i < sequence->prompt_rows; i++) {
        int64_t token = prompt->tokens[i];
        sequence->tokens[i] = (int32_t)token;
        sequence->cache_slots[i] = (int32_t)i;
        if (token != config->image_token_id && token != config->video_token_id) sequence_add_text(sequence, i);
    }
    sequence->spans[sequence->span_count++] =
        (struct attention_span){.q_len = sequence->prompt_rows, .visible = 1, .causal = true};
    return OK;
}

status sequence_make(struct sequence *sequence, struct arena *arena, const struct model_config *config,
                     const struct model_prompt *prompt, const struct model_completion *completions, size_t count) {
    if (prompt->count == 0) return fail(BAD_SAMPLE, "the prompt is empty");
    if (prompt->count > MAX_ROWS) return fail(BAD_SAMPLE, "the prompt has %zu tokens", prompt->count);
    TRY(sequence_check_tokens(config, prompt->tokens, prompt->count));
    *sequence = (struct sequence){.rows = (int64_t)prompt->count, .prompt_rows = (int64_t)prompt->count};
    for (size_t i = 0; i < count; i++) {
        if (completions[i].count == 0) return fail(BAD_SAMPLE, "completion %zu is empty", i);
        TRY(sequence_check_tokens(config, completions[i].tokens, completions[i].count));
        sequence->target_count += (int64_t)completions[i].count;
        sequence->rows += (int64_t)completions[i].count - 1;
        if (sequence->rows > MAX_ROWS) return fail(BAD_SAMPLE, "the completions have more than 2^29 tokens");
    }
    size_t rows = (size_t)sequence->rows, targets = (size_t)sequence->target_count;
    sequence->tokens = arena_alloc(arena, rows * sizeof *sequence->tokens);
    sequence->cache_slots = arena_alloc(arena, rows * sizeof *sequence->cache_slots);
    sequence->position_ids = arena_alloc(arena, rows * sizeof *sequence->position_ids);
    sequence->spans = arena_alloc(arena, (count + 1) * sizeof *sequence->spans);
    sequence->media_rows = arena_alloc(arena, prompt->media_count * sizeof *sequence->media_rows);
    sequence->logit_rows = arena_alloc(arena, targets * sizeof *sequence->logit_rows);
    sequence->target_ids = arena_alloc(arena, targets * sizeof *sequence->target_ids);
    sequence->text_rows = arena_alloc(arena, rows * sizeof *sequence->text_rows);
    sequence->text_ids = arena_alloc(arena, rows * sizeof *sequence->text_ids);
    TRY(sequence_add_prompt(sequence, config, prompt));
    int64_t row = sequence->prompt_rows, target = 0;
    for (size_t i = 0; i < count; i++) { // one branch per completion
        const int64_t *ids = completions[i].tokens, branch_rows = (int64_t)completions[i].count - 1;
        assert(row + branch_rows <= sequence->rows);
        TRY(sequence_check_position(sequence->next_position + branch_rows - 1));
        if (branch_rows)
            sequence->spans[sequence->span_count++] = (struct attention_span){.q_begin = row,
                                                                              .q_len = branch_rows,
                                                                              .prefix_len = sequence->prompt_rows,
                                                                              .visible = 1,
                                                                              .causal = true};
        sequence->logit_rows[target] = (int32_t)(sequence->prompt_rows - 1);
        for (int64_t k = 0; k < branch_rows; k++, row++) {
            int32_t position = sequence->next_position + (int32_t)k;
            sequence->tokens[row] = (int32_t)ids[k];
            sequence->position_ids[row] = (struct position_id){{position, position, position}};
            sequence->logit_rows[target + k + 1] = (int32_t)row;
            sequence_add_text(sequence, row);
        }
        for (int64_t k = 0; k <= branch_rows; k++) sequence->target_ids[target++] = (int32_t)ids[k];
    }
    assert(row == sequence->rows && target == sequence->target_count);
    sequence_place_branches(sequence, completions, count, 0, NULL);
    return OK;
}

void sequence_place_branches(struct sequence *sequence, const struct model_completion *completions, size_t count,
                             int64_t room, int64_t *branch_begins) {
    int64_t row = sequence->prompt_rows, begin = cache_round_up(sequence->prompt_rows);
    struct attention_span *span = sequence->spans + 1;
    for (size_t i = 0; i < count; i++) {
        int64_t branch_rows = (int64_t)completions[i].count - 1;
        assert(begin % BRANCH_ALIGNMENT == 0);
        if (branch_begins) branch_begins[i] = begin;
        if (branch_rows) span++->kv_begin = begin;
        for (int64_t k = 0; k < branch_rows; k++) sequence->cache_slots[row++] = (int32_t)(begin + k);
        begin += cache_round_up(branch_rows + room);
    }
    assert(row == sequence->rows && span == sequence->spans + sequence->span_count && begin <= INT32_MAX);
    sequence->cache_rows = begin;
}
