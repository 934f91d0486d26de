// Conversations over a transport. A client is known by its connection: one that connects anew is a new peer, and takes
// the place of the old one. A server is known by the link to it.
//
// A client says HELLO when a server does not know it. A server learns of each new connection from the transport, and
// says so with UNKNOWN_PEER; so a conversation opens at once when a server was started or a connection was lost. Only
// a client that has answered WELCOME takes the place of an older one: a HELLO may arrive late, over a connection that
// the client has given up.
#include "shared/wire/wire.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"

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

// A peer and what only the wire knows of it.
struct session {
    struct wire_peer peer;
    struct session *next;
    bool greeted; // a client that has not answered WELCOME yet
    bool joining; // a client that has: JOINED is to be reported
    bool lost;    // was open: GONE is to be reported
    bool refused; // a server: ignored until its link is renewed
    bool dead;    // to be freed
    bool cut;     // a client: the last heartbeat found no connection; what it sent before may be waiting
    int64_t received_at, sent_at;
    struct transport_client client; // the connection of a client
    struct transport_link *link;    // to a server, NULL if it could not be opened
    const char *endpoint, *key;     // of a server
    int64_t renewed_at;             // when the link was opened
    struct arena strings;
};

struct wire {
    struct wire_self self;
    struct transport *transport;
    struct session *sessions;
    int64_t incarnation;
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

// A peer is the first member of its session.
static struct session *session_of(struct wire_peer *peer) {
    return (struct session *)peer;
}

// Returns `old` if it is the same text, otherwise a copy of `text` that lives as long as the session.
static const char *session_string(struct session *session, const char *old, const char *text) {
    return old && !strcmp(old, text) ? old : arena_strndup(&session->strings, text, strlen(text));
}

// Adds a session to the end of the list, not open yet.
static struct session *session_new(struct wire *wire, const char *name, const char *machine, const char *purpose) {
    struct session *session, **last = &wire->sessions;
    NEW(&session, 1);
    session->peer.name = session_string(session, NULL, name);
    session->peer.machine = session_string(session, NULL, machine);
    session->peer.purpose = session_string(session, NULL, purpose);
    while (*last) last = &(*last)->next;
    *last = session;
    return session;
}

// Closes the link of a session that is not in the list any more, and frees it.
static void session_free(struct wire *wire, struct session *session) {
    if (session->link) wire->transport->calls->disconnect(wire->transport, session->link);
    arena_release(&session->strings);
    free(session);
}

// Returns the client of this connection; NULL: none.
static struct session *session_find_client(const struct wire *wire, const struct transport_client *client) {
    struct session *session = wire->sessions;
    while (session && (!session->peer.client || session->dead || session->client.size != client->size ||
                       memcmp(session->client.id, client->id, client->size) != 0))
        session = session->next;
    return session;
}

// Makes wire_poll report GONE for an open peer.
static void session_lose(struct wire *wire, struct session *session) {
    assert(session->peer.open && !session->lost);
    session->peer.open = false;
    session->lost = wire->pending = true;
}

// From `session` on, the first open peer with that purpose and role.
static struct wire_peer *session_find_open(struct session *session, const char *purpose, bool clients) {
    while (session &&
           !(session->peer.open && session->peer.client == clients && !strcmp(session->peer.purpose, purpose)))
        session = session->next;
    return session ? &session->peer : NULL;
}

struct wire_peer *wire_first_peer(struct wire *wire, const char *purpose, bool clients) {
    return session_find_open(wire->sessions, purpose, clients);
}

struct wire_peer *wire_next_peer(struct wire_peer *peer) {
    return session_find_open(session_of(peer)->next, peer->purpose, peer->client);
}

// ---- sending ----

// Sends over a link or, if that is NULL, to a client. *gone (may be NULL): there is no connection, and nothing was
// sent. UNAVAILABLE when the sockets fail.
static status wire_send_frames(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                               const struct wire_message *message, bool *gone) {
    bool unsent;
    buf_clear(&wire->head);
    TRY(message_encode(message, &wire->head));
    const struct transport_frames frames = {.count = message_has_bulk(message->kind) ? 2 : 1,
                                            .head = wire->head.data,
                                            .head_size = wire->head.size,
                                            .bulk = message->bulk,
                                            .bulk_size = message->bulk_size};
    return wire->transport->calls->send(wire->transport, link, client, &frames, gone ? gone : &unsent);
}

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    struct session *session = session_of(peer);
    bool unsent = true;
    if (peer->open) {
        TRY(wire_send_frames(wire, session->link, &session->client, message, &unsent));
        if (unsent && peer->client) session_lose(wire, session);
        // A server's last messages may be waiting: the check leaves them time.
        if (unsent && !peer->client) wire->checked_at = INT64_MIN / 2;
        session->sent_at = wire_now_ms(wire);
    }
    if (gone) *gone = unsent;
    return OK;
}

