// Optim in a pipeline: gives it the groups in order, each seq once, and tells the source the outcome of each group.
//
// collector_message and collector_report belong to the I/O thread, the rest to the worker.
#ifndef SHARED_STAGE_COLLECTOR_H
#define SHARED_STAGE_COLLECTOR_H

#include "shared/stage/io_thread.h"
#include "shared/stage/runner.h"

struct collector;

// Makes the collector of optim, which `context` has open and which must outlive it; begins at optim's position.
// The failure of `position`. Free with collector_close.
status collector_open(struct collector **out, struct stage_context *context);

// NULL is fine; sets *collector to NULL.
void collector_close(struct collector **collector);

// Hook: answers RUN_INFO with what the source does not know yet. UNAVAILABLE when the sockets fail.
status collector_message(struct collector *collector, struct io_thread *io, struct wire_peer *peer,
                         const struct wire_message *message);

// The next group in order, as in a channel's receive; a quarantined one must be settled before the next call. END when
// every group that there will ever be was handed out.
status collector_receive(struct collector *collector, struct io_thread *io, int timeout_ms, struct group **out);

// The group is quarantined, or the stage has finished it: tells the source, except for the very last group, which waits
// for collector_finish. The group stays the caller's. BUG when the group was settled before.
status collector_settle(struct collector *collector, struct io_thread *io, const struct group *group);

// The stage has returned every group and has written what must not be lost: tells the source the outcome of the very
// last group, so that a run is never over too early.
status collector_finish(struct collector *collector, struct io_thread *io);

// Returns the number of groups of an epoch, 0 while it is unknown.
int64_t collector_epoch(struct collector *collector);

// Hook: optim's counters.
void collector_report(struct collector *collector, struct message_status *counters);

// ---- outcomes ----

// In a run without optim: what became of the groups, as the last stage has told the source, until the source has
// recorded it. The source may be restarted before it has, and asks nobody.

struct outcomes;

// Makes an empty list. Free with outcomes_free.
void outcomes_new(struct outcomes **out);

// NULL is fine; sets *outcomes to NULL.
void outcomes_free(struct outcomes **outcomes);

// The worker: tells the source that the run is done with a group, quarantined or not.
status outcomes_tell(struct outcomes *outcomes, struct io_thread *io, const struct group *group);

// The I/O thread: tells the source again, which has joined; `peer` is its connection. UNAVAILABLE when the sockets
// fail.
status outcomes_tell_again(struct outcomes *outcomes, struct io_thread *io, struct wire_peer *peer);

#endif
