// How groups come to a replica from the stage before it and go to the stages that read from it: which it has, which it
// may ask for, and which it keeps for others until they are settled. PROTOCOL.md, "flow", says what is sent when.
//
// A group is known by its seq and by the number of its issue, which rises when optim went back and groups are issued
// anew. All that is left of an earlier issue is thrown away.
//
// No thread and no clock of its own: times come from the wire. The caller locks.
#ifndef SHARED_STAGE_FLOW_H
#define SHARED_STAGE_FLOW_H

#include "shared/stage/outbox.h"
#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

struct flow;

// Makes the flow of a replica over its wire. `greedy`: ask for every group that is available, whatever the capacity.
// Both must outlive it. USAGE when too many stages read from this one. Free with flow_free.
status flow_new(struct flow **out, const struct node_config *config, struct wire *wire, bool greedy);

// NULL is fine; sets *flow to NULL.
void flow_free(struct flow **flow);

// ---- the worker ----

// Takes the first group that has come: its seq, and its msgpack, which the caller owns. False: there is none. The group
// is in hand until flow_finish or flow_forget.
bool flow_take(struct flow *flow, int64_t *seq, struct buf *data);

// Sets how many more groups the stage could hold, without those that have come and were not taken yet.
void flow_set_capacity(struct flow *flow, int capacity);

// Whether a group has come that was not taken yet.
bool flow_has(const struct flow *flow);

// The stage has finished a group in hand: keeps its msgpack, which it takes over, for the stages that read from this
// one. If none does, or if the group is settled, the stage before it is told.
void flow_finish(struct flow *flow, int64_t seq, struct buf *data);

// A group in hand goes no further; nobody needs it any more.
void flow_forget(struct flow *flow, int64_t seq);

// A group in hand is not one: its giver sent nonsense and loses the connection.
void flow_reject(struct flow *flow, int64_t seq, const char *reason);

// Returns the number of the present issue.
int64_t flow_issue(const struct flow *flow);

// Returns the seq below which every group is settled.
int64_t flow_settled(const struct flow *flow);

// ---- the source ----

// Sets the number of the present issue, and the seq below which every group is settled.
void flow_set_issue(struct flow *flow, int64_t issue, int64_t settled);

// Adds a group that the source has issued; takes over its msgpack. One that is there already stays as it is.
void flow_put(struct flow *flow, int64_t seq, struct buf *data);

// ---- the I/O thread ----

// Handles what happened to a peer of purpose "flow". UNAVAILABLE when the sockets or memory fail.
status flow_on_event(struct flow *flow, const struct wire_event *event);

// Sends what has become possible. UNAVAILABLE when the sockets or memory fail.
status flow_send_pending(struct flow *flow);

// Fills in `held`, `waiting`, `dropped` and which group was given to whom. The string is the config's.
void flow_report(const struct flow *flow, struct message_status *counters);

#endif
