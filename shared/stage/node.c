// The worker's channel over the I/O thread, and the I/O thread's hooks.
#include "shared/stage/node.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/stage/collector.h"
#include "shared/stage/issuer.h"
#include "shared/stage/node_counters.h"
#include "shared/stage/requests.h"
#include "shared/stage/run_weights.h"
#include "shared/base/signals.h"

// A group whose weights are not there or not loaded, or that the runner has given back.
struct waiting_group {
    struct group *group;
    int64_t issue;
};

struct node {
    struct stage_context *context;
    struct node_config config;
    struct io_thread *io;
    struct issuer *issuer;               // of the source
    struct collector *collector;         // of optim
    struct outcomes *outcomes;           // of the last stage
    struct weights_publisher *publisher; // of optim
    struct waiting_group *waiting;
    size_t waiting_count;
    int64_t held;    // groups that the stage has
    struct buf bulk; // of answers, in the I/O thread
    struct node_counters counters;
    struct weights_follower weights;
    bool supervised; // a supervisor was there; the I/O thread's own
    pthread_mutex_t lock;
    // Under the lock:
    struct buf notices; // for the user, each with its NUL, not sent yet
};

// ---- hooks: the I/O thread ----

// Frames: answers GET with a piece of the clip.
static status node_on_get(struct node *node, struct io_thread *io, struct wire_peer *peer,
                          const struct wire_message *message) {
    const struct stage *stage = node->context->stage;
    struct wire_message reply = {.kind = MESSAGE_ABSENT, .id = message->id};
    bool found = false;
    TRY(message_check_range(message));
    buf_clear(&node->bulk);
    if (stage->serve_frames)
        TRY(stage->serve_frames(node->context->state, message->id, message->offset, (size_t)message->size, &node->bulk,
                                &reply.total, &found));
    if (found) reply.kind = MESSAGE_RECORD;
    reply.offset = message->offset;
    reply.bulk = node->bulk.data;
    reply.bulk_size = node->bulk.size;
    return io_thread_reply(io, peer, &reply);
}

// What comes from the clients that compute with optim's weights.
static status node_on_weights_client(struct node *node, struct io_thread *io, const struct wire_event *event) {
    const struct wire_message *message = &event->message;
    if (event->kind == WIRE_GONE) weights_publisher_gone(node->publisher, event->peer);
    if (event->kind == WIRE_JOINED) return weights_publisher_joined(node->publisher, io, event->peer);
    if (event->kind != WIRE_MESSAGE) return OK;
    if (message->kind == MESSAGE_FETCH) return weights_publisher_fetch(node->publisher, io, event->peer, message);
    assert(message->kind == MESSAGE_CANNOT_BORROW);
    weights_publisher_cannot_borrow(node->publisher, io, event->peer, message);
    return OK;
}

// Sends what stage_notify has left to the supervisors.
static status node_send_notices(struct node *node, struct io_thread *io) {
    status result = OK;
    pthread_mutex_lock(&node->lock);
    struct buf notices = node->notices;
    node->notices = (struct buf){0};
    pthread_mutex_unlock(&node->lock);
    for (size_t at = 0; at < notices.size && result == OK; at += strlen(notices.data + at) + 1) {
        const struct wire_message notice = {.kind = MESSAGE_NOTICE,
                                            .name = node->config.stage,
                                            .replica = node->config.replica,
                                            .machine = node->config.machine,
                                            .reason = notices.data + at};
        result = io_thread_broadcast(io, "report", &notice);
    }
    buf_release(&notices);
    return result;
}

// Waits until all notices are sent: what a stage says as it opens or ends may come before a supervisor has joined, or
// when the run is over. Not for ever, since it may be gone.
static void node_wait_for_notices(struct node *node) {
    enum { PATIENCE_MS = 2000 };
    const int64_t until = clock_monotonic_ms() + PATIENCE_MS;
    for (bool sent = false; !sent && clock_monotonic_ms() < until;) {
        pthread_mutex_lock(&node->lock);
        sent = !node->notices.size;
        pthread_mutex_unlock(&node->lock);
        if (!sent) usleep(10000);
    }
}

