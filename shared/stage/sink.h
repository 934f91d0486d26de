// The last stage in a pipeline: hands groups to it in the order of issue, each order once, puts the quarantined ones
// aside, and tells the source what became of each.
#ifndef SHARED_STAGE_SINK_H
#define SHARED_STAGE_SINK_H

#include "shared/stage/hub.h"
#include "shared/stage/runner.h"

struct sink;

// For the stage that `context` has open; begins where its position says.
status sink_open(struct sink **out, struct stage_context *context);

// NULL is fine; sets *sink to NULL.
void sink_close(struct sink **sink);

// The hub's hook: PLAN is answered with where we stand.
status sink_said(struct sink *sink, struct wire *wire, struct wire_peer *peer, const struct wire_message *message);

// The next group in order. As a channel's receive; END when every group that there will ever be was handed out.
status sink_receive(struct sink *sink, struct hub *hub, int timeout_ms, struct group **out);

// The stage is done with a group: tells the source. The group stays the caller's.
status sink_settle(struct sink *sink, struct hub *hub, const struct group *group);

// Everything was handed back and the stage has finished: the source is told what was held back until then, the last
// order's fate, so that a run is never over too early.
status sink_finish(struct sink *sink, struct hub *hub);

// The counters of the last stage.
void sink_report(struct sink *sink, struct message_status *status);

#endif
