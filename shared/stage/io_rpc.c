// The I/O thread's rpcs: questions that another thread waits for, and what is to be said to all.
#include "shared/stage/io_internal.h"

#include <stdlib.h>
#include <string.h>

#include "shared/stage/signals.h"

// ---- other threads ----

static void broadcast_free(struct broadcast *broadcast) {
    arena_release(&broadcast->arena);
    free(broadcast->purpose);
    free(broadcast);
}

status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message) {
    struct broadcast *broadcast;
    struct buf frame = {0};
    TRY(NEW(&broadcast, 1));
    status result = (broadcast->purpose = strdup(purpose)) ? OK : fail_oom();
    // Through its encoding and back is the copy.
    if (result == OK) result = message_encode(message, &frame);
    if (result == OK) result = message_decode(&broadcast->message, &broadcast->arena, frame.data, frame.size);
    buf_release(&frame);
    if (result != OK) {
        broadcast_free(broadcast);
        return result;
    }
    pthread_mutex_lock(&io->lock);
    *io->last_broadcast = broadcast;
    io->last_broadcast = &broadcast->next;
    pthread_mutex_unlock(&io->lock);
    io_thread_wake(io);
    return OK;
}

static void remove_rpc(struct io_thread *io, const struct rpc *rpc) {
    struct rpc **place = &io->rpcs;
    while (*place && *place != rpc) place = &(*place)->next;
    if (*place) *place = rpc->next;
}

status io_thread_call(struct io_thread *io, const char *stage, const char *purpose, const struct wire_message *request,
                      struct wire_message *reply, struct arena *arena, struct buf *bulk) {
    struct rpc rpc = {.stage = stage,
                      .purpose = purpose,
                      .request = request,
                      .reply = reply,
                      .arena = arena,
                      .bulk = bulk,
                      .result = END};
    pthread_mutex_lock(&io->lock);
    rpc.next = io->rpcs;
    io->rpcs = &rpc;
    io_thread_wake(io);
    while (rpc.state != RPC_DONE && !signals_stopping() && io->broken == OK) io_wait_moment(io);
    if (io->broken != OK) rpc.result = fail(io->broken, "%s", io->reason);
    remove_rpc(io, &rpc);
    pthread_mutex_unlock(&io->lock);
    return rpc.result;
}

// ---- the I/O thread ----

static void find_knower(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    if (strcmp(wire_peer_name(peer), saying->stage) != 0 || saying->found) return;
    if (saying->skip-- == 0) saying->found = peer;
}

status io_visit_stage(struct io_thread *io, const char *stage, const char *purpose) {
    for (size_t i = 0; i < io->config->endpoint_count; i++) {
        const struct node_endpoint *desk = &io->config->endpoints[i];
        if (!strcmp(desk->stage, stage)) TRY(wire_connect(io->wire, desk->endpoint, desk->key, purpose, NULL));
    }
    return OK;
}

static status visit_for(struct io_thread *io, const struct rpc *rpc) {
    bool *visited = !strcmp(rpc->purpose, "weights") ? &io->weights_visited : &io->frames_visited;
    if (*visited) return OK;
    *visited = true;
    return io_visit_stage(io, rpc->stage, rpc->purpose);
}

static void finish_rpc(struct io_thread *io, struct rpc *rpc, status result) {
    rpc->result = result;
    rpc->state = RPC_DONE;
    pthread_cond_broadcast(&io->changed);
}

static bool stage_exists(const struct io_thread *io, const char *stage) {
    for (size_t i = 0; i < io->config->endpoint_count; i++)
        if (!strcmp(io->config->endpoints[i].stage, stage)) return true;
    return false;
}