static status node_handle(struct node *node, struct io_thread *io, const struct wire_event *event) {
    const struct wire_message *message = &event->message;
    struct wire_peer *peer = event->peer;
    if (event->kind == WIRE_TIMEOUT) {
        if (node->supervised) TRY(node_send_notices(node, io));
        TRY(weights_publisher_tick(node->publisher, io));
        return node->issuer ? issuer_tick(node->issuer, io) : OK;
    }
    const bool weights = !strcmp(peer->purpose, "weights");
    if (weights && peer->client) return node_on_weights_client(node, io, event);
    if (event->kind == WIRE_GONE) {
        if (weights && !strcmp(peer->name, "optim")) weights_follower_lost(&node->weights, io);
        return OK;
    }
    if (event->kind == WIRE_JOINED) {
        if (!strcmp(peer->purpose, "report")) {
            node->supervised = true;
            TRY(node_send_notices(node, io));
        }
        if (!peer->client && !strcmp(peer->purpose, "ledger")) return outcomes_tell_again(node->outcomes, io, peer);
        return node->issuer ? issuer_joined(node->issuer, io, peer) : OK;
    }
    if (message->kind == MESSAGE_WEIGHTS) return weights_follower_published(&node->weights, io, peer, message);
    if (message->kind == MESSAGE_GET) return node_on_get(node, io, peer, message);
    if (node->issuer) return issuer_message(node->issuer, io, message);
    return node->collector ? collector_message(node->collector, io, peer, message) : OK;
}

// Of the source this is the work: between two events it waits. issuer_report says for what.
static status node_on_event(void *self, struct io_thread *io, const struct wire_event *event) {
    struct node *node = self;
    if (node->issuer) node_counters_end_wait(&node->counters);
    const status result = node_handle(node, io, event);
    if (node->issuer) node_counters_begin_wait(&node->counters, "waits");
    return result;
}

static void node_on_report(void *self, struct message_status *counters) {
    struct node *node = self;
    node_counters_report(&node->counters, node->context->started, counters);
    if (node->issuer) issuer_report(node->issuer, counters);
    if (node->collector) collector_report(node->collector, counters);
}

// ---- the channel: the worker ----

// Adds a group to those that wait.
static void node_set_aside(struct node *node, struct group *group, int64_t issue) {
    RESIZE(&node->waiting, node->waiting_count + 1);
    node->waiting[node->waiting_count++] = (struct waiting_group){group, issue};
}

// Returns in *out a group that has waited and can be worked on, or NULL. *busy: the stage must finish what it has
// before it gets another one, because of its weights.
static status node_take_waiting(struct node *node, struct group **out, bool *busy) {
    *out = NULL;
    *busy = false;
    for (size_t i = 0; i < node->waiting_count && !*out && !*busy;) {
        struct group *group = node->waiting[i].group;
        const int64_t seq = group->requires.order;
        // Otherwise it was issued anew since, or is settled.
        const bool current = node->waiting[i].issue == io_thread_issue(node->io) && seq >= io_thread_settled(node->io);
        enum weights_verdict verdict = WEIGHTS_READY;
        const bool idle = !node->held;
        if (idle) node_counters_begin_wait(&node->counters, "waits for weights");
        status result = OK;
        if (current) result = weights_follower_prepare(&node->weights, node->io, group, idle, &verdict);
        if (idle) node_counters_end_wait(&node->counters);
        TRY(result);
        *busy = verdict == WEIGHTS_BUSY;
        if (verdict != WEIGHTS_READY) {
            i++;
            continue;
        }
        node->waiting_count--;
        memmove(&node->waiting[i], &node->waiting[i + 1], (node->waiting_count - i) * sizeof *node->waiting);
        if (current) {
            *out = group;
            continue;
        }
        node_counters_drop(&node->counters, seq);
        io_thread_drop(node->io, seq);
        group_free(&group);
    }
    return OK;
}

