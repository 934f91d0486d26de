// Peers and their conversations. A client is known by its connection, so one that connects anew is a new peer; a server
// is known by the link to it.
#include "shared/wire/wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"

enum {
    HEARTBEAT_MS = 1000, // silence after which one side sends a heartbeat
    DEAD_MS = 10000,     // silence after which the other side is dead
    CHECK_MS = 100,      // how often peers are checked for both
    RETRY_MS = 50,       // after which HELLO is sent again over a link that was not connected
    REASON_MAX = 1024,   // of a refusal, bytes
};
static_assert(DEAD_MS > 2 * HEARTBEAT_MS, "one heartbeat may come late");
static_assert(CHECK_MS < HEARTBEAT_MS, "heartbeats are sent in time");
static_assert(RETRY_MS < HEARTBEAT_MS, "see wire_send_hello");
static_assert(WIRE_TIMEOUT == 0, "a zeroed event is one that has not happened");

struct wire_peer {
    struct wire_peer *next;
    struct transport_link *link;    // to a server
    struct transport_client client; // the connection of a client
    char *name, *machine, *purpose;
    int replica;
    bool server; // we connected to it
    bool open, refused;
    bool lost; // a send has failed: GONE is to be reported
    bool dead; // to be freed
    int64_t received_at, sent_at;
    void *tag;
};

struct wire {
    struct wire_self self;
    struct transport *transport;
    struct wire_peer *peers;
    int64_t checked_at; // when heartbeats and silence were last checked
    struct arena arena; // of the last message
    struct buf head;    // of a message that is sent
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

const char *wire_peer_purpose(const struct wire_peer *peer) {
    return peer->purpose;
}

bool wire_peer_is_client(const struct wire_peer *peer) {
    return !peer->server;
}

void **wire_peer_tag(struct wire_peer *peer) {
    return &peer->tag;
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
    peer->sent_at = INT64_MIN / 2; // HELLO is due at once
    status result = wire->transport->calls->connect(wire->transport, endpoint, key, peer, &peer->link);
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
    // A peer that cannot be reached any more needs no goodbye.
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) (void)wire_send(wire, peer, &bye, NULL);
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

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    bool unsent = true;
    if (wire_peer_open(peer)) {
        TRY(wire_send_frames(wire, peer->link, &peer->client, message, &unsent));
        if (unsent && !peer->server) peer->lost = true;
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
                                       .purpose = peer->purpose};
    bool gone;
    TRY(wire_send_frames(wire, peer->link, NULL, &hello, &gone));
    // A peer that was not connected yet is tried again soon, any other after the time of a heartbeat.
    peer->sent_at = wire_now_ms(wire) - (gone ? HEARTBEAT_MS - RETRY_MS : 0);
    return OK;
}

static status wire_refuse(struct wire *wire, const struct transport_client *client, const char *reason) {
    const struct wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    bool gone;
    log_info("refused a peer: %s", reason);
    return wire_send_frames(wire, NULL, client, &refused, &gone);
}

// ---- receiving ----

static void wire_set_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer) {
    assert(event->kind == WIRE_TIMEOUT);
    event->kind = kind;
    event->peer = peer;
}

// Compares a client's fingerprint with ours. *reason says why it is refused, "" if it is not.
static void wire_compare_runs(const struct wire_self *self, const struct wire_message *hello,
                              char (*reason)[REASON_MAX]) {
    size_t word = 0, same = 0; // where the word in which they differ begins
    for (; self->run[same] && self->run[same] == hello->run[same]; same++)
        if (self->run[same] == ' ') word = same + 1;
    const char *difference = self->run + word, *equals = strchr(difference, '=');
    **reason = 0;
    if (self->run[same] == hello->run[same] || (word && !strcmp(hello->purpose, "watch"))) return;
    if (word && equals)
        snprintf(*reason, sizeof *reason, "%.*s's settings differ between %.100s-%d%s%.100s and %s-%d%s%s",
                 (int)(equals - difference), difference, hello->name, (int)hello->replica,
                 *hello->machine ? " on " : "", hello->machine, self->name, self->replica, *self->machine ? " on " : "",
                 self->machine);
    else
        snprintf(*reason, sizeof *reason, "%.100s-%d belongs to another run than %s-%d: their pipeline files differ",
                 hello->name, (int)hello->replica, self->name, self->replica);
}

