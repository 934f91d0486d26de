// Everything below the line "hub's thread" runs in it alone, without the lock unless it touches what both sides use.
#include "shared/stage/hub.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "shared/stage/letters.h"
#include "shared/stage/signals.h"
#include "shared/wire/orders.h"

enum { TICK_MS = 50, REPORT_MS = 500 };

// What the hub knows of a replica before us, at the peer's tag.
typedef struct upstream {
    struct upstream *next;
    int64_t offers; // groups that it said it has
    int asked;      // TAKEs that it has not answered
} upstream;

// Something to be said to all that are visited for a purpose.
typedef struct post {
    struct post *next;
    char *purpose;
    wire_message message;
    arena arena;
} post;

typedef enum errand_state { ERRAND_NEW, ERRAND_ASKED, ERRAND_DONE } errand_state;

// A question of another thread, which waits for it.
typedef struct errand {
    struct errand *next;
    const char *stage, *purpose;
    const wire_message *request;
    wire_message *reply;
    arena *arena;
    bytes *bulk;
    wire_peer *peer;
    int skip; // so many replicas did not know
    errand_state state;
    status result;
} errand;

// A group that the working thread has.
typedef struct hand {
    char *id;
    int64_t order;
} hand;

struct hub {
    const wiring *wiring;
    hub_hooks hooks;
    bool greedy;
    wire *wire;
    int bell;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool quit;
    status broken;
    char *reason; // why it is broken
    group **inbox;
    size_t inbox_count;
    hand *hands; // with the working thread
    size_t hand_count;
    letters letters;
    bool mail; // letters were added since the last OFFER
    int room;
    post *posts, **last_post;
    errand *errands;
    int64_t dropped;
    // The hub's thread's own:
    upstream *upstreams;
    int64_t *orders; // room for list_orders
    bytes order_text;
    int asked;
    int64_t reported;
    bool weights_visited, frames_visited;
};

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void ring(hub *hub) {
    uint64_t one = 1;
    ssize_t put = write(hub->bell, &one, sizeof one); // an event counter that is full rings as well
    (void)put;
}

// ---- shared, under the lock ----

static bool in_hand(const hub *hub, const char *id) {
    for (size_t i = 0; i < hub->hand_count; i++)
        if (!strcmp(hub->hands[i].id, id)) return true;
    for (size_t i = 0; i < hub->inbox_count; i++)
        if (!strcmp(hub->inbox[i]->id.data, id)) return true;
    return letters_have(&hub->letters, id);
}

static status add_hand(hub *hub, const group *group) {
    TRY(RESIZE(&hub->hands, hub->hand_count + 1));
    char *copy = strdup(group->id.data);
    if (!copy) return fail(SERVICE, "out of memory");
    hub->hands[hub->hand_count++] = (hand){copy, group->requires.order};
    return OK;
}

static void remove_hand(hub *hub, const char *id) {
    for (size_t i = 0; i < hub->hand_count; i++) {
        if (strcmp(hub->hands[i].id, id) != 0) continue;
        free(hub->hands[i].id);
        hub->hands[i] = hub->hands[--hub->hand_count];
        return;
    }
}

static int reader_of(const hub *hub, const char *stage) {
    for (size_t i = 0; i < hub->wiring->reader_count; i++)
        if (!strcmp(hub->wiring->readers[i], stage)) return (int)i;
    return -1;
}

static status add_letter(hub *hub, const group *group) {
    size_t count = hub->wiring->reader_count;
    if (count == 0 || letters_have(&hub->letters, group->id.data)) return OK;
    bytes data = {0};
    status result = group_to_msgpack(group, &data);
    if (result != OK) {
        bytes_release(&data);
        return result;
    }
    TRY(letters_add(&hub->letters, group->requires.order, group->id.data, ((uint64_t)1 << count) - 1, &data));
    hub->mail = true;
    return OK;
}

// ---- the working thread ----

// The group that was issued first.
static group *pop_inbox(hub *hub) {
    size_t best = 0;
    for (size_t i = 1; i < hub->inbox_count; i++)
        if (hub->inbox[i]->requires.order < hub->inbox[best]->requires.order) best = i;
    group *group = hub->inbox[best];
    memmove(&hub->inbox[best], &hub->inbox[best + 1], (--hub->inbox_count - best) * sizeof *hub->inbox);
    return group;
}

