// What the I/O thread's files share: its struct, and what each does for the others. io_thread.c: its life and its
// thread; io_flow.c: groups; io_rpc.c: questions and broadcasts. Lock: what both threads use; the rest is the I/O
// thread's own.
#ifndef SHARED_STAGE_IO_INTERNAL_H
#define SHARED_STAGE_IO_INTERNAL_H

#include <pthread.h>

#include "shared/stage/io_thread.h"
#include "shared/stage/outbox.h"

// What the I/O thread knows of a replica before us, at the peer's tag.
struct upstream {
    struct upstream *next;
    int64_t offers; // groups that it said it has
    int asked;      // TAKEs that it has not answered
};

// Something to be said to all that are visited for a purpose.
struct broadcast {
    struct broadcast *next;
    char *purpose;
    struct wire_message message;
    struct arena arena;
};

enum rpc_state { RPC_NEW, RPC_SENT, RPC_DONE };

// A question of another thread, which waits for it.
struct rpc {
    struct rpc *next;
    const char *stage, *purpose;
    const struct wire_message *request;
    struct wire_message *reply;
    struct arena *arena;
    struct buf *bulk;
    struct wire_peer *peer;
    int skip; // so many replicas did not know
    enum rpc_state state;
    status result;
};

// A group that the working thread has.
struct in_progress {
    char *id;
    int64_t seq;
};

struct io_thread {
    const struct node_config *config;
    struct io_hooks hooks;
    bool greedy;
    struct wire *wire;
    int wakeup;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool quit;
    status broken;
    char *reason; // why it is broken
    struct group **inbox;
    size_t inbox_count;
    struct in_progress *in_progress; // with the working thread
    size_t in_progress_count;
    struct outbox outbox;
    bool announce; // outbox were added since the last OFFER
    int room;
    struct broadcast *broadcasts, **last_broadcast;
    struct rpc *rpcs;
    int64_t dropped;
    // The I/O thread's own:
    struct upstream *upstreams;
    int64_t *seqs; // room for list_orders
    struct buf seq_text;
    int asked;
    int64_t reported;
    bool weights_visited, frames_visited;
};

// What is carried round a circle of peers.
struct saying {
    struct io_thread *io;
    const struct wire_message *message;
    const char *stage;
    int skip; // peers still to be passed over
    struct wire_peer *found;
    status result;
};

// Wakes the I/O thread.
void io_thread_wake(struct io_thread *io);

// Waits a moment for a change. The lock is held.
void io_wait_moment(struct io_thread *io);

// What is known of a replica before us; NULL: nothing.
struct upstream *io_upstream_of(struct wire_peer *peer);

// Tells a reader how many groups wait for it.
void io_offer_letters(void *saying, struct wire_peer *peer);

// Answers a reader's TAKE with a group, or with NONE.
status io_give_letter(struct io_thread *io, struct wire_peer *peer);

// A replica before us spoke of groups, or sent one.
status io_hear_upstream(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message);

// What the peer was asked for will not come.
void io_forget_asks(struct io_thread *io, struct wire_peer *peer);

// Asks for as many groups as there is room for.
status io_take_groups(struct io_thread *io);

// Begins the visits to every replica of a stage.
status io_visit_stage(struct io_thread *io, const char *stage, const char *purpose);

// Puts the questions that nobody was asked yet.
status io_begin_errands(struct io_thread *io);

// An answer has come.
void io_hear_answer(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message);

// Whoever was asked is not what it was: ask again.
void io_forget_errands(struct io_thread *io, const struct wire_peer *peer);

// Says what io_thread_broadcast was given.
status io_send_posts(struct io_thread *io);

// Says a saying's message to the peer.
void io_say_one(void *saying, struct wire_peer *peer);

// Frees the broadcasts that were not said.
void io_free_posts(struct io_thread *io);

#endif
