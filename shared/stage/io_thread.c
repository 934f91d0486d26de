// The I/O thread's life and its thread. Everything below the line "the I/O thread" runs in it alone, without the lock
// unless it touches what both sides use.
#include "shared/stage/io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/wire/seq_set.h"

enum { TICK_MS = 50, REPORT_MS = 500 };

void io_thread_wake(struct io_thread *io) {
    uint64_t one = 1;
    ssize_t put = write(io->wakeup, &one, sizeof one); // an event counter that is full rings as well
    (void)put;
}

// Waits a moment for a change. The lock is held.
void io_wait_moment(struct io_thread *io) {
    cond_wait_until(&io->changed, &io->lock, clock_monotonic() + 0.02);
}

// ---- the I/O thread ----

// The orders of all groups here. The lock is held.
static status io_list_seqs(struct io_thread *io) {
    size_t count = 0;
    int64_t waiting = outbox_count(&io->outbox, -1);
    TRY(RESIZE(&io->seqs, io->in_progress_count + io->inbox_count + (size_t)waiting));
    for (size_t i = 0; i < io->in_progress_count; i++) io->seqs[count++] = io->in_progress[i].seq;
    for (size_t i = 0; i < io->inbox_count; i++) io->seqs[count++] = io->inbox[i]->requires.order;
    for (const struct outbox_entry *at = io->outbox.first; at; at = at->next) io->seqs[count++] = at->seq;
    buf_clear(&io->seq_text);
    return seq_set_format(io->seqs, count, &io->seq_text);
}

static status report(struct io_thread *io) {
    int64_t now = clock_monotonic_ms();
    if (now - io->reported < REPORT_MS || !io->hooks.report) return OK;
    io->reported = now;
    struct wire_message message = {.kind = MESSAGE_STATUS,
                                   .name = io->config->stage,
                                   .replica = io->config->replica,
                                   .machine = io->config->machine,
                                   .status = {.state = "", .in_flight = "", .pid = getpid()}};
    pthread_mutex_lock(&io->lock);
    message.status.held = (int64_t)(io->in_progress_count + io->inbox_count);
    message.status.waiting = outbox_count(&io->outbox, -1);
    message.status.dropped = io->dropped;
    status result = io_list_seqs(io);
    pthread_mutex_unlock(&io->lock);
    TRY(result);
    message.status.in_hand = io->seq_text.data;
    io->hooks.report(io->hooks.self, &message.status);
    struct saying saying = {.io = io, .message = &message};
    wire_each(io->wire, "report", false, io_say_one, &saying);
    return saying.result;
}

static status on_joined(struct io_thread *io, struct wire_peer *peer) {
    bool flow = !strcmp(wire_peer_purpose(peer), "flow");
    io_forget_asks(io, peer);
    io_forget_errands(io, peer);
    if (flow && !wire_peer_is_client(peer) && !io_upstream_of(peer)) {
        struct upstream *upstream;
        TRY(NEW(&upstream, 1));
        upstream->next = io->upstreams;
        io->upstreams = upstream;
        *wire_peer_tag(peer) = upstream;
    }
    struct saying saying = {.io = io};
    if (flow && wire_peer_is_client(peer)) io_offer_letters(&saying, peer);
    TRY(saying.result);
    if (!strcmp(wire_peer_purpose(peer), "report")) io->reported = 0;
    return flow || !io->hooks.joined ? OK : io->hooks.joined(io->hooks.self, io->wire, peer);
}

static status on_said(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    bool visitor = wire_peer_is_client(peer);
    switch (message->kind) {
    case MESSAGE_CREDIT:
        return visitor ? io_give_letter(io, peer) : OK;
    case MESSAGE_AVAILABLE:
    case MESSAGE_GROUP:
    case MESSAGE_EMPTY:
        return io_upstream_of(peer) ? io_hear_upstream(io, peer, message) : OK;
    case MESSAGE_WEIGHTS:
    case MESSAGE_CHUNK:
    case MESSAGE_RECORD:
    case MESSAGE_ABSENT:
        io_hear_answer(io, peer, message);
        return OK;
    default:
        return io->hooks.said ? io->hooks.said(io->hooks.self, io->wire, peer, message) : OK;
    }
}

static status on_gone(struct io_thread *io, struct wire_peer *peer, bool orderly) {
    if (!orderly) log_info("lost %s-%d", wire_peer_name(peer), wire_peer_replica(peer));
    io_forget_asks(io, peer);
    io_forget_errands(io, peer);
    return OK;
}

