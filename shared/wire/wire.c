// Sockets and peers. A client is known by the routing id that libzmq gave its connection, so one that connects anew is
// a new peer; a server is known by the socket that was connected to it.
#include "shared/wire/wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"

enum {
    HEARTBEAT_MS = 1000, // silence after which one side sends a heartbeat
    DEAD_MS = 10000,     // silence after which the other side is dead
    CHECK_MS = 100,      // how often peers are checked for both
    LINGER_MS = 500,     // for the last messages
    RECONNECT_MS = 50,
    RECONNECT_MAX_MS = 500,
    ROUTING_ID_MAX = 32, // bytes
    REASON_MAX = 1024,   // of a refusal, bytes
};
static_assert(DEAD_MS > 2 * HEARTBEAT_MS, "one heartbeat may come late");
static_assert(CHECK_MS < HEARTBEAT_MS, "heartbeats are sent in time");
static_assert(RECONNECT_MS < HEARTBEAT_MS, "see wire_send_hello");
static_assert(WIRE_TIMEOUT == 0, "a zeroed event is one that has not happened");

struct wire_peer {
    struct wire_peer *next;
    void *socket; // connected to this server; NULL: a client
    char *name, *machine, *purpose;
    int replica;
    char routing_id[ROUTING_ID_MAX]; // of a client
    size_t routing_id_size;
    bool open, refused;
    bool lost; // a send has failed: GONE is to be reported
    bool dead; // to be freed
    int64_t received_at, sent_at;
    void *tag;
};

struct wire {
    struct wire_self self;
    void *context, *server;
    struct zap *zap;
    struct wire_peer *peers;
    zmq_pollitem_t *items;     // descriptors, server socket, connections; rebuilt after a change
    struct wire_peer **owners; // of the items: NULL for the server socket and descriptors
    size_t item_count, first_item;
    int *fds;
    size_t fd_count;
    bool changed;
    int64_t checked_at; // when heartbeats and silence were last checked
    struct arena arena; // of the last message
    zmq_msg_t bulk;     // of the last message
    struct buf frame;
};

static status wire_zmq_failure(const char *what) {
    return fail(UNAVAILABLE, "%s: %s", what, zmq_strerror(zmq_errno()));
}

// ---- peers ----

static void wire_peer_free(struct wire_peer *peer) {
    if (peer->socket) zmq_close(peer->socket);
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
        wire_peer_free(peer);
        return result;
    }
    struct wire_peer **last = &wire->peers;
    while (*last) last = &(*last)->next;
    *last = peer;
    *out = peer;
    return OK;
}

static struct wire_peer *wire_find_client(const struct wire *wire, const char *routing_id, size_t size) {
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (!peer->socket && !peer->dead && peer->routing_id_size == size &&
            !memcmp(peer->routing_id, routing_id, size))
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
    return !peer->socket;
}

void **wire_peer_tag(struct wire_peer *peer) {
    return &peer->tag;
}

// ---- sockets ----

static status wire_set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) ? wire_zmq_failure("socket option") : OK;
}

static status wire_set_common_options(void *socket) {
    const int64_t message_max = (int64_t)1 << 31;
    TRY(wire_set_int(socket, ZMQ_SNDHWM, 0));
    TRY(wire_set_int(socket, ZMQ_RCVHWM, 0));
    TRY(wire_set_int(socket, ZMQ_LINGER, LINGER_MS));
    TRY(wire_set_int(socket, ZMQ_IPV6, 1));
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof message_max) ? wire_zmq_failure("socket option")
                                                                                    : OK;
}

status wire_open(struct wire **out, const struct wire_self *self) {
    struct wire *wire;
    *out = NULL;
    TRY(NEW(&wire, 1));
    wire->self = *self;
    wire->changed = true;
    wire->context = zmq_ctx_new();
    if (!wire->context) {
        free(wire);
        return wire_zmq_failure("sockets");
    }
    zmq_msg_init(&wire->bulk);
    *out = wire;
    return OK;
}

