#include "shared/stage/requests.h"

#include <assert.h>
#include <string.h>

void requests_add(struct requests *requests, struct request *request) {
    assert(request->state == REQUEST_NEW);
    request->next = requests->first;
    requests->first = request;
}

void requests_remove(struct requests *requests, struct request *request) {
    struct request **link = &requests->first;
    while (*link != request) {
        assert(*link);
        link = &(*link)->next;
    }
    *link = request->next;
}

status requests_connect(struct requests *requests, struct wire *wire, const struct node_config *config,
                        const char *stage, const char *purpose, bool *exists) {
    int slot = 0;
    bool found = false;
    while (slot < REQUEST_PURPOSES && requests->connected[slot] && strcmp(requests->connected[slot], purpose) != 0)
        slot++;
    assert(slot < REQUEST_PURPOSES);
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (strcmp(endpoint->stage, stage) != 0) continue;
        found = true;
        if (!requests->connected[slot]) TRY(wire_connect(wire, endpoint->address, endpoint->key, purpose, NULL));
    }
    if (found) requests->connected[slot] = purpose;
    if (exists) *exists = found;
    return OK;
}

status requests_send(struct requests *requests, struct wire *wire, const struct node_config *config, bool *done) {
    *done = false;
    for (struct request *request = requests->first; request; request = request->next) {
        if (request->state != REQUEST_NEW) continue;
        bool exists;
        TRY(requests_connect(requests, wire, config, request->stage, request->purpose, &exists));
        int there = 0;
        struct wire_peer *peer = wire_first_peer(wire, request->purpose, false);
        while (peer && (strcmp(wire_peer_name(peer), request->stage) != 0 || there++ < request->asked))
            peer = wire_next_peer(peer);
        if (peer) {
            request->peer = peer;
            request->state = REQUEST_SENT;
            TRY(wire_send(wire, peer, request->message, NULL));
        } else if (!exists || there > 0) {
            request->reply->kind = MESSAGE_ABSENT;
            request->state = REQUEST_DONE;
            *done = true;
        }
    }
    return OK;
}

static bool request_is_answered(const struct request *request, const struct wire_peer *peer,
                                const struct wire_message *message) {
    const struct wire_message *asked = request->message;
    if (request->state != REQUEST_SENT || request->peer != peer) return false;
    switch (message->kind) {
    case MESSAGE_CHUNK:
        return asked->kind == MESSAGE_FETCH && asked->hash == message->hash && asked->offset == message->offset;
    case MESSAGE_RECORD:
        return asked->kind == MESSAGE_GET && !strcmp(asked->id, message->id);
    case MESSAGE_ABSENT:
        return asked->kind != MESSAGE_GET || !strcmp(asked->id, message->id);
    default:
        return false;
    }
}

status requests_on_answer(struct requests *requests, const struct wire_peer *peer, const struct wire_message *message,
                          bool *done) {
    struct request *request = requests->first;
    *done = false;
    while (request && !request_is_answered(request, peer, message)) request = request->next;
    if (!request) return OK;
    if (message->kind == MESSAGE_ABSENT && request->message->kind == MESSAGE_GET) { // another replica may have it
        request->asked++;
        request->state = REQUEST_NEW;
        return OK;
    }
    TRY(message_copy(message, request->reply, request->arena));
    if (message->bulk) TRY(buf_append(request->bulk, message->bulk, message->bulk_size));
    request->state = REQUEST_DONE;
    *done = true;
    return OK;
}

void requests_forget(struct requests *requests, const struct wire_peer *peer) {
    for (struct request *request = requests->first; request; request = request->next)
        if (request->state == REQUEST_SENT && request->peer == peer) request->state = REQUEST_NEW;
}