static status begin_rpc(struct io_thread *io, struct rpc *rpc) {
    if (!stage_exists(io, rpc->stage)) {
        rpc->reply->kind = MESSAGE_ABSENT;
        finish_rpc(io, rpc, OK);
        return OK;
    }
    TRY(visit_for(io, rpc));
    struct saying saying = {.stage = rpc->stage, .skip = rpc->skip};
    wire_each(io->wire, rpc->purpose, false, find_knower, &saying);
    if (!saying.found) {
        // All that are there were asked.
        if (rpc->skip && saying.skip < rpc->skip) {
            rpc->reply->kind = MESSAGE_ABSENT;
            finish_rpc(io, rpc, OK);
        }
        return OK;
    }
    rpc->peer = saying.found;
    rpc->state = RPC_SENT;
    return wire_send(io->wire, saying.found, rpc->request, NULL);
}

status io_begin_errands(struct io_thread *io) {
    status result = OK;
    pthread_mutex_lock(&io->lock);
    for (struct rpc *rpc = io->rpcs; rpc && result == OK; rpc = rpc->next)
        if (rpc->state == RPC_NEW) result = begin_rpc(io, rpc);
    pthread_mutex_unlock(&io->lock);
    return result;
}

static bool answers(const struct rpc *rpc, const struct wire_peer *peer, const struct wire_message *message) {
    const struct wire_message *request = rpc->request;
    if (rpc->state != RPC_SENT || rpc->peer != peer) return false;
    switch (message->kind) {
    case MESSAGE_WEIGHTS:
        return request->kind == MESSAGE_GET_WEIGHTS && request->reference == message->reference;
    case MESSAGE_CHUNK:
        return request->kind == MESSAGE_FETCH && request->hash == message->hash && request->offset == message->offset;
    case MESSAGE_RECORD:
        return request->kind == MESSAGE_GET && !strcmp(request->id, message->id);
    case MESSAGE_ABSENT:
        return request->kind != MESSAGE_GET || !strcmp(request->id, message->id);
    default:
        return false;
    }
}

static status copy_answer(struct rpc *rpc, const struct wire_message *message) {
    struct buf frame = {0};
    status result = message_encode(message, &frame);
    if (result == OK) result = message_decode(rpc->reply, rpc->arena, frame.data, frame.size);
    if (result == OK && message->bulk) result = buf_append(rpc->bulk, message->bulk, message->bulk_size);
    buf_release(&frame);
    return result;
}

void io_hear_answer(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    pthread_mutex_lock(&io->lock);
    for (struct rpc *rpc = io->rpcs; rpc; rpc = rpc->next) {
        if (!answers(rpc, peer, message)) continue;
        if (message->kind == MESSAGE_ABSENT && rpc->request->kind == MESSAGE_GET) {
            rpc->skip++;
            rpc->state = RPC_NEW;
        } else {
            finish_rpc(io, rpc, copy_answer(rpc, message));
        }
        break;
    }
    pthread_mutex_unlock(&io->lock);
}

// Whoever was asked is not what it was: ask again.
void io_forget_errands(struct io_thread *io, const struct wire_peer *peer) {
    pthread_mutex_lock(&io->lock);
    for (struct rpc *rpc = io->rpcs; rpc; rpc = rpc->next) {
        if (rpc->state == RPC_SENT && rpc->peer == peer) rpc->state = RPC_NEW;
    }
    pthread_mutex_unlock(&io->lock);
}

void io_say_one(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    if (saying->result == OK) saying->result = wire_send(saying->io->wire, peer, saying->message, NULL);
}

status io_send_posts(struct io_thread *io) {
    status result = OK;
    pthread_mutex_lock(&io->lock);
    struct broadcast *broadcasts = io->broadcasts;
    io->broadcasts = NULL;
    io->last_broadcast = &io->broadcasts;
    pthread_mutex_unlock(&io->lock);
    while (broadcasts) {
        struct broadcast *next = broadcasts->next;
        struct saying saying = {.io = io, .message = &broadcasts->message};
        if (result == OK) wire_each(io->wire, broadcasts->purpose, false, io_say_one, &saying);
        if (result == OK) result = saying.result;
        broadcast_free(broadcasts);
        broadcasts = next;
    }
    return result;
}

void io_free_posts(struct io_thread *io) {
    while (io->broadcasts) {
        struct broadcast *next = io->broadcasts->next;
        broadcast_free(io->broadcasts);
        io->broadcasts = next;
    }
}
