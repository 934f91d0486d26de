#include "shared/model/sequence.h"

static int64_t round_up(int64_t rows) {
    return (rows + BRANCH_ALIGNMENT - 1) / BRANCH_ALIGNMENT * BRANCH_ALIGNMENT;
}

// Counts rows and targets.
static status measure(struct sequence *it, const struct model_config *config, const struct model_prompt *prompt,
                      const struct model_completion *completions, size_t count) {
    it->prompt_rows = it->rows = (int64_t)prompt->count;
    it->cache_rows = round_up(it->prompt_rows);
    for (size_t i = 0; i < count; i++) {
        if (completions[i].count == 0) return fail(BAD_SAMPLE, "completion %zu is empty", i);
        TRY(tokens_check(config, completions[i].tokens, completions[i].count));
        it->targets += (int64_t)completions[i].count;
        it->rows += (int64_t)completions[i].count - 1;
        it->cache_rows += round_up((int64_t)completions[i].count - 1);
        if (it->rows > INT32_MAX / 4) return fail(BAD_SAMPLE, "the completions have more than 2^29 tokens");
    }
    return OK;
}

static status take_room(struct sequence *it, struct arena *arena, size_t media, size_t count) {
    size_t rows = (size_t)it->rows;
    it->tokens = arena_alloc(arena, rows * sizeof *it->tokens);
    it->slots = arena_alloc(arena, rows * sizeof *it->slots);
    it->position_ids = arena_alloc(arena, rows * sizeof *it->position_ids);
    it->spans = arena_alloc(arena, (count + 1) * sizeof *it->spans);
    it->media = arena_alloc(arena, media * sizeof *it->media);
    it->logit_rows = arena_alloc(arena, (size_t)it->targets * sizeof *it->logit_rows);
    it->target = arena_alloc(arena, (size_t)it->targets * sizeof *it->target);
    it->text_rows = arena_alloc(arena, rows * sizeof *it->text_rows);
    it->text_ids = arena_alloc(arena, rows * sizeof *it->text_ids);
    bool all = it->tokens && it->slots && it->position_ids && it->spans && it->media && it->logit_rows && it->target &&
               it->text_rows && it->text_ids;
    return all ? OK : fail_oom();
}

static void add_word(struct sequence *it, int64_t row) {
    it->text_rows[it->words] = (int32_t)row;
    it->text_ids[it->words++] = it->tokens[row];
}

static void add_prompt(struct sequence *it, const struct model_config *config, const struct model_prompt *prompt) {
    for (int64_t i = 0; i < it->prompt_rows; i++) {
        it->tokens[i] = (int32_t)prompt->tokens[i];
        it->slots[i] = (int32_t)i;
        if (prompt->tokens[i] != config->image_token_id && prompt->tokens[i] != config->video_token_id) add_word(it, i);
    }
    it->spans[it->span_count++] = (struct attention_span){.q_len = it->prompt_rows, .visible = 1, .causal = true};
}

// Appends a completion whose branch starts at row `row` and cache row `slot`, its targets at `target`.
static void add_branch(struct sequence *it, const struct model_completion *completion, int64_t row, int64_t slot,
                       int64_t target) {
    int64_t rows = (int64_t)completion->count - 1;
    for (int64_t i = 0; i < rows; i++) {
        int32_t place = it->next + (int32_t)i;
        it->tokens[row + i] = (int32_t)completion->tokens[i];
        it->slots[row + i] = (int32_t)(slot + i);
        it->position_ids[row + i] = (struct position_id){{place, place, place}};
        add_word(it, row + i);
    }
    for (int64_t i = 0; i <= rows; i++) {
        it->logit_rows[target + i] = (int32_t)(i ? row + i - 1 : it->prompt_rows - 1);
        it->target[target + i] = (int32_t)completion->tokens[i];
    }
    if (rows)
        it->spans[it->span_count++] = (struct attention_span){.q_begin = row,
                                                              .q_len = rows,
                                                              .prefix_len = it->prompt_rows,
                                                              .kv_begin = slot,
                                                              .visible = 1,
                                                              .causal = true};
}

status sequence_make(struct sequence *sequence, struct arena *arena, const struct model_config *config,
                     const struct model_prompt *prompt, const struct model_completion *completions, size_t count) {
    *sequence = (struct sequence){0};
    TRY(measure(sequence, config, prompt, completions, count));
    TRY(take_room(sequence, arena, prompt->media_count, count));
    TRY(prompt_positions(sequence->position_ids, &sequence->next, sequence->media, config, prompt));
    add_prompt(sequence, config, prompt);
    int64_t row = sequence->prompt_rows, slot = round_up(sequence->prompt_rows), target = 0;
    for (size_t i = 0; i < count; i++) {
        add_branch(sequence, &completions[i], row, slot, target);
        row += (int64_t)completions[i].count - 1;
        slot += round_up((int64_t)completions[i].count - 1);
        target += (int64_t)completions[i].count;
    }
    return OK;
}
