// Sockets and peers. A visitor is known by the routing id that libzmq gave its connection, so one that connects anew is
// a new peer; a server is known by the socket that visits it.
#include "shared/wire/wire.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "shared/base/log.h"
#include "shared/wire/gate.h"

enum {
    BEAT_MS = 1000,  // silence after which one side beats
    DEAD_MS = 10000, // silence after which the other side is dead
    LINGER_MS = 500, // for what was said last
    IDENTITY = 32,   // bytes of a routing id at most
    RECONNECT_MS = 50,
    RECONNECT_MOST_MS = 500,
};

struct wire_peer {
    wire_peer *next;
    void *socket; // of a visit; NULL: a visitor at the desk
    char *name, *machine, *purpose;
    int replica;
    char identity[IDENTITY];
    size_t identity_size;
    bool open, refused;
    bool lost; // GONE is to be said
    bool dead; // to be freed
    int64_t heard, spoke;
    void *tag;
};

struct wire {
    wire_self self;
    void *context, *desk;
    gate *gate;
    wire_peer *peers;
    zmq_pollitem_t *items; // desk, visits, descriptors; rebuilt after a change
    wire_peer **owners;    // of the items: NULL for the desk and descriptors
    size_t count, turn;
    int *fds;
    size_t fd_count;
    bool changed;
    int64_t looked; // when beats and silence were last looked after
    arena arena;    // of the last message
    zmq_msg_t bulk; // of the last message
    bytes frame;
};

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static status socket_failure(const char *what) {
    return fail(SERVICE, "%s: %s", what, zmq_strerror(zmq_errno()));
}

// ---- opening and closing ----

status wire_open(wire **out, const wire_self *self) {
    wire *wire;
    *out = NULL;
    TRY(NEW(&wire, 1));
    wire->self = *self;
    zmq_msg_init(&wire->bulk);
    wire->context = zmq_ctx_new();
    if (!wire->context) {
        free(wire);
        return socket_failure("sockets");
    }
    wire->changed = true;
    *out = wire;
    return OK;
}

static status set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) ? socket_failure("socket option") : OK;
}

static status set_common(void *socket) {
    int64_t most = (int64_t)1 << 31;
    TRY(set_int(socket, ZMQ_SNDHWM, 0));
    TRY(set_int(socket, ZMQ_RCVHWM, 0));
    TRY(set_int(socket, ZMQ_LINGER, LINGER_MS));
    TRY(set_int(socket, ZMQ_IPV6, 1));
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most)) return socket_failure("socket option");
    return OK;
}

static status make_desk(wire *wire) {
    const wire_security *security = wire->self.security;
    if (security) TRY(gate_open(&wire->gate, wire->context, security));
    wire->desk = zmq_socket(wire->context, ZMQ_ROUTER);
    if (!wire->desk) return socket_failure("desk");
    wire->changed = true;
    TRY(set_common(wire->desk));
    TRY(set_int(wire->desk, ZMQ_ROUTER_MANDATORY, 1));
    if (!security) return OK;
    TRY(set_int(wire->desk, ZMQ_CURVE_SERVER, 1));
    if (zmq_setsockopt(wire->desk, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY)) return socket_failure("CURVE");
    if (zmq_setsockopt(wire->desk, ZMQ_ZAP_DOMAIN, "caravan", strlen("caravan"))) return socket_failure("ZAP");
    return OK;
}

status wire_listen(wire *wire, const char *endpoint) {
    if (!wire->desk) TRY(make_desk(wire));
    return zmq_bind(wire->desk, endpoint) ? socket_failure(endpoint) : OK;
}

static status make_visit(wire *wire, void *socket, const char *endpoint, const char *key) {
    const wire_security *security = wire->self.security;
    TRY(set_common(socket));
    TRY(set_int(socket, ZMQ_IMMEDIATE, 1));
    TRY(set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    TRY(set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MOST_MS));
    if (security && (!key || zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key, WIRE_KEY) ||
                     zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, security->public, WIRE_KEY) ||
                     zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY)))
        return fail(USAGE, "%s: its key is missing or wrong", endpoint);
    return zmq_connect(socket, endpoint) ? socket_failure(endpoint) : OK;
}

