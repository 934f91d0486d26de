// The parts of `caravan train-consistency` that need no model: the schedule, the order of the pairs, and the figures of
// what was held out.
#pragma once

#include <stddef.h>
#include <stdint.h>

// The steps of a training, and its learning rate: it rises linearly from 0 over the warm-up, then falls linearly to 0
// at the end.
struct linear_schedule {
    int64_t steps, steps_per_epoch, warmup;
    double lr; // the peak
};

// Returns the schedule for so many pairs: the last step of an epoch takes what is left; 6 % of the steps, rounded down,
// are the warm-up. Each number is 1 or more.
struct linear_schedule linear_schedule_of(int64_t pairs, int64_t pairs_per_step, int64_t epochs, double lr);

// Returns the learning rate of a step, from 0.
double linear_schedule_lr(const struct linear_schedule *schedule, int64_t step);

// Sets order[0..count) to the order of the pairs in an epoch, keyed by the seed.
void epoch_order(uint64_t seed, int64_t epoch, size_t count, size_t *order);

// How well probabilities tell two classes apart. NaN where a class has no example.
struct classification {
    size_t count;
    double accuracy;
    double auc;                                // the area under the ROC curve; a tie counts half
    double rate_consistent, rate_inconsistent; // the recall of each class
};

// Compares probabilities of label 1 with labels of 0 and 1; one that reaches the threshold stands for 1.
void classification_compute(struct classification *out, const double *probabilities, const int *labels, size_t count,
                            double threshold);
