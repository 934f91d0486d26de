// The lock guards what the I/O thread and other threads share; the rest of struct io_thread belongs to the I/O thread
// alone. Functions marked "locked" expect the lock to be held.
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
#include "shared/stage/outbox.h"
#include "shared/stage/signals.h"
#include "shared/wire/seq_set.h"
#include "shared/wire/zmq_transport.h"

enum { TICK_MS = 50, REPORT_MS = 500, READERS_MAX = 64, CREDITS_MAX = 1 << 20 };
static_assert(READERS_MAX == 8 * sizeof(((struct outbox_entry *)NULL)->readers), "a reader is a bit in the outbox");
static_assert(1000 / TICK_MS >= 20, "as io_thread.h promises");

// A replica of the stage before this one, kept at the peer's tag.
struct upstream {
    struct upstream *next;
    int64_t available; // groups that it announced
    int credits;       // CREDITs that it has not answered
};

// A message to be sent to all servers of a purpose.
struct broadcast {
    struct broadcast *next;
    char *purpose;
    struct wire_message message;
    struct arena arena;
};

enum rpc_state { RPC_NEW, RPC_SENT, RPC_DONE };

// A request of another thread, which waits for the answer.
struct rpc {
    struct rpc *next;
    const char *stage, *purpose;
    const struct wire_message *request;
    struct wire_message *reply;
    struct arena *arena;
    struct buf *bulk;
    struct wire_peer *peer; // SENT: to whom
    int asked;              // replicas that answered ABSENT
    enum rpc_state state;
};

// A group that the worker has.
struct in_progress {
    char *id;
    int64_t seq;
};

struct io_thread {
    const struct node_config *config;
    struct io_hooks hooks;
    bool greedy;
    struct wire *wire;
    int wakeup; // an eventfd
    bool started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool quit;
    status failure;
    char *failure_text;
    struct group **inbox;
    size_t inbox_count;
    struct in_progress *in_progress;
    size_t in_progress_count;
    struct outbox outbox;
    bool announce; // groups were added to the outbox since the last AVAILABLE
    int capacity;
    int64_t dropped;
    struct broadcast *broadcasts, **last_broadcast;
    struct rpc *rpcs;
    // The I/O thread's own:
    struct upstream *upstreams;
    int credits; // of all upstreams
    int64_t *seqs;
    struct buf seq_text;
    int64_t reported_at;
    bool weights_connected, frames_connected;
};

static void io_wake(struct io_thread *io) {
    uint64_t one = 1;
    ssize_t size = write(io->wakeup, &one, sizeof one); // a full counter is readable, too
    (void)size;
}

// Locked. Waits until something changes, but not for long, since signals change nothing here.
static void io_wait(struct io_thread *io) {
    const double seconds = 0.02;
    assert(mutex_is_held(&io->lock));
    cond_wait_until(&io->changed, &io->lock, clock_monotonic() + seconds);
}

// Locked. Returns the failure that ended the thread, with its text in the caller's fail_text().
static status io_failure(const struct io_thread *io) {
    return io->failure == OK ? OK : fail(io->failure, "%s", io->failure_text ? io->failure_text : "out of memory");
}

// ---- the worker: groups ----

// Locked.
static void io_end_progress(struct io_thread *io, const char *id) {
    assert(mutex_is_held(&io->lock));
    for (size_t i = 0; i < io->in_progress_count; i++) {
        if (strcmp(io->in_progress[i].id, id) != 0) continue;
        free(io->in_progress[i].id);
        io->in_progress[i] = io->in_progress[--io->in_progress_count];
        return;
    }
}

// Locked. Adds a group to the outbox unless no stage reads from this one.
static status io_add_to_outbox(struct io_thread *io, const struct group *group) {
    const size_t readers = io->config->reader_count;
    assert(mutex_is_held(&io->lock) && readers <= READERS_MAX);
    if (readers == 0 || outbox_has(&io->outbox, group->id.data)) return OK;
    struct buf data = {0};
    status result = group_to_msgpack(group, &data);
    if (result != OK) {
        buf_release(&data);
        return result;
    }
    const uint64_t all = readers == READERS_MAX ? UINT64_MAX : ((uint64_t)1 << readers) - 1;
    TRY(outbox_add(&io->outbox, group->requires.order, group->id.data, all, &data));
    io->announce = true;
    return OK;
}

