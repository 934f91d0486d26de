// The hub's life and its thread. Everything below the line "hub's thread" runs in it alone, without the lock unless it
// touches what both sides use.
#include "shared/stage/hub_own.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "shared/wire/seq_set.h"

enum { TICK_MS = 50, REPORT_MS = 500 };

int64_t hub_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void hub_ring(struct hub *hub) {
    uint64_t one = 1;
    ssize_t put = write(hub->bell, &one, sizeof one); // an event counter that is full rings as well
    (void)put;
}

// Waits a moment for a change. The lock is held.
void hub_wait_moment(struct hub *hub) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&hub->changed, &hub->lock, &until);
}

// ---- the hub's thread ----

// The orders of all groups here. The lock is held.
static status hub_list_seqs(struct hub *hub) {
    size_t count = 0;
    int64_t waiting = letters_count(&hub->letters, -1);
    TRY(RESIZE(&hub->seqs, hub->hand_count + hub->inbox_count + (size_t)waiting));
    for (size_t i = 0; i < hub->hand_count; i++) hub->seqs[count++] = hub->hands[i].seq;
    for (size_t i = 0; i < hub->inbox_count; i++) hub->seqs[count++] = hub->inbox[i]->requires.order;
    for (const struct letter *at = hub->letters.first; at; at = at->next) hub->seqs[count++] = at->seq;
    buf_clear(&hub->seq_text);
    return seq_set_format(hub->seqs, count, &hub->seq_text);
}

static status report(struct hub *hub) {
    int64_t now = hub_clock();
    if (now - hub->reported < REPORT_MS || !hub->hooks.report) return OK;
    hub->reported = now;
    struct wire_message message = {.kind = MESSAGE_STATUS,
                                   .name = hub->config->stage,
                                   .replica = hub->config->replica,
                                   .machine = hub->config->machine,
                                   .status = {.state = "", .in_flight = "", .pid = getpid()}};
    pthread_mutex_lock(&hub->lock);
    message.status.held = (int64_t)(hub->hand_count + hub->inbox_count);
    message.status.waiting = letters_count(&hub->letters, -1);
    message.status.dropped = hub->dropped;
    status result = hub_list_seqs(hub);
    pthread_mutex_unlock(&hub->lock);
    TRY(result);
    message.status.in_hand = hub->seq_text.data;
    hub->hooks.report(hub->hooks.self, &message.status);
    struct saying saying = {.hub = hub, .message = &message};
    wire_each(hub->wire, "report", false, hub_say_one, &saying);
    return saying.result;
}

static status on_joined(struct hub *hub, struct wire_peer *peer) {
    bool flow = !strcmp(wire_peer_purpose(peer), "flow");
    hub_forget_asks(hub, peer);
    hub_forget_errands(hub, peer);
    if (flow && !wire_peer_is_client(peer) && !hub_upstream_of(peer)) {
        struct upstream *upstream;
        TRY(NEW(&upstream, 1));
        upstream->next = hub->upstreams;
        hub->upstreams = upstream;
        *wire_peer_tag(peer) = upstream;
    }
    struct saying saying = {.hub = hub};
    if (flow && wire_peer_is_client(peer)) hub_offer_letters(&saying, peer);
    TRY(saying.result);
    if (!strcmp(wire_peer_purpose(peer), "report")) hub->reported = 0;
    return flow || !hub->hooks.joined ? OK : hub->hooks.joined(hub->hooks.self, hub->wire, peer);
}

static status on_said(struct hub *hub, struct wire_peer *peer, const struct wire_message *message) {
    bool visitor = wire_peer_is_client(peer);
    switch (message->kind) {
    case MESSAGE_CREDIT:
        return visitor ? hub_give_letter(hub, peer) : OK;
    case MESSAGE_AVAILABLE:
    case MESSAGE_GROUP:
    case MESSAGE_EMPTY:
        return hub_upstream_of(peer) ? hub_hear_upstream(hub, peer, message) : OK;
    case MESSAGE_WEIGHTS:
    case MESSAGE_CHUNK:
    case MESSAGE_RECORD:
    case MESSAGE_ABSENT:
        hub_hear_answer(hub, peer, message);
        return OK;
    default:
        return hub->hooks.said ? hub->hooks.said(hub->hooks.self, hub->wire, peer, message) : OK;
    }
}

static status on_gone(struct hub *hub, struct wire_peer *peer, bool orderly) {
    if (!orderly) log_info("lost %s-%d", wire_peer_name(peer), wire_peer_replica(peer));
    hub_forget_asks(hub, peer);
    hub_forget_errands(hub, peer);
    return OK;
}

static status on_event(struct hub *hub, const struct wire_event *event) {
    uint64_t rings;
    ssize_t got;
    switch (event->kind) {
    case WIRE_READABLE:
        got = read(hub->bell, &rings, sizeof rings);
        (void)got; // an event counter that is zero again has been read before
        return OK;
    case WIRE_JOINED:
        return on_joined(hub, event->peer);
    case WIRE_GONE:
        return on_gone(hub, event->peer, event->orderly);
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    case WIRE_MESSAGE:
        return on_said(hub, event->peer, &event->message);
    case WIRE_TIMEOUT:
        return OK;
    }
    return OK;
}

