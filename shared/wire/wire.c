// Peers and their conversations. A client is known by its connection: one that connects anew is a new peer, and takes
// the place of the old one. A server is known by the link to it.
//
// A client says HELLO when a server does not know it. A server learns of each new connection from the transport, and
// says so with UNKNOWN_PEER; so a conversation opens at once when a server was started or a connection was lost. Only
// a client that has answered WELCOME takes the place of an older one: a HELLO may arrive late, over a connection that
// the client has given up.
#include "shared/wire/wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/admission.h"
#include "shared/wire/log_limit.h"

enum {
    HEARTBEAT_MS = 1000, // silence after which one side sends a heartbeat
    DEAD_MS = 10000,     // silence after which the other side is dead
    CHECK_MS = 50,       // how often peers are checked for both, and links for their connections
    RENEW_MS = 3000,     // after which a link without a conversation begins anew
    PAUSE_MS = 3000,     // between two looks at the peers: this process was stopped
};
static_assert(DEAD_MS > 2 * HEARTBEAT_MS, "one heartbeat may come late");
static_assert(CHECK_MS < HEARTBEAT_MS && HEARTBEAT_MS < PAUSE_MS, "heartbeats are sent in time");
static_assert(WIRE_TIMEOUT == 0, "a zeroed event is one that has not happened");

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

int64_t wire_now_ms(const struct wire *wire) {
    return wire->transport->calls->now_ms(wire->transport);
}

// ---- peers ----

static void wire_peer_free(struct wire *wire, struct wire_peer *peer) {
    if (peer->link) wire->transport->calls->disconnect(wire->transport, peer->link);
    free(peer->name);
    free(peer->machine);
    free(peer->purpose);
    free(peer->endpoint);
    free(peer->key);
    free(peer);
}

static status wire_set_string(char **string, const char *text) {
    free(*string);
    *string = strdup(text);
    return *string ? OK : fail_oom();
}

// Adds a peer to the end of the list, not open yet.
static status wire_peer_new(struct wire *wire, const char *name, const char *machine, const char *purpose,
                            struct wire_peer **out) {
    struct wire_peer *peer;
    TRY(NEW(&peer, 1));
    status result = wire_set_string(&peer->name, name);
    if (result == OK) result = wire_set_string(&peer->machine, machine);
    if (result == OK) result = wire_set_string(&peer->purpose, purpose);
    if (result != OK) {
        wire_peer_free(wire, peer);
        return result;
    }
    struct wire_peer **last = &wire->peers;
    while (*last) last = &(*last)->next;
    *last = peer;
    *out = peer;
    return OK;
}

static struct wire_peer *wire_find_client(const struct wire *wire, const struct transport_client *client) {
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (!peer->server && !peer->dead && peer->client.size == client->size &&
            !memcmp(peer->client.id, client->id, client->size))
            return peer;
    return NULL;
}

// From `peer` on, the first open one with that purpose and role.
static struct wire_peer *wire_find_open(struct wire_peer *peer, const char *purpose, bool clients) {
    while (peer && !(wire_peer_open(peer) && wire_peer_is_client(peer) == clients && !strcmp(peer->purpose, purpose)))
        peer = peer->next;
    return peer;
}

struct wire_peer *wire_first_peer(struct wire *wire, const char *purpose, bool clients) {
    return wire_find_open(wire->peers, purpose, clients);
}

struct wire_peer *wire_next_peer(struct wire_peer *peer) {
    return wire_find_open(peer->next, peer->purpose, wire_peer_is_client(peer));
}

bool wire_peer_open(const struct wire_peer *peer) {
    return peer->open && !peer->lost && !peer->dead;
}

const char *wire_peer_name(const struct wire_peer *peer) {
    return peer->name;
}

const char *wire_peer_machine(const struct wire_peer *peer) {
    return peer->machine;
}

int wire_peer_replica(const struct wire_peer *peer) {
    return peer->replica;
}

int64_t wire_peer_life(const struct wire_peer *peer) {
    return peer->life;
}

const char *wire_peer_purpose(const struct wire_peer *peer) {
    return peer->purpose;
}

bool wire_peer_is_client(const struct wire_peer *peer) {
    return !peer->server;
}

