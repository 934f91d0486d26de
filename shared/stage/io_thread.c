// The lock guards what the I/O thread and other threads share; the I/O thread gives it up while it waits and while it
// calls a hook. Functions marked "locked" expect it to be held.
#include "shared/stage/io_thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/stage/flow.h"
#include "shared/stage/io_hooks.h"
#include "shared/stage/requests.h"
#include "shared/base/signals.h"

enum { TICK_MS = 50, REPORT_MS = 500 };
static const double for_ever = 1e8; // seconds
static_assert(1000 / TICK_MS >= 20, "as io_hooks.h promises");

// A message to be sent to all peers for a purpose.
struct broadcast {
    struct broadcast *next;
    char *purpose;
    struct wire_message message;
    struct arena arena;
};

struct io_thread {
    const struct node_config *config;
    const struct io_hooks *hooks;
    void *self; // of the hooks
    struct wire *wire;
    int wakeup; // an eventfd
    bool started;
    pthread_t thread;
    int64_t reported_at; // ms; the I/O thread's own
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool quit, nudged, stop_seen;
    status failure;
    char *failure_text;
    struct flow *flow;
    struct requests requests;
    struct broadcast *broadcasts, **last_broadcast;
};

// Which messages a process takes, from whom, and what handles them: the flow, the transfer that it answers, or else the
// hook of its kind. A message that is not here, or comes from another peer, is a mistake.
static const struct route {
    status (*flow)(struct flow *flow, struct wire_peer *peer, const struct wire_message *message);
    const char *purposes[2]; // none: nobody may send it
    bool from_client, answer;
} routes[MESSAGE_KINDS] = {
    [MESSAGE_AVAILABLE] = {.flow = flow_on_available, .purposes = {"flow"}},
    [MESSAGE_GROUP] = {.flow = flow_on_answer, .purposes = {"flow"}},
    [MESSAGE_EMPTY] = {.flow = flow_on_answer, .purposes = {"flow"}},
    [MESSAGE_CREDIT] = {.flow = flow_on_credit, .purposes = {"flow"}, .from_client = true},
    [MESSAGE_HAVE] = {.flow = flow_on_have, .purposes = {"flow"}, .from_client = true},
    [MESSAGE_SYNCED] = {.flow = flow_on_synced, .purposes = {"flow"}, .from_client = true},
    [MESSAGE_RUN_INFO] = {.purposes = {"ledger"}},
    [MESSAGE_POSITION] = {.purposes = {"ledger"}, .from_client = true},
    [MESSAGE_TRAINED] = {.purposes = {"ledger"}, .from_client = true},
    [MESSAGE_QUARANTINED] = {.purposes = {"ledger"}, .from_client = true},
    [MESSAGE_UNUSED] = {.purposes = {"ledger"}, .from_client = true},
    [MESSAGE_WEIGHTS] = {.purposes = {"weights"}},
    [MESSAGE_FETCH] = {.purposes = {"weights"}, .from_client = true},
    [MESSAGE_GET] = {.purposes = {"frames"}, .from_client = true},
    [MESSAGE_CHUNK] = {.purposes = {"weights"}, .answer = true},
    [MESSAGE_RECORD] = {.purposes = {"frames"}, .answer = true},
    [MESSAGE_ABSENT] = {.purposes = {"weights", "frames"}, .answer = true},
    [MESSAGE_CANNOT_BORROW] = {.purposes = {"weights"}, .from_client = true},
    [MESSAGE_STATUS] = {.purposes = {"report"}}, // of a supervisor, which sends them to its peers
    [MESSAGE_NOTICE] = {.purposes = {"report"}},
    [MESSAGE_END] = {.purposes = {"report"}},
};

static void io_wake(struct io_thread *io) {
    uint64_t one = 1;
    ssize_t size = write(io->wakeup, &one, sizeof one); // a full counter is readable, too
    (void)size;
}

// Locked. Returns the failure that ended the thread, with its text in the caller's fail_text().
static status io_failure(const struct io_thread *io) {
    return io->failure == OK ? OK : fail(io->failure, "%s", io->failure_text);
}

// ---- the worker: groups ----

