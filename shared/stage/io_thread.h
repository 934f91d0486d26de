// The I/O thread: all of a replica's conversations with other processes, in a thread of its own, so that groups come
// and go and requests are answered while the stage works. What it calls, and what may be called from there, is in
// io_hooks.h. Stages do not include this.
#pragma once

#include <stdbool.h>

#include "shared/stage/flow.h"

struct io_hooks;
struct io_thread;
struct transfer;

// Binds the server socket and connects to the peers that the node config names; starts no thread. `self` is passed to
// the hooks. Takes the transport over, also when it fails. The config, the hooks and self must outlive it. UNAVAILABLE
// when an endpoint is taken, USAGE when the config cannot be used. Free with io_thread_close.
status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      void *self, struct transport *transport);

// Connects to the replicas of a stage for a purpose besides groups, before the thread starts. USAGE, UNAVAILABLE.
status io_thread_connect(struct io_thread *io, const char *stage, const char *purpose);

// Starts the thread, once. UNAVAILABLE when it cannot be created.
status io_thread_start(struct io_thread *io);

// Does what the thread does between two waits, where there is no thread: for tests. `timeout_ms`: how long to wait for
// an event. Returns the failure that would end the thread.
status io_thread_step(struct io_thread *io, int timeout_ms);

// Ends the thread, sends BYE to all peers and frees. NULL is fine; sets *io to NULL.
void io_thread_close(struct io_thread **io);

// ---- the worker: the stage's own thread ----

// Waits up to timeout_ms (-1: for ever) for a group, which is WAITING then; `capacity` is how many more the stage could
// hold. OK with NULL in *out: none came, or io_thread_nudge was called. END when the program is asked to stop;
// otherwise the failure that ended the I/O thread. Until io_thread_send or io_thread_drop, copies of the group that
// come are dropped.
status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct held_group **out);

// Returns the next group in a state of the worker (EARLY to DONE) after one, or the first after NULL, in the order in
// which they came. NULL: none. Valid until it is sent or dropped.
struct held_group *io_thread_next_held(struct io_thread *io, const struct held_group *after, enum held_state state);

// Sets the state of a group that was received.
void io_thread_set_state(struct io_thread *io, struct held_group *held, enum held_state state);

// Returns the number of the present issue: groups of an earlier one are of no use any more.
int64_t io_thread_issue(struct io_thread *io);

// Keeps a group for the stages that read from this one. A copy that was kept already stays as it is. Frees the group.
void io_thread_send(struct io_thread *io, struct held_group *held);

// A group goes no further. Frees it.
void io_thread_drop(struct io_thread *io, struct held_group *held);

// ---- any thread, the hooks too ----

// Lets io_thread_receive return, because something else has come that the worker waits for; lets the I/O thread call
// its tick soon.
void io_thread_nudge(struct io_thread *io);

// Returns the seq below which every group is settled, as far as this process knows.
int64_t io_thread_settled(struct io_thread *io);

// Sends a message (without bulk) to every peer that is there for `purpose`. Copies the message. What one thread
// broadcasts goes out in that order.
status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message);

// ---- any thread but the I/O thread ----

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