status io_thread_receive(struct io_thread *io, int capacity, int timeout_ms, struct group **out) {
    const int64_t until = clock_monotonic_ms() + timeout_ms;
    status result = OK;
    *out = NULL;
    pthread_mutex_lock(&io->lock);
    io->capacity = capacity;
    if (!io->inbox_count) io_wake(io);
    while (!io->inbox_count) {
        result = io_failure(io);
        if (result == OK && signals_stopping()) result = END;
        if (result != OK || (timeout_ms >= 0 && clock_monotonic_ms() >= until)) break;
        io_wait(io);
    }
    if (io->inbox_count) {
        size_t oldest = 0;
        for (size_t i = 1; i < io->inbox_count; i++)
            if (io->inbox[i]->requires.order < io->inbox[oldest]->requires.order) oldest = i;
        struct group *group = io->inbox[oldest];
        char *id = strdup(group->id.data);
        result = id ? RESIZE(&io->in_progress, io->in_progress_count + 1) : fail_oom();
        if (result == OK) {
            io->in_progress[io->in_progress_count++] = (struct in_progress){id, group->requires.order};
            io->inbox_count--;
            memmove(&io->inbox[oldest], &io->inbox[oldest + 1], (io->inbox_count - oldest) * sizeof *io->inbox);
            io->capacity--;
            *out = group;
        } else {
            free(id);
        }
    }
    pthread_mutex_unlock(&io->lock);
    return result;
}

status io_thread_send(struct io_thread *io, const struct group *group) {
    pthread_mutex_lock(&io->lock);
    status result = io_add_to_outbox(io, group);
    io_end_progress(io, group->id.data);
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
    return result;
}

void io_thread_drop(struct io_thread *io, const char *id) {
    pthread_mutex_lock(&io->lock);
    io_end_progress(io, id);
    io->dropped++;
    pthread_mutex_unlock(&io->lock);
}

// ---- other threads: broadcasts and requests ----

static void io_free_broadcast(struct broadcast *broadcast) {
    arena_release(&broadcast->arena);
    free(broadcast->purpose);
    free(broadcast);
}

// Copies a message by encoding and decoding it; without its bulk.
static status io_copy_message(const struct wire_message *message, struct wire_message *copy, struct arena *arena) {
    struct buf frame = {0};
    status result = message_encode(message, &frame);
    if (result == OK) result = message_decode(copy, arena, frame.data, frame.size);
    buf_release(&frame);
    return result;
}

