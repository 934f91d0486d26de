// The I/O thread: all of a replica's conversations with other processes, in a thread of its own, so that groups come
// and go and requests are answered while the stage works. Stages do not include this.
//
// "The worker" is the stage's own thread. io_thread_put, io_thread_reply and the hooks belong to the I/O thread;
// io_thread_broadcast and io_thread_call may be called from any other thread; the rest belongs to the worker.
#ifndef SHARED_STAGE_IO_THREAD_H
#define SHARED_STAGE_IO_THREAD_H

#include <stdbool.h>

#include "shared/group/group.h"
#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

struct io_thread;

// What a replica does besides passing groups on. Called in the I/O thread. A failure ends the thread.
struct io_hooks {
    void *self;
    // WIRE_JOINED: a peer has connected that neither sends nor receives groups. WIRE_MESSAGE: a peer has sent a message
    // that is neither an answer nor about sending and receiving groups. WIRE_TIMEOUT: at least 20 times a second; the
    // source issues groups here.
    status (*event)(void *self, struct io_thread *io, const struct wire_event *event);
    // Fills in the counters; `held` and `waiting` are set already.
    void (*report)(void *self, struct message_status *counters);
};

// Binds the server socket and connects to the peers that the node config names; starts no thread. `greedy`: ask for
// every group that is available, whatever the capacity. The config and the hooks' self must outlive it. UNAVAILABLE
// when an endpoint is taken, USAGE when the config cannot be used. Free with io_thread_close.
status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      bool greedy);

// Starts the thread, once. UNAVAILABLE when it cannot be created.
status io_thread_start(struct io_thread *io);

// Ends the thread, sends BYE to all peers and frees. NULL is fine; sets *io to NULL.
void io_thread_close(struct io_thread **io);

// Waits up to timeout_ms (-1: for ever) for a group; `capacity` is how many more the stage could hold. OK with NULL in
// *out: none came. END when the program is asked to stop; otherwise the failure that ended the I/O thread. The group,
// which the caller owns, is "in progress" until io_thread_send or io_thread_drop: copies of it that come meanwhile are
// dropped.
status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct group **out);

// Puts a group into the outbox for the stages that read from this one; it is in progress no more. A copy that is in the
// outbox already stays as it is. The group stays the caller's. UNAVAILABLE when memory is short.
status io_thread_send(struct io_thread *io, const struct group *group);

// The group with that id is in progress no more and goes no further.
void io_thread_drop(struct io_thread *io, const char *id);

// Puts a group into the outbox, from a hook. The group stays the caller's. UNAVAILABLE when memory is short.
status io_thread_put(struct io_thread *io, const struct group *group);

// Sends a message to a peer, from a hook. A peer that is disconnected gets nothing. UNAVAILABLE when the sockets fail.
status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message);

// Sends a message (without bulk) to every server that is there and was connected to for `purpose`. Copies the message.
// UNAVAILABLE when memory is short.
status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message);

// Sends a request to the replicas of `stage` (purpose "weights" or "frames"), one after the other until one has the
// answer, and waits for it. The reply's strings are put into `arena`, its bulk is appended to `bulk`. A reply of kind
// ABSENT: none has it. END when the program is asked to stop; otherwise the failure that ended the I/O thread.
status io_thread_call(struct io_thread *io, const char *stage, const char *purpose, const struct wire_message *request,
                      struct wire_message *reply, struct arena *arena, struct buf *bulk);

#endif
