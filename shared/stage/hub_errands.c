// The hub's errands: questions that another thread waits for, and what is to be said to all.
#include "shared/stage/hub_own.h"

#include <stdlib.h>
#include <string.h>

#include "shared/stage/signals.h"

// ---- other threads ----

static void post_free(struct post *post) {
    arena_release(&post->arena);
    free(post->purpose);
    free(post);
}

status hub_post(struct hub *hub, const char *purpose, const struct wire_message *message) {
    struct post *post;
    struct buf frame = {0};
    TRY(NEW(&post, 1));
    status result = (post->purpose = strdup(purpose)) ? OK : fail_oom();
    // Through its encoding and back is the copy.
    if (result == OK) result = message_encode(message, &frame);
    if (result == OK) result = message_decode(&post->message, &post->arena, frame.data, frame.size);
    buf_release(&frame);
    if (result != OK) {
        post_free(post);
        return result;
    }
    pthread_mutex_lock(&hub->lock);
    *hub->last_post = post;
    hub->last_post = &post->next;
    pthread_mutex_unlock(&hub->lock);
    hub_ring(hub);
    return OK;
}

static void remove_errand(struct hub *hub, const struct errand *errand) {
    struct errand **place = &hub->errands;
    while (*place && *place != errand) place = &(*place)->next;
    if (*place) *place = errand->next;
}

status hub_ask(struct hub *hub, const char *stage, const char *purpose, const struct wire_message *request,
               struct wire_message *reply, struct arena *arena, struct buf *bulk) {
    struct errand errand = {.stage = stage,
                            .purpose = purpose,
                            .request = request,
                            .reply = reply,
                            .arena = arena,
                            .bulk = bulk,
                            .result = END};
    pthread_mutex_lock(&hub->lock);
    errand.next = hub->errands;
    hub->errands = &errand;
    hub_ring(hub);
    while (errand.state != ERRAND_DONE && !signals_stopping() && hub->broken == OK) hub_wait_moment(hub);
    if (hub->broken != OK) errand.result = fail(hub->broken, "%s", hub->reason);
    remove_errand(hub, &errand);
    pthread_mutex_unlock(&hub->lock);
    return errand.result;
}

// ---- the hub's thread ----

static void find_knower(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    if (strcmp(wire_peer_name(peer), saying->stage) != 0 || saying->found) return;
    if (saying->skip-- == 0) saying->found = peer;
}

status hub_visit_stage(struct hub *hub, const char *stage, const char *purpose) {
    for (size_t i = 0; i < hub->config->endpoint_count; i++) {
        const struct node_endpoint *desk = &hub->config->endpoints[i];
        if (!strcmp(desk->stage, stage)) TRY(wire_connect(hub->wire, desk->endpoint, desk->key, purpose, NULL));
    }
    return OK;
}

static status visit_for(struct hub *hub, const struct errand *errand) {
    bool *visited = !strcmp(errand->purpose, "weights") ? &hub->weights_visited : &hub->frames_visited;
    if (*visited) return OK;
    *visited = true;
    return hub_visit_stage(hub, errand->stage, errand->purpose);
}

static void finish_errand(struct hub *hub, struct errand *errand, status result) {
    errand->result = result;
    errand->state = ERRAND_DONE;
    pthread_cond_broadcast(&hub->changed);
}

static bool stage_exists(const struct hub *hub, const char *stage) {
    for (size_t i = 0; i < hub->config->endpoint_count; i++)
        if (!strcmp(hub->config->endpoints[i].stage, stage)) return true;
    return false;
}

static status begin_errand(struct hub *hub, struct errand *errand) {
    if (!stage_exists(hub, errand->stage)) {
        errand->reply->kind = MESSAGE_ABSENT;
        finish_errand(hub, errand, OK);
        return OK;
    }
    TRY(visit_for(hub, errand));
    struct saying saying = {.stage = errand->stage, .skip = errand->skip};
    wire_each(hub->wire, errand->purpose, false, find_knower, &saying);
    if (!saying.found) {
        // All that are there were asked.
        if (errand->skip && saying.skip < errand->skip) {
            errand->reply->kind = MESSAGE_ABSENT;
            finish_errand(hub, errand, OK);
        }
        return OK;
    }
    errand->peer = saying.found;
    errand->state = ERRAND_ASKED;
    return wire_send(hub->wire, saying.found, errand->request, NULL);
}

status hub_begin_errands(struct hub *hub) {
    status result = OK;
    pthread_mutex_lock(&hub->lock);
    for (struct errand *errand = hub->errands; errand && result == OK; errand = errand->next)
        if (errand->state == ERRAND_NEW) result = begin_errand(hub, errand);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

static bool answers(const struct errand *errand, const struct wire_peer *peer, const struct wire_message *message) {
    const struct wire_message *request = errand->request;
    if (errand->state != ERRAND_ASKED || errand->peer != peer) return false;
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

static status copy_answer(struct errand *errand, const struct wire_message *message) {
    struct buf frame = {0};
    status result = message_encode(message, &frame);
    if (result == OK) result = message_decode(errand->reply, errand->arena, frame.data, frame.size);
    if (result == OK && message->bulk) result = buf_append(errand->bulk, message->bulk, message->bulk_size);
    buf_release(&frame);
    return result;
}

void hub_hear_answer(struct hub *hub, struct wire_peer *peer, const struct wire_message *message) {
    pthread_mutex_lock(&hub->lock);
    for (struct errand *errand = hub->errands; errand; errand = errand->next) {
        if (!answers(errand, peer, message)) continue;
        if (message->kind == MESSAGE_ABSENT && errand->request->kind == MESSAGE_GET) {
            errand->skip++;
            errand->state = ERRAND_NEW;
        } else {
            finish_errand(hub, errand, copy_answer(errand, message));
        }
        break;
    }
    pthread_mutex_unlock(&hub->lock);
}

// Whoever was asked is not what it was: ask again.
void hub_forget_errands(struct hub *hub, const struct wire_peer *peer) {
    pthread_mutex_lock(&hub->lock);
    for (struct errand *errand = hub->errands; errand; errand = errand->next) {
        if (errand->state == ERRAND_ASKED && errand->peer == peer) errand->state = ERRAND_NEW;
    }
    pthread_mutex_unlock(&hub->lock);
}

void hub_say_one(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    if (saying->result == OK) saying->result = wire_send(saying->hub->wire, peer, saying->message, NULL);
}

status hub_send_posts(struct hub *hub) {
    status result = OK;
    pthread_mutex_lock(&hub->lock);
    struct post *posts = hub->posts;
    hub->posts = NULL;
    hub->last_post = &hub->posts;
    pthread_mutex_unlock(&hub->lock);
    while (posts) {
        struct post *next = posts->next;
        struct saying saying = {.hub = hub, .message = &posts->message};
        if (result == OK) wire_each(hub->wire, posts->purpose, false, hub_say_one, &saying);
        if (result == OK) result = saying.result;
        post_free(posts);
        posts = next;
    }
    return result;
}

void hub_free_posts(struct hub *hub) {
    while (hub->posts) {
        struct post *next = hub->posts->next;
        post_free(hub->posts);
        hub->posts = next;
    }
}