status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct held_group **out) {
    const double until = clock_monotonic() + (timeout_ms < 0 ? for_ever : timeout_ms / 1e3);
    status result = OK;
    *out = NULL;
    pthread_mutex_lock(&io->lock);
    io->flow->capacity = capacity;
    if (!flow_next(io->flow, NULL, HELD_QUEUED)) io_wake(io);
    for (bool due = timeout_ms == 0; result == OK && !*out;) {
        struct held_group *held = flow_take(io->flow);
        if (held) {
            status read = group_from_msgpack(&held->group, held->data.data, held->data.size);
            if (read == OK && held->group->requires.order != held->seq)
                read = fail(DATAERR, "group %s has another seq than its message", held->group->id.data);
            buf_release(&held->data);
            held->since = clock_monotonic();
            if (read == OK) {
                *out = held;
                break;
            }
            flow_reject(io->flow, held, fail_text()); // it costs its giver the connection
            io_wake(io);
        }
        result = io_failure(io);
        if (result == OK && signals_stopping()) result = END;
        if (result != OK || io->nudged || due) break;
        due = !cond_wait_until(&io->changed, &io->lock, until);
    }
    io->nudged = false;
    pthread_mutex_unlock(&io->lock);
    return result;
}

struct held_group *io_thread_next_held(struct io_thread *io, const struct held_group *after, enum held_state state) {
    pthread_mutex_lock(&io->lock);
    struct held_group *held = flow_next(io->flow, after, state);
    pthread_mutex_unlock(&io->lock);
    return held;
}

void io_thread_set_state(struct io_thread *io, struct held_group *held, enum held_state state) {
    pthread_mutex_lock(&io->lock);
    held->state = state;
    pthread_mutex_unlock(&io->lock);
}

int64_t io_thread_issue(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    const int64_t issue = io->flow->issue;
    pthread_mutex_unlock(&io->lock);
    return issue;
}

int64_t io_thread_settled(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    const int64_t settled = io->flow->settled;
    pthread_mutex_unlock(&io->lock);
    return settled;
}

void io_thread_send(struct io_thread *io, struct held_group *held) {
    struct buf data = {0};
    if (io->config->reader_count) group_to_msgpack(held->group, &data);
    group_free(&held->group);
    pthread_mutex_lock(&io->lock);
    flow_finish(io->flow, held, &data);
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
}

void io_thread_drop(struct io_thread *io, struct held_group *held) {
    group_free(&held->group);
    pthread_mutex_lock(&io->lock);
    flow_forget(io->flow, held);
    pthread_mutex_unlock(&io->lock);
}

// ---- other threads: broadcasts and transfers ----

void io_thread_nudge(struct io_thread *io) {
    pthread_mutex_lock(&io->lock);
    io->nudged = true;
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
}

static void io_free_broadcast(struct broadcast *broadcast) {
    arena_release(&broadcast->arena);
    free(broadcast->purpose);
    free(broadcast);
}

status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message) {
    struct broadcast *broadcast;
    assert(!message_has_bulk(message->kind));
    NEW(&broadcast, 1);
    broadcast->purpose = mem_strdup(purpose);
    status result = message_copy(message, &broadcast->message, &broadcast->arena);
    if (result != OK) {
        io_free_broadcast(broadcast);
        return result;
    }
    pthread_mutex_lock(&io->lock);
    assert(!*io->last_broadcast);
    *io->last_broadcast = broadcast;
    io->last_broadcast = &broadcast->next;
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
    return OK;
}

void io_thread_begin_transfer(struct io_thread *io, struct transfer *transfer) {
    pthread_mutex_lock(&io->lock);
    requests_add(&io->requests, transfer);
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
}

status io_thread_take_bytes(struct io_thread *io, struct transfer *transfer, int timeout_ms, struct buf *data,
                            bool *ended) {
    const double until = clock_monotonic() + (timeout_ms < 0 ? for_ever : timeout_ms / 1e3);
    status result = OK;
    buf_clear(data);
    pthread_mutex_lock(&io->lock);
    for (bool due = timeout_ms == 0; result == OK && !transfer->data.size && !transfer_ended(transfer);) {
        result = io_failure(io);
        if (result == OK && signals_stopping()) result = END;
        if (result != OK || due) break;
        due = !cond_wait_until(&io->changed, &io->lock, until);
    }
    const struct buf taken = transfer->data;
    transfer->data = *data;
    *data = taken;
    transfer->taken += (int64_t)taken.size;
    *ended = transfer_ended(transfer);
    pthread_mutex_unlock(&io->lock);
    if (taken.size && !*ended) io_wake(io); // it asks for more
    return result;
}

void io_thread_end_transfer(struct io_thread *io, struct transfer *transfer) {
    pthread_mutex_lock(&io->lock);
    requests_remove(&io->requests, transfer);
    pthread_mutex_unlock(&io->lock);
}

// ---- hooks ----

