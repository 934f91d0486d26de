#include "tools/consistency/consistency_training.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "tools/eval/figures.h"

struct linear_schedule linear_schedule_of(int64_t pairs, int64_t pairs_per_step, int64_t epochs, double lr) {
    assert(pairs > 0 && pairs_per_step > 0 && epochs > 0);
    const int64_t steps_per_epoch = (pairs - 1) / pairs_per_step + 1, steps = epochs * steps_per_epoch;
    return (struct linear_schedule){steps, steps_per_epoch, (int64_t)floor(0.06 * (double)steps), lr};
}

double linear_schedule_lr(const struct linear_schedule *schedule, int64_t step) {
    const int64_t steps = schedule->steps, warmup = schedule->warmup;
    assert(step >= 0 && step < steps && warmup < steps);
    const double share =
        step < warmup ? (double)step / (double)warmup : (double)(steps - step) / (double)(steps - warmup);
    return schedule->lr * share;
}

void epoch_order(uint64_t seed, int64_t epoch, size_t count, size_t *order) {
    rng_shuffle(rng_key(seed, "epoch"), (uint64_t)epoch, count, order);
}

struct scored_label {
    double probability;
    int label;
};

void classification_compute(struct classification *out, const double *probabilities, const int *labels, size_t count,
                            double threshold) {
    struct scored_label *sorted;
    double of_label[2] = {0}, right[2] = {0};
    double ordered = 0, below = 0; // pairs of an example of each class that are in order; label 0 of lower probability
    NEW(&sorted, count);
    for (size_t i = 0; i < count; i++) {
        assert(labels[i] == 0 || labels[i] == 1);
        sorted[i] = (struct scored_label){probabilities[i], labels[i]};
        of_label[labels[i]]++;
        right[labels[i]] += (probabilities[i] >= threshold) == (labels[i] == 1);
    }
    qsort(sorted, count, sizeof *sorted, figure_compare_numbers);
    for (size_t i = 0, end; i < count; i = end) { // a tie counts half
        double tied[2] = {0};
        for (end = i; end < count && sorted[end].probability <= sorted[i].probability; end++) tied[sorted[end].label]++;
        ordered += tied[1] * (below + 0.5 * tied[0]);
        below += tied[0];
    }
    *out = (struct classification){
        .count = count,
        .accuracy = (right[0] + right[1]) / (double)count,
        .auc = ordered / (of_label[0] * of_label[1]),
        .rate_consistent = right[1] / of_label[1],
        .rate_inconsistent = right[0] / of_label[0],
    };
    free(sorted);
}