// Sends REFUSED, as wire_send_frames does; nothing when there is no connection.
static status wire_refuse(struct wire *wire, struct transport_link *link, const struct transport_client *client,
                          const char *reason) {
    const struct wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    return wire_send_frames(wire, link, client, &refused, NULL);
}

status wire_reject(struct wire *wire, struct wire_peer *peer, const char *reason) {
    struct session *session = session_of(peer);
    char text[1024]; // of a size that fits a message
    if (session->lost || session->refused || session->dead || (!peer->client && !session->link)) return OK;
    session->dead = session->greeted;
    snprintf(text, sizeof text, "%s", reason);
    log_limited(&wire->log_limit, wire_now_ms(wire), "refused a message of %s-%d: %s",
                *peer->name ? peer->name : "a server", peer->replica, text);
    session->refused = !peer->client;
    session->renewed_at = wire_now_ms(wire);
    if (peer->open) session_lose(wire, session);
    return wire_refuse(wire, session->link, &session->client, text);
}

// ---- admission ----

status wire_admits(const struct wire_self *self, const struct wire_message *hello, const char *key) {
    if (hello->replica < 1 || hello->replica > INT_MAX)
        return fail(DATAERR, "%.100s says that it is replica %lld", hello->name, (long long)hello->replica);
    const int replica = (int)hello->replica;
    if (hello->protocol != WIRE_PROTOCOL)
        return fail(DATAERR, "%.100s-%d uses protocol %lld, but %s-%d uses protocol %d", hello->name, replica,
                    (long long)hello->protocol, self->name, self->replica, WIRE_PROTOCOL);
    if (hello->schema != WIRE_SCHEMA)
        return fail(DATAERR, "%.100s-%d has version %lld of the group, but %s-%d has version %d", hello->name, replica,
                    (long long)hello->schema, self->name, self->replica, WIRE_SCHEMA);
    size_t word = 0, same = 0; // where the word begins in which the client's fingerprint and ours differ
    for (; self->run[same] && self->run[same] == hello->run[same]; same++)
        if (self->run[same] == ' ') word = same + 1;
    const char *difference = self->run + word, *equals = strchr(difference, '=');
    if (self->run[same] != hello->run[same] && !(word && !strcmp(hello->purpose, "watch"))) {
        if (word && equals)
            return fail(DATAERR, "%.*s's settings differ between %.100s-%d%s%.100s and %s-%d%s%s",
                        (int)(equals - difference), difference, hello->name, replica, *hello->machine ? " on " : "",
                        hello->machine, self->name, self->replica, *self->machine ? " on " : "", self->machine);
        return fail(DATAERR,
                    "%.100s-%d%s%.100s belongs to another run than %s-%d%s%s: their pipeline files differ, in stages, "
                    "machines or ranks",
                    hello->name, replica, *hello->machine ? " on " : "", hello->machine, self->name, self->replica,
                    *self->machine ? " on " : "", self->machine);
    }
    // It runs where it says, has that machine's key, and may have this purpose. Programs that watch a run are no
    // processes of it; they run on one of its machines.
    const struct node_config *config = self->config;
    const char *mistake = NULL;
    bool runs = !config, has_key = !config;
    for (size_t i = 0; config && i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (strcmp(endpoint->machine, hello->machine) != 0) continue;
        if (strcmp(hello->purpose, "watch") != 0 &&
            (strcmp(endpoint->stage, hello->name) != 0 || endpoint->replica != replica))
            continue;
        runs = true;
        has_key |= !key || (endpoint->key && !strcmp(endpoint->key, key));
    }
    if (config && !strcmp(hello->purpose, "ledger") && strcmp(hello->name, config->last_stage) != 0)
        mistake = "only the last stage settles groups";
    if (!has_key) mistake = "its key is another machine's";
    if (!runs) mistake = "the run has no such process there";
    if (!mistake) return OK;
    return fail(DATAERR, "%.100s-%d%s%.100s: %s", hello->name, replica, *hello->machine ? " on " : "", hello->machine,
                mistake);
}

