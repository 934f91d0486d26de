// A stage's place in a run: its channel over the I/O thread thread, the weights it follows, the counters it reports.
#ifndef SHARED_STAGE_NODE_H
#define SHARED_STAGE_NODE_H

#include "shared/stage/runner.h"

// Reads the config; before the stage's open. Sets context->node. DATAERR when the file is none.
status node_enter(struct stage_context *context, const char *config);

// Runs the open stage until the program is asked to stop.
status node_run(struct stage_context *context);

// Says goodbye and frees; after the stage's close. NULL is fine.
void node_leave(struct stage_context *context);

#endif
