// What the groups of a block have together. A pass over a million summaries reads 136 MB, so the routes ask the blocks
// first, and skip those that they do not need.
#include <math.h>
#include <stdlib.h>

#include "tools/view/view.h"

size_t view_block_count(const struct view_groups *groups) {
    return (groups->count + VIEW_BLOCK - 1) / VIEW_BLOCK;
}

size_t view_block_end(const struct view_groups *groups, size_t block) {
    const size_t end = (block + 1) * VIEW_BLOCK;
    return end < groups->count ? end : groups->count;
}

void view_block_forget(struct view_groups *groups, size_t index) {
    if (index / VIEW_BLOCK < groups->block_count) groups->blocks[index / VIEW_BLOCK].current = false;
}

void view_blocks_free(struct view_groups *groups) {
    for (size_t i = 0; i < groups->block_count; i++) free(groups->blocks[i].steps);
    free(groups->blocks);
    groups->blocks = NULL;
    groups->block_count = 0;
}

const struct view_block *view_block_at(struct view_groups *groups, size_t index) {
    if (index >= groups->block_count) {
        const size_t count = view_block_count(groups);
        RESIZE(&groups->blocks, count);
        for (size_t i = groups->block_count; i < count; i++) groups->blocks[i] = (struct view_block){0};
        groups->block_count = count;
    }
    struct view_block *block = &groups->blocks[index];
    const size_t begin = index * VIEW_BLOCK, end = view_block_end(groups, index);
    if (block->current && block->end == end && block->trains == groups->trains) return block;
    free(block->steps);
    *block = (struct view_block){.current = true,
                                 .end = end,
                                 .trains = groups->trains,
                                 .first_issued = NAN,
                                 .last_issued = NAN,
                                 .first_settled = NAN,
                                 .last_settled = NAN,
                                 .first_step = INT64_MAX,
                                 .last_step = -1};
    for (size_t i = begin; i < end; i++) {
        const struct group_summary *summary = &groups->list[i].summary;
        const int64_t number = groups->list[i].number, step = block->trains ? summary->step : number + 1;
        if (number < 0) continue;
        block->alive++;
        block->first_issued = fmin(block->first_issued, summary->issued);
        block->last_issued = fmax(block->last_issued, summary->issued);
        block->first_settled = fmin(block->first_settled, summary->settled);
        block->last_settled = fmax(block->last_settled, summary->settled);
        if (isfinite(summary->settled - summary->issued)) {
            block->has |= HAS_TIMES;
            block->times++;
            block->seconds += summary->settled - summary->issued;
        }
        if (step >= 0 && step < block->first_step) block->first_step = step;
        if (step > block->last_step) block->last_step = step;
        if (summary->completions > block->completions) block->completions = summary->completions;
        block->has |= (isfinite(summary->reward) ? HAS_REWARDS : 0) | (summary->with_bonus ? HAS_BONUS : 0) |
                      (isfinite(summary->format) ? HAS_FORMAT : 0) | (isfinite(summary->surprise) ? HAS_LOGPROBS : 0) |
                      (isfinite(summary->likelihood) ? HAS_REFERENCE : 0) |
                      (summary->state == GROUP_SCORED ? HAS_SCORES : 0);
        if (summary->step < 0 || !isfinite(summary->likelihood)) continue;
        if (!block->step_count || block->steps[block->step_count - 1].step != summary->step) {
            GROW(&block->steps, block->step_count);
            block->steps[block->step_count++] = (struct view_block_step){.step = summary->step};
        }
        block->steps[block->step_count - 1].likelihood += (double)summary->likelihood;
        block->steps[block->step_count - 1].count++;
    }
    return block;
}
