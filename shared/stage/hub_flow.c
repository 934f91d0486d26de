// The hub's flow: groups come in, are in hand, and wait as letters for those who read them.
#include "shared/stage/hub_own.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/stage/signals.h"

// ---- under the lock ----

static bool in_hand(const struct hub *hub, const char *id) {
    for (size_t i = 0; i < hub->hand_count; i++)
        if (!strcmp(hub->hands[i].id, id)) return true;
    for (size_t i = 0; i < hub->inbox_count; i++)
        if (!strcmp(hub->inbox[i]->id.data, id)) return true;
    return letters_have(&hub->letters, id);
}

static status add_hand(struct hub *hub, const struct group *group) {
    TRY(RESIZE(&hub->hands, hub->hand_count + 1));
    char *copy = strdup(group->id.data);
    if (!copy) return fail_oom();
    hub->hands[hub->hand_count++] = (struct hand){copy, group->requires.order};
    return OK;
}

static void remove_hand(struct hub *hub, const char *id) {
    for (size_t i = 0; i < hub->hand_count; i++) {
        if (strcmp(hub->hands[i].id, id) != 0) continue;
        free(hub->hands[i].id);
        hub->hands[i] = hub->hands[--hub->hand_count];
        return;
    }
}

static int reader_of(const struct hub *hub, const char *stage) {
    for (size_t i = 0; i < hub->config->reader_count; i++)
        if (!strcmp(hub->config->readers[i], stage)) return (int)i;
    return -1;
}

static status add_letter(struct hub *hub, const struct group *group) {
    size_t count = hub->config->reader_count;
    if (count == 0 || letters_have(&hub->letters, group->id.data)) return OK;
    struct buf data = {0};
    status result = group_to_msgpack(group, &data);
    if (result != OK) {
        buf_release(&data);
        return result;
    }
    TRY(letters_add(&hub->letters, group->requires.order, group->id.data, ((uint64_t)1 << count) - 1, &data));
    hub->mail = true;
    return OK;
}

// ---- the working thread ----

// The group that was issued first.
static struct group *pop_inbox(struct hub *hub) {
    size_t best = 0;
    for (size_t i = 1; i < hub->inbox_count; i++)
        if (hub->inbox[i]->requires.order < hub->inbox[best]->requires.order) best = i;
    struct group *group = hub->inbox[best];
    memmove(&hub->inbox[best], &hub->inbox[best + 1], (--hub->inbox_count - best) * sizeof *hub->inbox);
    return group;
}

static status receive_locked(struct hub *hub, int timeout_ms, struct group **out) {
    int64_t until = hub_clock() + timeout_ms;
    while (!hub->inbox_count) {
        if (hub->broken != OK) return fail(hub->broken, "%s", hub->reason);
        if (signals_stopping()) return END;
        if (timeout_ms >= 0 && hub_clock() >= until) return OK;
        hub_wait_moment(hub);
    }
    *out = pop_inbox(hub);
    hub->room--;
    status result = add_hand(hub, *out);
    if (result != OK) group_free(out);
    return result;
}