status io_thread_broadcast(struct io_thread *io, const char *purpose, const struct wire_message *message) {
    struct broadcast *broadcast;
    assert(!message_has_bulk(message->kind));
    TRY(NEW(&broadcast, 1));
    broadcast->purpose = strdup(purpose);
    status result = broadcast->purpose ? io_copy_message(message, &broadcast->message, &broadcast->arena) : fail_oom();
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

status io_thread_call(struct io_thread *io, const char *stage, const char *purpose, const struct wire_message *request,
                      struct wire_message *reply, struct arena *arena, struct buf *bulk) {
    struct rpc rpc = {
        .stage = stage, .purpose = purpose, .request = request, .reply = reply, .arena = arena, .bulk = bulk};
    pthread_mutex_lock(&io->lock);
    rpc.next = io->rpcs;
    io->rpcs = &rpc;
    io_wake(io);
    while (rpc.state != RPC_DONE && !signals_stopping() && io->failure == OK) io_wait(io);
    status failure = io_failure(io);
    struct rpc **link = &io->rpcs;
    while (*link != &rpc) {
        assert(*link);
        link = &(*link)->next;
    }
    *link = rpc.next;
    pthread_mutex_unlock(&io->lock);
    return failure != OK ? failure : rpc.state == RPC_DONE ? OK : END;
}

// ---- the I/O thread: groups to the next stages ----

status io_thread_put(struct io_thread *io, const struct group *group) {
    pthread_mutex_lock(&io->lock);
    status result = io_add_to_outbox(io, group);
    pthread_mutex_unlock(&io->lock);
    return result;
}

status io_thread_reply(struct io_thread *io, struct wire_peer *peer, const struct wire_message *message) {
    return wire_send(io->wire, peer, message, NULL);
}

// The number of a stage that reads from this one, -1 for another stage.
static int io_reader_index(const struct io_thread *io, const char *stage) {
    for (size_t i = 0; i < io->config->reader_count; i++)
        if (!strcmp(io->config->readers[i], stage)) return (int)i;
    return -1;
}

// Tells a reader how many groups wait for it.
static status io_announce(struct io_thread *io, struct wire_peer *peer) {
    int reader = io_reader_index(io, wire_peer_name(peer));
    if (reader < 0) return OK;
    pthread_mutex_lock(&io->lock);
    const struct wire_message available = {.kind = MESSAGE_AVAILABLE, .count = outbox_count(&io->outbox, reader)};
    pthread_mutex_unlock(&io->lock);
    return available.count ? wire_send(io->wire, peer, &available, NULL) : OK;
}

// Answers a reader's CREDIT with a group or with EMPTY.
static status io_answer_credit(struct io_thread *io, struct wire_peer *peer) {
    int reader = io_reader_index(io, wire_peer_name(peer));
    if (reader < 0) {
        log_info("%s-%d asked for groups, but does not read from this stage", wire_peer_name(peer),
                 wire_peer_replica(peer));
        return OK;
    }
    pthread_mutex_lock(&io->lock);
    struct outbox_entry *entry = outbox_first(&io->outbox, reader);
    pthread_mutex_unlock(&io->lock);
    // Only this thread removes entries, so this one stays.
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

// ---- the I/O thread: groups from the stage before ----

static struct upstream *io_upstream(struct wire_peer *peer) {
    return *wire_peer_tag(peer);
}

static status io_accept_group(struct io_thread *io, const struct wire_message *message) {
    struct group *group;
    status result = group_from_msgpack(&group, message->bulk, message->bulk_size);
    if (result == DATAERR) return fail_prefix(DATAERR, "from %s", io->config->from);
    TRY(result);
    const char *id = group->id.data;
    pthread_mutex_lock(&io->lock);
    bool present = outbox_has(&io->outbox, id);
    for (size_t i = 0; i < io->in_progress_count; i++) present |= !strcmp(io->in_progress[i].id, id);
    for (size_t i = 0; i < io->inbox_count; i++) present |= !strcmp(io->inbox[i]->id.data, id);
    if (!present) result = RESIZE(&io->inbox, io->inbox_count + 1);
    if (!present && result == OK) {
        io->inbox[io->inbox_count++] = group;
        group = NULL;
        pthread_cond_broadcast(&io->changed);
    }
    if (present) io->dropped++;
    pthread_mutex_unlock(&io->lock);
    group_free(&group);
    return result;
}

// ---- the I/O thread: requests ----

// Connects to every replica of a stage.
static status io_connect_stage(struct io_thread *io, const char *stage, const char *purpose) {
    for (size_t i = 0; i < io->config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &io->config->endpoints[i];
        if (!strcmp(endpoint->stage, stage))
            TRY(wire_connect(io->wire, endpoint->address, endpoint->key, purpose, NULL));
    }
    return OK;
}

// Locked. The reply is complete.
static void io_finish_rpc(struct io_thread *io, struct rpc *rpc) {
    assert(mutex_is_held(&io->lock) && rpc->state != RPC_DONE);
    rpc->state = RPC_DONE;
    pthread_cond_broadcast(&io->changed);
}

// Locked. Sends a request to the first replica that is there and was not asked yet. ABSENT when there is no such stage
// or all of its replicas that are there were asked.
static status io_send_rpc(struct io_thread *io, struct rpc *rpc) {
    bool *connected = !strcmp(rpc->purpose, "weights") ? &io->weights_connected : &io->frames_connected;
    bool exists = false;
    for (size_t i = 0; i < io->config->endpoint_count && !exists; i++)
        exists = !strcmp(io->config->endpoints[i].stage, rpc->stage);
    if (exists && !*connected) TRY(io_connect_stage(io, rpc->stage, rpc->purpose));
    *connected |= exists;
    int there = 0;
    assert(mutex_is_held(&io->lock) && rpc->state == RPC_NEW);
    for (struct wire_peer *peer = wire_first_peer(io->wire, rpc->purpose, false); peer; peer = wire_next_peer(peer)) {
        if (strcmp(wire_peer_name(peer), rpc->stage) != 0 || there++ < rpc->asked) continue;
        rpc->peer = peer;
        rpc->state = RPC_SENT;
        return wire_send(io->wire, peer, rpc->request, NULL);
    }
    if (!exists || there > 0) {
        rpc->reply->kind = MESSAGE_ABSENT;
        io_finish_rpc(io, rpc);
    }
    return OK;
}

static bool io_is_answer(const struct rpc *rpc, const struct wire_peer *peer, const struct wire_message *message) {
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

// A peer has joined or gone: what it was asked for before will not come.
static void io_forget_requests(struct io_thread *io, struct wire_peer *peer) {
    struct upstream *upstream = io_upstream(peer);
    if (upstream) {
        io->credits -= upstream->credits;
        assert(io->credits >= 0);
        upstream->credits = 0;
        upstream->available = 0;
    }
    pthread_mutex_lock(&io->lock);
    for (struct rpc *rpc = io->rpcs; rpc; rpc = rpc->next)
        if (rpc->state == RPC_SENT && rpc->peer == peer) rpc->state = RPC_NEW;
    pthread_mutex_unlock(&io->lock);
}

// ---- the I/O thread: the loop ----

// Sends STATUS to the supervisor twice a second.
static status io_report(struct io_thread *io) {
    int64_t now = clock_monotonic_ms();
    if (now - io->reported_at < REPORT_MS) return OK;
    io->reported_at = now;
    struct wire_message message = {.kind = MESSAGE_STATUS,
                                   .name = io->config->stage,
                                   .replica = io->config->replica,
                                   .machine = io->config->machine,
                                   .counters = {.state = "", .in_flight = "", .pid = getpid()}};
    struct message_status *counters = &message.counters;
    buf_clear(&io->seq_text);
    pthread_mutex_lock(&io->lock);
    counters->held = (int64_t)(io->in_progress_count + io->inbox_count);
    counters->waiting = outbox_count(&io->outbox, -1);
    counters->dropped = io->dropped;
    size_t count = 0;
    status result = RESIZE(&io->seqs, (size_t)(counters->held + counters->waiting));
    if (result == OK) {
        for (size_t i = 0; i < io->in_progress_count; i++) io->seqs[count++] = io->in_progress[i].seq;
        for (size_t i = 0; i < io->inbox_count; i++) io->seqs[count++] = io->inbox[i]->requires.order;
        for (const struct outbox_entry *at = io->outbox.first; at; at = at->next) io->seqs[count++] = at->seq;
        assert((int64_t)count == counters->held + counters->waiting);
    }
    pthread_mutex_unlock(&io->lock);
    if (result == OK) result = seq_set_format(io->seqs, count, &io->seq_text);
    TRY(result);
    counters->in_hand = io->seq_text.data;
    io->hooks.report(io->hooks.self, counters);
    for (struct wire_peer *peer = wire_first_peer(io->wire, "report", false); peer; peer = wire_next_peer(peer))
        TRY(wire_send(io->wire, peer, &message, NULL));
    return OK;
}

static status io_on_message(struct io_thread *io, const struct wire_event *event) {
    struct wire_peer *peer = event->peer;
    const struct wire_message *message = &event->message;
    struct upstream *upstream = wire_peer_is_client(peer) ? NULL : io_upstream(peer);
    struct rpc *rpc;
    status result = OK;
    switch (message->kind) {
    case MESSAGE_CREDIT:
        return wire_peer_is_client(peer) ? io_answer_credit(io, peer) : OK;
    case MESSAGE_AVAILABLE:
        if (upstream) upstream->available = message->count;
        return OK;
    case MESSAGE_GROUP:
    case MESSAGE_EMPTY:
        if (!upstream) return OK;
        if (upstream->credits) {
            upstream->credits--;
            io->credits--;
            assert(upstream->credits >= 0 && io->credits >= 0);
        }
        if (message->kind == MESSAGE_GROUP) return io_accept_group(io, message);
        upstream->available = 0;
        return OK;
    case MESSAGE_WEIGHTS:
    case MESSAGE_CHUNK:
    case MESSAGE_RECORD:
    case MESSAGE_ABSENT:
        pthread_mutex_lock(&io->lock);
        rpc = io->rpcs;
        while (rpc && !io_is_answer(rpc, peer, message)) rpc = rpc->next;
        if (rpc && message->kind == MESSAGE_ABSENT && rpc->request->kind == MESSAGE_GET) {
            rpc->asked++;
            rpc->state = RPC_NEW;
        } else if (rpc) {
            result = io_copy_message(message, rpc->reply, rpc->arena);
            if (result == OK && message->bulk) result = buf_append(rpc->bulk, message->bulk, message->bulk_size);
            if (result == OK) io_finish_rpc(io, rpc);
        }
        pthread_mutex_unlock(&io->lock);
        return result;
    default:
        return io->hooks.event(io->hooks.self, io, event);
    }
}

static status io_on_event(struct io_thread *io, const struct wire_event *event) {
    struct wire_peer *peer = event->peer;
    struct upstream *upstream;
    uint64_t wakeups;
    ssize_t size;
    switch (event->kind) {
    case WIRE_READABLE:
        size = read(io->wakeup, &wakeups, sizeof wakeups); // a counter that is zero again was read before
        (void)size;
        return OK;
    case WIRE_JOINED:
        io_forget_requests(io, peer);
        if (!strcmp(wire_peer_purpose(peer), "report")) io->reported_at = 0;
        if (strcmp(wire_peer_purpose(peer), "flow") != 0) return io->hooks.event(io->hooks.self, io, event);
        if (wire_peer_is_client(peer)) return io_announce(io, peer);
        if (io_upstream(peer)) return OK;
        TRY(NEW(&upstream, 1));
        upstream->next = io->upstreams;
        io->upstreams = upstream;
        *wire_peer_tag(peer) = upstream;
        return OK;
    case WIRE_GONE:
        if (!event->orderly) log_info("lost %s-%d", wire_peer_name(peer), wire_peer_replica(peer));
        io_forget_requests(io, peer);
        return OK;
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    case WIRE_MESSAGE:
        return io_on_message(io, event);
    default:
        return OK;
    }
}

// Sends what an event or another thread has made possible: broadcasts, AVAILABLE, a CREDIT for each group that there is
// capacity for, requests.
static status io_send_pending(struct io_thread *io) {
    const struct wire_message credit = {.kind = MESSAGE_CREDIT};
    status result = OK;
    pthread_mutex_lock(&io->lock);
    struct broadcast *broadcast = io->broadcasts;
    io->broadcasts = NULL;
    io->last_broadcast = &io->broadcasts;
    const bool announce = io->announce;
    io->announce = false;
    int wanted = (io->greedy ? CREDITS_MAX : io->capacity - (int)io->inbox_count) - io->credits;
    pthread_mutex_unlock(&io->lock);
    for (struct broadcast *next; broadcast; broadcast = next) {
        next = broadcast->next;
        for (struct wire_peer *peer = wire_first_peer(io->wire, broadcast->purpose, false); peer && result == OK;
             peer = wire_next_peer(peer))
            result = wire_send(io->wire, peer, &broadcast->message, NULL);
        io_free_broadcast(broadcast);
    }
    for (struct wire_peer *peer = wire_first_peer(io->wire, "flow", true); peer && announce && result == OK;
         peer = wire_next_peer(peer))
        result = io_announce(io, peer);
    for (bool sent = true; sent && wanted > 0 && result == OK;) { // one to each replica in turn
        sent = false;
        for (struct wire_peer *peer = wire_first_peer(io->wire, "flow", false); peer && wanted > 0 && result == OK;
             peer = wire_next_peer(peer)) {
            struct upstream *upstream = io_upstream(peer);
            bool gone;
            if (!upstream || upstream->available <= 0) continue;
            result = wire_send(io->wire, peer, &credit, &gone);
            if (result != OK || gone) continue;
            upstream->available--;
            upstream->credits++;
            io->credits++;
            wanted--;
            sent = true;
        }
    }
    pthread_mutex_lock(&io->lock);
    for (struct rpc *rpc = io->rpcs; rpc && result == OK; rpc = rpc->next)
        if (rpc->state == RPC_NEW) result = io_send_rpc(io, rpc);
    pthread_mutex_unlock(&io->lock);
    return result;
}

static void *io_run(void *argument) {
    struct io_thread *io = argument;
    const struct wire_event tick = {.kind = WIRE_TIMEOUT};
    pthread_mutex_lock(&io->lock);
    while (io->failure == OK && !io->quit) {
        pthread_mutex_unlock(&io->lock);
        struct wire_event event;
        status result = wire_poll(io->wire, TICK_MS, &event);
        if (result == OK) result = io_on_event(io, &event);
        if (result == OK) result = io->hooks.event(io->hooks.self, io, &tick);
        if (result == OK) result = io_send_pending(io);
        if (result == OK) result = io_report(io);
        pthread_mutex_lock(&io->lock);
        io->failure = result;
    }
    if (io->failure != OK) io->failure_text = strdup(fail_text());
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

// ---- opening and closing ----

status io_thread_open(struct io_thread **out, const struct node_config *config, const struct io_hooks *hooks,
                      bool greedy) {
    struct io_thread *io;
    const struct wire_self self = {.run = config->run,
                                   .name = config->stage,
                                   .replica = config->replica,
                                   .machine = config->machine,
                                   .config = config};
    struct transport *transport;
    status result = OK;
    *out = NULL;
    if (config->reader_count > READERS_MAX)
        return fail(USAGE, "more than %d stages read from %s", READERS_MAX, config->stage);
    TRY(NEW(&io, 1));
    io->config = config;
    io->hooks = *hooks;
    io->greedy = greedy;
    io->last_broadcast = &io->broadcasts;
    pthread_mutex_init(&io->lock, NULL);
    cond_init_monotonic(&io->changed);
    io->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    TRY_TO(result, failed, io->wakeup >= 0 ? OK : fail(UNAVAILABLE, "eventfd: %s", strerror(errno)));
    TRY_TO(result, failed, zmq_transport_open(&transport, node_config_security(config)));
    TRY_TO(result, failed, wire_open(&io->wire, &self, transport));
    TRY_TO(result, failed, wire_add_fd(io->wire, io->wakeup));
    for (size_t i = 0; i < config->listen_count; i++) TRY_TO(result, failed, wire_bind(io->wire, config->listen[i]));
    if (*config->from) TRY_TO(result, failed, io_connect_stage(io, config->from, "flow"));
    if (config->last) TRY_TO(result, failed, io_connect_stage(io, "source", "ledger"));
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const struct node_endpoint *endpoint = &config->endpoints[i];
        if (!strcmp(endpoint->stage, SUPERVISOR_NAME) && !strcmp(endpoint->machine, config->machine))
            TRY_TO(result, failed, wire_connect(io->wire, endpoint->address, endpoint->key, "report", NULL));
    }
    *out = io;
    return OK;
failed:
    io_thread_close(&io);
    return result;
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
    wire_close(&io->wire);
    if (io->wakeup >= 0) close(io->wakeup);
    for (size_t i = 0; i < io->inbox_count; i++) group_free(&io->inbox[i]);
    for (size_t i = 0; i < io->in_progress_count; i++) free(io->in_progress[i].id);
    while (io->broadcasts) {
        struct broadcast *next = io->broadcasts->next;
        io_free_broadcast(io->broadcasts);
        io->broadcasts = next;
    }
    while (io->upstreams) {
        struct upstream *next = io->upstreams->next;
        free(io->upstreams);
        io->upstreams = next;
    }
    outbox_release(&io->outbox);
    free(io->inbox);
    free(io->in_progress);
    free(io->failure_text);
    free(io->seqs);
    buf_release(&io->seq_text);
    pthread_mutex_destroy(&io->lock);
    pthread_cond_destroy(&io->changed);
    free(io);
    *pointer = NULL;
}