void io_thread_put(struct io_thread *io, const struct group *group) {
    struct buf data = {0};
    group_to_msgpack(group, &data);
    pthread_mutex_lock(&io->lock);
    flow_put(io->flow, group->requires.order, &data);
    pthread_mutex_unlock(&io->lock);
}

void io_thread_set_issue(struct io_thread *io, int64_t issue, int64_t settled) {
    pthread_mutex_lock(&io->lock);
    flow_set_issue(io->flow, issue, settled);
    pthread_mutex_unlock(&io->lock);
}

bool io_thread_is_supervised(struct io_thread *io) {
    return wire_first_peer(io->wire, "report", false) != NULL;
}

status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    return wire_send(io->wire, peer, message, NULL);
}

// ---- the I/O thread ----

// Sends STATUS to the supervisor twice a second.
static status io_report(struct io_thread *io) {
    const int64_t now = wire_now_ms(io->wire);
    if (now - io->reported_at < REPORT_MS) return OK;
    io->reported_at = now;
    struct wire_message message = {.kind = MESSAGE_STATUS,
                                   .name = io->config->stage,
                                   .replica = io->config->replica,
                                   .machine = io->config->machine,
                                   .counters = {.state = "", .pid = getpid()}};
    pthread_mutex_lock(&io->lock);
    flow_report(io->flow, clock_monotonic(), &message.counters);
    pthread_mutex_unlock(&io->lock);
    if (io->hooks->report) io->hooks->report(io->self, &message.counters);
    for (struct wire_peer *peer = wire_first_peer(io->wire, "report", false); peer; peer = wire_next_peer(peer))
        TRY(wire_send(io->wire, peer, &message, NULL));
    return OK;
}

status io_thread_step(struct io_thread *io, int timeout_ms) {
    struct wire_event event;
    uint64_t wakeups;
    bool done = false;
    status result = OK;
    TRY(wire_poll(io->wire, timeout_ms, &event));
    struct wire_peer *peer = event.peer;
    if (event.kind == WIRE_MESSAGE) {
        const struct wire_message *message = &event.message;
        const struct route *route = &routes[message->kind];
        bool right = false, taken = false;
        for (int i = 0; i < 2 && route->purposes[i]; i++) right |= !strcmp(route->purposes[i], peer->purpose);
        if (!right || peer->client != route->from_client) {
            result = fail(DATAERR, "%s is not a message for %s from a peer for %s", message_name(message->kind),
                          io->config->stage, peer->purpose);
        } else if (route->flow || route->answer) {
            pthread_mutex_lock(&io->lock);
            result = route->flow ? route->flow(io->flow, peer, message)
                                 : requests_on_answer(&io->requests, peer, message, &taken);
            if (taken || flow_next(io->flow, NULL, HELD_QUEUED)) pthread_cond_broadcast(&io->changed);
            pthread_mutex_unlock(&io->lock);
        } else if (io->hooks->messages[message->kind]) {
            result = io->hooks->messages[message->kind](io->self, peer, message);
        }
        if (result == DATAERR) result = wire_reject(io->wire, peer, fail_text());
    } else if (event.kind == WIRE_JOINED || event.kind == WIRE_GONE) {
        const bool joined = event.kind == WIRE_JOINED;
        if (!joined && !event.orderly) log_info("lost %s-%d", peer->name, peer->replica);
        if (!strcmp(peer->purpose, "report")) io->reported_at = 0;
        pthread_mutex_lock(&io->lock);
        requests_forget(&io->requests, peer);
        if (!strcmp(peer->purpose, "flow")) result = flow_on_peer(io->flow, &event);
        pthread_mutex_unlock(&io->lock);
        for (int i = 0; i < 2 && io->hooks->peers[i].purpose && result == OK; i++) {
            const struct io_peer_hook *hook = &io->hooks->peers[i];
            if (hook->clients != peer->client || strcmp(hook->purpose, peer->purpose) != 0) continue;
            if (joined && hook->joined) result = hook->joined(io->self, peer);
            if (!joined && hook->gone) result = hook->gone(io->self, peer);
        }
    } else if (event.kind == WIRE_REFUSED) {
        result = fail(UNAVAILABLE, "%s", event.message.reason);
    } else if (event.kind == WIRE_READABLE) {
        const ssize_t size = read(io->wakeup, &wakeups, sizeof wakeups); // a counter that is zero again was read before
        (void)size;
    }
    TRY(result);
    if (io->hooks->tick) TRY(io->hooks->tick(io->self));
    // Sends what the event or another thread has made possible.
    pthread_mutex_lock(&io->lock);
    struct broadcast *broadcast = io->broadcasts;
    io->broadcasts = NULL;
    io->last_broadcast = &io->broadcasts;
    for (struct broadcast *next; broadcast; broadcast = next) {
        next = broadcast->next;
        for (int clients = 0; clients < 2; clients++)
            for (peer = wire_first_peer(io->wire, broadcast->purpose, clients); peer && result == OK;
                 peer = wire_next_peer(peer))
                result = wire_send(io->wire, peer, &broadcast->message, NULL);
        io_free_broadcast(broadcast);
    }
    if (result == OK) result = flow_send_pending(io->flow);
    if (result == OK) result = requests_send(&io->requests, io->wire, io->config, &done);
    if (done || (signals_stopping() && !io->stop_seen)) pthread_cond_broadcast(&io->changed);
    io->stop_seen = signals_stopping();
    pthread_mutex_unlock(&io->lock);
    return result == OK ? io_report(io) : result;
}

