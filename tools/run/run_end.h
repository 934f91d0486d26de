// The end of a run: what the user of one that is over wants to know (how it ended, where its result is, what to type
// next), and on several machines the note that it is over, which a machine has until it has told the others. One that
// is killed between would wait for ever for machines that have ended.
#ifndef TOOLS_RUN_RUN_END_H
#define TOOLS_RUN_RUN_END_H

#include "shared/base/memory.h"
#include "tools/run/run_status.h"

// Appends at most three lines, each with its end. `seconds` is the time since `caravan run` was started. UNAVAILABLE.
status run_end_lines(const struct deployment *deployment, const struct run_status *run_status, double seconds,
                     struct buf *out);

// Notes in the run's directory that the run is over and what it has come to, before anybody is told. UNAVAILABLE.
status run_end_note(const struct deployment *deployment, const char *reason);

// Appends what a run with these settings has come to if this machine was killed after it had noted it; otherwise
// nothing. UNAVAILABLE or DATAERR when the note cannot be read.
status run_end_find(const struct deployment *deployment, struct buf *reason);

// Removes the note, if there is one.
void run_end_forget(const struct deployment *deployment);

#endif
