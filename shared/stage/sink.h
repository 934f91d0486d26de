// The last stage in a pipeline: hands groups to it in the order of issue, each order once, puts the quarantined ones
// aside, and tells the source what became of each.
#ifndef SHARED_STAGE_SINK_H
#define SHARED_STAGE_SINK_H

#include "shared/stage/hub.h"
#include "shared/stage/runner.h"

typedef struct sink sink;

// For the stage that `context` has open; begins where its position says.
status sink_open(sink **out, stage_context *context);

// NULL is fine; sets *sink to NULL.
void sink_close(sink **sink);

// The hub's hook: PLAN is answered with where we stand.
status sink_said(sink *sink, wire *wire, wire_peer *peer, const wire_message *message);

// The next group in order. As a channel's receive; STOPPED when every group that there will ever be was handed out.
status sink_receive(sink *sink, hub *hub, int timeout_ms, group **out);

// The stage is done with a group: tells the source. The group stays the caller's.
status sink_settle(sink *sink, hub *hub, const group *group);

// Everything was handed back and the stage has finished: the source is told what was held back until then, the last
// order's fate, so that a run is never over too early.
status sink_finish(sink *sink, hub *hub);

// The counters of the last stage.
void sink_report(sink *sink, message_status *status);

#endif