static void peer_free(wire_peer *peer) {
    if (peer->socket) zmq_close(peer->socket);
    free(peer->name);
    free(peer->machine);
    free(peer->purpose);
    free(peer);
}

static status set_text(char **place, const char *text) {
    free(*place);
    *place = strdup(text);
    return *place ? OK : fail(SERVICE, "out of memory");
}

static status peer_new(wire *wire, const char *name, const char *machine, const char *purpose, wire_peer **out) {
    wire_peer *peer;
    TRY(NEW(&peer, 1));
    status result = set_text(&peer->name, name);
    if (result == OK) result = set_text(&peer->machine, machine);
    if (result == OK) result = set_text(&peer->purpose, purpose);
    if (result != OK) {
        peer_free(peer);
        return result;
    }
    wire_peer **last = &wire->peers;
    while (*last) last = &(*last)->next;
    *last = peer;
    *out = peer;
    return OK;
}

status wire_visit(wire *wire, const char *endpoint, const char *key, const char *purpose, wire_peer **out) {
    wire_peer *peer;
    TRY(peer_new(wire, "", "", purpose, &peer));
    wire->changed = true;
    peer->spoke = INT64_MIN / 2;
    peer->socket = zmq_socket(wire->context, ZMQ_DEALER);
    status result = peer->socket ? make_visit(wire, peer->socket, endpoint, key) : socket_failure(endpoint);
    peer->dead = result != OK;
    if (out) *out = result == OK ? peer : NULL;
    return result;
}

status wire_watch(wire *wire, int fd) {
    TRY(RESIZE(&wire->fds, wire->fd_count + 1));
    wire->fds[wire->fd_count++] = fd;
    wire->changed = true;
    return OK;
}

