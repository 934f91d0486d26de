// The I/O thread: a replica's end of every conversation, in a thread of its own, so that groups come and go and
// questions are answered while the stage works. Stages do not include this.
//
// The other side of each call below is the one working thread; io_thread_call alone may be called from any.
#ifndef SHARED_STAGE_IO_THREAD_H
#define SHARED_STAGE_IO_THREAD_H

#include <stdbool.h>

#include "shared/group/group.h"
#include "shared/wire/wire.h"
#include "shared/wire/node_config.h"

struct io_thread;

// What a replica does in conversations besides the flow. All are called from the I/O thread; any may be NULL.
struct io_hooks {
    void *self;
    // A peer has joined, or said something that is not of the flow.
    status (*joined)(void *self, struct wire *wire, struct wire_peer *peer);
    status (*said)(void *self, struct wire *wire, struct wire_peer *peer, const struct wire_message *message);
    // Many times a second. The source puts groups into the flow here.
    status (*tick)(void *self, struct wire *wire);
    // What to say about oneself: the I/O thread has filled in `held` and `waiting`.
    void (*report)(void *self, struct message_status *status);
};

// Binds the desk, begins the visits that the config asks for, starts the thread. `greedy`: take whatever is offered.
// The config and hooks must outlive the I/O thread. UNAVAILABLE when the desk is taken.
status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      bool greedy);

// Ends the thread and says goodbye. NULL is fine; sets *io to NULL.
void io_thread_close(struct io_thread **io);

// Waits up to timeout_ms (-1: for ever) for a group; `room` is how many more there is room for. OK with NULL in *out:
// none. END when the program is asked to stop; whatever broke the I/O thread otherwise. The group is "in hand"
// until io_thread_send or io_thread_drop: copies of it that come meanwhile are dropped.
status io_thread_receive(struct io_thread *io, int room, int timeout_ms, struct group **out);

// Puts a group where the next stages find it. Its copy in the queue, if there is one, stays as it is.
status io_thread_send(struct io_thread *io, const struct group *group);

// The same from a hook.
status io_thread_put(struct io_thread *io, const struct group *group);

// A group in hand goes no further.
void io_thread_drop(struct io_thread *io, const char *id);

// Says something to every peer that is visited for `purpose`; nothing is kept for one that is not there.
status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message);

// Asks the first replica of `stage` that knows (purpose "weights" or "frames") and waits for the answer; texts and bulk
// go to `arena` and `bulk`. A reply of kind ABSENT: nobody knows. END when the program is asked to stop.
status io_thread_call(struct io_thread *io, const char *stage, const char *purpose, const struct wire_message *request,
                      struct wire_message *reply, struct arena *arena, struct buf *bulk);

// Copies of groups dropped so far.
int64_t io_thread_dropped(struct io_thread *io);

#endif