void **wire_peer_tag(struct wire_peer *peer) {
    return &peer->tag;
}

// ---- sending ----

// Sends over a link or, if that is NULL, to a client.
static status wire_send_frames(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                               const struct wire_message *message, bool *gone) {
    buf_clear(&wire->head);
    TRY(message_encode(message, &wire->head));
    const struct transport_frames frames = {.count = message_has_bulk(message->kind) ? 2 : 1,
                                            .head = wire->head.data,
                                            .head_size = wire->head.size,
                                            .bulk = message->bulk,
                                            .bulk_size = message->bulk_size};
    return wire->transport->calls->send(wire->transport, link, client, &frames, gone);
}

// GONE will be reported in the next wire_poll.
static void wire_lose(struct wire *wire, struct wire_peer *peer) {
    assert(peer->open && !peer->lost);
    peer->lost = wire->pending = true;
}

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    bool unsent = true;
    if (wire_peer_open(peer)) {
        TRY(wire_send_frames(wire, peer->link, &peer->client, message, &unsent));
        if (unsent && !peer->server) wire_lose(wire, peer);
        // A server's last messages may be waiting: the check leaves them time.
        if (unsent && peer->server) wire->checked_at = INT64_MIN / 2;
        peer->sent_at = wire_now_ms(wire);
    }
    if (gone) *gone = unsent;
    return OK;
}

static status wire_send_hello(struct wire *wire, struct wire_peer *peer) {
    const struct wire_message hello = {.kind = MESSAGE_HELLO,
                                       .protocol = WIRE_PROTOCOL,
                                       .schema = WIRE_SCHEMA,
                                       .run = wire->self.run,
                                       .name = wire->self.name,
                                       .replica = wire->self.replica,
                                       .machine = wire->self.machine,
                                       .purpose = peer->purpose,
                                       .life = wire->life};
    bool gone; // the server says UNKNOWN_PEER again when there is another connection
    return wire_send_frames(wire, peer->link, NULL, &hello, &gone);
}

static status wire_refuse(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                          const char *reason) {
    const struct wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    bool gone;
    return wire_send_frames(wire, link, client, &refused, &gone);
}

status wire_reject(struct wire *wire, struct wire_peer *peer, const char *reason) {
    char text[ADMISSION_REASON_MAX];
    if (peer->lost || peer->refused || peer->dead || (peer->server && !peer->link)) return OK;
    peer->dead = peer->greeted;
    snprintf(text, sizeof text, "%s", reason); // fits a message
    log_limited(&wire->log_limit, wire_now_ms(wire), "refused a message of %s-%d: %s",
                *peer->name ? peer->name : "a server", peer->replica, text);
    peer->refused = peer->server;
    peer->renewed_at = wire_now_ms(wire);
    if (peer->open) wire_lose(wire, peer);
    return wire_refuse(wire, peer->link, &peer->client, text);
}

// ---- receiving ----

static void wire_set_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer) {
    assert(event->kind == WIRE_TIMEOUT);
    event->kind = kind;
    event->peer = peer;
}

// Admits a client, or refuses it.
static status wire_on_hello(struct wire *wire, struct wire_peer *peer, const struct transport_event *from,
                            const struct wire_message *hello) {
    char reason[ADMISSION_REASON_MAX];
    const struct wire_message welcome = {.kind = MESSAGE_WELCOME,
                                         .name = wire->self.name,
                                         .replica = wire->self.replica,
                                         .machine = wire->self.machine,
                                         .life = wire->life};
    bool gone;
    if (!admission_check(&wire->self, hello, from->key, &reason)) {
        log_limited(&wire->log_limit, wire_now_ms(wire), "refused a peer: %s", reason);
        return wire_refuse(wire, NULL, &from->client, reason);
    }
    if (!peer) {
        TRY(wire_peer_new(wire, hello->name, hello->machine, hello->purpose, &peer));
        peer->client = from->client;
        peer->replica = (int)hello->replica;
        peer->life = hello->life;
        peer->greeted = true;
        peer->received_at = wire_now_ms(wire);
    }
    return wire_send_frames(wire, NULL, &from->client, &welcome, &gone);
}

