// The peers of a wire and what is sent to them; for the files of the wire only, which share these structs.
//
// A client is known by its connection: one that connects anew is a new peer, and takes the place of the old one. A
// server is known by the link to it.
#ifndef SHARED_WIRE_WIRE_PEERS_H
#define SHARED_WIRE_WIRE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/wire/log_limit.h"
#include "shared/wire/transport.h"
#include "shared/wire/wire.h"

struct wire_peer {
    struct wire_peer *next;
    char *name, *machine, *purpose;
    int replica;
    int64_t life;
    bool server; // we connected to it
    bool open;
    bool greeted;  // a client that has not answered WELCOME yet
    bool joining;  // a client that has: JOINED is to be reported
    bool lost;     // was open: GONE is to be reported
    bool replaced; // lost: by a client with another life
    bool refused;  // a server: ignored until its link is renewed
    bool dead;     // to be freed
    int64_t received_at, sent_at;
    struct transport_client client; // the connection of a client
    struct transport_link *link;    // to a server, NULL if it could not be opened
    char *endpoint, *key;           // of a server
    int64_t renewed_at;             // when the link was opened
    void *tag;
};

struct wire {
    struct wire_self self;
    struct transport *transport;
    struct wire_peer *peers;
    int64_t life;
    bool admitted;      // by some server
    bool pending;       // some peer is joining or lost
    int64_t checked_at; // when heartbeats and silence were last checked
    int64_t looked_at;  // the last time that this process is known to have run
    struct arena arena; // of the last message
    struct buf head;    // of a message that is sent
    struct log_limit log_limit;
};

// *string = a copy of `text`; the one before is freed.
void wire_set_string(char **string, const char *text);

// Adds a peer to the end of the list, not open yet.
void wire_peer_new(struct wire *wire, const char *name, const char *machine, const char *purpose,
                   struct wire_peer **out);

// Closes the link of a peer that is not in the list any more, and frees it.
void wire_peer_free(struct wire *wire, struct wire_peer *peer);

// Returns the client of this connection; NULL: none.
struct wire_peer *wire_find_client(const struct wire *wire, const struct transport_client *client);

// Makes wire_poll report GONE for an open peer.
void wire_lose(struct wire *wire, struct wire_peer *peer);

// Sends over a link or, if that is NULL, to a client. *gone: there is no connection, and nothing was sent. UNAVAILABLE
// when the sockets fail.
status wire_send_frames(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                        const struct wire_message *message, bool *gone);

// Sends REFUSED, as wire_send_frames does; nothing when there is no connection.
status wire_refuse(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                   const char *reason);

#endif