static status offer_new(struct hub *hub) {
    pthread_mutex_lock(&hub->lock);
    bool mail = hub->mail;
    hub->mail = false;
    pthread_mutex_unlock(&hub->lock);
    struct saying saying = {.hub = hub};
    if (mail) wire_each(hub->wire, "flow", true, hub_offer_letters, &saying);
    return saying.result;
}

static status go_round(struct hub *hub) {
    struct wire_event event;
    TRY(wire_poll(hub->wire, TICK_MS, &event));
    TRY(on_event(hub, &event));
    if (hub->hooks.tick) TRY(hub->hooks.tick(hub->hooks.self, hub->wire));
    TRY(hub_send_posts(hub));
    TRY(offer_new(hub));
    TRY(hub_take_groups(hub));
    TRY(hub_begin_errands(hub));
    return report(hub);
}

static bool quitting(struct hub *hub) {
    pthread_mutex_lock(&hub->lock);
    bool quit = hub->quit;
    pthread_mutex_unlock(&hub->lock);
    return quit;
}

static void *keep_hub(void *argument) {
    struct hub *hub = argument;
    status result = OK;
    while (result == OK && !quitting(hub)) result = go_round(hub);
    pthread_mutex_lock(&hub->lock);
    hub->broken = result;
    hub->reason = result == OK ? NULL : strdup(fail_text());
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    return NULL;
}

// ---- opening and closing ----

static status begin_visits(struct hub *hub) {
    const struct node_config *config = hub->config;
    if (*config->from) TRY(hub_visit_stage(hub, config->from, "flow"));
    if (config->last) TRY(hub_visit_stage(hub, "source", "ledger"));
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *desk = &config->endpoints[i];
        if (!strcmp(desk->stage, SUPERVISOR_NAME) && !strcmp(desk->machine, config->machine))
            TRY(wire_connect(hub->wire, desk->endpoint, desk->key, "report", NULL));
    }
    return OK;
}

static status start(struct hub *hub) {
    const struct node_config *config = hub->config;
    const struct wire_self self = {.run = config->run,
                                   .name = config->stage,
                                   .replica = config->replica,
                                   .machine = config->machine,
                                   .security = node_config_security(config)};
    if (config->reader_count > 64) return fail(USAGE, "more than 64 stages read from %s", config->stage);
    hub->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hub->bell < 0) return fail(UNAVAILABLE, "eventfd: %s", strerror(errno));
    TRY(wire_open(&hub->wire, &self));
    TRY(wire_add_fd(hub->wire, hub->bell));
    for (size_t i = 0; i < config->listen_count; i++) TRY(wire_bind(hub->wire, config->listen[i]));
    TRY(begin_visits(hub));
    return OK;
}

static void release(struct hub *hub) {
    wire_close(&hub->wire);
    if (hub->bell >= 0) close(hub->bell);
    for (size_t i = 0; i < hub->inbox_count; i++) group_free(&hub->inbox[i]);
    for (size_t i = 0; i < hub->hand_count; i++) free(hub->hands[i].id);
    hub_free_posts(hub);
    while (hub->upstreams) {
        struct upstream *next = hub->upstreams->next;
        free(hub->upstreams);
        hub->upstreams = next;
    }
    letters_release(&hub->letters);
    free(hub->inbox);
    free(hub->hands);
    free(hub->reason);
    free(hub->seqs);
    buf_release(&hub->seq_text);
    pthread_mutex_destroy(&hub->lock);
    pthread_cond_destroy(&hub->changed);
    free(hub);
}

status hub_open(struct hub **out, const struct node_config *config, const struct hub_hooks *hooks, bool greedy) {
    struct hub *hub;
    *out = NULL;
    TRY(NEW(&hub, 1));
    hub->config = config;
    hub->hooks = *hooks;
    hub->greedy = greedy;
    hub->bell = -1;
    hub->last_post = &hub->posts;
    pthread_mutex_init(&hub->lock, NULL);
    pthread_cond_init(&hub->changed, NULL);
    status result = start(hub);
    if (result != OK) {
        release(hub);
        return result;
    }
    *out = hub; // before the thread: hooks may use it
    if (pthread_create(&hub->thread, NULL, keep_hub, hub)) {
        *out = NULL;
        release(hub);
        return fail(UNAVAILABLE, "no thread for the sockets");
    }
    return OK;
}

void hub_close(struct hub **pointer) {
    struct hub *hub = *pointer;
    if (!hub) return;
    pthread_mutex_lock(&hub->lock);
    hub->quit = true;
    pthread_mutex_unlock(&hub->lock);
    hub_ring(hub);
    pthread_join(hub->thread, NULL);
    release(hub);
    *pointer = NULL;
}