// ---- receiving ----

static void wire_set_event(struct wire_event *event, enum wire_event_kind kind, struct session *session) {
    assert(event->kind == WIRE_TIMEOUT);
    event->kind = kind;
    event->peer = &session->peer;
}

static status wire_on_client_message(struct wire *wire, const struct transport_event *from, struct wire_event *event) {
    const struct wire_message *message = &event->message, unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    struct session *session = session_find_client(wire, &from->client);
    if (message->kind == MESSAGE_HELLO) { // admits the client, or refuses it
        const struct wire_message welcome = {.kind = MESSAGE_WELCOME,
                                             .name = wire->self.name,
                                             .replica = wire->self.replica,
                                             .machine = wire->self.machine,
                                             .incarnation = wire->incarnation};
        if (wire_admits(&wire->self, message, from->key) != OK) {
            log_limited(&wire->log_limit, wire_now_ms(wire), "refused a peer: %s", fail_text());
            return wire_refuse(wire, NULL, &from->client, fail_text());
        }
        if (!session) {
            session = session_new(wire, message->name, message->machine, message->purpose);
            session->peer.client = true;
            session->peer.replica = (int)message->replica;
            session->peer.incarnation = message->incarnation;
            session->client = from->client;
            session->greeted = true;
            session->received_at = wire_now_ms(wire);
        }
        return wire_send_frames(wire, NULL, &from->client, &welcome, NULL);
    }
    if (!session) return wire_send_frames(wire, NULL, &from->client, &unknown, NULL);
    const struct wire_peer *peer = &session->peer;
    assert(!session->lost && !session->joining);
    session->received_at = wire_now_ms(wire);
    session->cut = false;
    if (session->greeted && message->kind != MESSAGE_HEARTBEAT) {
        session->dead = true;
        return wire_send_frames(wire, NULL, &from->client, &unknown, NULL);
    }
    switch (message->kind) {
    case MESSAGE_HEARTBEAT:
        if (!session->greeted) return OK;
        // It has answered WELCOME, and takes the place of the same client's earlier peers.
        session->greeted = false;
        session->joining = wire->pending = true;
        for (struct session *old = wire->sessions; old != session; old = old->next) {
            if (!old->peer.client || old->dead || old->peer.replica != peer->replica ||
                strcmp(old->peer.name, peer->name) != 0 || strcmp(old->peer.machine, peer->machine) != 0 ||
                strcmp(old->peer.purpose, peer->purpose) != 0)
                continue;
            old->dead = !old->peer.open;
            if (old->peer.open) session_lose(wire, old);
        }
        return OK;
    case MESSAGE_REFUSED:
        log_limited(&wire->log_limit, wire_now_ms(wire), "%s-%d refused a message: %s", peer->name, peer->replica,
                    message->reason);
        session_lose(wire, session);
        return OK;
    case MESSAGE_BYE:
        event->orderly = session->dead = true;
        session->peer.open = false;
        wire_set_event(event, WIRE_GONE, session);
        return OK;
    default:
        wire_set_event(event, WIRE_MESSAGE, session);
        return OK;
    }
}

