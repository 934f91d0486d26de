// The runs that are active on this machine, as their processes show: each supervisor holds RUN/lock open.
#ifndef TOOLS_RUN_ACTIVE_RUNS_H
#define TOOLS_RUN_ACTIVE_RUNS_H

#include <stddef.h>

#include "shared/base/memory.h"

// Appends a table with a row for each active run, or nothing if there is none: its directory, step, groups, state, time
// since its start, process. Of another user's run only user and process are known, unless this user is root.
// *count (may be NULL) = the number of rows. UNAVAILABLE.
status active_runs_table(struct buf *out, size_t *count);

#endif
