// What comes in at a desk or over a visit: who is welcome, and what becomes of what they say.
#include "shared/wire/wire_own.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"

bool wire_keep_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer) {
    event->kind = kind;
    event->peer = peer;
    return true;
}

static status refuse(struct wire *wire, const char *identity, size_t size, const char *reason) {
    const struct wire_message refused = {.kind = MESSAGE_REFUSED, .reason = reason};
    bool gone;
    log_info("refused a peer: %s", reason);
    return wire_send_frames(wire, wire->desk, identity, size, &refused, &gone);
}

// Why a HELLO is not welcome, NULL if it is.
static const char *objection(const struct wire *wire, struct arena *arena, const struct wire_message *hello) {
    if (hello->protocol != WIRE_PROTOCOL)
        return arena_printf(arena, "%s-%d speaks protocol %d, %s-%d protocol %d", hello->name, (int)hello->replica,
                            (int)hello->protocol, wire->self.name, wire->self.replica, WIRE_PROTOCOL);
    if (hello->schema != WIRE_SCHEMA)
        return arena_printf(arena, "%s-%d has version %d of the group, %s-%d version %d", hello->name,
                            (int)hello->replica, (int)hello->schema, wire->self.name, wire->self.replica, WIRE_SCHEMA);
    if (strcmp(hello->run, wire->self.run) != 0)
        return arena_printf(arena, "%s-%d belongs to another run than %s-%d: their pipeline files differ", hello->name,
                            (int)hello->replica, wire->self.name, wire->self.replica);
    return NULL;
}

static status welcome(struct wire *wire, struct wire_peer *peer, const char *identity, size_t size,
                      const struct wire_message *hello, struct wire_event *event, bool *happened) {
    const char *reason = objection(wire, &wire->arena, hello);
    if (reason) return refuse(wire, identity, size, reason);
    if (!peer) {
        TRY(wire_peer_new(wire, hello->name, hello->machine, hello->purpose, &peer));
        memcpy(peer->identity, identity, size);
        peer->identity_size = size;
        peer->replica = (int)hello->replica;
    }
    peer->open = true;
    peer->heard = clock_monotonic_ms();
    const struct wire_message answer = {
        .kind = MESSAGE_WELCOME, .name = wire->self.name, .replica = wire->self.replica, .machine = wire->self.machine};
    TRY(wire_send(wire, peer, &answer, NULL));
    *happened = wire_keep_event(event, WIRE_JOINED, peer);
    return OK;
}

static struct wire_peer *find_visitor(const struct wire *wire, const char *identity, size_t size) {
    for (struct wire_peer *peer = wire->peers; peer; peer = peer->next)
        if (!peer->socket && !peer->dead && peer->identity_size == size && !memcmp(peer->identity, identity, size))
            return peer;
    return NULL;
}

// A visitor's message.
static status hear_visitor(struct wire *wire, const char *identity, size_t size, struct wire_event *event,
                           bool *happened) {
    const struct wire_message *message = &event->message;
    struct wire_peer *peer = find_visitor(wire, identity, size);
    if (peer && peer->lost) return OK;
    if (message->kind == MESSAGE_HELLO) return welcome(wire, peer, identity, size, message, event, happened);
    if (!peer) {
        const struct wire_message again = {.kind = MESSAGE_UNKNOWN_PEER};
        bool gone;
        return wire_send_frames(wire, wire->desk, identity, size, &again, &gone);
    }
    peer->heard = clock_monotonic_ms();
    if (message->kind == MESSAGE_BYE) {
        peer->dead = true;
        event->orderly = true;
        *happened = wire_keep_event(event, WIRE_GONE, peer);
    } else if (message->kind != MESSAGE_HEARTBEAT) {
        *happened = wire_keep_event(event, WIRE_MESSAGE, peer);
    }
    return OK;
}

static status hear_welcome(struct wire_peer *peer, struct wire_event *event, bool *happened) {
    if (peer->open) return OK;
    TRY(wire_set_text(&peer->name, event->message.name));
    TRY(wire_set_text(&peer->machine, event->message.machine));
    peer->replica = (int)event->message.replica;
    peer->open = true;
    *happened = wire_keep_event(event, WIRE_JOINED, peer);
    return OK;
}

// The visited server's message.
static status hear_server(struct wire *wire, struct wire_peer *peer, struct wire_event *event, bool *happened) {
    bool was_open = peer->open;
    peer->heard = clock_monotonic_ms();
    switch (event->message.kind) {
    case MESSAGE_WELCOME:
        return hear_welcome(peer, event, happened);
    case MESSAGE_REFUSED:
        peer->open = false;
        peer->refused = true;
        *happened = wire_keep_event(event, WIRE_REFUSED, peer);
        return OK;
    case MESSAGE_UNKNOWN_PEER:
    case MESSAGE_BYE:
        peer->open = false;
        event->orderly = event->message.kind == MESSAGE_BYE;
        if (was_open) *happened = wire_keep_event(event, WIRE_GONE, peer);
        return event->orderly ? OK : wire_say_hello(wire, peer);
    case MESSAGE_HEARTBEAT:
        return OK;
    default:
        if (was_open) *happened = wire_keep_event(event, WIRE_MESSAGE, peer);
        return OK;
    }
}

// Receives one frame; *more: another follows. *none: there is none.
static status receive_frame(void *socket, zmq_msg_t *frame, bool *more, bool *none) {
    *none = false;
    if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        *more = false;
        *none = zmq_errno() == EAGAIN || zmq_errno() == EINTR;
        return *none ? OK : wire_socket_failure("receiving");
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

static status read_message(struct wire *wire, void *socket, const zmq_msg_t *head, bool more,
                           struct wire_message *out) {
    status result = message_decode(out, &wire->arena, zmq_msg_data((zmq_msg_t *)head), zmq_msg_size(head));
    if (result == OK && message_has_bulk(out->kind) != more)
        result = fail(DATAERR, "%s: %s", message_name(out->kind), more ? "a frame too many" : "no bulk");
    if (result != OK) {
        TRY(drop_rest(socket, more));
        return result;
    }
    bool none = false, rest = false;
    if (more) TRY(receive_frame(socket, &wire->bulk, &rest, &none));
    TRY(drop_rest(socket, rest));
    if (rest || none) return fail(DATAERR, "%s: not one bulk", message_name(out->kind));
    out->bulk = more ? zmq_msg_data(&wire->bulk) : NULL;
    out->bulk_size = more ? zmq_msg_size(&wire->bulk) : 0;
    return OK;
}

// A malformed message ends nothing: it is logged, and a visitor whom we do not know yet is refused.
static status complain(struct wire *wire, const struct wire_peer *peer, const char *identity, size_t size) {
    if (peer) {
        log_info("from %s-%d: %s", peer->name, peer->replica, fail_text());
        return OK;
    }
    return refuse(wire, identity, size, fail_text());
}

// Receives one message from the desk (owner NULL) or a visit, and deals with it.
status wire_hear(struct wire *wire, void *socket, struct wire_peer *owner, struct wire_event *event, bool *happened) {
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
    if (result == DATAERR) {
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
