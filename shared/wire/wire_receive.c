// What a wire does with a message. Those that open, keep and end a conversation are handled here, the others are
// events.
//
// A client says HELLO when a server does not know it. A server learns of each new connection from the transport, and
// says so with UNKNOWN_PEER; so a conversation opens at once when a server was started or a connection was lost. Only
// a client that has answered WELCOME takes the place of an older one: a HELLO may arrive late, over a connection that
// the client has given up.
#include "shared/wire/wire_receive.h"

#include <assert.h>
#include <string.h>

#include "shared/wire/admission.h"
#include "shared/wire/log_limit.h"

void wire_set_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer) {
    assert(event->kind == WIRE_TIMEOUT);
    event->kind = kind;
    event->peer = peer;
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
        wire_peer_new(wire, hello->name, hello->machine, hello->purpose, &peer);
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
        wire_set_string(&peer->name, message->name);
        wire_set_string(&peer->machine, message->machine);
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

status wire_on_transport_event(struct wire *wire, const struct transport_event *from, struct wire_event *event) {
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
