// How groups come to a replica from the stage before it and go to the stages that read from it: which it has, which it
// may ask for, and which it keeps for others until they are settled. PROTOCOL.md, "flow", says what is sent when.
//
// A group is known by its seq and by the number of its issue, which rises when optim went back and groups are issued
// anew. Groups of an earlier issue are dropped.
//
// No thread and no clock of its own: times come from the wire. The caller locks.
#pragma once

#include "shared/group/group.h"
#include "shared/stage/outbox.h"
#include "shared/store/group_store.h"
#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

enum held_state {
    HELD_QUEUED,  // it has come, and nobody has looked at it
    HELD_EARLY,   // optim: the groups before it have not come
    HELD_WAITING, // for weights
    HELD_WORKING, // the stage has it
    HELD_DONE,    // optim has finished it, and the source is not told yet
    HELD_ENDED    // it goes no further from here; the stage before this one is not told yet
};

// A group that this process has and has not passed on. Under --stdio only what the worker uses is set.
struct held_group {
    struct held_group *next; // that came later
    int64_t seq, issue;      // `issue` is below the present one: of no use any more
    enum held_state state;
    struct origins origins;
    struct buf data; // QUEUED: msgpack
    // The worker's, from WAITING on:
    struct group *group;
    double since;           // clock_monotonic() when it could be begun
    double begun;           // seconds since 1970: when the stage got it
    struct section_key key; // of the section that the stage adds
};

// The groups of a replica. Only flow.c changes it, except for `capacity`.
struct flow {
    const struct node_config *config;
    struct wire *wire;
    bool greedy;
    int64_t issue, settled; // the present issue; every seq below is settled
    int capacity;           // more groups that the stage could hold, those QUEUED included; the caller sets it
    struct outbox outbox;
    struct held_group *first, **end; // in the order in which they came
    // Of flow.c:
    bool announce;        // the readers are to be told how many groups wait for them
    int64_t unsaid_since; // ms; 0: the readers have heard what is settled
    int credits;          // CREDITs that are not answered
    int64_t dropped;
    struct upstream *upstreams;
    struct downstream *downstreams;
    char *reject;            // why upstreams that sent nonsense are to be disconnected; NULL: none has
    struct origins rejected; // which
};

// Makes the flow of a replica over its wire. `greedy`: ask for every group that is available, whatever the capacity.
// Both must outlive it. USAGE when too many stages read from this one. Free with flow_free.
status flow_new(struct flow **out, const struct node_config *config, struct wire *wire, bool greedy);

// NULL is fine; sets *flow to NULL.
void flow_free(struct flow **flow);

// ---- the worker ----

// Takes the group with the lowest seq that is QUEUED, which is WAITING from now on. NULL: there is none. It stays the
// flow's until flow_finish, flow_forget or flow_reject, which free it.
struct held_group *flow_take(struct flow *flow);

// Returns the next group in a state after one, or the first after NULL, in the order in which they came. NULL: none.
struct held_group *flow_next(const struct flow *flow, const struct held_group *after, enum held_state state);

// The stage has finished a group: keeps its msgpack, which it takes over, for the stages that read from this one. If
// none does, or if the group is settled, the stage before it is told.
void flow_finish(struct flow *flow, struct held_group *held, struct buf *data);

// A group goes no further; nobody needs it any more.
void flow_forget(struct flow *flow, struct held_group *held);

// What was taken is not a group: its giver sent nonsense and loses the connection.
void flow_reject(struct flow *flow, struct held_group *held, const char *reason);

// ---- the source ----

// Sets the number of the present issue, and the seq below which every group is settled.
void flow_set_issue(struct flow *flow, int64_t issue, int64_t settled);

// Adds a group that the source has issued; takes over its msgpack. One that is there already stays as it is.
void flow_put(struct flow *flow, int64_t seq, struct buf *data);

// ---- the I/O thread ----

// A peer of purpose "flow" has joined, or is gone. UNAVAILABLE when the sockets fail.
status flow_on_peer(struct flow *flow, const struct wire_event *event);

// A replica of the stage before this one says how many groups wait for this one.
status flow_on_available(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);

// A CREDIT was answered, with a group or without one. DATAERR when none was sent. UNAVAILABLE when the sockets fail.
status flow_on_answer(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);

// A replica of a stage that reads from this one asks for a group. UNAVAILABLE when the sockets fail.
status flow_on_credit(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);

// It has a group. UNAVAILABLE when the sockets fail.
status flow_on_have(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);

// It has told which groups it has. UNAVAILABLE when the sockets fail.
status flow_on_synced(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);

// Sends what has become possible. UNAVAILABLE when the sockets or memory fail.
status flow_send_pending(struct flow *flow);

// Fills in `held`, `waiting`, `dropped`, the oldest group of the worker and which one was given to whom. `now`:
// clock_monotonic(). The string is the config's.
void flow_report(const struct flow *flow, double now, struct message_status *counters);