status wire_bind(struct wire *wire, const char *endpoint) {
    const struct wire_security *security = wire->self.security;
    if (!wire->server) {
        if (security) TRY(zap_open(&wire->zap, wire->context, security));
        wire->server = zmq_socket(wire->context, ZMQ_ROUTER);
        if (!wire->server) return wire_zmq_failure("server socket");
        wire->changed = true;
        TRY(wire_set_common_options(wire->server));
        TRY(wire_set_int(wire->server, ZMQ_ROUTER_MANDATORY, 1));
        if (security) TRY(wire_set_int(wire->server, ZMQ_CURVE_SERVER, 1));
        if (security && zmq_setsockopt(wire->server, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY))
            return wire_zmq_failure("CURVE");
        if (security && zmq_setsockopt(wire->server, ZMQ_ZAP_DOMAIN, "caravan", strlen("caravan")))
            return wire_zmq_failure("ZAP");
    }
    return zmq_bind(wire->server, endpoint) ? wire_zmq_failure(endpoint) : OK;
}

status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out) {
    const struct wire_security *security = wire->self.security;
    struct wire_peer *peer;
    status result = OK;
    if (out) *out = NULL;
    TRY(wire_peer_new(wire, "", "", purpose, &peer));
    wire->changed = true;
    peer->sent_at = INT64_MIN / 2; // HELLO is due at once
    peer->socket = zmq_socket(wire->context, ZMQ_DEALER);
    TRY_TO(result, failed, peer->socket ? OK : wire_zmq_failure(endpoint));
    TRY_TO(result, failed, wire_set_common_options(peer->socket));
    TRY_TO(result, failed, wire_set_int(peer->socket, ZMQ_IMMEDIATE, 1));
    TRY_TO(result, failed, wire_set_int(peer->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    TRY_TO(result, failed, wire_set_int(peer->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS));
    if (security && (!key || zmq_setsockopt(peer->socket, ZMQ_CURVE_SERVERKEY, key, WIRE_KEY) ||
                     zmq_setsockopt(peer->socket, ZMQ_CURVE_PUBLICKEY, security->public, WIRE_KEY) ||
                     zmq_setsockopt(peer->socket, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY)))
        TRY_TO(result, failed, fail(USAGE, "%s: its key is missing or wrong", endpoint));
    TRY_TO(result, failed, zmq_connect(peer->socket, endpoint) ? wire_zmq_failure(endpoint) : OK);
    if (out) *out = peer;
    return OK;
failed:
    peer->dead = true;
    return result;
}

status wire_add_fd(struct wire *wire, int fd) {
    TRY(RESIZE(&wire->fds, wire->fd_count + 1));
    wire->fds[wire->fd_count++] = fd;
    wire->changed = true;
    return OK;
}

void wire_close(struct wire **pointer) {
    struct wire *wire = *pointer;
    if (!wire) return;
    const struct wire_message bye = {.kind = MESSAGE_BYE};
    // A peer that cannot be reached any more needs no goodbye.
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) (void)wire_send(wire, peer, &bye, NULL);
    while (wire->peers) {
        struct wire_peer *next = wire->peers->next;
        wire_peer_free(wire->peers);
        wire->peers = next;
    }
    if (wire->server) zmq_close(wire->server);
    zap_close(&wire->zap);
    zmq_msg_close(&wire->bulk);
    while (zmq_ctx_term(wire->context) && errno == EINTR) continue; // a signal came
    arena_release(&wire->arena);
    buf_release(&wire->frame);
    free(wire->items);
    free(wire->owners);
    free(wire->fds);
    free(wire);
    *pointer = NULL;
}

// ---- sending ----

// Sends to a client's routing id, or (size 0) over the socket that is connected to a server.
static status wire_send_frames(struct wire *wire, void *socket, const char *routing_id, size_t size,
                               const struct wire_message *message, bool *gone) {
    buf_clear(&wire->frame);
    TRY(message_encode(message, &wire->frame));
    *gone = false;
    bool bulk = message_has_bulk(message->kind);
    int sent = 0;
    if (size) sent = zmq_send(socket, routing_id, size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (sent >= 0) sent = zmq_send(socket, wire->frame.data, wire->frame.size, (bulk ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
    if (sent >= 0 && bulk) sent = zmq_send(socket, message->bulk, message->bulk_size, ZMQ_DONTWAIT);
    if (sent >= 0) return OK;
    if (zmq_errno() != EHOSTUNREACH && zmq_errno() != EAGAIN) return wire_zmq_failure(message_name(message->kind));
    *gone = true;
    return OK;
}

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    bool unsent = true;
    if (wire_peer_open(peer)) {
        TRY(wire_send_frames(wire, peer->socket ? peer->socket : wire->server, peer->routing_id, peer->routing_id_size,
                             message, &unsent));
        if (unsent && !peer->socket) peer->lost = true;
        peer->sent_at = clock_monotonic_ms();
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
    TRY(wire_send_frames(wire, peer->socket, NULL, 0, &hello, &gone));
    // A peer that was not connected yet is tried again soon, any other after the time of a heartbeat.
    peer->sent_at = clock_monotonic_ms() - (gone ? HEARTBEAT_MS - RECONNECT_MS : 0);
    return OK;
}

static status wire_refuse(struct wire *wire, const char *routing_id, size_t size, const char *reason) {
    const struct wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    bool gone;
    log_info("refused a peer: %s", reason);
    return wire_send_frames(wire, wire->server, routing_id, size, &refused, &gone);
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

static status wire_on_client_message(struct wire *wire, const char *routing_id, size_t size, struct wire_event *event) {
    const struct wire_self *self = &wire->self;
    const struct wire_message *message = &event->message, unknown = {.kind = MESSAGE_UNKNOWN_PEER};
    struct wire_peer *peer = wire_find_client(wire, routing_id, size);
    const int replica = (int)message->replica;
    char refusal[REASON_MAX] = "";
    bool gone;
    if (peer && peer->lost) return OK;
    if (!peer && message->kind != MESSAGE_HELLO)
        return wire_send_frames(wire, wire->server, routing_id, size, &unknown, &gone);
    if (message->kind != MESSAGE_HELLO) {
        peer->received_at = clock_monotonic_ms();
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
    if (*refusal) return wire_refuse(wire, routing_id, size, refusal);
    if (!peer) {
        TRY(wire_peer_new(wire, message->name, message->machine, message->purpose, &peer));
        assert(size <= sizeof peer->routing_id);
        memcpy(peer->routing_id, routing_id, size);
        peer->routing_id_size = size;
        peer->replica = replica;
    }
    peer->open = true;
    peer->received_at = clock_monotonic_ms();
    const struct wire_message welcome = {
        .kind = MESSAGE_WELCOME, .name = self->name, .replica = self->replica, .machine = self->machine};
    TRY(wire_send(wire, peer, &welcome, NULL));
    wire_set_event(event, WIRE_JOINED, peer);
    return OK;
}

static status wire_on_server_message(struct wire *wire, struct wire_peer *peer, struct wire_event *event) {
    const struct wire_message *message = &event->message;
    bool was_open = peer->open;
    peer->received_at = clock_monotonic_ms();
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

// Receives one frame; *more: another follows. *none: nothing was there.
static status wire_receive_frame(void *socket, zmq_msg_t *frame, bool *more, bool *none) {
    *none = false;
    if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        *more = false;
        *none = zmq_errno() == EAGAIN || zmq_errno() == EINTR;
        return *none ? OK : wire_zmq_failure("receiving");
    }
    *more = zmq_msg_more(frame);
    return OK;
}

// Receives one message from the server socket (`server` NULL) or from a server, and handles it. A malformed message is
// logged, and its sender refused if it is no peer yet.
static status wire_receive(struct wire *wire, void *socket, struct wire_peer *server, struct wire_event *event) {
    zmq_msg_t first, head;
    char routing_id[ROUTING_ID_MAX] = {0};
    size_t size = 0;
    bool more = true, none = false;
    status result = OK;
    zmq_msg_init(&first);
    zmq_msg_init(&head);
    if (!server) {
        TRY_TO(result, out, wire_receive_frame(socket, &first, &more, &none));
        size = zmq_msg_size(&first) < ROUTING_ID_MAX ? zmq_msg_size(&first) : ROUTING_ID_MAX;
        if (!none) memcpy(routing_id, zmq_msg_data(&first), size);
    }
    if (none || !more) goto out;
    TRY_TO(result, out, wire_receive_frame(socket, &head, &more, &none));
    if (none) goto out;
    struct wire_message *message = &event->message;
    result = message_decode(message, &wire->arena, zmq_msg_data(&head), zmq_msg_size(&head));
    if (result == OK && message_has_bulk(message->kind) != more)
        result = fail(DATAERR, "%s: %s", message_name(message->kind), more ? "one frame too many" : "no bulk");
    if (result == OK && more) {
        TRY_TO(result, out, wire_receive_frame(socket, &wire->bulk, &more, &none));
        if (more || none) result = fail(DATAERR, "%s: expected exactly one bulk frame", message_name(message->kind));
        message->bulk = zmq_msg_data(&wire->bulk);
        message->bulk_size = zmq_msg_size(&wire->bulk);
    }
    while (more) { // the frames of a malformed message
        zmq_msg_t rest;
        zmq_msg_init(&rest);
        status skipped = wire_receive_frame(socket, &rest, &more, &none);
        zmq_msg_close(&rest);
        if (skipped != OK) result = skipped;
    }
    if (result == DATAERR) {
        const struct wire_peer *sender = server ? server : wire_find_client(wire, routing_id, size);
        result = sender ? OK : wire_refuse(wire, routing_id, size, fail_text());
        if (sender) log_info("from %s-%d: %s", sender->name, sender->replica, fail_text());
    } else if (result == OK) {
        result = server ? wire_on_server_message(wire, server, event)
                        : wire_on_client_message(wire, routing_id, size, event);
    }
out:
    zmq_msg_close(&first);
    zmq_msg_close(&head);
    return result;
}

// ---- polling ----

// Frees dead peers and lists the sockets and descriptors to poll.
static status wire_update_items(struct wire *wire) {
    size_t count = wire->fd_count + (wire->server ? 1 : 0), at = 0;
    for (struct wire_peer **link = &wire->peers; *link;) {
        struct wire_peer *peer = *link;
        if (!peer->dead) {
            count += peer->socket ? 1 : 0;
            link = &peer->next;
            continue;
        }
        *link = peer->next;
        if (peer->socket) wire->changed = true;
        wire_peer_free(peer);
    }
    if (!wire->changed) return OK;
    TRY(RESIZE(&wire->items, count));
    TRY(RESIZE(&wire->owners, count));
    for (size_t i = 0; i < wire->fd_count; i++, at++) {
        wire->items[at] = (zmq_pollitem_t){.fd = wire->fds[i], .events = ZMQ_POLLIN};
        wire->owners[at] = NULL;
    }
    if (wire->server) {
        wire->items[at] = (zmq_pollitem_t){.socket = wire->server, .events = ZMQ_POLLIN};
        wire->owners[at++] = NULL;
    }
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) {
        if (!peer->socket) continue;
        wire->items[at] = (zmq_pollitem_t){.socket = peer->socket, .events = ZMQ_POLLIN};
        wire->owners[at++] = peer;
    }
    assert(at == count);
    wire->item_count = count;
    wire->changed = false;
    return OK;
}

status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event) {
    const struct wire_message heartbeat = {.kind = MESSAGE_HEARTBEAT};
    int64_t until = timeout_ms < 0 ? INT64_MAX : clock_monotonic_ms() + timeout_ms;
    *event = (struct wire_event){0};
    arena_release(&wire->arena);
    for (;;) {
        TRY(wire_update_items(wire));
        int64_t now = clock_monotonic_ms();
        bool check = now - wire->checked_at >= CHECK_MS;
        for (struct wire_peer *peer = check ? wire->peers : NULL; peer; peer = peer->next) {
            if (peer->dead || peer->refused) continue;
            if (peer->open && (peer->lost || now - peer->received_at > DEAD_MS)) {
                peer->open = peer->lost = false;
                peer->dead = !peer->socket;
                wire_set_event(event, WIRE_GONE, peer);
                return OK; // the remaining peers are checked in the next call
            }
            if (now - peer->sent_at < HEARTBEAT_MS) continue;
            if (peer->open) TRY(wire_send(wire, peer, &heartbeat, NULL));
            if (!peer->open && peer->socket) TRY(wire_send_hello(wire, peer));
        }
        if (check) wire->checked_at = now;
        int64_t wake = wire->checked_at + CHECK_MS < until ? wire->checked_at + CHECK_MS : until;
        if (zmq_poll(wire->items, (int)wire->item_count, wake > now ? wake - now : 0) < 0 && zmq_errno() != EINTR)
            return wire_zmq_failure("waiting");
        // Begins behind the item of the last event, so that none is starved.
        for (size_t i = 0; i < wire->item_count && event->kind == WIRE_TIMEOUT; i++) {
            const size_t at = (wire->first_item + i) % wire->item_count;
            const zmq_pollitem_t *item = &wire->items[at];
            if (!(item->revents & (ZMQ_POLLIN | ZMQ_POLLERR))) continue;
            if (item->socket) {
                TRY(wire_receive(wire, item->socket, wire->owners[at], event));
            } else {
                event->fd = item->fd;
                wire_set_event(event, WIRE_READABLE, NULL);
            }
            if (event->kind != WIRE_TIMEOUT) wire->first_item = (at + 1) % wire->item_count;
        }
        if (event->kind != WIRE_TIMEOUT || clock_monotonic_ms() >= until) return OK;
    }
}
