// Polling, opening and closing a wire: heartbeats, dead peers, and links that are renewed.
#include "shared/wire/wire.h"

#include <assert.h>
#include <stdlib.h>

#include "shared/wire/wire_peers.h"
#include "shared/wire/wire_receive.h"

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
static void wire_report_pending(struct wire *wire, struct wire_event *event) {
    struct wire_peer *found = NULL;
    for (struct wire_peer *peer = wire->peers; peer && !(found && found->lost); peer = peer->next)
        if (!peer->dead && (peer->lost || (peer->joining && !found))) found = peer;
    wire->pending = found != NULL;
    if (!found) return;
    if (found->lost) {
        found->open = found->lost = false;
        found->dead = !found->server;
        event->restarted = found->replaced;
        wire_set_event(event, WIRE_GONE, found);
        return;
    }
    found->joining = false;
    found->open = true;
    found->sent_at = wire_now_ms(wire);
    wire_set_event(event, WIRE_JOINED, found);
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
        if (wire->pending) wire_report_pending(wire, event);
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

void wire_open(struct wire **out, const struct wire_self *self, struct transport *transport) {
    struct wire *wire;
    *out = NULL;
    NEW(&wire, 1);
    wire->self = *self;
    wire->transport = transport;
    wire->life = (int64_t)(transport->calls->random(transport) | 1); // never 0
    wire->looked_at = wire_now_ms(wire);
    *out = wire;
}

status wire_bind(struct wire *wire, const char *endpoint) {
    return wire->transport->calls->bind(wire->transport, endpoint);
}

status wire_connect(struct wire *wire, const char *endpoint, const char *key, const char *purpose,
                    struct wire_peer **out) {
    struct wire_peer *peer;
    if (out) *out = NULL;
    wire_peer_new(wire, "", "", purpose, &peer);
    peer->server = true;
    peer->renewed_at = wire_now_ms(wire);
    wire_set_string(&peer->endpoint, endpoint);
    status result = OK;
    if (result == OK && key) wire_set_string(&peer->key, key);
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