status hub_receive(struct hub *hub, int room, int timeout_ms, struct group **out) {
    *out = NULL;
    pthread_mutex_lock(&hub->lock);
    hub->room = room;
    if (!hub->inbox_count) hub_ring(hub);
    status result = receive_locked(hub, timeout_ms, out);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

status hub_send(struct hub *hub, const struct group *group) {
    pthread_mutex_lock(&hub->lock);
    status result = add_letter(hub, group);
    remove_hand(hub, group->id.data);
    pthread_mutex_unlock(&hub->lock);
    hub_ring(hub);
    return result;
}

void hub_drop(struct hub *hub, const char *id) {
    pthread_mutex_lock(&hub->lock);
    remove_hand(hub, id);
    hub->dropped++;
    pthread_mutex_unlock(&hub->lock);
}

int64_t hub_dropped(struct hub *hub) {
    pthread_mutex_lock(&hub->lock);
    int64_t dropped = hub->dropped;
    pthread_mutex_unlock(&hub->lock);
    return dropped;
}

status hub_put(struct hub *hub, const struct group *group) {
    pthread_mutex_lock(&hub->lock);
    status result = add_letter(hub, group);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

// ---- the hub's thread ----

struct upstream *hub_upstream_of(struct wire_peer *peer) {
    return *wire_peer_tag(peer);
}

void hub_offer_letters(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    int reader = reader_of(saying->hub, wire_peer_name(peer));
    if (reader < 0) return;
    pthread_mutex_lock(&saying->hub->lock);
    struct wire_message offer = {.kind = MESSAGE_AVAILABLE, .count = letters_count(&saying->hub->letters, reader)};
    pthread_mutex_unlock(&saying->hub->lock);
    if (offer.count && saying->result == OK) saying->result = wire_send(saying->hub->wire, peer, &offer, NULL);
}

status hub_give_letter(struct hub *hub, struct wire_peer *peer) {
    int reader = reader_of(hub, wire_peer_name(peer));
    if (reader < 0) {
        log_info("%s-%d asked for groups, but does not read ours", wire_peer_name(peer), wire_peer_replica(peer));
        return OK;
    }
    pthread_mutex_lock(&hub->lock);
    struct letter *letter = letters_for(&hub->letters, reader);
    pthread_mutex_unlock(&hub->lock);
    // Letters are removed by this thread alone, so this one stays.
    struct wire_message answer = {.kind = letter ? MESSAGE_GROUP : MESSAGE_EMPTY};
    if (letter) answer.bulk = letter->data.data;
    if (letter) answer.bulk_size = letter->data.size;
    bool gone;
    TRY(wire_send(hub->wire, peer, &answer, &gone));
    if (!letter || gone) return OK;
    pthread_mutex_lock(&hub->lock);
    letters_give(&hub->letters, letter, reader);
    pthread_mutex_unlock(&hub->lock);
    return OK;
}

static status accept_group(struct hub *hub, const struct wire_message *message) {
    struct group *group;
    status result = group_from_msgpack(&group, message->bulk, message->bulk_size);
    if (result == DATAERR) return fail_prefix(DATAERR, "from %s", hub->config->from);
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

void hub_forget_asks(struct hub *hub, struct wire_peer *peer) {
    struct upstream *upstream = hub_upstream_of(peer);
    if (!upstream) return;
    hub->asked -= upstream->asked;
    upstream->asked = 0;
    upstream->offers = 0;
}

status hub_hear_upstream(struct hub *hub, struct wire_peer *peer, const struct wire_message *message) {
    struct upstream *upstream = hub_upstream_of(peer);
    if (message->kind == MESSAGE_AVAILABLE) {
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

static void take_from(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    struct hub *hub = saying->hub;
    struct upstream *upstream = hub_upstream_of(peer);
    const struct wire_message take = {.kind = MESSAGE_CREDIT};
    bool gone = false;
    if (!upstream || upstream->offers <= 0 || saying->skip <= 0 || saying->result != OK) return;
    saying->result = wire_send(hub->wire, peer, &take, &gone);
    if (gone || saying->result != OK) return;
    upstream->offers--;
    upstream->asked++;
    hub->asked++;
    saying->skip--;
    saying->found = peer;
}

// Asks for as many groups as there is room for, one from each replica in turn.
status hub_take_groups(struct hub *hub) {
    pthread_mutex_lock(&hub->lock);
    int room = hub->greedy ? 1 << 20 : hub->room - (int)hub->inbox_count;
    pthread_mutex_unlock(&hub->lock);
    struct saying saying = {.hub = hub, .skip = room - hub->asked, .found = NULL};
    do {
        saying.found = NULL;
        if (saying.skip > 0) wire_each(hub->wire, "flow", false, take_from, &saying);
    } while (saying.found && saying.result == OK);
    return saying.result;
}
