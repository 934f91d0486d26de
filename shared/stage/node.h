// A process's place in a run: the source issues groups, and every stage takes a group, makes sure that it computes with
// the weights that the group needs, works, and passes it on. The last stage tells the source what became of the group.
#ifndef SHARED_STAGE_NODE_H
#define SHARED_STAGE_NODE_H

#include "shared/stage/runner.h"

// Reads the node config at `path`; before the stage's open. Sets context->node, also when it fails, and context->last.
// DATAERR when the file is malformed, UNAVAILABLE when the run's directory cannot be written.
status node_enter(struct stage_context *context, const char *path);

// Whether the stage is in a run with optim.
bool node_trains(const struct stage_context *context);

// Runs the open stage until the program is asked to stop. OK then; otherwise what failed.
status node_run(struct stage_context *context);

// Sends BYE to all peers and frees; after the stage's close. Sets context->node to NULL.
void node_leave(struct stage_context *context);

#endif
