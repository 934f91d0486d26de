// Sockets and peers. A visitor is known by the routing id that libzmq gave its connection, so one that connects anew is
// a new peer; a server is known by the socket that visits it.
#include "shared/wire/wire_own.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"

enum {
    BEAT_MS = 1000,  // silence after which one side beats
    DEAD_MS = 10000, // silence after which the other side is dead
    LINGER_MS = 500, // for what was said last
    RECONNECT_MS = 50,
    RECONNECT_MOST_MS = 500,
};

status wire_socket_failure(const char *what) {
    return fail(UNAVAILABLE, "%s: %s", what, zmq_strerror(zmq_errno()));
}

// ---- opening and closing ----

status wire_open(struct wire **out, const struct wire_self *self) {
    struct wire *wire;
    *out = NULL;
    TRY(NEW(&wire, 1));
    wire->self = *self;
    zmq_msg_init(&wire->bulk);
    wire->context = zmq_ctx_new();
    if (!wire->context) {
        free(wire);
        return wire_socket_failure("sockets");
    }
    wire->changed = true;
    *out = wire;
    return OK;
}

static status set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) ? wire_socket_failure("socket option") : OK;
}

static status set_common(void *socket) {
    int64_t most = (int64_t)1 << 31;
    TRY(set_int(socket, ZMQ_SNDHWM, 0));
    TRY(set_int(socket, ZMQ_RCVHWM, 0));
    TRY(set_int(socket, ZMQ_LINGER, LINGER_MS));
    TRY(set_int(socket, ZMQ_IPV6, 1));
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most)) return wire_socket_failure("socket option");
    return OK;
}

static status make_desk(struct wire *wire) {
    const struct wire_security *security = wire->self.security;
    if (security) TRY(zap_open(&wire->zap, wire->context, security));
    wire->desk = zmq_socket(wire->context, ZMQ_ROUTER);
    if (!wire->desk) return wire_socket_failure("desk");
    wire->changed = true;
    TRY(set_common(wire->desk));
    TRY(set_int(wire->desk, ZMQ_ROUTER_MANDATORY, 1));
    if (!security) return OK;
    TRY(set_int(wire->desk, ZMQ_CURVE_SERVER, 1));
    if (zmq_setsockopt(wire->desk, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY))
        return wire_socket_failure("CURVE");
    if (zmq_setsockopt(wire->desk, ZMQ_ZAP_DOMAIN, "caravan", strlen("caravan"))) return wire_socket_failure("ZAP");
    return OK;
}

status wire_bind(struct wire *wire, const char *endpoint) {
    if (!wire->desk) TRY(make_desk(wire));
    return zmq_bind(wire->desk, endpoint) ? wire_socket_failure(endpoint) : OK;
}

static status make_visit(struct wire *wire, void *socket, const char *endpoint, const char *key) {
    const struct wire_security *security = wire->self.security;
    TRY(set_common(socket));
    TRY(set_int(socket, ZMQ_IMMEDIATE, 1));
    TRY(set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    TRY(set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MOST_MS));
    if (security && (!key || zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key, WIRE_KEY) ||
                     zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, security->public, WIRE_KEY) ||
                     zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY)))
        return fail(USAGE, "%s: its key is missing or wrong", endpoint);
    return zmq_connect(socket, endpoint) ? wire_socket_failure(endpoint) : OK;
}

static void peer_free(struct wire_peer *peer) {
    if (peer->socket) zmq_close(peer->socket);
    free(peer->name);
    free(peer->machine);
    free(peer->purpose);
    free(peer);
}

status wire_set_text(char **place, const char *text) {
    free(*place);
    *place = strdup(text);
    return *place ? OK : fail_oom();
}