void wire_close(wire **pointer) {
    wire *wire = *pointer;
    if (!wire) return;
    const wire_message bye = {.kind = MESSAGE_BYE};
    for (wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (peer->open && !peer->dead) (void)wire_say(wire, peer, &bye, NULL);
    while (wire->peers) {
        wire_peer *next = wire->peers->next;
        peer_free(wire->peers);
        wire->peers = next;
    }
    if (wire->desk) zmq_close(wire->desk);
    gate_close(&wire->gate);
    zmq_msg_close(&wire->bulk);
    zmq_ctx_term(wire->context);
    arena_release(&wire->arena);
    bytes_release(&wire->frame);
    free(wire->items);
    free(wire->owners);
    free(wire->fds);
    free(wire);
    *pointer = NULL;
}

// ---- saying ----

// Sends to a routing id (size 0: over a visit's socket). *gone: nobody is there.
static status send_frames(wire *wire, void *socket, const char *identity, size_t size, const wire_message *message,
                          bool *gone) {
    bytes_clear(&wire->frame);
    TRY(message_encode(message, &wire->frame));
    *gone = false;
    bool bulk = message_has_bulk(message->kind);
    int sent = 0;
    if (size) sent = zmq_send(socket, identity, size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (sent >= 0) sent = zmq_send(socket, wire->frame.data, wire->frame.size, (bulk ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
    if (sent >= 0 && bulk) sent = zmq_send(socket, message->bulk, message->bulk_size, ZMQ_DONTWAIT);
    if (sent >= 0) return OK;
    if (zmq_errno() != EHOSTUNREACH && zmq_errno() != EAGAIN) return socket_failure(message_name(message->kind));
    *gone = true;
    return OK;
}

status wire_say(wire *wire, wire_peer *peer, const wire_message *message, bool *gone) {
    bool unheard = true;
    if (peer->open && !peer->lost && !peer->dead) {
        TRY(send_frames(wire, peer->socket ? peer->socket : wire->desk, peer->identity, peer->identity_size, message,
                        &unheard));
        if (unheard && !peer->socket) peer->lost = true;
        peer->spoke = now_ms();
    }
    if (gone) *gone = unheard;
    return OK;
}

static status say_hello(wire *wire, wire_peer *peer) {
    const wire_message hello = {.kind = MESSAGE_HELLO,
                                .protocol = WIRE_PROTOCOL,
                                .schema = WIRE_SCHEMA,
                                .run = wire->self.run,
                                .name = wire->self.name,
                                .replica = wire->self.replica,
                                .machine = wire->self.machine,
                                .purpose = peer->purpose};
    bool gone;
    TRY(send_frames(wire, peer->socket, NULL, 0, &hello, &gone));
    peer->spoke = gone ? now_ms() - BEAT_MS + RECONNECT_MS : now_ms();
    return OK;
}

// ---- hearing ----

static bool keep_event(wire_event *event, wire_event_kind kind, wire_peer *peer) {
    event->kind = kind;
    event->peer = peer;
    return true;
}

static status refuse(wire *wire, const char *identity, size_t size, const char *reason) {
    const wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    bool gone;
    log_say("refused a peer: %s", reason);
    return send_frames(wire, wire->desk, identity, size, &refused, &gone);
}

// Why a HELLO is not welcome, NULL if it is.
static const char *objection(const wire *wire, arena *arena, const wire_message *hello) {
    if (hello->protocol != WIRE_PROTOCOL)
        return arena_print(arena, "%s-%d speaks protocol %d, %s-%d protocol %d", hello->name, (int)hello->replica,
                           (int)hello->protocol, wire->self.name, wire->self.replica, WIRE_PROTOCOL);
    if (hello->schema != WIRE_SCHEMA)
        return arena_print(arena, "%s-%d has version %d of the group, %s-%d version %d", hello->name,
                           (int)hello->replica, (int)hello->schema, wire->self.name, wire->self.replica, WIRE_SCHEMA);
    if (strcmp(hello->run, wire->self.run) != 0)
        return arena_print(arena, "%s-%d belongs to another run than %s-%d: their pipeline files differ", hello->name,
                           (int)hello->replica, wire->self.name, wire->self.replica);
    return NULL;
}

static status welcome(wire *wire, wire_peer *peer, const char *identity, size_t size, const wire_message *hello,
                      wire_event *event, bool *happened) {
    const char *reason = objection(wire, &wire->arena, hello);
    if (reason) return refuse(wire, identity, size, reason);
    if (!peer) {
        TRY(peer_new(wire, hello->name, hello->machine, hello->purpose, &peer));
        memcpy(peer->identity, identity, size);
        peer->identity_size = size;
        peer->replica = (int)hello->replica;
    }
    peer->open = true;
    peer->heard = now_ms();
    const wire_message answer = {
        .kind = MESSAGE_WELCOME, .name = wire->self.name, .replica = wire->self.replica, .machine = wire->self.machine};
    TRY(wire_say(wire, peer, &answer, NULL));
    *happened = keep_event(event, WIRE_JOINED, peer);
    return OK;
}

static wire_peer *find_visitor(const wire *wire, const char *identity, size_t size) {
    for (wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (!peer->socket && !peer->dead && peer->identity_size == size && !memcmp(peer->identity, identity, size))
            return peer;
    return NULL;
}

// A visitor's message.
static status hear_visitor(wire *wire, const char *identity, size_t size, wire_event *event, bool *happened) {
    const wire_message *message = &event->message;
    wire_peer *peer = find_visitor(wire, identity, size);
    if (peer && peer->lost) return OK;
    if (message->kind == MESSAGE_HELLO) return welcome(wire, peer, identity, size, message, event, happened);
    if (!peer) {
        const wire_message again = {.kind = MESSAGE_AGAIN};
        bool gone;
        return send_frames(wire, wire->desk, identity, size, &again, &gone);
    }
    peer->heard = now_ms();
    if (message->kind == MESSAGE_BYE) {
        peer->dead = true;
        event->orderly = true;
        *happened = keep_event(event, WIRE_GONE, peer);
    } else if (message->kind != MESSAGE_BEAT) {
        *happened = keep_event(event, WIRE_SAID, peer);
    }
    return OK;
}

static status hear_welcome(wire_peer *peer, wire_event *event, bool *happened) {
    if (peer->open) return OK;
    TRY(set_text(&peer->name, event->message.name));
    TRY(set_text(&peer->machine, event->message.machine));
    peer->replica = (int)event->message.replica;
    peer->open = true;
    *happened = keep_event(event, WIRE_JOINED, peer);
    return OK;
}

// The visited server's message.
static status hear_server(wire *wire, wire_peer *peer, wire_event *event, bool *happened) {
    bool was_open = peer->open;
    peer->heard = now_ms();
    switch (event->message.kind) {
    case MESSAGE_WELCOME:
        return hear_welcome(peer, event, happened);
    case MESSAGE_REFUSED:
        peer->open = false;
        peer->refused = true;
        *happened = keep_event(event, WIRE_REFUSED, peer);
        return OK;
    case MESSAGE_AGAIN:
    case MESSAGE_BYE:
        peer->open = false;
        event->orderly = event->message.kind == MESSAGE_BYE;
        if (was_open) *happened = keep_event(event, WIRE_GONE, peer);
        return event->orderly ? OK : say_hello(wire, peer);
    case MESSAGE_BEAT:
        return OK;
    default:
        if (was_open) *happened = keep_event(event, WIRE_SAID, peer);
        return OK;
    }
}

// Receives one frame; *more: another follows. *none: there is none.
static status receive_frame(void *socket, zmq_msg_t *frame, bool *more, bool *none) {
    *none = false;
    if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        *more = false;
        *none = zmq_errno() == EAGAIN || zmq_errno() == EINTR;
        return *none ? OK : socket_failure("receiving");
    }
    *more = zmq_msg_more(frame);
    return OK;
}

static status drop_rest(void *socket, bool more) {
    while (more) {
        zmq_msg_t frame;
        bool none;
        zmq_msg_init(&frame);
        status result = receive_frame(socket, &frame, &more, &none);
        zmq_msg_close(&frame);
        TRY(result);
    }
    return OK;
}

static status read_message(wire *wire, void *socket, const zmq_msg_t *head, bool more, wire_message *out) {
    status result = message_decode(out, &wire->arena, zmq_msg_data((zmq_msg_t *)head), zmq_msg_size(head));
    if (result == OK && message_has_bulk(out->kind) != more)
        result = fail(INPUT, "%s: %s", message_name(out->kind), more ? "a frame too many" : "no bulk");
    if (result != OK) {
        TRY(drop_rest(socket, more));
        return result;
    }
    bool none = false, rest = false;
    if (more) TRY(receive_frame(socket, &wire->bulk, &rest, &none));
    TRY(drop_rest(socket, rest));
    if (rest || none) return fail(INPUT, "%s: not one bulk", message_name(out->kind));
    out->bulk = more ? zmq_msg_data(&wire->bulk) : NULL;
    out->bulk_size = more ? zmq_msg_size(&wire->bulk) : 0;
    return OK;
}

// A malformed message ends nothing: it is logged, and a visitor whom we do not know yet is refused.
static status complain(wire *wire, const wire_peer *peer, const char *identity, size_t size) {
    if (peer) {
        log_say("from %s-%d: %s", peer->name, peer->replica, fail_text());
        return OK;
    }
    return refuse(wire, identity, size, fail_text());
}

// Receives one message from the desk (owner NULL) or a visit, and deals with it.
static status hear(wire *wire, void *socket, wire_peer *owner, wire_event *event, bool *happened) {
    zmq_msg_t first, head;
    char identity[IDENTITY] = {0};
    size_t size = 0;
    bool more = true, none = false;
    status result = OK;
    zmq_msg_init(&first);
    zmq_msg_init(&head);
    if (!owner) {
        TRY_TO(result, out, receive_frame(socket, &first, &more, &none));
        size = zmq_msg_size(&first) < IDENTITY ? zmq_msg_size(&first) : IDENTITY;
        if (!none) memcpy(identity, zmq_msg_data(&first), size);
    }
    if (none || !more) goto out;
    TRY_TO(result, out, receive_frame(socket, &head, &more, &none));
    if (none) goto out;
    result = read_message(wire, socket, &head, more, &event->message);
    if (result == INPUT) {
        result = complain(wire, owner ? owner : find_visitor(wire, identity, size), identity, size);
    } else if (result == OK) {
        result =
            owner ? hear_server(wire, owner, event, happened) : hear_visitor(wire, identity, size, event, happened);
    }
out:
    zmq_msg_close(&first);
    zmq_msg_close(&head);
    return result;
}

// ---- time ----

// Opens, beats, and finds who is silent. *happened: somebody is gone.
static status look_after(wire *wire, wire_event *event, bool *happened) {
    const wire_message beat = {.kind = MESSAGE_BEAT};
    int64_t now = now_ms();
    for (wire_peer *peer = wire->peers; peer && !*happened; peer = peer->next) {
        if (peer->dead || peer->refused) continue;
        if (peer->open && (peer->lost || now - peer->heard > DEAD_MS)) {
            peer->open = peer->lost = false;
            peer->dead = !peer->socket;
            *happened = keep_event(event, WIRE_GONE, peer);
        } else if (!peer->open && peer->socket && now - peer->spoke >= BEAT_MS) {
            TRY(say_hello(wire, peer));
        } else if (peer->open && now - peer->spoke >= BEAT_MS) {
            TRY(wire_say(wire, peer, &beat, NULL));
        }
    }
    if (!*happened) wire->looked = now;
    return OK;
}

static void sweep(wire *wire) {
    for (wire_peer **place = &wire->peers; *place;) {
        wire_peer *peer = *place;
        if (!peer->dead) {
            place = &peer->next;
            continue;
        }
        *place = peer->next;
        if (peer->socket) wire->changed = true;
        peer_free(peer);
    }
}

static status list_items(wire *wire) {
    size_t count = wire->fd_count + (wire->desk ? 1 : 0);
    for (wire_peer *peer = wire->peers; peer; peer = peer->next) count += peer->socket ? 1 : 0;
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
    for (wire_peer *peer = wire->peers; peer; peer = peer->next) {
        if (!peer->socket) continue;
        wire->items[at] = (zmq_pollitem_t){.socket = peer->socket, .events = ZMQ_POLLIN};
        wire->owners[at++] = peer;
    }
    wire->count = count;
    wire->changed = false;
    return OK;
}

// Goes round the readable ones, beginning behind the last that was heard, so that none is starved.
static status take_turns(wire *wire, wire_event *event, bool *happened) {
    for (size_t i = 0; i < wire->count && !*happened; i++) {
        size_t at = (wire->turn + i) % wire->count;
        if (!(wire->items[at].revents & (ZMQ_POLLIN | ZMQ_POLLERR))) continue;
        if (wire->items[at].socket) {
            TRY(hear(wire, wire->items[at].socket, wire->owners[at], event, happened));
        } else {
            event->fd = wire->items[at].fd;
            *happened = keep_event(event, WIRE_WOKEN, NULL);
        }
        if (*happened) wire->turn = (at + 1) % wire->count;
    }
    return OK;
}

static int next_look(const wire *wire, int64_t until, int64_t now) {
    enum { LOOK_MS = 100 };
    int64_t wait = wire->looked + LOOK_MS - now;
    if (wait < 0) wait = 0;
    if (until >= 0 && until - now < wait) wait = until > now ? until - now : 0;
    return (int)wait;
}

status wire_next(wire *wire, int timeout_ms, wire_event *event) {
    int64_t until = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    bool happened = false;
    *event = (wire_event){0};
    arena_release(&wire->arena);
    for (;;) {
        sweep(wire);
        if (wire->changed) TRY(list_items(wire));
        int64_t now = now_ms();
        if (now - wire->looked >= 100) TRY(look_after(wire, event, &happened));
        if (happened) return OK;
        if (zmq_poll(wire->items, (int)wire->count, next_look(wire, until, now)) < 0 && zmq_errno() != EINTR)
            return socket_failure("waiting");
        TRY(take_turns(wire, event, &happened));
        if (happened) return OK;
        if (until >= 0 && now_ms() >= until) return OK;
    }
}

// ---- about peers ----

bool wire_peer_open(const wire_peer *peer) {
    return peer->open && !peer->lost && !peer->dead;
}

const char *wire_peer_name(const wire_peer *peer) {
    return peer->name;
}

const char *wire_peer_machine(const wire_peer *peer) {
    return peer->machine;
}

int wire_peer_replica(const wire_peer *peer) {
    return peer->replica;
}

const char *wire_peer_purpose(const wire_peer *peer) {
    return peer->purpose;
}

bool wire_peer_visitor(const wire_peer *peer) {
    return !peer->socket;
}

void **wire_peer_tag(wire_peer *peer) {
    return &peer->tag;
}

void wire_each(wire *wire, const char *purpose, bool visitors, void (*visit)(void *context, wire_peer *peer),
               void *context) {
    for (wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (wire_peer_open(peer) && !peer->socket == visitors && !strcmp(peer->purpose, purpose)) visit(context, peer);
}
