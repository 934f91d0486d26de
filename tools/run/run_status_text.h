// The state of a run as text for people: a line of progress, a table, and the line about a replica that is slow.
#ifndef TOOLS_RUN_RUN_STATUS_TEXT_H
#define TOOLS_RUN_RUN_STATUS_TEXT_H

#include "shared/base/memory.h"
#include "tools/run/run_status.h"

// Appends the progress as one line: step, rate, time left, reward, bottleneck, then groups and what each stage waits
// for.
void run_status_line(const struct run_status *run_status, double now, struct buf *out);

// Appends the same as a table. Its lines are not wider than `columns`, of which 50 are needed at least: what matters
// less is left out. It has a row for each replica, or for each stage if those are more than so many rows.
void run_status_table(const struct run_status *run_status, double now, int columns, int rows, struct buf *out);

// Appends "rollout-2 has had group 17 for 10:02 (typical 0:40)" for a replica that run_status_find_slow has found.
void run_status_slow_line(const struct replica_status *replica, struct buf *out);

// Appends "nothing has been done for 0:45: source gave group 17 to frames-2, which waits for groups" for what
// run_status_find_standstill has found.
void run_status_standstill_line(const struct run_status *run_status, const struct standstill *standstill, double now,
                                struct buf *out);

#endif
