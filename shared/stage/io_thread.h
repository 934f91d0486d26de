// The I/O thread: all of a replica's conversations with other processes, in a thread of its own, so that groups come
// and go and requests are answered while the stage works. Stages do not include this.
//
// "The worker" is the stage's own thread. io_thread_put, io_thread_set_issue, io_thread_reply and the hooks belong to
// the I/O thread; io_thread_broadcast, io_thread_push, io_thread_nudge and the transfers may be called from any other
// thread; the rest belongs to the worker.
#ifndef SHARED_STAGE_IO_THREAD_H
#define SHARED_STAGE_IO_THREAD_H

#include <stdbool.h>

#include "shared/group/group.h"
#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

struct io_thread;
struct transfer;

// What a replica does besides passing groups on. Called in the I/O thread. A failure ends the thread, except DATAERR
// for a message: that costs the peer its connection.
struct io_hooks {
    void *self;
    // WIRE_JOINED, WIRE_GONE: a peer that neither sends nor receives groups has connected, or is lost. WIRE_MESSAGE: a
    // peer has sent a message that is neither an answer nor about groups. WIRE_TIMEOUT: at least 20 times a second; the
    // source issues groups here.
    status (*event)(void *self, struct io_thread *io, const struct wire_event *event);
    // Fills in the counters; those of flow_report are set already.
    void (*report)(void *self, struct message_status *counters);
};

// Binds the server socket and connects to the peers that the node config names; starts no thread. `greedy`: ask for
// every group that is available, whatever the capacity. Takes the transport over, also when it fails. The config and
// the hooks' self must outlive it. UNAVAILABLE when an endpoint is taken, USAGE when the config cannot be used. Free
// with io_thread_close.
status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      bool greedy, struct transport *transport);

// Connects to the replicas of a stage for a purpose besides groups, before the thread starts. USAGE, UNAVAILABLE.
status io_thread_connect(struct io_thread *io, const char *stage, const char *purpose);

// Starts the thread, once. UNAVAILABLE when it cannot be created.
status io_thread_start(struct io_thread *io);

// Does what the thread does between two waits, where there is no thread: for tests. `timeout_ms`: how long to wait for
// an event. Returns the failure that would end the thread.
status io_thread_step(struct io_thread *io, int timeout_ms);

// Ends the thread, sends BYE to all peers and frees. NULL is fine; sets *io to NULL.
void io_thread_close(struct io_thread **io);

// Waits up to timeout_ms (-1: for ever) for a group; `capacity` is how many more the stage could hold. OK with NULL in
// *out: none came, or io_thread_nudge was called. END when the program is asked to stop; otherwise the failure that
// ended the I/O thread. The group, which the caller owns, is in hand until io_thread_send or io_thread_drop: copies of
// it that come meanwhile are dropped.
status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct group **out);

// Returns the number of the issue of the group that io_thread_receive returned last.
int64_t io_thread_taken_issue(const struct io_thread *io);

// Returns the number of the present issue: groups of an earlier one are of no use any more.
int64_t io_thread_issue(struct io_thread *io);

// Returns the seq below which every group is settled, as far as this process knows. From any thread.
int64_t io_thread_settled(struct io_thread *io);

// Keeps a group for the stages that read from this one; it is in hand no more. A copy that was kept already stays as it
// is. The group stays the caller's.
void io_thread_send(struct io_thread *io, const struct group *group);

// The group with that seq is in hand no more and goes no further.
void io_thread_drop(struct io_thread *io, int64_t seq);

// Lets io_thread_receive return, because something else has come that the worker waits for; lets the I/O thread call
// its hook soon.
void io_thread_nudge(struct io_thread *io);

// Keeps a group that the source has issued for the stages that read from it, from a hook. The group stays the caller's.
void io_thread_put(struct io_thread *io, const struct group *group);

// Sets the number of the source's present issue, and the seq below which every group is settled, from a hook.
void io_thread_set_issue(struct io_thread *io, int64_t issue, int64_t settled);

// Sends a message to a peer, from a hook. A peer that is disconnected gets nothing. UNAVAILABLE when the sockets fail.
status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message);

// Sends a message (without bulk) to every server that is there and was connected to for `purpose`. Copies the message.
status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message);

// The same to every client that is there for `purpose`. What one thread broadcasts and pushes goes out in that order.
status io_thread_push(struct io_thread *io, const char *purpose, const struct wire_message *message);

// Begins a transfer (requests.h) from the replicas of a stage, purpose "weights" or "frames". Each one that was begun
// must be ended.
void io_thread_begin_transfer(struct io_thread *io, struct transfer *transfer);

// Waits up to timeout_ms (-1: for ever) for bytes of a transfer and puts them into `data` instead of what that had;
// none in time: it is empty. *ended: there will be no more; transfer->absent is then valid. END when the program is
// asked to stop; otherwise the failure that ended the I/O thread.
status io_thread_take_bytes(struct io_thread *io, struct transfer *transfer, int timeout_ms, struct buf *data,
                            bool *ended);

// Ends a transfer, complete or not.
void io_thread_end_transfer(struct io_thread *io, struct transfer *transfer);

#endif
