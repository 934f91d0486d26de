// What a training of a consistency model leaves in its output directory: the states from which it goes on,
// OUT/state-NNNNNN, and, when it is finished, the line of its result, OUT/.training. Both say with a hash which
// settings and data they belong to.
#ifndef TOOLS_CONSISTENCY_CONSISTENCY_STATE_H
#define TOOLS_CONSISTENCY_CONSISTENCY_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/model/classifier.h"

// Loads the newest state in `out`, if there is one; *step is then its step, else 0. USAGE when it is of a training with
// other settings; DATAERR when it cannot be read.
status consistency_state_load(struct classifier *classifier, const char *out, uint64_t settings, int64_t *step);

// Replaces the states in `out` by that of a step. UNAVAILABLE; an older state is then still there.
status consistency_state_save(struct classifier *classifier, const char *out, uint64_t settings, int64_t step);

// Removes the states in `out` but the one of step `keep`, -1: all of them, and what a killed process has left of
// others. UNAVAILABLE.
status consistency_state_remove(const char *out, int64_t keep);

// Appends the line of a finished training's result to `line`, if `out` has one. USAGE when it is of other settings;
// DATAERR when it cannot be read.
status consistency_result_read(const char *out, uint64_t settings, struct buf *line, bool *found);

// Writes the line, with its newline, as the result of a finished training. UNAVAILABLE.
status consistency_result_write(const char *out, uint64_t settings, const struct buf *line);

#endif
