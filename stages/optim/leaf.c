#include "stages/optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void leaf_divide(struct leaf *out, size_t *count, size_t group, int parts, int64_t prompt_tokens, const size_t *lengths,
                 size_t completions, bool has_grad) {
    const size_t runs = (size_t)parts;
    for (size_t part = 0; part < runs; part++) {
        const size_t first = completions * part / runs, end = completions * (part + 1) / runs;
        int64_t rows = prompt_tokens;
        for (size_t i = first; i < end; i++) rows += (int64_t)lengths[i];
        if (first < end)
            out[(*count)++] = (struct leaf){group, (int)part, first, end - first, has_grad ? 3 * rows : rows};
    }
}

static int leaf_compare(const void *a, const void *b) {
    const struct leaf *one = a, *other = b;
    if (one->cost != other->cost) return one->cost > other->cost ? -1 : 1;
    if (one->group != other->group) return one->group < other->group ? -1 : 1;
    return one->part - other->part;
}

void leaf_sort(struct leaf *leaves, size_t count) {
    if (count) qsort(leaves, count, sizeof *leaves, leaf_compare);
}

void leaf_add_result(struct train_result *group, const struct train_result *leaf) {
    group->tokens += leaf->tokens;
    group->compared += leaf->compared;
    const double share = leaf->tokens ? (double)leaf->tokens / (double)group->tokens : 0;
    group->loss += leaf->loss;
    group->nll += leaf->nll;
    group->kl += (leaf->kl - group->kl) * share;
    group->entropy += (leaf->entropy - group->entropy) * share;
    if (leaf->compared)
        group->logprob_diff_mean +=
            (leaf->logprob_diff_mean - group->logprob_diff_mean) * (double)leaf->compared / (double)group->compared;
    group->logprob_diff_max = fmax(group->logprob_diff_max, leaf->logprob_diff_max);
    group->prompt_tokens = leaf->prompt_tokens;
}

// ---- bytes ----

// Members of 8 bytes, so that there are none in between. Behind a leaf_head come so many of each: leaf_medium,
// leaf_completion, the tokens of the prompt and of each completion, the log-probabilities of each completion, the
// group's id, the pixels of each medium.
struct leaf_head {
    uint64_t media, completions, prompt_tokens, id_bytes;
    uint64_t kl_separate, group_size;
    double kl_beta, clip_low, clip_high, token_weight, weight;
};

struct leaf_medium {
    uint64_t video, frames, height, width;
    double seconds_per_grid;
};

enum { LEAF_OLD = 1, LEAF_REF = 2, LEAF_STALE = 4, LEAF_KL_EXCLUDED = 8, LEAF_ANSWER = 16, LEAF_FLAGS = 31 };

struct leaf_completion {
    uint64_t tokens, flags, answer_first, answer_end;
    double advantage;
};

static uint64_t leaf_pixels(uint64_t frames, uint64_t height, uint64_t width) {
    return frames * height * width * 3;
}

status leaf_write(const struct leaf_input *leaf, struct buf *out) {
    const struct model_prompt *prompt = &leaf->prompt;
    const struct loss_options *loss = &leaf->loss;
    const struct leaf_head head = {.media = prompt->media_count,
                                   .completions = leaf->count,
                                   .prompt_tokens = prompt->count,
                                   .id_bytes = strlen(leaf->group),
                                   .kl_separate = loss->kl_separate,
                                   .group_size = loss->group_size,
                                   .kl_beta = loss->kl_beta,
                                   .clip_low = loss->clip_low,
                                   .clip_high = loss->clip_high,
                                   .token_weight = loss->token_weight,
                                   .weight = leaf->weight};
    buf_append(out, &head, sizeof head);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *from = &prompt->media[i];
        const struct leaf_medium medium = {from->video, (uint64_t)from->frames, (uint64_t)from->height,
                                           (uint64_t)from->width, from->seconds_per_grid};
        buf_append(out, &medium, sizeof medium);
    }
    for (size_t i = 0; i < leaf->count; i++) {
        const struct train_completion *from = &leaf->completions[i];
        const unsigned flags = (from->old_logprobs ? LEAF_OLD : 0U) | (from->ref_logprobs ? LEAF_REF : 0U) |
                               (from->stale ? LEAF_STALE : 0U) | (from->kl_excluded ? LEAF_KL_EXCLUDED : 0U) |
                               (from->has_answer ? LEAF_ANSWER : 0U);
        const struct leaf_completion completion = {from->completion.count, flags, from->answer.first, from->answer.end,
                                                   from->advantage};
        buf_append(out, &completion, sizeof completion);
    }
    buf_append(out, prompt->tokens, prompt->count * sizeof *prompt->tokens);
    for (size_t i = 0; i < leaf->count; i++) {
        const struct model_completion *completion = &leaf->completions[i].completion;
        buf_append(out, completion->tokens, completion->count * sizeof *completion->tokens);
    }
    for (size_t i = 0; i < leaf->count; i++) {
        const struct train_completion *from = &leaf->completions[i];
        const size_t bytes = from->completion.count * sizeof *from->old_logprobs;
        if (from->old_logprobs) buf_append(out, from->old_logprobs, bytes);
        if (from->ref_logprobs) buf_append(out, from->ref_logprobs, bytes);
    }
    buf_puts(out, leaf->group);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *medium = &prompt->media[i];
        const size_t bytes = leaf_pixels((uint64_t)medium->frames, (uint64_t)medium->height, (uint64_t)medium->width);
        TRY(buf_reserve_large(out, bytes));
        buf_append(out, medium->pixels, bytes);
    }
    return OK;
}