static status wire_on_server_message(struct wire *wire, struct session *session, struct wire_event *event) {
    const struct wire_message *message = &event->message, heartbeat = {.kind = MESSAGE_HEARTBEAT};
    struct wire_peer *peer = &session->peer;
    const bool was_open = peer->open;
    assert(!session->lost);
    if (session->refused) return OK;
    session->received_at = wire_now_ms(wire);
    switch (message->kind) {
    case MESSAGE_WELCOME:
        if (was_open) return OK;
        peer->name = session_string(session, peer->name, message->name);
        peer->machine = session_string(session, peer->machine, message->machine);
        peer->replica = (int)message->replica;
        peer->incarnation = message->incarnation;
        peer->open = wire->admitted = true;
        wire_set_event(event, WIRE_JOINED, session);
        return wire_send(wire, peer, &heartbeat, NULL);
    case MESSAGE_REFUSED:
        peer->open = false;
        session->refused = true;
        session->renewed_at = wire_now_ms(wire);
        if (was_open || wire->admitted)
            log_limited(&wire->log_limit, wire_now_ms(wire), "%s refused us: %s",
                        *peer->name ? peer->name : session->endpoint, message->reason);
        if (was_open || !wire->admitted) wire_set_event(event, was_open ? WIRE_GONE : WIRE_REFUSED, session);
        return OK;
    case MESSAGE_UNKNOWN_PEER:
    case MESSAGE_BYE:
        peer->open = false;
        session->renewed_at = wire_now_ms(wire);
        event->orderly = message->kind == MESSAGE_BYE;
        if (was_open) wire_set_event(event, WIRE_GONE, session);
        if (message->kind == MESSAGE_BYE) return OK;
        const struct wire_message hello = {.kind = MESSAGE_HELLO,
                                           .protocol = WIRE_PROTOCOL,
                                           .schema = WIRE_SCHEMA,
                                           .run = wire->self.run,
                                           .name = wire->self.name,
                                           .replica = wire->self.replica,
                                           .machine = wire->self.machine,
                                           .purpose = peer->purpose,
                                           .incarnation = wire->incarnation};
        // When there is another connection, the server says UNKNOWN_PEER again.
        return wire_send_frames(wire, session->link, NULL, &hello, NULL);
    case MESSAGE_HEARTBEAT:
        return OK;
    default:
        if (was_open) wire_set_event(event, WIRE_MESSAGE, session);
        return OK;
    }
}

// Decodes a message of the transport and handles it; *event, zeroed before, is set if the caller of wire_poll is to
// know. A malformed message costs its sender the conversation. UNAVAILABLE when the sockets fail.
static status wire_on_message(struct wire *wire, const struct transport_event *from, struct wire_event *event) {
    struct session *server = from->owner;
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
        struct session *sender = server ? server : session_find_client(wire, &from->client);
        if (sender) return wire_reject(wire, &sender->peer, fail_text());
        log_limited(&wire->log_limit, wire_now_ms(wire), "refused a message of an unknown peer: %s", fail_text());
        return wire_refuse(wire, NULL, &from->client, fail_text());
    }
    TRY(result);
    message->bulk = frames->bulk;
    message->bulk_size = frames->bulk_size;
    return server ? wire_on_server_message(wire, server, event) : wire_on_client_message(wire, from, event);
}

// ---- polling ----

// Notices dead peers and lost connections, and sends the heartbeats that are due.
static status wire_check_sessions(struct wire *wire, int64_t now) {
    const struct wire_message heartbeat = {.kind = MESSAGE_HEARTBEAT};
    const struct transport_calls *calls = wire->transport->calls;
    for (struct session *session = wire->sessions; session; session = session->next) {
        struct wire_peer *peer = &session->peer;
        if (session->dead || session->lost || session->joining) continue;
        if (session->greeted && now - session->received_at > DEAD_MS) session->dead = true;
        const bool connected = peer->client || (session->link && calls->connected(wire->transport, session->link));
        if (peer->open && (!connected || now - session->received_at > DEAD_MS)) {
            session_lose(wire, session);
            // The transport connects anew by itself, but not over a connection that is stuck.
            session->renewed_at = connected ? now - DEAD_MS : now;
        } else if (peer->open && now - session->sent_at >= HEARTBEAT_MS) {
            bool unsent;
            TRY(wire_send_frames(wire, session->link, &session->client, &heartbeat, &unsent));
            if (unsent && session->cut) session_lose(wire, session); // what waits is all from others
            session->cut = unsent && peer->client;
            session->sent_at = now;
        } else if (!peer->open && !peer->client) {
            // An opening that is under way may take as long as any answer.
            const int64_t timeout_ms = connected && !session->refused ? DEAD_MS : RENEW_MS;
            if (now - session->renewed_at < timeout_ms) continue;
            // Opens the link anew. If that fails, it is tried again later.
            if (session->link) calls->disconnect(wire->transport, session->link);
            session->link = NULL;
            session->refused = false;
            session->renewed_at = now;
            if (calls->connect(wire->transport, session->endpoint, session->key, session, &session->link) != OK)
                log_limited(&wire->log_limit, now, "%s", fail_text());
        }
    }
    wire->checked_at = now;
    return OK;
}

