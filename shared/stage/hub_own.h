// What the hub's files share: its struct, and what each does for the others. hub.c: its life and its thread;
// hub_flow.c: groups; hub_errands.c: questions and posts. Lock: what both threads use; the rest is the hub's thread's
// own.
#ifndef SHARED_STAGE_HUB_OWN_H
#define SHARED_STAGE_HUB_OWN_H

#include <pthread.h>

#include "shared/stage/hub.h"
#include "shared/stage/letters.h"

// What the hub knows of a replica before us, at the peer's tag.
struct upstream {
    struct upstream *next;
    int64_t offers; // groups that it said it has
    int asked;      // TAKEs that it has not answered
};

// Something to be said to all that are visited for a purpose.
struct post {
    struct post *next;
    char *purpose;
    struct wire_message message;
    struct arena arena;
};

enum errand_state { ERRAND_NEW, ERRAND_ASKED, ERRAND_DONE };

// A question of another thread, which waits for it.
struct errand {
    struct errand *next;
    const char *stage, *purpose;
    const struct wire_message *request;
    struct wire_message *reply;
    struct arena *arena;
    struct buf *bulk;
    struct wire_peer *peer;
    int skip; // so many replicas did not know
    enum errand_state state;
    status result;
};

// A group that the working thread has.
struct hand {
    char *id;
    int64_t seq;
};

struct hub {
    const struct node_config *config;
    struct hub_hooks hooks;
    bool greedy;
    struct wire *wire;
    int bell;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool quit;
    status broken;
    char *reason; // why it is broken
    struct group **inbox;
    size_t inbox_count;
    struct hand *hands; // with the working thread
    size_t hand_count;
    struct letters letters;
    bool mail; // letters were added since the last OFFER
    int room;
    struct post *posts, **last_post;
    struct errand *errands;
    int64_t dropped;
    // The hub's thread's own:
    struct upstream *upstreams;
    int64_t *seqs; // room for list_orders
    struct buf seq_text;
    int asked;
    int64_t reported;
    bool weights_visited, frames_visited;
};

// What is carried round a circle of peers.
struct saying {
    struct hub *hub;
    const struct wire_message *message;
    const char *stage;
    int skip; // peers still to be passed over
    struct wire_peer *found;
    status result;
};

// Milliseconds of a clock that only goes forward.
int64_t hub_clock(void);

// Wakes the hub's thread.
void hub_ring(struct hub *hub);

// Waits a moment for a change. The lock is held.
void hub_wait_moment(struct hub *hub);

// What is known of a replica before us; NULL: nothing.
struct upstream *hub_upstream_of(struct wire_peer *peer);

// Tells a reader how many groups wait for it.
void hub_offer_letters(void *saying, struct wire_peer *peer);

// Answers a reader's TAKE with a group, or with NONE.
status hub_give_letter(struct hub *hub, struct wire_peer *peer);

// A replica before us spoke of groups, or sent one.
status hub_hear_upstream(struct hub *hub, struct wire_peer *peer, const struct wire_message *message);

// What the peer was asked for will not come.
void hub_forget_asks(struct hub *hub, struct wire_peer *peer);

// Asks for as many groups as there is room for.
status hub_take_groups(struct hub *hub);

// Begins the visits to every replica of a stage.
status hub_visit_stage(struct hub *hub, const char *stage, const char *purpose);

// Puts the questions that nobody was asked yet.
status hub_begin_errands(struct hub *hub);

// An answer has come.
void hub_hear_answer(struct hub *hub, struct wire_peer *peer, const struct wire_message *message);

// Whoever was asked is not what it was: ask again.
void hub_forget_errands(struct hub *hub, const struct wire_peer *peer);

// Says what hub_post was given.
status hub_send_posts(struct hub *hub);

// Says a saying's message to the peer.
void hub_say_one(void *saying, struct wire_peer *peer);

// Frees the posts that were not said.
void hub_free_posts(struct hub *hub);

#endif