struct leaf_reader {
    const char *data;
    uint64_t left;
};

// Returns where `count` elements of `size` bytes are, which have been read then. NULL: it is cut short.
static const void *leaf_take(struct leaf_reader *reader, uint64_t count, size_t size) {
    const char *at = reader->data;
    if (count > reader->left / size) return NULL;
    reader->data += count * size;
    reader->left -= count * size;
    return at;
}

status leaf_read(struct leaf_input *leaf, struct arena *arena, const void *data, size_t size) {
    enum { MOST = 1 << 20 }; // of frames, rows and columns: their product does not overflow
    struct leaf_reader reader = {data, size};
    const struct leaf_medium *media = NULL;
    const struct leaf_completion *completions = NULL;
    const struct leaf_head *head = leaf_take(&reader, 1, sizeof *head);
    if (head) media = leaf_take(&reader, head->media, sizeof *media);
    if (media) completions = leaf_take(&reader, head->completions, sizeof *completions);
    if (!completions) goto cut;
    if (!head->completions || head->kl_separate > 1) goto wrong;
    struct model_medium *media_out = arena_alloc(arena, head->media * sizeof *media_out);
    struct train_completion *out = arena_alloc(arena, head->completions * sizeof *out);
    const int64_t *tokens = leaf_take(&reader, head->prompt_tokens, sizeof *tokens);
    *leaf = (struct leaf_input){.prompt = {tokens, head->prompt_tokens, media_out, head->media},
                                .completions = out,
                                .count = head->completions,
                                .loss = {.kl_beta = head->kl_beta,
                                         .clip_low = head->clip_low,
                                         .clip_high = head->clip_high,
                                         .group_size = head->group_size,
                                         .kl_separate = head->kl_separate,
                                         .token_weight = head->token_weight},
                                .weight = head->weight};
    for (size_t i = 0; i < leaf->count && tokens; i++) {
        const struct leaf_completion *from = &completions[i];
        tokens = leaf_take(&reader, from->tokens, sizeof *tokens);
        if (from->flags > LEAF_FLAGS || from->answer_first > from->answer_end || from->answer_end > from->tokens)
            goto wrong;
        out[i] = (struct train_completion){.completion = {tokens, from->tokens},
                                           .advantage = from->advantage,
                                           .stale = from->flags & LEAF_STALE,
                                           .kl_excluded = from->flags & LEAF_KL_EXCLUDED,
                                           .has_answer = from->flags & LEAF_ANSWER,
                                           .answer = {from->answer_first, from->answer_end}};
    }
    if (!tokens) goto cut;
    for (size_t i = 0; i < leaf->count; i++) {
        const uint64_t flags = completions[i].flags, count = completions[i].tokens;
        if (flags & LEAF_OLD && !(out[i].old_logprobs = leaf_take(&reader, count, sizeof(float)))) goto cut;
        if (flags & LEAF_REF && !(out[i].ref_logprobs = leaf_take(&reader, count, sizeof(float)))) goto cut;
    }
    const char *id = leaf_take(&reader, head->id_bytes, 1);
    if (!id) goto cut;
    leaf->group = arena_strndup(arena, id, head->id_bytes);
    for (size_t i = 0; i < head->media; i++) {
        const struct leaf_medium *from = &media[i];
        if (from->video > 1 || from->frames > MOST || from->height > MOST || from->width > MOST) goto wrong;
        const uint8_t *pixels = leaf_take(&reader, leaf_pixels(from->frames, from->height, from->width), 1);
        if (!pixels) goto cut;
        media_out[i] = (struct model_medium){.video = from->video,
                                             .frames = (int)from->frames,
                                             .height = (int)from->height,
                                             .width = (int)from->width,
                                             .seconds_per_grid = from->seconds_per_grid,
                                             .pixels = pixels};
    }
    if (reader.left) return fail(BUG, "a leaf of %zu bytes is longer than it says", size);
    return OK;
cut:
    return fail(BUG, "a leaf of %zu bytes is cut short", size);
wrong:
    return fail(BUG, "a leaf of %zu bytes has a number that is out of range", size);
}