// A client has answered WELCOME. It takes the place of the same client's earlier peers.
static void wire_on_answer(struct wire *wire, struct wire_peer *peer) {
    peer->greeted = false;
    peer->joining = wire->pending = true;
    for (struct wire_peer *old = wire->peers; old != peer; old = old->next) {
        if (old->server || old->dead || old->replica != peer->replica || strcmp(old->name, peer->name) != 0 ||
            strcmp(old->machine, peer->machine) != 0 || strcmp(old->purpose, peer->purpose) != 0)
            continue;
        old->replaced = old->life != peer->life;
        if (old->open) wire_lose(wire, old);
        if (!old->open) old->dead = true;
    }
}

static status wire_on_client_message(struct wire *wire, const struct transport_event *from, struct wire_event *event) {
    const struct wire_message *message = &event->message, unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    struct wire_peer *peer = wire_find_client(wire, &from->client);
    bool gone;
    if (message->kind == MESSAGE_HELLO) return wire_on_hello(wire, peer, from, message);
    if (!peer) return wire_send_frames(wire, NULL, &from->client, &unknown, &gone);
    assert(!peer->lost && !peer->joining);
    peer->received_at = wire_now_ms(wire);
    if (peer->greeted && message->kind != MESSAGE_HEARTBEAT) {
        peer->dead = true;
        return wire_send_frames(wire, NULL, &from->client, &unknown, &gone);
    }
    switch (message->kind) {
    case MESSAGE_HEARTBEAT:
        if (peer->greeted) wire_on_answer(wire, peer);
        return OK;
    case MESSAGE_REFUSED:
        log_limited(&wire->log_limit, wire_now_ms(wire), "%s-%d refused a message: %s", peer->name, peer->replica,
                    message->reason);
        wire_lose(wire, peer);
        return OK;
    case MESSAGE_BYE:
        event->orderly = peer->dead = true;
        wire_set_event(event, WIRE_GONE, peer);
        return OK;
    default:
        wire_set_event(event, WIRE_MESSAGE, peer);
        return OK;
    }
}

static status wire_on_server_message(struct wire *wire, struct wire_peer *peer, struct wire_event *event) {
    const struct wire_message *message = &event->message, heartbeat = {.kind = MESSAGE_HEARTBEAT};
    const bool was_open = peer->open;
    assert(!peer->lost);
    if (peer->refused) return OK;
    peer->received_at = wire_now_ms(wire);
    switch (message->kind) {
    case MESSAGE_WELCOME:
        if (was_open) return OK;
        TRY(wire_set_string(&peer->name, message->name));
        TRY(wire_set_string(&peer->machine, message->machine));
        peer->replica = (int)message->replica;
        event->restarted = peer->life && peer->life != message->life;
        peer->life = message->life;
        peer->open = wire->admitted = true;
        wire_set_event(event, WIRE_JOINED, peer);
        return wire_send(wire, peer, &heartbeat, NULL);
    case MESSAGE_REFUSED:
        peer->open = false;
        peer->refused = true;
        peer->renewed_at = wire_now_ms(wire);
        if (was_open || wire->admitted)
            log_limited(&wire->log_limit, wire_now_ms(wire), "%s refused us: %s",
                        *peer->name ? peer->name : peer->endpoint, message->reason);
        if (was_open || !wire->admitted) wire_set_event(event, was_open ? WIRE_GONE : WIRE_REFUSED, peer);
        return OK;
    case MESSAGE_UNKNOWN_PEER:
    case MESSAGE_BYE:
        peer->open = false;
        peer->renewed_at = wire_now_ms(wire);
        event->orderly = message->kind == MESSAGE_BYE;
        if (was_open) wire_set_event(event, WIRE_GONE, peer);
        return message->kind == MESSAGE_BYE ? OK : wire_send_hello(wire, peer);
    case MESSAGE_HEARTBEAT:
        return OK;
    default:
        if (was_open) wire_set_event(event, WIRE_MESSAGE, peer);
        return OK;
    }
}

