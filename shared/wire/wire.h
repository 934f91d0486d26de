// Conversations between the processes of a run, over a transport (transport.h): one server socket that clients connect
// to, and any number of links to other processes' server sockets. Openings, refusals, heartbeats, dead peers and
// messages that break the protocol are handled here; the messages in between are the caller's.
//
// A wire and its peers belong to one thread. Nothing here waits except wire_poll.
#pragma once

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/wire/message.h"
#include "shared/wire/node_config.h"
#include "shared/wire/transport.h"

struct wire;

// Who this process is; the strings must outlive the wire.
struct wire_self {
    // A fingerprint of the pipeline: clients with another one are refused. Words between spaces: a hash of its form,
    // then NAME=HASH of each stage's settings; for the purpose "watch" only the first word is compared.
    const char *run;
    const char *name;
    int replica;
    const char *machine;
    // Who runs where: only these processes are admitted as clients. NULL: any of the run.
    const struct node_config *config;
};

// The other end of a conversation. Only the wire changes it, except for `tag`.
struct wire_peer {
    bool open;           // there is a conversation
    bool client;         // it connected to us; false: we connected to it
    const char *name;    // the stage that it is a replica of, "" before the first opening
    const char *machine; // on which it runs, "" before the first opening and if there is only one machine
    const char *purpose; // what the conversation is for
    int replica;         // from 1; 0 before the first opening
    int64_t incarnation; // a random number that is another one for each process, also for one that was restarted; 0
                         // before the first opening
    void *tag;           // the caller's; NULL at first
};

enum wire_event_kind {
    WIRE_TIMEOUT,  // nothing happened in time
    WIRE_READABLE, // `fd` is readable
    WIRE_JOINED,   // a conversation has begun, perhaps anew: earlier requests to the peer will not be answered
    WIRE_GONE,    // it has ended: the peer left, died, was restarted, or its connection was lost; messages to it may be
                  // lost, too. A server will be JOINED when it is back, a client is another peer then
    WIRE_REFUSED, // a server does not admit us: message.reason. Only while no server has admitted us; later it is
                  // logged. The server is asked again
    WIRE_MESSAGE, // `message` came from the peer
};

// What happened. Valid until the next call of wire_poll.
struct wire_event {
    enum wire_event_kind kind;
    int fd;
    struct wire_peer *peer;
    struct wire_message message;
    bool orderly; // GONE: the peer sent BYE
};

// Opens a wire over a transport, which is the wire's from now on and is freed also when this fails; nothing is bound
// and there are no peers. Free it with wire_close.
void wire_open(struct wire **out, const struct wire_self *self, struct transport *transport);

// Sends BYE to all peers and waits up to half a second until the last messages are on their way. NULL is fine; sets
// *wire to NULL.
void wire_close(struct wire **wire);

// Milliseconds on the transport's clock, since an arbitrary moment. No one can set this clock.
int64_t wire_now_ms(const struct wire *wire);

// Binds the server socket to one more endpoint ("ipc://...", "tcp://..."). UNAVAILABLE when it is taken.
status wire_bind(struct wire *wire, const char *endpoint);

// Connects to a server, whether it is there already or comes later. `key` is its public key, NULL without security.
// *out (may be NULL) is the server, owned by the wire. USAGE when the key is missing or wrong, UNAVAILABLE when the
// socket fails.
status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out);

// Makes wire_poll report READABLE when the descriptor is.
void wire_add_fd(struct wire *wire, int fd);

// Waits up to timeout_ms for the next event; TIMEOUT may also come earlier. UNAVAILABLE when the sockets fail.
status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event);

// Ends the conversation with a peer whose message was wrong: the reason is sent to it and logged (at most once a
// minute), and GONE is the next event about it. It may open another conversation. UNAVAILABLE when the sockets fail.
status wire_reject(struct wire *wire, struct wire_peer *peer, const char *reason);

// Sends a message to a peer. *gone (may be NULL) tells that the peer is not there and nothing was sent. UNAVAILABLE
// when the sockets fail.
status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone);

// Returns the first open peer with that purpose among our clients, or among the servers that we connected to. NULL:
// none.
struct wire_peer *wire_first_peer(struct wire *wire, const char *purpose, bool clients);

// Returns the next open peer of the same purpose and role. NULL: no more. Peers are valid until the next wire_poll.
struct wire_peer *wire_next_peer(struct wire_peer *peer);

// Checks a HELLO: a server admits clients of the same protocol and the same run that run where the run's configuration
// says, with the key of that machine. `key` is the client's public key, NULL without security. DATAERR if the client is
// to be refused.
status wire_admits(const struct wire_self *self, const struct wire_message *hello, const char *key);
