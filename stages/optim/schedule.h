// The learning rate of each step.
#ifndef STAGES_OPTIM_SCHEDULE_H
#define STAGES_OPTIM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct schedule {
    double rate;    // the highest
    bool cosine;    // falls to 0 at `steps`; otherwise constant
    int64_t steps;  // length; only for cosine
    int64_t warmup; // steps of linear rise from 0
};

// The rate that step `step` (0 for the first) uses: rate * step / warmup while step < warmup, then
// rate * (1 + cos(pi * (step - warmup) / (steps - warmup))) / 2, and 0 from `steps` on.
double schedule_rate(const struct schedule *schedule, int64_t step);

#endif
