// Conversations between the processes of a run: one desk to be visited, any number of visits to others' endpoints.
// Openings, refusals, heartbeats and dead peers are dealt with here; what is said in between is the caller's.
//
// A wire and its peers belong to one thread. Nothing here waits except wire_poll.
#ifndef SHARED_WIRE_WIRE_H
#define SHARED_WIRE_WIRE_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/wire/message.h"
#include "shared/wire/security.h"

struct wire;
struct wire_peer;

// Who one is; the texts must outlive the wire.
struct wire_self {
    const char *run; // fingerprint of the pipeline: others are refused
    const char *name;
    int replica;
    const char *machine;
    const struct wire_security *security; // NULL: none
};

enum wire_event_kind {
    WIRE_TIMEOUT,  // the time is up
    WIRE_READABLE, // `fd` is readable
    WIRE_JOINED,   // the peer is there (once more, perhaps): nothing that was said to it before holds
    WIRE_GONE,     // the peer left, died or was started again; a client's will be JOINED when it is back
    WIRE_REFUSED,  // the server does not want us: message.reason
    WIRE_MESSAGE,  // `message` from the peer
};

// What happened. Valid until the next call of wire_poll.
struct wire_event {
    enum wire_event_kind kind;
    int fd;
    struct wire_peer *peer;
    struct wire_message message;
    bool orderly; // GONE: it said goodbye
};

// Opens a wire without desk and peers. Free it with wire_close.
status wire_open(struct wire **out, const struct wire_self *self);

// Says goodbye to all, waits up to half a second until what was said last is on its way. NULL is fine.
void wire_close(struct wire **wire);

// Binds the desk to one endpoint more ("ipc://...", "tcp://..."). UNAVAILABLE when it is taken.
status wire_bind(struct wire *wire, const char *endpoint);

// Begins a visit, which opens whenever the other one is there. `key`: the server's public key, NULL without security.
status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out);

// Has wire_poll say WOKEN when the descriptor is readable.
status wire_add_fd(struct wire *wire, int fd);

// Waits up to timeout_ms (-1: for ever) for the next event. UNAVAILABLE when the sockets fail.
status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event);

// Says something to a peer. *gone (may be NULL) tells that it is not there: nothing was said. UNAVAILABLE when the
// sockets fail.
status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone);

// Whether a conversation with the peer is open.
bool wire_peer_open(const struct wire_peer *peer);

// The stage that the peer is a replica of; "" before the first opening.
const char *wire_peer_name(const struct wire_peer *peer);

// The machine on which the peer runs.
const char *wire_peer_machine(const struct wire_peer *peer);

// Which replica it is, from 1.
int wire_peer_replica(const struct wire_peer *peer);

// What the conversation is for.
const char *wire_peer_purpose(const struct wire_peer *peer);

// Whether the peer visits us, rather than we it.
bool wire_peer_is_client(const struct wire_peer *peer);

// Something of the caller's that goes with the peer, NULL at first.
void **wire_peer_tag(struct wire_peer *peer);

// Calls visit for every open peer with that purpose, visitors or visited.
void wire_each(struct wire *wire, const char *purpose, bool visitors,
               void (*visit)(void *context, struct wire_peer *peer), void *context);

#endif
