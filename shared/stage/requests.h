// Requests of other threads to the replicas of a stage (optim's weights, clips of frames), each of which waits for its
// answer. The caller locks.
#ifndef SHARED_STAGE_REQUESTS_H
#define SHARED_STAGE_REQUESTS_H

#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

enum request_state { REQUEST_NEW, REQUEST_SENT, REQUEST_DONE };

// A request; on the stack of the thread that waits for it.
struct request {
    struct request *next;
    const char *stage, *purpose;
    const struct wire_message *message;
    struct wire_message *reply; // its strings are in `arena`; of kind ABSENT: no replica has the answer
    struct arena *arena;
    struct buf *bulk;       // the reply's bulk is appended
    struct wire_peer *peer; // SENT: to whom
    int asked;              // replicas that answered ABSENT
    enum request_state state;
};

// A zeroed struct is empty.
enum { REQUEST_PURPOSES = 2 };
struct requests {
    struct request *first;
    const char *connected[REQUEST_PURPOSES]; // the purposes for which there are connections
};

// Connects to every replica of a stage for a purpose, a literal, unless that was done before. *exists (may be NULL):
// the run has such a stage. USAGE and UNAVAILABLE as wire_connect.
status requests_connect(struct requests *requests, struct wire *wire, const struct node_config *config,
                        const char *stage, const char *purpose, bool *exists);

// Adds a request that is in state NEW.
void requests_add(struct requests *requests, struct request *request);

// Removes a request, answered or not.
void requests_remove(struct requests *requests, struct request *request);

// Sends each new request to the first replica of its stage that is there and was not asked yet, and connects to the
// stage first if need be. One without such a replica is DONE with ABSENT when there is no such stage or all that are
// there were asked. *done: a request is DONE. UNAVAILABLE when the sockets fail.
status requests_send(struct requests *requests, struct wire *wire, const struct node_config *config, bool *done);

// Handles an answer. *done: a request is DONE. UNAVAILABLE when memory is short.
status requests_on_answer(struct requests *requests, const struct wire_peer *peer, const struct wire_message *message,
                          bool *done);

// A peer has joined or gone: what it was asked for before will not come, and is asked for again.
void requests_forget(struct requests *requests, const struct wire_peer *peer);

#endif