static status on_event(struct io_thread *io, const struct wire_event *event) {
    uint64_t rings;
    ssize_t got;
    switch (event->kind) {
    case WIRE_READABLE:
        got = read(io->wakeup, &rings, sizeof rings);
        (void)got; // an event counter that is zero again has been read before
        return OK;
    case WIRE_JOINED:
        return on_joined(io, event->peer);
    case WIRE_GONE:
        return on_gone(io, event->peer, event->orderly);
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    case WIRE_MESSAGE:
        return on_said(io, event->peer, &event->message);
    case WIRE_TIMEOUT:
        return OK;
    }
    return OK;
}

static status offer_new(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    bool announce = io->announce;
    io->announce = false;
    pthread_mutex_unlock(&io->lock);
    struct saying saying = {.io = io};
    if (announce) wire_each(io->wire, "flow", true, io_offer_letters, &saying);
    return saying.result;
}

static status go_round(struct io_thread *io) {
    struct wire_event event;
    TRY(wire_poll(io->wire, TICK_MS, &event));
    TRY(on_event(io, &event));
    if (io->hooks.tick) TRY(io->hooks.tick(io->hooks.self, io->wire));
    TRY(io_send_posts(io));
    TRY(offer_new(io));
    TRY(io_take_groups(io));
    TRY(io_begin_errands(io));
    return report(io);
}

static bool quitting(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    bool quit = io->quit;
    pthread_mutex_unlock(&io->lock);
    return quit;
}

static void *io_run(void *argument) {
    struct io_thread *io = argument;
    status result = OK;
    while (result == OK && !quitting(io)) result = go_round(io);
    pthread_mutex_lock(&io->lock);
    io->broken = result;
    io->reason = result == OK ? NULL : strdup(fail_text());
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

// ---- opening and closing ----

static status begin_visits(struct io_thread *io) {
    const struct node_config *config = io->config;
    if (*config->from) TRY(io_visit_stage(io, config->from, "flow"));
    if (config->last) TRY(io_visit_stage(io, "source", "ledger"));
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *desk = &config->endpoints[i];
        if (!strcmp(desk->stage, SUPERVISOR_NAME) && !strcmp(desk->machine, config->machine))
            TRY(wire_connect(io->wire, desk->endpoint, desk->key, "report", NULL));
    }
    return OK;
}

static status start(struct io_thread *io) {
    const struct node_config *config = io->config;
    const struct wire_self self = {.run = config->run,
                                   .name = config->stage,
                                   .replica = config->replica,
                                   .machine = config->machine,
                                   .security = node_config_security(config)};
    if (config->reader_count > 64) return fail(USAGE, "more than 64 stages read from %s", config->stage);
    io->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->wakeup < 0) return fail(UNAVAILABLE, "eventfd: %s", strerror(errno));
    TRY(wire_open(&io->wire, &self));
    TRY(wire_add_fd(io->wire, io->wakeup));
    for (size_t i = 0; i < config->listen_count; i++) TRY(wire_bind(io->wire, config->listen[i]));
    TRY(begin_visits(io));
    return OK;
}

static void release(struct io_thread *io) {
    wire_close(&io->wire);
    if (io->wakeup >= 0) close(io->wakeup);
    for (size_t i = 0; i < io->inbox_count; i++) group_free(&io->inbox[i]);
    for (size_t i = 0; i < io->in_progress_count; i++) free(io->in_progress[i].id);
    io_free_posts(io);
    while (io->upstreams) {
        struct upstream *next = io->upstreams->next;
        free(io->upstreams);
        io->upstreams = next;
    }
    outbox_release(&io->outbox);
    free(io->inbox);
    free(io->in_progress);
    free(io->reason);
    free(io->seqs);
    buf_release(&io->seq_text);
    pthread_mutex_destroy(&io->lock);
    pthread_cond_destroy(&io->changed);
    free(io);
}

status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      bool greedy) {
    struct io_thread *io;
    *out = NULL;
    TRY(NEW(&io, 1));
    io->config = config;
    io->hooks = *hooks;
    io->greedy = greedy;
    io->wakeup = -1;
    io->last_broadcast = &io->broadcasts;
    pthread_mutex_init(&io->lock, NULL);
    cond_init_monotonic(&io->changed);
    status result = start(io);
    if (result != OK) {
        release(io);
        return result;
    }
    *out = io; // before the thread: hooks may use it
    if (pthread_create(&io->thread, NULL, io_run, io)) {
        *out = NULL;
        release(io);
        return fail(UNAVAILABLE, "no thread for the sockets");
    }
    return OK;
}

void io_thread_close(struct io_thread **pointer) {
    struct io_thread *io = *pointer;
    if (!io) return;
    pthread_mutex_lock(&io->lock);
    io->quit = true;
    pthread_mutex_unlock(&io->lock);
    io_thread_wake(io);
    pthread_join(io->thread, NULL);
    release(io);
    *pointer = NULL;
}
