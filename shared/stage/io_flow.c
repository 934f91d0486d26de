// The I/O thread's flow: groups come in, are in hand, and wait as outbox for those who read them.
#include "shared/stage/io_internal.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/stage/signals.h"

// ---- under the lock ----

static bool in_hand(const struct io_thread *io, const char *id) {
    for (size_t i = 0; i < io->in_progress_count; i++)
        if (!strcmp(io->in_progress[i].id, id)) return true;
    for (size_t i = 0; i < io->inbox_count; i++)
        if (!strcmp(io->inbox[i]->id.data, id)) return true;
    return outbox_has(&io->outbox, id);
}

static status add_in_progress(struct io_thread *io, const struct group *group) {
    TRY(RESIZE(&io->in_progress, io->in_progress_count + 1));
    char *copy = strdup(group->id.data);
    if (!copy) return fail_oom();
    io->in_progress[io->in_progress_count++] = (struct in_progress){copy, group->requires.order};
    return OK;
}

static void remove_in_progress(struct io_thread *io, const char *id) {
    for (size_t i = 0; i < io->in_progress_count; i++) {
        if (strcmp(io->in_progress[i].id, id) != 0) continue;
        free(io->in_progress[i].id);
        io->in_progress[i] = io->in_progress[--io->in_progress_count];
        return;
    }
}

static int reader_of(const struct io_thread *io, const char *stage) {
    for (size_t i = 0; i < io->config->reader_count; i++)
        if (!strcmp(io->config->readers[i], stage)) return (int)i;
    return -1;
}

static status outbox_put(struct io_thread *io, const struct group *group) {
    size_t count = io->config->reader_count;
    if (count == 0 || outbox_has(&io->outbox, group->id.data)) return OK;
    struct buf data = {0};
    status result = group_to_msgpack(group, &data);
    if (result != OK) {
        buf_release(&data);
        return result;
    }
    TRY(outbox_add(&io->outbox, group->requires.order, group->id.data, ((uint64_t)1 << count) - 1, &data));
    io->announce = true;
    return OK;
}

// ---- the working thread ----

// The group that was issued first.
static struct group *pop_inbox(struct io_thread *io) {
    size_t best = 0;
    for (size_t i = 1; i < io->inbox_count; i++)
        if (io->inbox[i]->requires.order < io->inbox[best]->requires.order) best = i;
    struct group *group = io->inbox[best];
    memmove(&io->inbox[best], &io->inbox[best + 1], (--io->inbox_count - best) * sizeof *io->inbox);
    return group;
}

static status receive_locked(struct io_thread *io, int timeout_ms, struct group **out) {
    int64_t until = clock_monotonic_ms() + timeout_ms;
    while (!io->inbox_count) {
        if (io->broken != OK) return fail(io->broken, "%s", io->reason);
        if (signals_stopping()) return END;
        if (timeout_ms >= 0 && clock_monotonic_ms() >= until) return OK;
        io_wait_moment(io);
    }
    *out = pop_inbox(io);
    io->room--;
    status result = add_in_progress(io, *out);
    if (result != OK) group_free(out);
    return result;
}

status io_thread_receive(struct io_thread *io, int room, int timeout_ms, struct group **out) {
    *out = NULL;
    pthread_mutex_lock(&io->lock);
    io->room = room;
    if (!io->inbox_count) io_thread_wake(io);
    status result = receive_locked(io, timeout_ms, out);
    pthread_mutex_unlock(&io->lock);
    return result;
}

status io_thread_send(struct io_thread *io, const struct group *group) {
    pthread_mutex_lock(&io->lock);
    status result = outbox_put(io, group);
    remove_in_progress(io, group->id.data);
    pthread_mutex_unlock(&io->lock);
    io_thread_wake(io);
    return result;
}

void io_thread_drop(struct io_thread *io, const char *id) {
    pthread_mutex_lock(&io->lock);
    remove_in_progress(io, id);
    io->dropped++;
    pthread_mutex_unlock(&io->lock);
}

int64_t io_thread_dropped(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    int64_t dropped = io->dropped;
    pthread_mutex_unlock(&io->lock);
    return dropped;
}

status io_thread_put(struct io_thread *io, const struct group *group) {
    pthread_mutex_lock(&io->lock);
    status result = outbox_put(io, group);
    pthread_mutex_unlock(&io->lock);
    return result;
}