status wire_peer_new(struct wire *wire, const char *name, const char *machine, const char *purpose,
                     struct wire_peer **out) {
    struct wire_peer *peer;
    TRY(NEW(&peer, 1));
    status result = wire_set_text(&peer->name, name);
    if (result == OK) result = wire_set_text(&peer->machine, machine);
    if (result == OK) result = wire_set_text(&peer->purpose, purpose);
    if (result != OK) {
        peer_free(peer);
        return result;
    }
    struct wire_peer **last = &wire->peers;
    while (*last) last = &(*last)->next;
    *last = peer;
    *out = peer;
    return OK;
}

status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out) {
    struct wire_peer *peer;
    TRY(wire_peer_new(wire, "", "", purpose, &peer));
    wire->changed = true;
    peer->spoke = INT64_MIN / 2;
    peer->socket = zmq_socket(wire->context, ZMQ_DEALER);
    status result = peer->socket ? make_visit(wire, peer->socket, endpoint, key) : wire_socket_failure(endpoint);
    peer->dead = result != OK;
    if (out) *out = result == OK ? peer : NULL;
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
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (peer->open && !peer->dead) (void)wire_send(wire, peer, &bye, NULL);
    while (wire->peers) {
        struct wire_peer *next = wire->peers->next;
        peer_free(wire->peers);
        wire->peers = next;
    }
    if (wire->desk) zmq_close(wire->desk);
    zap_close(&wire->zap);
    zmq_msg_close(&wire->bulk);
    zmq_ctx_term(wire->context);
    arena_release(&wire->arena);
    buf_release(&wire->frame);
    free(wire->items);
    free(wire->owners);
    free(wire->fds);
    free(wire);
    *pointer = NULL;
}

// ---- saying ----

