// A stage's place in a run: its channel over the hub, the weights it follows, the counters it reports.
#ifndef SHARED_STAGE_PIPELINE_H
#define SHARED_STAGE_PIPELINE_H

#include "shared/stage/runner.h"

// Reads the config; before the stage's open. Sets context->place. DATAERR when the file is none.
status pipeline_enter(struct stage_context *context, const char *config);

// Runs the open stage until the program is asked to stop.
status pipeline_stay(struct stage_context *context);

// Says goodbye and frees; after the stage's close. NULL is fine.
void pipeline_leave(struct stage_context *context);

#endif
