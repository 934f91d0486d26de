#include "stages/optim/leaf.h"

#include <math.h>
#include <stdlib.h>

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