static status node_receive(void *self, int capacity, int timeout_ms, struct group **out) {
    enum { RETRY_MS = 100 }; // weights that could not be loaded are tried again
    struct node *node = self;
    bool busy;
    TRY(node_take_waiting(node, out, &busy));
    if (!*out) {
        struct group *group = NULL;
        if (node->waiting_count && (timeout_ms < 0 || timeout_ms > RETRY_MS)) timeout_ms = RETRY_MS;
        if (timeout_ms)
            node_counters_begin_wait(&node->counters, node->waiting_count ? "waits for weights" : "waits for groups");
        status result = node->collector ? collector_receive(node->collector, node->io, timeout_ms, &group)
                                        : io_thread_receive(node->io, busy ? 0 : capacity, timeout_ms, &group);
        node_counters_end_wait(&node->counters);
        TRY(result);
        if (!group) return OK;
        const int64_t issue = io_thread_taken_issue(node->io);
        node_counters_receive(&node->counters, group->requires.order, issue);
        if (result != OK) group_free(&group);
        TRY(result);
        node_set_aside(node, group, issue);
        TRY(node_take_waiting(node, out, &busy));
    }
    if (!*out) return OK;
    node->held++;
    node_counters_take(&node->counters);
    return OK;
}

static status node_give_back(void *self, struct group **group) {
    struct node *node = self;
    struct group *given_back = *group;
    *group = NULL;
    node->held--;
    assert(node->held >= 0);
    node_set_aside(node, given_back, node_counters_give_back(&node->counters, given_back->requires.order));
    return OK;
}

static status node_deliver(void *self, struct group **group, status outcome) {
    struct node *node = self;
    status result;
    if (outcome != OK) {
        result = fail_prefix(outcome, "group %s", (*group)->id.data);
        group_free(group);
        return result;
    }
    node->held--;
    assert(node->held >= 0);
    node_counters_deliver(&node->counters, *group, node->context->found, node->context->quarantined);
    if (node->collector) {
        result = collector_settle(node->collector, node->io, *group);
    } else {
        result = node->config.last ? outcomes_tell(node->outcomes, node->io, *group) : OK;
        if (result == OK) io_thread_send(node->io, *group);
    }
    group_free(group);
    return result;
}

static status node_update_weights(void *self, bool *forgotten) {
    struct node *node = self;
    *forgotten = false;
    if (!node->collector) return weights_follower_return(&node->weights, forgotten);
    char *refused = weights_publisher_refused(node->publisher);
    const status result = refused ? node->context->stage->publish_files(node->context->state, refused) : OK;
    free(refused);
    return result;
}

// ---- the life of a node ----

status node_enter(struct stage_context *context, const char *path) {
    struct node *node;
    NEW(&node, 1);
    node->context = context;
    pthread_mutex_init(&node->lock, NULL);
    node_counters_init(&node->counters);
    weights_follower_init(&node->weights, context, &node->config);
    context->node = node;
    TRY(node_config_read(&node->config, path));
    context->last = node->config.last;
    // As the supervisor names the process: "rollout", "rollout-2", "rollout-2@gpu1".
    char number[16] = "", suffix[64];
    const char *machine = node->config.machine;
    if (node->config.replica > 1) snprintf(number, sizeof number, "-%d", node->config.replica);
    snprintf(suffix, sizeof suffix, "%s%s%s", number, *machine ? "@" : "", machine);
    log_suffix(suffix);
    weights_publisher_new(&node->publisher);
    outcomes_new(&node->outcomes);
    return weights_follower_set_dir(&node->weights, node->config.run_dir);
}