static status wire_on_client_message(struct wire *wire, const struct transport_client *client,
                                     struct wire_event *event) {
    const struct wire_self *self = &wire->self;
    const struct wire_message *message = &event->message, unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    struct wire_peer *peer = wire_find_client(wire, client);
    const int replica = (int)message->replica;
    char refusal[REASON_MAX] = "";
    bool gone;
    if (peer && peer->lost) return OK;
    if (!peer && message->kind != MESSAGE_HELLO) return wire_send_frames(wire, NULL, client, &unknown, &gone);
    if (message->kind != MESSAGE_HELLO) {
        peer->received_at = wire_now_ms(wire);
        if (message->kind == MESSAGE_HEARTBEAT) return OK;
        event->orderly = peer->dead = message->kind == MESSAGE_BYE;
        wire_set_event(event, peer->dead ? WIRE_GONE : WIRE_MESSAGE, peer);
        return OK;
    }
    if (message->protocol != WIRE_PROTOCOL) {
        snprintf(refusal, sizeof refusal, "%.100s-%d uses protocol %d, but %s-%d uses protocol %d", message->name,
                 replica, (int)message->protocol, self->name, self->replica, WIRE_PROTOCOL);
    } else if (message->schema != WIRE_SCHEMA) {
        snprintf(refusal, sizeof refusal, "%.100s-%d has version %d of the group, but %s-%d has version %d",
                 message->name, replica, (int)message->schema, self->name, self->replica, WIRE_SCHEMA);
    } else {
        wire_compare_runs(self, message, &refusal);
    }
    if (*refusal) return wire_refuse(wire, client, refusal);
    if (!peer) {
        TRY(wire_peer_new(wire, message->name, message->machine, message->purpose, &peer));
        peer->client = *client;
        peer->replica = replica;
    }
    peer->open = true;
    peer->received_at = wire_now_ms(wire);
    const struct wire_message welcome = {
        .kind = MESSAGE_WELCOME, .name = self->name, .replica = self->replica, .machine = self->machine};
    TRY(wire_send(wire, peer, &welcome, NULL));
    wire_set_event(event, WIRE_JOINED, peer);
    return OK;
}

static status wire_on_server_message(struct wire *wire, struct wire_peer *peer, struct wire_event *event) {
    const struct wire_message *message = &event->message;
    bool was_open = peer->open;
    peer->received_at = wire_now_ms(wire);
    switch (message->kind) {
    case MESSAGE_WELCOME:
        if (was_open) return OK;
        TRY(wire_set_string(&peer->name, message->name));
        TRY(wire_set_string(&peer->machine, message->machine));
        peer->replica = (int)message->replica;
        peer->open = true;
        wire_set_event(event, WIRE_JOINED, peer);
        return OK;
    case MESSAGE_REFUSED:
        peer->open = false;
        peer->refused = true;
        wire_set_event(event, WIRE_REFUSED, peer);
        return OK;
    case MESSAGE_UNKNOWN_PEER:
    case MESSAGE_BYE:
        peer->open = false;
        if (was_open) {
            event->orderly = message->kind == MESSAGE_BYE;
            wire_set_event(event, WIRE_GONE, peer);
        }
        return message->kind == MESSAGE_BYE ? OK : wire_send_hello(wire, peer);
    case MESSAGE_HEARTBEAT:
        return OK;
    default:
        if (was_open) wire_set_event(event, WIRE_MESSAGE, peer);
        return OK;
    }
}

// Decodes a message of the transport and handles it. A malformed message is logged, and its sender refused if it is no
// peer yet.
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
    if (result == DATAERR) {
        const struct wire_peer *sender = server ? server : wire_find_client(wire, &from->client);
        if (!sender) return wire_refuse(wire, &from->client, fail_text());
        log_info("from %s-%d: %s", sender->name, sender->replica, fail_text());
        return OK;
    }
    TRY(result);
    message->bulk = frames->bulk;
    message->bulk_size = frames->bulk_size;
    return server ? wire_on_server_message(wire, server, event) : wire_on_client_message(wire, &from->client, event);
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

// Reports a peer that has died, and sends the heartbeats and HELLOs that are due.
static status wire_check_peers(struct wire *wire, int64_t now, struct wire_event *event) {
    const struct wire_message heartbeat = {.kind = MESSAGE_HEARTBEAT};
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) {
        if (peer->dead || peer->refused) continue;
        if (peer->open && (peer->lost || now - peer->received_at > DEAD_MS)) {
            peer->open = peer->lost = false;
            peer->dead = !peer->server;
            wire_set_event(event, WIRE_GONE, peer);
            return OK; // the remaining peers are checked in the next call
        }
        if (now - peer->sent_at < HEARTBEAT_MS) continue;
        if (peer->open) TRY(wire_send(wire, peer, &heartbeat, NULL));
        if (!peer->open && peer->server) TRY(wire_send_hello(wire, peer));
    }
    wire->checked_at = now;
    return OK;
}

status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event) {
    const int64_t until = wire_now_ms(wire) + timeout_ms;
    assert(timeout_ms >= 0);
    *event = (struct wire_event){0};
    arena_release(&wire->arena);
    wire_free_dead_peers(wire);
    for (;;) {
        const int64_t now = wire_now_ms(wire), check = wire->checked_at + CHECK_MS;
        if (now >= check) TRY(wire_check_peers(wire, now, event));
        if (event->kind != WIRE_TIMEOUT) return OK;
        const int64_t wake = check > now && check < until ? check : until;
        struct transport_event from;
        TRY(wire->transport->calls->receive(wire->transport, wake > now ? (int)(wake - now) : 0, &from));
        if (from.kind == TRANSPORT_NOTHING) return OK;
        if (from.kind == TRANSPORT_READABLE) {
            event->fd = from.fd;
            wire_set_event(event, WIRE_READABLE, NULL);
        } else {
            TRY(wire_on_transport_message(wire, &from, event));
        }
        if (event->kind != WIRE_TIMEOUT || now >= until) return OK;
    }
}