// Decodes a message of the transport and handles it. A malformed message costs its sender the conversation.
static status wire_on_transport_message(struct wire *wire, const struct transport_event *from,
                                        struct wire_event *event) {
    struct wire_peer *server = from->owner;
    const struct transport_frames *frames = &from->frames;
    struct wire_message *message = &event->message;
    status result = message_decode(message, &wire->arena, frames->head, frames->head_size);
    const int expected = message_has_bulk(message->kind) ? 2 : 1;
    if (result == OK && frames->count != expected)
        result = fail(DATAERR, "%s: %s", message_name(message->kind),
                      frames->count > expected ? "one frame too many" : "no bulk");
    if (result == OK && !message_comes_from(message->kind, !server))
        result = fail(DATAERR, "%s does not come from a %s", message_name(message->kind), server ? "server" : "client");
    if (result == DATAERR) {
        struct wire_peer *sender = server ? server : wire_find_client(wire, &from->client);
        if (sender) return wire_reject(wire, sender, fail_text());
        log_limited(&wire->log_limit, wire_now_ms(wire), "refused a message of an unknown peer: %s", fail_text());
        return wire_refuse(wire, NULL, &from->client, fail_text());
    }
    TRY(result);
    message->bulk = frames->bulk;
    message->bulk_size = frames->bulk_size;
    return server ? wire_on_server_message(wire, server, event) : wire_on_client_message(wire, from, event);
}

static status wire_on_transport_event(struct wire *wire, const struct transport_event *from, struct wire_event *event) {
    const struct wire_message unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    bool gone;
    switch (from->kind) {
    case TRANSPORT_READABLE:
        event->fd = from->fd;
        wire_set_event(event, WIRE_READABLE, NULL);
        return OK;
    case TRANSPORT_CONNECTED:
        return wire_send_frames(wire, NULL, &from->client, &unknown, &gone);
    case TRANSPORT_MESSAGE:
        return wire_on_transport_message(wire, from, event);
    default:
        return OK;
    }
}

// ---- polling ----

static void wire_free_dead_peers(struct wire *wire) {
    for (struct wire_peer **at = &wire->peers; *at;) {
        struct wire_peer *peer = *at;
        if (!peer->dead) {
            at = &peer->next;
            continue;
        }
        *at = peer->next;
        wire_peer_free(wire, peer);
    }
}

// Reports the next peer that was lost, and if there is none the next one that joins: so the client that another one
// replaces is GONE before that is JOINED. No message is received while there are such peers.
static status wire_report_pending(struct wire *wire, struct wire_event *event) {
    struct wire_peer *found = NULL;
    for (struct wire_peer *peer = wire->peers; peer && !(found && found->lost); peer = peer->next)
        if (!peer->dead && (peer->lost || (peer->joining && !found))) found = peer;
    wire->pending = found != NULL;
    if (!found) return OK;
    if (found->lost) {
        found->open = found->lost = false;
        found->dead = !found->server;
        event->restarted = found->replaced;
        wire_set_event(event, WIRE_GONE, found);
        return OK;
    }
    found->joining = false;
    found->open = true;
    found->sent_at = wire_now_ms(wire);
    wire_set_event(event, WIRE_JOINED, found);
    return OK;
}

// Opens the link to a server anew. If that fails, it is tried again later.
static void wire_renew(struct wire *wire, struct wire_peer *peer) {
    const struct transport_calls *calls = wire->transport->calls;
    if (peer->link) calls->disconnect(wire->transport, peer->link);
    peer->link = NULL;
    peer->refused = false;
    peer->renewed_at = wire_now_ms(wire);
    if (calls->connect(wire->transport, peer->endpoint, peer->key, peer, &peer->link) != OK)
        log_limited(&wire->log_limit, peer->renewed_at, "%s", fail_text());
}

