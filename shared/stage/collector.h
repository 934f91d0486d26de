// The last stage in a pipeline: in_progress groups to it in the order of issue, each order once, puts the quarantined
// ones aside, and tells the source what became of each.
#ifndef SHARED_STAGE_COLLECTOR_H
#define SHARED_STAGE_COLLECTOR_H

#include "shared/stage/io_thread.h"
#include "shared/stage/runner.h"

struct collector;

// For the stage that `context` has open; begins where its position says.
status collector_open(struct collector **out, struct stage_context *context);

// NULL is fine; sets *collector to NULL.
void collector_close(struct collector **collector);

// The I/O thread's hook: PLAN is answered with where we stand.
status collector_said(struct collector *collector, struct wire *wire, struct wire_peer *peer,
                      const struct wire_message *message);

// The next group in order. As a channel's receive; END when every group that there will ever be was handed out.
status collector_receive(struct collector *collector, struct io_thread *io, int timeout_ms, struct group **out);

// The stage is done with a group: tells the source. The group stays the caller's.
status collector_settle(struct collector *collector, struct io_thread *io, const struct group *group);

// Everything was handed back and the stage has finished: the source is told what was held back until then, the last
// order's fate, so that a run is never over too early.
status collector_finish(struct collector *collector, struct io_thread *io);

// The counters of the last stage.
void collector_report(struct collector *collector, struct message_status *status);

#endif