// Waits a moment for a change. The lock is held.
static void wait_moment(hub *hub) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&hub->changed, &hub->lock, &until);
}

static status receive_locked(hub *hub, int timeout_ms, group **out) {
    int64_t until = now_ms() + timeout_ms;
    while (!hub->inbox_count) {
        if (hub->broken != OK) return fail(hub->broken, "%s", hub->reason);
        if (signals_stopping()) return STOPPED;
        if (timeout_ms >= 0 && now_ms() >= until) return OK;
        wait_moment(hub);
    }
    *out = pop_inbox(hub);
    hub->room--;
    status result = add_hand(hub, *out);
    if (result != OK) group_free(out);
    return result;
}

status hub_receive(hub *hub, int room, int timeout_ms, group **out) {
    *out = NULL;
    pthread_mutex_lock(&hub->lock);
    hub->room = room;
    if (!hub->inbox_count) ring(hub);
    status result = receive_locked(hub, timeout_ms, out);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

status hub_send(hub *hub, const group *group) {
    pthread_mutex_lock(&hub->lock);
    status result = add_letter(hub, group);
    remove_hand(hub, group->id.data);
    pthread_mutex_unlock(&hub->lock);
    ring(hub);
    return result;
}

void hub_drop(hub *hub, const char *id) {
    pthread_mutex_lock(&hub->lock);
    remove_hand(hub, id);
    hub->dropped++;
    pthread_mutex_unlock(&hub->lock);
}

int64_t hub_dropped(hub *hub) {
    pthread_mutex_lock(&hub->lock);
    int64_t dropped = hub->dropped;
    pthread_mutex_unlock(&hub->lock);
    return dropped;
}

static void post_free(post *post) {
    arena_release(&post->arena);
    free(post->purpose);
    free(post);
}

status hub_post(hub *hub, const char *purpose, const wire_message *message) {
    post *post;
    bytes frame = {0};
    TRY(NEW(&post, 1));
    status result = (post->purpose = strdup(purpose)) ? OK : fail(SERVICE, "out of memory");
    // Through its encoding and back is the copy.
    if (result == OK) result = message_encode(message, &frame);
    if (result == OK) result = message_decode(&post->message, &post->arena, frame.data, frame.size);
    bytes_release(&frame);
    if (result != OK) {
        post_free(post);
        return result;
    }
    pthread_mutex_lock(&hub->lock);
    *hub->last_post = post;
    hub->last_post = &post->next;
    pthread_mutex_unlock(&hub->lock);
    ring(hub);
    return OK;
}

static void remove_errand(hub *hub, const errand *errand) {
    struct errand **place = &hub->errands;
    while (*place && *place != errand) place = &(*place)->next;
    if (*place) *place = errand->next;
}

status hub_ask(hub *hub, const char *stage, const char *purpose, const wire_message *request, wire_message *reply,
               arena *arena, bytes *bulk) {
    errand errand = {.stage = stage,
                     .purpose = purpose,
                     .request = request,
                     .reply = reply,
                     .arena = arena,
                     .bulk = bulk,
                     .result = STOPPED};
    pthread_mutex_lock(&hub->lock);
    errand.next = hub->errands;
    hub->errands = &errand;
    ring(hub);
    while (errand.state != ERRAND_DONE && !signals_stopping() && hub->broken == OK) wait_moment(hub);
    if (hub->broken != OK) errand.result = fail(hub->broken, "%s", hub->reason);
    remove_errand(hub, &errand);
    pthread_mutex_unlock(&hub->lock);
    return errand.result;
}

// ---- the hub's thread: the flow ----

static upstream *upstream_of(wire_peer *peer) {
    return *wire_peer_tag(peer);
}

typedef struct saying {
    hub *hub;
    const wire_message *message;
    const char *stage;
    int skip; // peers still to be passed over
    wire_peer *found;
    status result;
} saying;

static void offer_letters(void *context, wire_peer *peer) {
    saying *saying = context;
    int reader = reader_of(saying->hub, wire_peer_name(peer));
    if (reader < 0) return;
    pthread_mutex_lock(&saying->hub->lock);
    wire_message offer = {.kind = MESSAGE_OFFER, .count = letters_count(&saying->hub->letters, reader)};
    pthread_mutex_unlock(&saying->hub->lock);
    if (offer.count && saying->result == OK) saying->result = wire_say(saying->hub->wire, peer, &offer, NULL);
}

static status give_letter(hub *hub, wire_peer *peer) {
    int reader = reader_of(hub, wire_peer_name(peer));
    if (reader < 0) {
        log_say("%s-%d asked for groups, but does not read ours", wire_peer_name(peer), wire_peer_replica(peer));
        return OK;
    }
    pthread_mutex_lock(&hub->lock);
    letter *letter = letters_for(&hub->letters, reader);
    pthread_mutex_unlock(&hub->lock);
    // Letters are removed by this thread alone, so this one stays.
    wire_message answer = {.kind = letter ? MESSAGE_GROUP : MESSAGE_NONE};
    if (letter) answer.bulk = letter->data.data;
    if (letter) answer.bulk_size = letter->data.size;
    bool gone;
    TRY(wire_say(hub->wire, peer, &answer, &gone));
    if (!letter || gone) return OK;
    pthread_mutex_lock(&hub->lock);
    letters_give(&hub->letters, letter, reader);
    pthread_mutex_unlock(&hub->lock);
    return OK;
}

static status accept_group(hub *hub, const wire_message *message) {
    group *group;
    status result = group_from_msgpack(&group, message->bulk, message->bulk_size);
    if (result == INPUT) return fail_within(INPUT, "from %s", hub->wiring->from);
    TRY(result);
    pthread_mutex_lock(&hub->lock);
    if (in_hand(hub, group->id.data)) {
        hub->dropped++;
        group_free(&group);
    } else {
        result = RESIZE(&hub->inbox, hub->inbox_count + 1);
        if (result == OK) hub->inbox[hub->inbox_count++] = group;
        if (result != OK) group_free(&group);
        pthread_cond_broadcast(&hub->changed);
    }
    pthread_mutex_unlock(&hub->lock);
    return result;
}

static void forget_asks(hub *hub, wire_peer *peer) {
    upstream *upstream = upstream_of(peer);
    if (!upstream) return;
    hub->asked -= upstream->asked;
    upstream->asked = 0;
    upstream->offers = 0;
}

static status hear_upstream(hub *hub, wire_peer *peer, const wire_message *message) {
    upstream *upstream = upstream_of(peer);
    if (message->kind == MESSAGE_OFFER) {
        upstream->offers = message->count;
        return OK;
    }
    if (upstream->asked) {
        upstream->asked--;
        hub->asked--;
    }
    if (message->kind == MESSAGE_GROUP) return accept_group(hub, message);
    upstream->offers = 0;
    return OK;
}

static void take_from(void *context, wire_peer *peer) {
    saying *saying = context;
    hub *hub = saying->hub;
    upstream *upstream = upstream_of(peer);
    const wire_message take = {.kind = MESSAGE_TAKE};
    bool gone = false;
    if (!upstream || upstream->offers <= 0 || saying->skip <= 0 || saying->result != OK) return;
    saying->result = wire_say(hub->wire, peer, &take, &gone);
    if (gone || saying->result != OK) return;
    upstream->offers--;
    upstream->asked++;
    hub->asked++;
    saying->skip--;
    saying->found = peer;
}

// Asks for as many groups as there is room for, one from each replica in turn.
static status take_groups(hub *hub) {
    pthread_mutex_lock(&hub->lock);
    int room = hub->greedy ? 1 << 20 : hub->room - (int)hub->inbox_count;
    pthread_mutex_unlock(&hub->lock);
    saying saying = {.hub = hub, .skip = room - hub->asked, .found = NULL};
    do {
        saying.found = NULL;
        if (saying.skip > 0) wire_each(hub->wire, "flow", false, take_from, &saying);
    } while (saying.found && saying.result == OK);
    return saying.result;
}

// ---- the hub's thread: errands and posts ----

static void find_knower(void *context, wire_peer *peer) {
    saying *saying = context;
    if (strcmp(wire_peer_name(peer), saying->stage) != 0 || saying->found) return;
    if (saying->skip-- == 0) saying->found = peer;
}

static status visit_stage(hub *hub, const char *stage, const char *purpose) {
    for (size_t i = 0; i < hub->wiring->desk_count; i++) {
        const wiring_desk *desk = &hub->wiring->desks[i];
        if (!strcmp(desk->stage, stage)) TRY(wire_visit(hub->wire, desk->endpoint, desk->key, purpose, NULL));
    }
    return OK;
}

static status visit_for(hub *hub, const errand *errand) {
    bool *visited = !strcmp(errand->purpose, "weights") ? &hub->weights_visited : &hub->frames_visited;
    if (*visited) return OK;
    *visited = true;
    return visit_stage(hub, errand->stage, errand->purpose);
}

static void finish_errand(hub *hub, errand *errand, status result) {
    errand->result = result;
    errand->state = ERRAND_DONE;
    pthread_cond_broadcast(&hub->changed);
}

static bool stage_exists(const hub *hub, const char *stage) {
    for (size_t i = 0; i < hub->wiring->desk_count; i++)
        if (!strcmp(hub->wiring->desks[i].stage, stage)) return true;
    return false;
}

static status begin_errand(hub *hub, errand *errand) {
    if (!stage_exists(hub, errand->stage)) {
        errand->reply->kind = MESSAGE_ABSENT;
        finish_errand(hub, errand, OK);
        return OK;
    }
    TRY(visit_for(hub, errand));
    saying saying = {.stage = errand->stage, .skip = errand->skip};
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
    return wire_say(hub->wire, saying.found, errand->request, NULL);
}

static status begin_errands(hub *hub) {
    status result = OK;
    pthread_mutex_lock(&hub->lock);
    for (errand *errand = hub->errands; errand && result == OK; errand = errand->next)
        if (errand->state == ERRAND_NEW) result = begin_errand(hub, errand);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

static bool answers(const errand *errand, const wire_peer *peer, const wire_message *message) {
    const wire_message *request = errand->request;
    if (errand->state != ERRAND_ASKED || errand->peer != peer) return false;
    switch (message->kind) {
    case MESSAGE_VERSION:
        return request->kind == MESSAGE_NEWEST && request->reference == message->reference;
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

static status copy_answer(errand *errand, const wire_message *message) {
    bytes frame = {0};
    status result = message_encode(message, &frame);
    if (result == OK) result = message_decode(errand->reply, errand->arena, frame.data, frame.size);
    if (result == OK && message->bulk) result = bytes_add(errand->bulk, message->bulk, message->bulk_size);
    bytes_release(&frame);
    return result;
}

static void hear_answer(hub *hub, wire_peer *peer, const wire_message *message) {
    pthread_mutex_lock(&hub->lock);
    for (errand *errand = hub->errands; errand; errand = errand->next) {
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
static void forget_errands(hub *hub, const wire_peer *peer) {
    pthread_mutex_lock(&hub->lock);
    for (errand *errand = hub->errands; errand; errand = errand->next) {
        if (errand->state == ERRAND_ASKED && errand->peer == peer) errand->state = ERRAND_NEW;
    }
    pthread_mutex_unlock(&hub->lock);
}

static void say_one(void *context, wire_peer *peer) {
    saying *saying = context;
    if (saying->result == OK) saying->result = wire_say(saying->hub->wire, peer, saying->message, NULL);
}

static status send_posts(hub *hub) {
    status result = OK;
    pthread_mutex_lock(&hub->lock);
    post *posts = hub->posts;
    hub->posts = NULL;
    hub->last_post = &hub->posts;
    pthread_mutex_unlock(&hub->lock);
    while (posts) {
        post *next = posts->next;
        saying saying = {.hub = hub, .message = &posts->message};
        if (result == OK) wire_each(hub->wire, posts->purpose, false, say_one, &saying);
        if (result == OK) result = saying.result;
        post_free(posts);
        posts = next;
    }
    return result;
}

// ---- the hub's thread: events ----

// The orders of all groups here. The lock is held.
static status list_orders(hub *hub) {
    size_t count = 0;
    int64_t waiting = letters_count(&hub->letters, -1);
    TRY(RESIZE(&hub->orders, hub->hand_count + hub->inbox_count + (size_t)waiting));
    for (size_t i = 0; i < hub->hand_count; i++) hub->orders[count++] = hub->hands[i].order;
    for (size_t i = 0; i < hub->inbox_count; i++) hub->orders[count++] = hub->inbox[i]->requires.order;
    for (const letter *at = hub->letters.first; at; at = at->next) hub->orders[count++] = at->order;
    bytes_clear(&hub->order_text);
    return orders_write(hub->orders, count, &hub->order_text);
}

static status report(hub *hub) {
    int64_t now = now_ms();
    if (now - hub->reported < REPORT_MS || !hub->hooks.report) return OK;
    hub->reported = now;
    wire_message message = {.kind = MESSAGE_STATUS,
                            .name = hub->wiring->stage,
                            .replica = hub->wiring->replica,
                            .machine = hub->wiring->machine,
                            .status = {.state = "", .flying = "", .pid = getpid()}};
    pthread_mutex_lock(&hub->lock);
    message.status.held = (int64_t)(hub->hand_count + hub->inbox_count);
    message.status.waiting = letters_count(&hub->letters, -1);
    message.status.dropped = hub->dropped;
    status result = list_orders(hub);
    pthread_mutex_unlock(&hub->lock);
    TRY(result);
    message.status.orders = hub->order_text.data;
    hub->hooks.report(hub->hooks.self, &message.status);
    saying saying = {.hub = hub, .message = &message};
    wire_each(hub->wire, "report", false, say_one, &saying);
    return saying.result;
}

static status on_joined(hub *hub, wire_peer *peer) {
    bool flow = !strcmp(wire_peer_purpose(peer), "flow");
    forget_asks(hub, peer);
    forget_errands(hub, peer);
    if (flow && !wire_peer_visitor(peer) && !upstream_of(peer)) {
        upstream *upstream;
        TRY(NEW(&upstream, 1));
        upstream->next = hub->upstreams;
        hub->upstreams = upstream;
        *wire_peer_tag(peer) = upstream;
    }
    saying saying = {.hub = hub};
    if (flow && wire_peer_visitor(peer)) offer_letters(&saying, peer);
    TRY(saying.result);
    if (!strcmp(wire_peer_purpose(peer), "report")) hub->reported = 0;
    return flow || !hub->hooks.joined ? OK : hub->hooks.joined(hub->hooks.self, hub->wire, peer);
}

static status on_said(hub *hub, wire_peer *peer, const wire_message *message) {
    bool visitor = wire_peer_visitor(peer);
    switch (message->kind) {
    case MESSAGE_TAKE:
        return visitor ? give_letter(hub, peer) : OK;
    case MESSAGE_OFFER:
    case MESSAGE_GROUP:
    case MESSAGE_NONE:
        return upstream_of(peer) ? hear_upstream(hub, peer, message) : OK;
    case MESSAGE_VERSION:
    case MESSAGE_CHUNK:
    case MESSAGE_RECORD:
    case MESSAGE_ABSENT:
        hear_answer(hub, peer, message);
        return OK;
    default:
        return hub->hooks.said ? hub->hooks.said(hub->hooks.self, hub->wire, peer, message) : OK;
    }
}

static status on_gone(hub *hub, wire_peer *peer, bool orderly) {
    if (!orderly) log_say("lost %s-%d", wire_peer_name(peer), wire_peer_replica(peer));
    forget_asks(hub, peer);
    forget_errands(hub, peer);
    return OK;
}

static status on_event(hub *hub, const wire_event *event) {
    uint64_t rings;
    ssize_t got;
    switch (event->kind) {
    case WIRE_WOKEN:
        got = read(hub->bell, &rings, sizeof rings);
        (void)got; // an event counter that is zero again has been read before
        return OK;
    case WIRE_JOINED:
        return on_joined(hub, event->peer);
    case WIRE_GONE:
        return on_gone(hub, event->peer, event->orderly);
    case WIRE_REFUSED:
        return fail(SERVICE, "%s", event->message.reason);
    case WIRE_SAID:
        return on_said(hub, event->peer, &event->message);
    case WIRE_QUIET:
        return OK;
    }
    return OK;
}

static status offer_new(hub *hub) {
    pthread_mutex_lock(&hub->lock);
    bool mail = hub->mail;
    hub->mail = false;
    pthread_mutex_unlock(&hub->lock);
    saying saying = {.hub = hub};
    if (mail) wire_each(hub->wire, "flow", true, offer_letters, &saying);
    return saying.result;
}

static status go_round(hub *hub) {
    wire_event event;
    TRY(wire_next(hub->wire, TICK_MS, &event));
    TRY(on_event(hub, &event));
    if (hub->hooks.tick) TRY(hub->hooks.tick(hub->hooks.self, hub->wire));
    TRY(send_posts(hub));
    TRY(offer_new(hub));
    TRY(take_groups(hub));
    TRY(begin_errands(hub));
    return report(hub);
}

static bool quitting(hub *hub) {
    pthread_mutex_lock(&hub->lock);
    bool quit = hub->quit;
    pthread_mutex_unlock(&hub->lock);
    return quit;
}

static void *keep_hub(void *argument) {
    hub *hub = argument;
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

status hub_put(hub *hub, const group *group) {
    pthread_mutex_lock(&hub->lock);
    status result = add_letter(hub, group);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

static status begin_visits(hub *hub) {
    const wiring *wiring = hub->wiring;
    if (*wiring->from) TRY(visit_stage(hub, wiring->from, "flow"));
    if (wiring->last) TRY(visit_stage(hub, "source", "ledger"));
    for (size_t i = 0; i < wiring->desk_count; i++) {
        const wiring_desk *desk = &wiring->desks[i];
        if (!strcmp(desk->stage, WIRING_SUPERVISOR) && !strcmp(desk->machine, wiring->machine))
            TRY(wire_visit(hub->wire, desk->endpoint, desk->key, "report", NULL));
    }
    return OK;
}

static status start(hub *hub) {
    const wiring *wiring = hub->wiring;
    const wire_self self = {.run = wiring->run,
                            .name = wiring->stage,
                            .replica = wiring->replica,
                            .machine = wiring->machine,
                            .security = wiring_security(wiring)};
    if (wiring->reader_count > 64) return fail(USAGE, "more than 64 stages read from %s", wiring->stage);
    hub->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hub->bell < 0) return fail(SERVICE, "eventfd: %s", strerror(errno));
    TRY(wire_open(&hub->wire, &self));
    TRY(wire_watch(hub->wire, hub->bell));
    for (size_t i = 0; i < wiring->listen_count; i++) TRY(wire_listen(hub->wire, wiring->listen[i]));
    TRY(begin_visits(hub));
    return OK;
}

static void release(hub *hub) {
    wire_close(&hub->wire);
    if (hub->bell >= 0) close(hub->bell);
    for (size_t i = 0; i < hub->inbox_count; i++) group_free(&hub->inbox[i]);
    for (size_t i = 0; i < hub->hand_count; i++) free(hub->hands[i].id);
    while (hub->posts) {
        post *next = hub->posts->next;
        post_free(hub->posts);
        hub->posts = next;
    }
    while (hub->upstreams) {
        upstream *next = hub->upstreams->next;
        free(hub->upstreams);
        hub->upstreams = next;
    }
    letters_release(&hub->letters);
    free(hub->inbox);
    free(hub->hands);
    free(hub->reason);
    free(hub->orders);
    bytes_release(&hub->order_text);
    pthread_mutex_destroy(&hub->lock);
    pthread_cond_destroy(&hub->changed);
    free(hub);
}

status hub_open(hub **out, const wiring *wiring, const hub_hooks *hooks, bool greedy) {
    hub *hub;
    *out = NULL;
    TRY(NEW(&hub, 1));
    hub->wiring = wiring;
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
        return fail(SERVICE, "no thread for the sockets");
    }
    return OK;
}

void hub_close(hub **pointer) {
    hub *hub = *pointer;
    if (!hub) return;
    pthread_mutex_lock(&hub->lock);
    hub->quit = true;
    pthread_mutex_unlock(&hub->lock);
    ring(hub);
    pthread_join(hub->thread, NULL);
    release(hub);
    *pointer = NULL;
}
