// A peer answers in the order in which it was asked, and a transfer asks one peer at a time, so that pieces come in
// order. Pieces that come otherwise belong to a transfer that was given up; they are ignored.
#include "shared/stage/requests.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/rng.h"

enum { MAX_IN_FLIGHT = 8 * WIRE_PIECE_BYTES }; // of all transfers from one peer

void requests_release(struct requests *requests) {
    assert(!requests->first);
    free(requests->connections);
    *requests = (struct requests){0};
}

void requests_add(struct requests *requests, struct transfer *transfer) {
    assert(!transfer->peer && !transfer->data.size && !transfer->absent);
    assert(transfer->kind == MESSAGE_FETCH || transfer->kind == MESSAGE_GET);
    transfer->asked = transfer->taken = transfer->received;
    transfer->next = requests->first;
    requests->first = transfer;
}

void requests_remove(struct requests *requests, struct transfer *transfer) {
    struct transfer **link = &requests->first;
    while (*link != transfer) {
        assert(*link);
        link = &(*link)->next;
    }
    *link = transfer->next;
    buf_release(&transfer->data);
}

bool transfer_ended(const struct transfer *transfer) {
    return transfer->absent || transfer->received == transfer->total;
}

// The transfer asks nobody any more; what it had asked for will be asked for again.
static void transfer_leave_peer(struct transfer *transfer) {
    transfer->peer = NULL;
    transfer->answered = false;
    transfer->asked = transfer->received;
}

// ---- replicas ----

status requests_connect(struct requests *requests, struct wire *wire, const struct node_config *config,
                        const char *stage, const char *machine, const char *purpose, bool *exists) {
    bool found = false;
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (strcmp(endpoint->stage, stage) != 0 || (machine && strcmp(endpoint->machine, machine) != 0)) continue;
        found = true;
        size_t k = 0;
        while (k < requests->connection_count &&
               !(requests->connections[k].endpoint == endpoint && !strcmp(requests->connections[k].purpose, purpose)))
            k++;
        if (k < requests->connection_count) continue;
        TRY(wire_connect(wire, endpoint->address, endpoint->key, purpose, NULL));
        RESIZE(&requests->connections, requests->connection_count + 1);
        requests->connections[requests->connection_count++] = (struct request_connection){endpoint, purpose};
    }
    if (exists) *exists = found;
    return OK;
}

// A replica's place in the order in which replicas are asked for this file or record; above 0.
static uint64_t transfer_rank(const struct transfer *transfer, const struct wire_peer *peer) {
    return rng_bits(rng_key((uint64_t)transfer->hash, transfer->id), (uint64_t)peer->replica, 0) | 1;
}

// ---- asking ----

status requests_send(struct requests *requests, struct wire *wire, const struct node_config *config, bool *changed) {
    for (struct transfer *transfer = requests->first; transfer; transfer = transfer->next) {
        if (transfer_ended(transfer)) continue;
        if (!transfer->peer) { // chooses whom to ask, if somebody is there
            bool exists, there = false;
            uint64_t best = UINT64_MAX;
            TRY(requests_connect(requests, wire, config, transfer->stage, NULL, transfer->purpose, &exists));
            struct wire_peer *peer = wire_first_peer(wire, transfer->purpose, false);
            for (; peer; peer = wire_next_peer(peer)) {
                if (strcmp(peer->name, transfer->stage) != 0) continue;
                there = true;
                const uint64_t rank = transfer_rank(transfer, peer);
                if (rank <= transfer->absent_rank || rank > best) continue;
                best = rank;
                transfer->peer = peer;
            }
            transfer->absent = !transfer->peer && (there || !exists);
        }
        *changed |= transfer->absent;
        // Asks the peer for the next pieces; for one alone until it has shown that it has the file.
        while (transfer->peer && (transfer->total < 0 || transfer->asked < transfer->total)) {
            if (!transfer->answered && transfer->asked > transfer->received) break;
            int64_t window = MAX_IN_FLIGHT; // bytes that may still be asked of the peer
            for (const struct transfer *other = requests->first; other; other = other->next)
                if (other->peer == transfer->peer) window -= other->asked - other->taken;
            if (transfer->asked > transfer->taken && window < WIRE_PIECE_BYTES) break;
            const int64_t left = transfer->total < 0 ? WIRE_PIECE_BYTES : transfer->total - transfer->asked;
            const struct wire_message request = {.kind = transfer->kind,
                                                 .hash = transfer->hash,
                                                 .id = transfer->id,
                                                 .offset = transfer->asked,
                                                 .size = left < WIRE_PIECE_BYTES ? left : WIRE_PIECE_BYTES};
            bool gone;
            TRY(wire_send(wire, transfer->peer, &request, &gone));
            if (gone) break; // it is about to be lost
            transfer->asked += request.size;
        }
    }
    return OK;
}

// ---- answers ----

// The peer lacks what is asked for, or has answered wrongly.
static void transfer_skip_peer(struct transfer *transfer) {
    transfer->absent_rank = transfer_rank(transfer, transfer->peer);
    transfer_leave_peer(transfer);
}

status requests_on_answer(struct requests *requests, const struct wire_peer *peer, const struct wire_message *message,
                          bool *changed) {
    const bool piece = message->kind == MESSAGE_CHUNK || message->kind == MESSAGE_RECORD;
    struct transfer *transfer = requests->first;
    for (; transfer; transfer = transfer->next) {
        if (transfer->peer != peer || transfer_ended(transfer)) continue;
        if (piece && (message->kind == MESSAGE_CHUNK) != (transfer->kind == MESSAGE_FETCH)) continue;
        if (message->kind != MESSAGE_RECORD && message->hash != transfer->hash) continue;
        if (message->kind != MESSAGE_CHUNK && strcmp(message->id, transfer->id) != 0) continue;
        if (!piece || message->offset < 0 || message->offset == transfer->received) break;
    }
    if (!transfer) return OK;
    if (!piece) {
        transfer_skip_peer(transfer);
        *changed = false;
        return OK;
    }
    const int64_t total = message->total, left = message->offset >= 0 ? total - message->offset : 0;
    const bool right = total >= 0 && (transfer->total < 0 || total == transfer->total) && left > 0 &&
                       (int64_t)message->bulk_size == (left < WIRE_PIECE_BYTES ? left : WIRE_PIECE_BYTES);
    if (!right) {
        transfer_skip_peer(transfer);
        return fail(DATAERR, "%s: %zu bytes at offset %lld of %lld", message_name(message->kind), message->bulk_size,
                    (long long)message->offset, (long long)total);
    }
    buf_append(&transfer->data, message->bulk, message->bulk_size);
    transfer->total = total;
    transfer->received += (int64_t)message->bulk_size;
    if (transfer->asked < transfer->received) transfer->asked = transfer->received;
    transfer->answered = *changed = true;
    return OK;
}

void requests_forget(struct requests *requests, const struct wire_peer *peer) {
    for (struct transfer *transfer = requests->first; transfer; transfer = transfer->next)
        if (transfer->peer == peer) transfer_leave_peer(transfer);
}