// ---- the I/O thread ----

struct upstream *io_upstream_of(struct wire_peer *peer) {
    return *wire_peer_tag(peer);
}

void io_offer_letters(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    int reader = reader_of(saying->io, wire_peer_name(peer));
    if (reader < 0) return;
    pthread_mutex_lock(&saying->io->lock);
    struct wire_message offer = {.kind = MESSAGE_AVAILABLE, .count = outbox_count(&saying->io->outbox, reader)};
    pthread_mutex_unlock(&saying->io->lock);
    if (offer.count && saying->result == OK) saying->result = wire_send(saying->io->wire, peer, &offer, NULL);
}

status io_give_letter(struct io_thread *io, struct wire_peer *peer) {
    int reader = reader_of(io, wire_peer_name(peer));
    if (reader < 0) {
        log_info("%s-%d asked for groups, but does not read ours", wire_peer_name(peer), wire_peer_replica(peer));
        return OK;
    }
    pthread_mutex_lock(&io->lock);
    struct outbox_entry *entry = outbox_first(&io->outbox, reader);
    pthread_mutex_unlock(&io->lock);
    // Letters are removed by this thread alone, so this one stays.
    struct wire_message answer = {.kind = entry ? MESSAGE_GROUP : MESSAGE_EMPTY};
    if (entry) answer.bulk = entry->data.data;
    if (entry) answer.bulk_size = entry->data.size;
    bool gone;
    TRY(wire_send(io->wire, peer, &answer, &gone));
    if (!entry || gone) return OK;
    pthread_mutex_lock(&io->lock);
    outbox_take(&io->outbox, entry, reader);
    pthread_mutex_unlock(&io->lock);
    return OK;
}

static status accept_group(struct io_thread *io, const struct wire_message *message) {
    struct group *group;
    status result = group_from_msgpack(&group, message->bulk, message->bulk_size);
    if (result == DATAERR) return fail_prefix(DATAERR, "from %s", io->config->from);
    TRY(result);
    pthread_mutex_lock(&io->lock);
    if (in_hand(io, group->id.data)) {
        io->dropped++;
        group_free(&group);
    } else {
        result = RESIZE(&io->inbox, io->inbox_count + 1);
        if (result == OK) io->inbox[io->inbox_count++] = group;
        if (result != OK) group_free(&group);
        pthread_cond_broadcast(&io->changed);
    }
    pthread_mutex_unlock(&io->lock);
    return result;
}

void io_forget_asks(struct io_thread *io, struct wire_peer *peer) {
    struct upstream *upstream = io_upstream_of(peer);
    if (!upstream) return;
    io->asked -= upstream->asked;
    upstream->asked = 0;
    upstream->offers = 0;
}

status io_hear_upstream(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    struct upstream *upstream = io_upstream_of(peer);
    if (message->kind == MESSAGE_AVAILABLE) {
        upstream->offers = message->count;
        return OK;
    }
    if (upstream->asked) {
        upstream->asked--;
        io->asked--;
    }
    if (message->kind == MESSAGE_GROUP) return accept_group(io, message);
    upstream->offers = 0;
    return OK;
}

static void take_from(void *context, struct wire_peer *peer) {
    struct saying *saying = context;
    struct io_thread *io = saying->io;
    struct upstream *upstream = io_upstream_of(peer);
    const struct wire_message take = {.kind = MESSAGE_CREDIT};
    bool gone = false;
    if (!upstream || upstream->offers <= 0 || saying->skip <= 0 || saying->result != OK) return;
    saying->result = wire_send(io->wire, peer, &take, &gone);
    if (gone || saying->result != OK) return;
    upstream->offers--;
    upstream->asked++;
    io->asked++;
    saying->skip--;
    saying->found = peer;
}

// Asks for as many groups as there is room for, one from each replica in turn.
status io_take_groups(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    int room = io->greedy ? 1 << 20 : io->room - (int)io->inbox_count;
    pthread_mutex_unlock(&io->lock);
    struct saying saying = {.io = io, .skip = room - io->asked, .found = NULL};
    do {
        saying.found = NULL;
        if (saying.skip > 0) wire_each(io->wire, "flow", false, take_from, &saying);
    } while (saying.found && saying.result == OK);
    return saying.result;
}