// Sends to a routing id (size 0: over a visit's socket). *gone: nobody is there.
status wire_send_frames(struct wire *wire, void *socket, const char *identity, size_t size,
                        const struct wire_message *message, bool *gone) {
    buf_clear(&wire->frame);
    TRY(message_encode(message, &wire->frame));
    *gone = false;
    bool bulk = message_has_bulk(message->kind);
    int sent = 0;
    if (size) sent = zmq_send(socket, identity, size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (sent >= 0) sent = zmq_send(socket, wire->frame.data, wire->frame.size, (bulk ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
    if (sent >= 0 && bulk) sent = zmq_send(socket, message->bulk, message->bulk_size, ZMQ_DONTWAIT);
    if (sent >= 0) return OK;
    if (zmq_errno() != EHOSTUNREACH && zmq_errno() != EAGAIN) return wire_socket_failure(message_name(message->kind));
    *gone = true;
    return OK;
}

status wire_send(struct wire *wire, struct wire_peer *peer, const struct wire_message *message, bool *gone) {
    bool unheard = true;
    if (peer->open && !peer->lost && !peer->dead) {
        TRY(wire_send_frames(wire, peer->socket ? peer->socket : wire->desk, peer->identity, peer->identity_size,
                             message, &unheard));
        if (unheard && !peer->socket) peer->lost = true;
        peer->spoke = clock_monotonic_ms();
    }
    if (gone) *gone = unheard;
    return OK;
}

status wire_say_hello(struct wire *wire, struct wire_peer *peer) {
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
    peer->spoke = gone ? clock_monotonic_ms() - BEAT_MS + RECONNECT_MS : clock_monotonic_ms();
    return OK;
}

// ---- time ----

// Opens, beats, and finds who is silent. *happened: somebody is gone.
static status look_after(struct wire *wire, struct wire_event *event, bool *happened) {
    const struct wire_message beat = {.kind = MESSAGE_HEARTBEAT};
    int64_t now = clock_monotonic_ms();
    for (struct wire_peer *peer = wire->peers; peer && !*happened; peer = peer->next) {
        if (peer->dead || peer->refused) continue;
        if (peer->open && (peer->lost || now - peer->heard > DEAD_MS)) {
            peer->open = peer->lost = false;
            peer->dead = !peer->socket;
            *happened = wire_keep_event(event, WIRE_GONE, peer);
        } else if (!peer->open && peer->socket && now - peer->spoke >= BEAT_MS) {
            TRY(wire_say_hello(wire, peer));
        } else if (peer->open && now - peer->spoke >= BEAT_MS) {
            TRY(wire_send(wire, peer, &beat, NULL));
        }
    }
    if (!*happened) wire->looked = now;
    return OK;
}

static void sweep(struct wire *wire) {
    for (struct wire_peer **place = &wire->peers; *place;) {
        struct wire_peer *peer = *place;
        if (!peer->dead) {
            place = &peer->next;
            continue;
        }
        *place = peer->next;
        if (peer->socket) wire->changed = true;
        peer_free(peer);
    }
}

static status list_items(struct wire *wire) {
    size_t count = wire->fd_count + (wire->desk ? 1 : 0);
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) count += peer->socket ? 1 : 0;
    TRY(RESIZE(&wire->items, count));
    TRY(RESIZE(&wire->owners, count));
    size_t at = 0;
    for (size_t i = 0; i < wire->fd_count; i++, at++) {
        wire->items[at] = (zmq_pollitem_t){.fd = wire->fds[i], .events = ZMQ_POLLIN};
        wire->owners[at] = NULL;
    }
    if (wire->desk) {
        wire->items[at] = (zmq_pollitem_t){.socket = wire->desk, .events = ZMQ_POLLIN};
        wire->owners[at++] = NULL;
    }
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next) {
        if (!peer->socket) continue;
        wire->items[at] = (zmq_pollitem_t){.socket = peer->socket, .events = ZMQ_POLLIN};
        wire->owners[at++] = peer;
    }
    wire->count = count;
    wire->changed = false;
    return OK;
}

// Goes round the readable ones, beginning behind the last that was heard, so that none is starved.
static status take_turns(struct wire *wire, struct wire_event *event, bool *happened) {
    for (size_t i = 0; i < wire->count && !*happened; i++) {
        size_t at = (wire->turn + i) % wire->count;
        if (!(wire->items[at].revents & (ZMQ_POLLIN | ZMQ_POLLERR))) continue;
        if (wire->items[at].socket) {
            TRY(wire_hear(wire, wire->items[at].socket, wire->owners[at], event, happened));
        } else {
            event->fd = wire->items[at].fd;
            *happened = wire_keep_event(event, WIRE_READABLE, NULL);
        }
        if (*happened) wire->turn = (at + 1) % wire->count;
    }
    return OK;
}

static int next_look(const struct wire *wire, int64_t until, int64_t now) {
    enum { LOOK_MS = 100 };
    int64_t wait = wire->looked + LOOK_MS - now;
    if (wait < 0) wait = 0;
    if (until >= 0 && until - now < wait) wait = until > now ? until - now : 0;
    return (int)wait;
}

status wire_poll(struct wire *wire, int timeout_ms, struct wire_event *event) {
    int64_t until = timeout_ms < 0 ? -1 : clock_monotonic_ms() + timeout_ms;
    bool happened = false;
    *event = (struct wire_event){0};
    arena_release(&wire->arena);
    for (;;) {
        sweep(wire);
        if (wire->changed) TRY(list_items(wire));
        int64_t now = clock_monotonic_ms();
        if (now - wire->looked >= 100) TRY(look_after(wire, event, &happened));
        if (happened) return OK;
        if (zmq_poll(wire->items, (int)wire->count, next_look(wire, until, now)) < 0 && zmq_errno() != EINTR)
            return wire_socket_failure("waiting");
        TRY(take_turns(wire, event, &happened));
        if (happened) return OK;
        if (until >= 0 && clock_monotonic_ms() >= until) return OK;
    }
}

// ---- about peers ----

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

void wire_each(struct wire *wire, const char *purpose, bool visitors,
               void (*visit)(void *context, struct wire_peer *peer), void *context) {
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (wire_peer_open(peer) && !peer->socket == visitors && !strcmp(peer->purpose, purpose)) visit(context, peer);
}
