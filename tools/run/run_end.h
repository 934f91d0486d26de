// What the user of a run that is over wants to know: how it ended, where its result is, what to type next.
#ifndef TOOLS_RUN_RUN_END_H
#define TOOLS_RUN_RUN_END_H

#include "shared/base/memory.h"
#include "tools/run/run_status.h"

// Appends at most three lines, each with its end. `seconds` is the time since `caravan run` was started. UNAVAILABLE.
status run_end_lines(const struct deployment *deployment, const struct run_status *run_status, double seconds,
                     struct buf *out);

#endif