// Notices dead peers and lost connections, and sends the heartbeats that are due.
static status wire_check_peers(struct wire *wire, int64_t now) {
    const struct wire_message heartbeat = {.kind = MESSAGE_HEARTBEAT};
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) {
        if (peer->dead || peer->lost || peer->joining) continue;
        if (peer->greeted && now - peer->received_at > DEAD_MS) peer->dead = true;
        const bool connected =
            !peer->server || (peer->link && wire->transport->calls->connected(wire->transport, peer->link));
        if (peer->open && (!connected || now - peer->received_at > DEAD_MS)) {
            wire_lose(wire, peer);
            // The transport connects anew by itself, but not over a connection that is stuck.
            peer->renewed_at = connected ? now - DEAD_MS : now;
        } else if (peer->open && now - peer->sent_at >= HEARTBEAT_MS) {
            TRY(wire_send(wire, peer, &heartbeat, NULL));
        } else if (!peer->open && peer->server) {
            // An opening that is under way may take as long as any answer.
            const int64_t patience = connected && !peer->refused ? DEAD_MS : RENEW_MS;
            if (now - peer->renewed_at >= patience) wire_renew(wire, peer);
        }
    }
    wire->checked_at = now;
    return OK;
}

// Returns the time. After a pause of this process its peers' silence counts from now: what they sent is still to be
// read.
static int64_t wire_look(struct wire *wire) {
    const int64_t now = wire_now_ms(wire), pause = now - wire->looked_at;
    for (struct wire_peer *peer = pause > PAUSE_MS ? wire->peers : NULL; peer; peer = peer->next)
        peer->received_at += pause;
    wire->looked_at = now;
    return now;
}

status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event) {
    const int64_t until = wire_look(wire) + timeout_ms;
    assert(timeout_ms >= 0);
    *event = (struct wire_event){0};
    arena_release(&wire->arena);
    wire_free_dead_peers(wire);
    for (;;) {
        const int64_t now = wire_look(wire), check = wire->checked_at + CHECK_MS;
        if (now >= check) TRY(wire_check_peers(wire, now));
        if (wire->pending) TRY(wire_report_pending(wire, event));
        if (event->kind != WIRE_TIMEOUT) return OK;
        const int64_t wake = check > now && check < until ? check : until;
        struct transport_event from;
        TRY(wire->transport->calls->receive(wire->transport, wake > now ? (int)(wake - now) : 0, &from));
        if (from.kind == TRANSPORT_NOTHING) return OK;
        TRY(wire_on_transport_event(wire, &from, event));
        if (event->kind != WIRE_TIMEOUT || (now >= until && !wire->pending)) return OK;
    }
}

// ---- opening and closing ----

status wire_open(struct wire **out, const struct wire_self *self, struct transport *transport) {
    struct wire *wire;
    *out = NULL;
    if (NEW(&wire, 1) != OK) {
        transport->calls->free(transport);
        return fail_oom();
    }
    wire->self = *self;
    wire->transport = transport;
    wire->life = (int64_t)(transport->calls->random(transport) | 1); // never 0
    wire->looked_at = wire_now_ms(wire);
    *out = wire;
    return OK;
}

status wire_bind(struct wire *wire, const char *endpoint) {
    return wire->transport->calls->bind(wire->transport, endpoint);
}

status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out) {
    struct wire_peer *peer;
    if (out) *out = NULL;
    TRY(wire_peer_new(wire, "", "", purpose, &peer));
    peer->server = true;
    peer->renewed_at = wire_now_ms(wire);
    status result = wire_set_string(&peer->endpoint, endpoint);
    if (result == OK && key) result = wire_set_string(&peer->key, key);
    if (result == OK) result = wire->transport->calls->connect(wire->transport, endpoint, key, peer, &peer->link);
    if (result != OK) peer->dead = true;
    if (result == OK && out) *out = peer;
    return result;
}

status wire_add_fd(struct wire *wire, int fd) {
    return wire->transport->calls->add_fd(wire->transport, fd);
}

void wire_close(struct wire **pointer) {
    struct wire *wire = *pointer;
    if (!wire) return;
    const struct wire_message bye = {.kind = MESSAGE_BYE};
    bool gone; // a peer that cannot be reached any more needs no goodbye
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (peer->open || peer->greeted || peer->joining)
            (void)wire_send_frames(wire, peer->link, &peer->client, &bye, &gone);
    while (wire->peers) {
        struct wire_peer *next = wire->peers->next;
        wire_peer_free(wire, wire->peers);
        wire->peers = next;
    }
    wire->transport->calls->free(wire->transport);
    arena_release(&wire->arena);
    buf_release(&wire->head);
    free(wire);
    *pointer = NULL;
}