status node_run(struct stage_context *context) {
    struct node *node = context->node;
    const struct stage *stage = context->stage;
    const struct io_hooks hooks = {.self = node, .event = node_on_event, .report = node_on_report};
    const struct channel channel = {node, node_receive, node_deliver, node_give_back, node_update_weights};
    bool source = stage->group_at != NULL;
    if (source) TRY(issuer_open(&node->issuer, context, &node->config));
    if (stage->position) TRY(collector_open(&node->collector, context));
    struct transport *transport;
    TRY(zmq_transport_open(&transport, node_config_security(&node->config)));
    TRY(io_thread_open(&node->io, &node->config, &hooks, node->collector != NULL, transport));
    if (stage_follows_optim(context)) TRY(io_thread_connect(node->io, "optim", "weights"));
    TRY(io_thread_start(node->io));
    log_debug("ready");
    // The source's work is done by the hooks. Optim learns from RUN_INFO that it has had the last group; the others
    // only stop when they are asked to.
    status result = source ? OK : runner_run(context, &channel);
    const bool stopped = !source && signals_stopping();
    if (result == OK && !source && !stopped) {
        if (stage->on_idle) result = stage->on_idle(context->state, true);
        if (result == OK && node->collector) result = collector_finish(node->collector, node->io);
        if (result == OK) node_counters_begin_wait(&node->counters, "finished");
    }
    if ((result == OK || result == END) && stopped && stage->on_stop) result = stage->on_stop(context->state);
    while (result == OK && !stopped) {
        struct group *group = NULL;
        result = io_thread_receive(node->io, 0, -1, &group);
        if (group) io_thread_drop(node->io, group->requires.order);
        group_free(&group);
    }
    if (result == END) result = OK;
    node_wait_for_notices(node);
    io_thread_close(&node->io); // before the stage's close: hooks use its state
    return result;
}

void node_leave(struct stage_context *context) {
    struct node *node = context->node;
    if (!node) return;
    io_thread_close(&node->io);
    issuer_close(&node->issuer);
    collector_close(&node->collector);
    weights_publisher_free(&node->publisher);
    outcomes_free(&node->outcomes);
    for (size_t i = 0; i < node->waiting_count; i++) group_free(&node->waiting[i].group);
    free(node->waiting);
    weights_follower_release(&node->weights);
    node_counters_release(&node->counters);
    node_config_release(&node->config);
    buf_release(&node->bulk);
    buf_release(&node->notices);
    pthread_mutex_destroy(&node->lock);
    free(node);
    context->node = NULL;
}

// ---- what a stage asks of the run ----

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    return context->node ? weights_publish(context->node->publisher, context->node->io, weights) : OK;
}

void stage_recycle(struct stage_context *context, bool reference, const char *path) {
    if (context->node) weights_recycle(context->node->publisher, reference, path);
}

int64_t stage_epoch(const struct stage_context *context) {
    return context->node && context->node->collector ? collector_epoch(context->node->collector) : 0;
}

void stage_notify(struct stage_context *context, const char *format, ...) {
    struct node *node = context->node;
    char text[1024]; // as much as a supervisor writes of a line
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_info("%s", text);
    if (!node) return;
    pthread_mutex_lock(&node->lock);
    buf_append(&node->notices, text, strlen(text) + 1);
    pthread_mutex_unlock(&node->lock);
}

void stage_report_saves(struct stage_context *context, int64_t failed) {
    if (context->node) node_counters_set_failed_saves(&context->node->counters, failed);
}

bool node_trains(const struct stage_context *context) {
    return context->node && context->node->config.trains;
}

bool stage_follows_optim(const struct stage_context *context) {
    return node_trains(context) && context->stage->follows != FOLLOWS_NOTHING;
}

const char *stage_weights_dir(const struct stage_context *context) {
    return context->node ? context->node->weights.dir : NULL;
}

status stage_fetch(void *context, const char *key, struct buf *record, bool *found) {
    const struct node *node = ((const struct stage_context *)context)->node;
    *found = false;
    if (!node || !node->io) return OK;
    struct transfer transfer = {.stage = "frames", .purpose = "frames", .kind = MESSAGE_GET, .id = key, .total = -1};
    struct buf piece = {0};
    status result = OK;
    io_thread_begin_transfer(node->io, &transfer);
    for (bool ended = false; result == OK && !ended;) {
        result = io_thread_take_bytes(node->io, &transfer, -1, &piece, &ended);
        if (result == OK) buf_append(record, piece.data, piece.size);
    }
    io_thread_end_transfer(node->io, &transfer);
    buf_release(&piece);
    *found = result == OK && !transfer.absent;
    return result;
}