static void *io_run(void *argument) {
    struct io_thread *io = argument;
    pthread_mutex_lock(&io->lock);
    while (io->failure == OK && !io->quit) {
        pthread_mutex_unlock(&io->lock);
        status result = io_thread_step(io, TICK_MS);
        pthread_mutex_lock(&io->lock);
        io->failure = result;
        if (result != OK) io->failure_text = mem_strdup(fail_text()); // others may look as soon as the lock is free
    }
    const bool ends = io->failure == OK;
    pthread_mutex_unlock(&io->lock);
    io->reported_at = 0;
    if (ends) (void)io_report(io); // the last counts, which the supervisor waits for
    pthread_mutex_lock(&io->lock);
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

// ---- opening and closing ----

status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      void *self, struct transport *transport) {
    struct io_thread *io = NULL;
    const struct wire_self process = {.run = config->run,
                                      .name = config->stage,
                                      .replica = config->replica,
                                      .machine = config->machine,
                                      .config = config};
    status result;
    *out = NULL;
    NEW(&io, 1);
    io->config = config;
    io->hooks = hooks;
    io->self = self;
    io->last_broadcast = &io->broadcasts;
    io->wakeup = -1;
    pthread_mutex_init(&io->lock, NULL);
    cond_init_monotonic(&io->changed);
    wire_open(&io->wire, &process, transport);
    io->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    TRY_TO(result, failed, io->wakeup >= 0 ? OK : fail(UNAVAILABLE, "eventfd: %s", strerror(errno)));
    TRY_TO(result, failed, flow_new(&io->flow, config, io->wire, hooks->greedy));
    wire_add_fd(io->wire, io->wakeup);
    for (size_t i = 0; i < config->listen_count; i++) TRY_TO(result, failed, wire_bind(io->wire, config->listen[i]));
    if (*config->from) TRY_TO(result, failed, io_thread_connect(io, config->from, "flow"));
    if (config->last) TRY_TO(result, failed, io_thread_connect(io, "source", "ledger"));
    TRY_TO(result, failed,
           requests_connect(&io->requests, io->wire, config, SUPERVISOR_NAME, config->machine, "report", NULL));
    *out = io;
    return OK;
failed:
    io_thread_close(&io);
    return result;
}

status io_thread_connect(struct io_thread *io, const char *stage, const char *purpose) {
    assert(!io->started);
    return requests_connect(&io->requests, io->wire, io->config, stage, NULL, purpose, NULL);
}

status io_thread_start(struct io_thread *io) {
    assert(!io->started);
    if (pthread_create(&io->thread, NULL, io_run, io))
        return fail(UNAVAILABLE, "cannot start the thread for the sockets");
    io->started = true;
    return OK;
}

void io_thread_close(struct io_thread **pointer) {
    struct io_thread *io = *pointer;
    if (!io) return;
    pthread_mutex_lock(&io->lock);
    io->quit = true;
    pthread_mutex_unlock(&io->lock);
    if (io->started) io_wake(io);
    if (io->started) pthread_join(io->thread, NULL);
    flow_free(&io->flow);
    requests_release(&io->requests);
    wire_close(&io->wire);
    if (io->wakeup >= 0) close(io->wakeup);
    while (io->broadcasts) {
        struct broadcast *next = io->broadcasts->next;
        io_free_broadcast(io->broadcasts);
        io->broadcasts = next;
    }
    free(io->failure_text);
    pthread_mutex_destroy(&io->lock);
    pthread_cond_destroy(&io->changed);
    free(io);
    *pointer = NULL;
}
