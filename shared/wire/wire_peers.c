#include "shared/wire/wire_peers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/admission.h"

int64_t wire_now_ms(const struct wire *wire) {
    return wire->transport->calls->now_ms(wire->transport);
}

// ---- peers ----

void wire_peer_free(struct wire *wire, struct wire_peer *peer) {
    if (peer->link) wire->transport->calls->disconnect(wire->transport, peer->link);
    free(peer->name);
    free(peer->machine);
    free(peer->purpose);
    free(peer->endpoint);
    free(peer->key);
    free(peer);
}

void wire_set_string(char **string, const char *text) {
    free(*string);
    *string = mem_strdup(text);
}

void wire_peer_new(struct wire *wire, const char *name, const char *machine, const char *purpose,
                   struct wire_peer **out) {
    struct wire_peer *peer;
    NEW(&peer, 1);
    wire_set_string(&peer->name, name);
    wire_set_string(&peer->machine, machine);
    wire_set_string(&peer->purpose, purpose);
    struct wire_peer **last = &wire->peers;
    while (*last) last = &(*last)->next;
    *last = peer;
    *out = peer;
}

struct wire_peer *wire_find_client(const struct wire *wire, const struct transport_client *client) {
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

status wire_send_frames(struct wire *wire, struct transport_link *link, const struct transport_client *client,
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

void wire_lose(struct wire *wire, struct wire_peer *peer) {
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

status wire_refuse(struct wire *wire, struct transport_link *link, const struct transport_client *client,
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