// Returns the time. After a pause of this process its peers' silence counts from now: what they sent is still to be
// read.
static int64_t wire_look(struct wire *wire) {
    const int64_t now = wire_now_ms(wire), pause = now - wire->looked_at;
    for (struct session *session = pause > PAUSE_MS ? wire->sessions : NULL; session; session = session->next)
        session->received_at += pause;
    wire->looked_at = now;
    return now;
}

status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event) {
    const struct wire_message unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    const int64_t until = wire_look(wire) + timeout_ms;
    assert(timeout_ms >= 0);
    *event = (struct wire_event){0};
    arena_release(&wire->arena);
    for (struct session **at = &wire->sessions, *session = *at; session; session = *at) {
        if (session->dead) {
            *at = session->next;
            session_free(wire, session);
        } else {
            at = &session->next;
        }
    }
    for (;;) {
        const int64_t now = wire_look(wire), check = wire->checked_at + CHECK_MS;
        if (now >= check) TRY(wire_check_sessions(wire, now));
        // Reports the next peer that was lost, and if there is none the next one that joins: so the client that another
        // one replaces is GONE before that is JOINED. No message is received while there are such peers.
        struct session *found = NULL, *session = wire->pending ? wire->sessions : NULL;
        for (; session && !(found && found->lost); session = session->next)
            if (!session->dead && (session->lost || (session->joining && !found))) found = session;
        wire->pending = found != NULL;
        if (found && found->lost) {
            found->lost = false;
            found->dead = found->peer.client;
            wire_set_event(event, WIRE_GONE, found);
            return OK;
        }
        if (found) {
            found->joining = false;
            found->peer.open = true;
            found->sent_at = now;
            wire_set_event(event, WIRE_JOINED, found);
            return OK;
        }
        const int64_t wake = check > now && check < until ? check : until;
        struct transport_event from;
        TRY(wire->transport->calls->receive(wire->transport, wake > now ? (int)(wake - now) : 0, &from));
        switch (from.kind) {
        case TRANSPORT_NOTHING:
            for (session = wire->sessions; session; session = session->next)
                if (session->cut && session->peer.open) session_lose(wire, session);
            if (!wire->pending) return OK;
            break;
        case TRANSPORT_READABLE:
            *event = (struct wire_event){.kind = WIRE_READABLE, .fd = from.fd};
            return OK;
        case TRANSPORT_CONNECTED:
            TRY(wire_send_frames(wire, NULL, &from.client, &unknown, NULL));
            break;
        case TRANSPORT_MESSAGE:
            TRY(wire_on_message(wire, &from, event));
            break;
        }
        if (event->kind != WIRE_TIMEOUT || (now >= until && !wire->pending)) return OK;
    }
}

// ---- opening and closing ----

void wire_open(struct wire **out, const struct wire_self *self, struct transport *transport) {
    NEW(out, 1);
    struct wire *wire = *out;
    wire->self = *self;
    wire->transport = transport;
    wire->incarnation = (int64_t)(transport->calls->random(transport) | 1); // never 0
    wire->looked_at = wire_now_ms(wire);
}

status wire_bind(struct wire *wire, const char *endpoint) {
    return wire->transport->calls->bind(wire->transport, endpoint);
}

status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out) {
    struct session *session = session_new(wire, "", "", purpose);
    session->renewed_at = wire_now_ms(wire);
    session->endpoint = session_string(session, NULL, endpoint);
    session->key = key ? session_string(session, NULL, key) : NULL;
    status result = wire->transport->calls->connect(wire->transport, endpoint, key, session, &session->link);
    session->dead = result != OK;
    if (out) *out = result == OK ? &session->peer : NULL;
    return result;
}

void wire_add_fd(struct wire *wire, int fd) {
    wire->transport->calls->add_fd(wire->transport, fd);
}

void wire_close(struct wire **pointer) {
    const struct wire_message bye = {.kind = MESSAGE_BYE};
    struct wire *wire = *pointer;
    if (!wire) return;
    for (const struct session *session = wire->sessions; session; session = session->next)
        if (session->peer.open || session->lost || session->greeted || session->joining)
            (void)wire_send_frames(wire, session->link, &session->client, &bye, NULL); // NULL: gone needs no goodbye
    for (struct session *session = wire->sessions, *next; session; session = next) {
        next = session->next;
        session_free(wire, session);
    }
    wire->transport->calls->free(wire->transport);
    arena_release(&wire->arena);
    buf_release(&wire->head);
    free(wire);
    *pointer = NULL;
}
