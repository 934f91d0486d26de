#include "shared/stage/weights_server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/stage/distribution.h"

// Who waits for a difference, and for which piece.
struct difference_waiter {
    struct wire_peer *peer;
    struct wire_message fetch;
};

struct weights_server {
    struct weights_versions *versions;
    struct difference_waiter *waiters;
    size_t waiter_count;
    int64_t pushed; // publications that the other stages were told of
    struct distribution distribution;
    struct arena arena; // of a message
    struct buf bulk;    // of an answer
};

void weights_server_new(struct weights_server **out, struct weights_versions *versions) {
    NEW(out, 1);
    (*out)->versions = versions;
}

void weights_server_free(struct weights_server **server) {
    if (!*server) return;
    free((*server)->waiters);
    distribution_release(&(*server)->distribution);
    arena_release(&(*server)->arena);
    buf_release(&(*server)->bulk);
    free(*server);
    *server = NULL;
}

// Tells a stage which weights are the newest; NULL: every stage that follows them.
static status weights_server_send(struct weights_server *server, struct io_thread *io, struct wire_peer *peer) {
    status result = OK;
    for (int reference = 0; reference < 2 && result == OK; reference++) {
        struct wire_message message;
        bool known;
        result = weights_versions_latest(server->versions, reference, &message, &known, &server->arena);
        if (result == OK && known)
            result = peer ? io_thread_reply(io, peer, &message) : io_thread_push(io, "weights", &message);
    }
    arena_release(&server->arena);
    return result;
}

static status weights_server_reply(struct weights_server *server, struct io_thread *io, struct wire_peer *peer,
                                   const struct wire_message *fetch, enum distribution_verdict verdict,
                                   const struct wire_peer *giver) {
    struct wire_message reply;
    if (verdict == DISTRIBUTION_WAIT) return OK;
    if (verdict == DISTRIBUTION_ELSEWHERE) {
        reply = (struct wire_message){.kind = MESSAGE_ELSEWHERE,
                                      .hash = fetch->hash,
                                      .name = giver->name,
                                      .replica = giver->replica,
                                      .machine = giver->machine};
        return io_thread_reply(io, peer, &reply);
    }
    TRY(weights_versions_chunk(server->versions, fetch, &reply, &server->bulk));
    if (reply.kind == MESSAGE_ABSENT) distribution_end(&server->distribution, peer);
    return io_thread_reply(io, peer, &reply);
}

static void weights_server_add_waiter(struct weights_server *server, struct wire_peer *peer,
                                      const struct wire_message *fetch) {
    size_t i = 0;
    while (i < server->waiter_count &&
           !(server->waiters[i].peer == peer && server->waiters[i].fetch.hash == fetch->hash))
        i++;
    if (i == server->waiter_count) RESIZE(&server->waiters, ++server->waiter_count);
    server->waiters[i] = (struct difference_waiter){
        peer, {.kind = MESSAGE_FETCH, .hash = fetch->hash, .offset = fetch->offset, .size = fetch->size}};
}

static status weights_server_fetch(struct weights_server *server, struct io_thread *io, struct wire_peer *peer,
                                   const struct wire_message *fetch) {
    enum distribution_verdict verdict;
    struct wire_peer *giver;
    bool waits;
    TRY(message_check_range(fetch));
    TRY(weights_versions_await(server->versions, fetch->hash, &waits));
    if (waits) {
        weights_server_add_waiter(server, peer, fetch);
        return OK;
    }
    const int64_t size = weights_versions_size(server->versions, fetch->hash);
    if (fetch->offset >= size) // ABSENT, or a mistake
        return weights_server_reply(server, io, peer, fetch, DISTRIBUTION_SERVE, NULL);
    distribution_fetch(&server->distribution, peer, fetch, size, io_thread_now_ms(io), &verdict, &giver);
    return weights_server_reply(server, io, peer, fetch, verdict, giver);
}

// Tells all stages that follow optim's weights when there are newer ones, before the I/O thread sends what the worker
// has said since. Answers those that need to wait no more.
static status weights_server_tick(struct weights_server *server, struct io_thread *io) {
    const int64_t publications = weights_versions_publications(server->versions);
    struct wire_message fetch;
    enum distribution_verdict verdict;
    struct wire_peer *peer, *giver;
    if (publications != server->pushed) {
        server->pushed = publications;
        TRY(weights_server_send(server, io, NULL));
    }
    const size_t waiting = server->waiter_count; // those who wait on are added behind
    for (size_t i = 0; i < waiting; i++) {
        const struct difference_waiter waiter = server->waiters[0];
        memmove(server->waiters, server->waiters + 1, --server->waiter_count * sizeof *server->waiters);
        const status result = weights_server_fetch(server, io, waiter.peer, &waiter.fetch);
        const struct wire_message absent = {.kind = MESSAGE_ABSENT, .id = "", .hash = waiter.fetch.hash};
        TRY(result == DATAERR ? io_thread_reply(io, waiter.peer, &absent) : result); // it asked for what lies behind
    }
    while ((peer = distribution_next(&server->distribution, io_thread_now_ms(io), &fetch, &verdict, &giver)))
        TRY(weights_server_reply(server, io, peer, &fetch, verdict, giver));
    return OK;
}

// The worker publishes files instead.
static void weights_server_cannot_borrow(struct weights_server *server, struct io_thread *io,
                                         const struct wire_peer *peer, const struct wire_message *message) {
    struct buf reason = {0};
    buf_printf(&reason, "%s-%d cannot use the weights in optim's memory: %s", peer->name, peer->replica,
               message->reason);
    if (weights_versions_refuse(server->versions, message->path, reason.data)) io_thread_nudge(io);
    buf_release(&reason);
}

static void weights_server_gone(struct weights_server *server, const struct wire_peer *peer) {
    size_t kept = 0;
    for (size_t i = 0; i < server->waiter_count; i++)
        if (server->waiters[i].peer != peer) server->waiters[kept++] = server->waiters[i];
    server->waiter_count = kept;
    distribution_gone(&server->distribution, peer);
}

status weights_server_event(struct weights_server *server, struct io_thread *io, const struct wire_event *event) {
    const struct wire_message *message = &event->message;
    switch (event->kind) {
    case WIRE_TIMEOUT:
        return weights_server_tick(server, io);
    case WIRE_JOINED:
        weights_server_gone(server, event->peer); // it begins anew
        return weights_server_send(server, io, event->peer);
    case WIRE_GONE:
        weights_server_gone(server, event->peer);
        return OK;
    default:
        if (message->kind == MESSAGE_FETCH) return weights_server_fetch(server, io, event->peer, message);
        if (message->kind == MESSAGE_CANNOT_BORROW) {
            weights_server_cannot_borrow(server, io, event->peer, message);
            return OK;
        }
        assert(message->kind == MESSAGE_HAS_WEIGHTS);
        distribution_has(&server->distribution, event->peer, message->hash);
        return OK;
    }
}
