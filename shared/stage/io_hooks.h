// What the I/O thread (io_thread.h) calls, and what may be called from there and from nowhere else.
#pragma once

#include <stdbool.h>

#include "shared/group/group.h"
#include "shared/wire/wire.h"

struct io_thread;

// What happens when a peer for a purpose has connected, or is lost.
struct io_peer_hook {
    const char *purpose; // NULL: none
    bool clients;        // those that connected to us; otherwise those that we connected to
    status (*joined)(void *self, struct wire_peer *peer); // NULL: nothing
    status (*gone)(void *self, struct wire_peer *peer);   // NULL: nothing
};

// What a process does besides passing groups on. Called in the I/O thread. A failure ends the thread, except DATAERR
// for a message: that costs the peer its connection.
struct io_hooks {
    bool greedy; // ask for every group that is available, whatever the capacity
    struct io_peer_hook peers[2];
    // What handles a message that is neither an answer nor about groups; NULL: nothing.
    status (*messages[MESSAGE_KINDS])(void *self, struct wire_peer *peer, const struct wire_message *message);
    // Called at least 20 times a second; the source issues groups here. NULL: nothing.
    status (*tick)(void *self);
    // Fills in the counters; those of flow_report are set already. NULL: nothing.
    void (*report)(void *self, struct message_status *counters);
};

// Keeps a group that the source has issued for the stages that read from it. The group stays the caller's.
void io_thread_put(struct io_thread *io, const struct group *group);

// Sets the number of the source's present issue, and the seq below which every group is settled.
void io_thread_set_issue(struct io_thread *io, int64_t issue, int64_t settled);

// Whether a supervisor is there, which shows the user what it is told.
bool io_thread_is_supervised(struct io_thread *io);

// Sends a message to a peer. A peer that is disconnected gets nothing. UNAVAILABLE when the sockets fail.
status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message);
