// caravan report --by step: how consistent and how correct the completions were while a run trained.
#ifndef TOOLS_EVAL_REPORT_STEPS_H
#define TOOLS_EVAL_REPORT_STEPS_H

#include <stddef.h>
#include <stdint.h>

#include "tools/eval/eval.h"

// The completions of consecutive steps that one judge judged.
struct report_row {
    struct eval_judge judge;
    int64_t first, last; // steps
};

// What is known of one file. Set name and threshold, and leave the rest zeroed.
struct report_series {
    const char *name;
    double threshold; // a completion without a verdict is consistent from this probability on
    struct arena memory;
    struct report_row *rows; // one for each group, then for each judge and bin
    size_t count, capacity;
    size_t untrained,
        unjudged; // groups left out: that no step trained; of the others, without a verdict or probability
};

// Adds a group to `context`, a series. The answer is correct if scores.correct says so or, without scores, if
// rewards.accuracy is 1. DATAERR when the group has neither, or arrays of the wrong length.
status report_steps_add(void *context, const struct group *group);

// Divides the steps of all series into at most `bins` bins of equal width, and gives each series one row for each judge
// and bin, sorted by them.
void report_steps_bin(struct report_series *series, size_t count, int64_t bins);

// Appends the rows as text for people. UNAVAILABLE.
status report_steps_text(const struct report_series *series, size_t count, struct buf *out);

// Appends the rows as one JSON object. UNAVAILABLE.
status report_steps_json(const struct report_series *series, size_t count, struct buf *out);

// Appends the rows as comma-separated values, a line each. UNAVAILABLE.
status report_steps_csv(const struct report_series *series, size_t count, struct buf *out);

// Frees what the series holds.
void report_steps_release(struct report_series *series);

#endif
