// The worker's channel over the I/O thread, and the I/O thread's hooks.
#include "shared/stage/node.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/collector.h"
#include "shared/stage/issuer.h"
#include "shared/stage/node_counters.h"
#include "shared/stage/outcomes.h"
#include "shared/stage/requests.h"
#include "shared/stage/signals.h"
#include "shared/stage/weights_client.h"
#include "shared/stage/weights_server.h"
#include "shared/wire/zmq_transport.h"

// A group whose weights are not there or not loaded, or that the runner has given back.
struct waiting_group {
    struct group *group;
    int64_t issue;
};

struct node {
    struct stage_context *context;
    struct node_config config;
    struct io_thread *io;
    struct issuer *issuer;                 // of the source
    struct collector *collector;           // of optim
    struct outcomes *outcomes;             // of the last stage
    struct weights_server *weights_server; // of optim
    char *weights_dir;
    struct waiting_group *waiting;
    size_t waiting_count;
    int64_t held;                 // groups that the stage has
    struct stage_weights weights; // in use; path is not kept
    char *weights_path;           // on optim's machine, "" for those of the model's directory; NULL: none are loaded
    int failed_loads;             // in a row, because the file was gone or damaged
    int failed_copies;            // of these, copies
    uint64_t failed_hash;         // of the last failed load
    struct buf bulk;              // of answers, in the I/O thread
    struct node_counters counters;
    pthread_mutex_t lock;
    // Under the lock:
    struct remote_weights latest; // what optim has published, of the kind that the stage follows
};

// ---- hooks: the I/O thread ----

static void node_set_latest(struct node *node, struct remote_weights *latest) {
    pthread_mutex_lock(&node->lock);
    remote_weights_release(&node->latest);
    node->latest = *latest;
    pthread_mutex_unlock(&node->lock);
}

static status node_on_weights(struct node *node, struct io_thread *io, const struct wire_peer *peer,
                              const struct wire_message *message) {
    struct remote_weights latest;
    if (strcmp(wire_peer_name(peer), "optim") != 0) return fail(DATAERR, "WEIGHTS from another stage than optim");
    if ((message->reference == 1) != (node->context->stage->follows == FOLLOWS_REFERENCE)) return OK;
    TRY(remote_weights_set(&latest, message));
    node_set_latest(node, &latest);
    io_thread_nudge(io);
    return OK;
}

// What optim had lent is gone with its process. Its files stay.
static status node_on_gone(struct node *node, const struct wire_peer *peer) {
    struct remote_weights none = {0};
    if (strcmp(wire_peer_purpose(peer), "weights") != 0 || strcmp(wire_peer_name(peer), "optim") != 0) return OK;
    if (remote_weights_lent(&node->latest)) node_set_latest(node, &none);
    return OK;
}

static status node_on_joined(struct node *node, struct io_thread *io, struct wire_peer *peer) {
    if (!wire_peer_is_client(peer) && !strcmp(wire_peer_purpose(peer), "ledger"))
        return outcomes_tell_again(node->outcomes, io, peer);
    return node->issuer ? issuer_joined(node->issuer, io, peer) : OK;
}

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

// What comes from the clients that compute with optim's weights. Optim itself answers by its versions, another stage
// from the copies on its machine.
static status node_on_weights_client(struct node *node, struct io_thread *io, const struct wire_event *event) {
    struct wire_message reply;
    if (node->collector) return weights_server_event(node->weights_server, io, event);
    if (event->kind != WIRE_MESSAGE || event->message.kind != MESSAGE_FETCH) return OK;
    TRY(weights_client_serve(node->weights_dir, &event->message, &reply, &node->bulk));
    return io_thread_reply(io, event->peer, &reply);
}

static status node_on_event(void *self, struct io_thread *io, const struct wire_event *event) {
    struct node *node = self;
    const struct wire_message *message = &event->message;
    if (event->kind == WIRE_TIMEOUT) {
        if (node->collector) TRY(weights_server_event(node->weights_server, io, event));
        return node->issuer ? issuer_tick(node->issuer, io) : OK;
    }
    if (!strcmp(wire_peer_purpose(event->peer), "weights") && wire_peer_is_client(event->peer))
        return node_on_weights_client(node, io, event);
    if (event->kind == WIRE_GONE) return node_on_gone(node, event->peer);
    if (event->kind == WIRE_JOINED) return node_on_joined(node, io, event->peer);
    if (message->kind == MESSAGE_WEIGHTS) return node_on_weights(node, io, event->peer, message);
    if (message->kind == MESSAGE_GET) return node_on_get(node, io, event->peer, message);
    if (node->issuer) return issuer_message(node->issuer, io, message);
    return node->collector ? collector_message(node->collector, io, event->peer, message) : OK;
}

static void node_on_report(void *self, struct message_status *counters) {
    struct node *node = self;
    node_counters_report(&node->counters, node->context->started, counters);
    if (node->issuer) issuer_report(node->issuer, counters);
    if (node->collector) collector_report(node->collector, counters);
}

// ---- the weights that a group needs ----

enum verdict {
    VERDICT_READY,
    VERDICT_LATER, // its weights are not there yet
    VERDICT_BUSY,  // its weights can be loaded when the stage has finished what it has, or must be tried again
    VERDICT_DROP,
};

// Downloads the weights if need be and gives them to the stage. BUSY when that must be tried again: optim has newer
// ones by now, or the file is damaged.
static status node_load_weights(struct node *node, struct remote_weights *remote, enum verdict *verdict) {
    enum { FAILED_LOADS_MAX = 20, FAILED_COPIES_MAX = 2 };
    struct stage_context *context = node->context;
    *verdict = VERDICT_BUSY;
    // Optim's own file could not be loaded, or what was made of a difference: perhaps a copy of the whole file can.
    const bool whole = node->failed_loads > 0 && node->failed_hash == remote->weights.hash;
    status result = weights_client_download(node->io, node->weights_dir, whole, remote);
    if (result == BAD_SAMPLE) return OK;
    TRY(result);
    log_debug("weights of version %lld", (long long)remote->weights.version);
    result = context->stage->load_weights(context->state, &remote->weights);
    if (result == BAD_SAMPLE) return OK;
    // What was trained with one model must not be sampled from another; fail_text() has both hashes.
    if (result == DATAERR && !remote->weights.path) {
        const char *machine = node->config.machine;
        return fail_prefix(DATAERR, "%s%s's model directory differs from optim's, or its precision does",
                           *machine ? "machine " : "", *machine ? machine : node->config.stage);
    }
    // Optim's file was removed before it was opened, or the copy is damaged.
    if (result == DATAERR && node->failed_loads < FAILED_LOADS_MAX && node->failed_copies < FAILED_COPIES_MAX) {
        log_debug("%s; asking again", fail_text());
        node->failed_hash = remote->weights.hash;
        node->failed_loads++;
        node->failed_copies += remote->copied;
        weights_client_discard(remote);
        return OK;
    }
    TRY(result);
    node->failed_loads = node->failed_copies = 0;
    node->weights = remote->weights;
    node->weights.path = NULL;
    free(node->weights_path);
    node->weights_path = remote->path;
    remote->path = NULL;
    const struct wire_message copied = {.kind = MESSAGE_HAS_WEIGHTS, .hash = (int64_t)remote->weights.hash};
    if (remote->copied) TRY(io_thread_broadcast(node->io, "weights", &copied)); // optim may send others here for it
    context->weights_version = remote->weights.version;
    *verdict = VERDICT_READY;
    return OK;
}

// Says whether a group can be worked on, and loads optim's newest weights for it when they are not in use yet and the
// stage has no group.
static status node_prepare_weights(struct node *node, const struct group *group, enum verdict *verdict) {
    const struct stage *stage = node->context->stage;
    const int64_t needed = group->requires.policy;
    const bool exact = group->requires.exact == 1;
    struct remote_weights remote;
    *verdict = VERDICT_READY;
    if (!stage_follows_optim(node->context) || group->quarantine.present) return OK;
    pthread_mutex_lock(&node->lock);
    status result = remote_weights_copy(&remote, &node->latest);
    pthread_mutex_unlock(&node->lock);
    TRY(result);
    const struct stage_weights *latest = &remote.weights;
    // Another path is that of another process of optim: what its predecessor lent is gone.
    bool in_use = remote.path && latest->version == node->weights.version && latest->hash == node->weights.hash &&
                  node->weights_path && strcmp(remote.path, node->weights_path) == 0;
    if (in_use && stage->weights_intact) in_use = stage->weights_intact(node->context->state);
    const bool other = remote.policy < needed || (exact && remote.policy > needed);
    if (!remote.path || (group->requires.present && other)) {
        // Optim is about to say that it has them; or it went back and will have them again, or this process has not
        // heard yet that it went back. If the group has been trained, it is dropped as soon as that is known.
        *verdict = VERDICT_LATER;
    } else if (!in_use && node->held) {
        *verdict = VERDICT_BUSY;
    } else if (!in_use) {
        node_counters_begin_wait(&node->counters, "waits for weights");
        result = node_load_weights(node, &remote, verdict);
        node_counters_end_wait(&node->counters);
    }
    remote_weights_release(&remote);
    return result;
}

// ---- the channel: the worker ----

// Adds a group to those that wait; frees it on failure.
static status node_set_aside(struct node *node, struct group *group, int64_t issue) {
    const status result = RESIZE(&node->waiting, node->waiting_count + 1);
    if (result == OK) node->waiting[node->waiting_count++] = (struct waiting_group){group, issue};
    if (result != OK) group_free(&group);
    return result;
}

// Returns in *out a group that has waited and can be worked on, or NULL. *busy: the stage must finish what it has
// before it gets another one, because of its weights.
static status node_take_waiting(struct node *node, struct group **out, bool *busy) {
    *out = NULL;
    *busy = false;
    for (size_t i = 0; i < node->waiting_count && !*out && !*busy;) {
        struct group *group = node->waiting[i].group;
        const int64_t seq = group->requires.order;
        enum verdict verdict = VERDICT_DROP; // one that was issued anew since, or is settled
        if (node->waiting[i].issue == io_thread_issue(node->io) && seq >= io_thread_settled(node->io))
            TRY(node_prepare_weights(node, group, &verdict));
        *busy = verdict == VERDICT_BUSY;
        if (verdict == VERDICT_LATER || verdict == VERDICT_BUSY) {
            i++;
            continue;
        }
        node->waiting_count--;
        memmove(&node->waiting[i], &node->waiting[i + 1], (node->waiting_count - i) * sizeof *node->waiting);
        if (verdict == VERDICT_READY) {
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
        result = node_counters_receive(&node->counters, group->requires.order, issue);
        if (result != OK) group_free(&group);
        TRY(result);
        TRY(node_set_aside(node, group, issue));
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
    return node_set_aside(node, given_back, node_counters_give_back(&node->counters, given_back->requires.order));
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
        if (result == OK) result = io_thread_send(node->io, *group);
    }
    group_free(group);
    return result;
}

// ---- the life of a node ----

status node_enter(struct stage_context *context, const char *path) {
    struct node *node;
    struct arena memory = {0};
    TRY(NEW(&node, 1));
    node->context = context;
    pthread_mutex_init(&node->lock, NULL);
    node_counters_init(&node->counters);
    context->node = node;
    TRY(node_config_read(&node->config, path));
    context->last = node->config.last;
    // As the supervisor names the process: "rollout", "rollout-2", "rollout-2@gpu1".
    char number[16] = "", suffix[64];
    const char *machine = node->config.machine;
    if (node->config.replica > 1) snprintf(number, sizeof number, "-%d", node->config.replica);
    snprintf(suffix, sizeof suffix, "%s%s%s", number, *machine ? "@" : "", machine);
    log_suffix(suffix);
    TRY(weights_server_new(&node->weights_server));
    TRY(outcomes_new(&node->outcomes));
    const char *dir = path_join(&memory, node->config.run_dir, "weights");
    node->weights_dir = dir ? strdup(dir) : NULL;
    arena_release(&memory);
    if (!node->weights_dir) return fail_oom();
    return node->config.trains ? dir_make(node->weights_dir) : OK;
}

status node_run(struct stage_context *context) {
    struct node *node = context->node;
    const struct stage *stage = context->stage;
    const struct io_hooks hooks = {.self = node, .event = node_on_event, .report = node_on_report};
    const struct channel channel = {node, node_receive, node_deliver, node_give_back};
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
    while (result == OK && !stopped) {
        struct group *group = NULL;
        result = io_thread_receive(node->io, 0, -1, &group);
        if (group) io_thread_drop(node->io, group->requires.order);
        group_free(&group);
    }
    if (result == END) result = OK;
    io_thread_close(&node->io); // before the stage's close: hooks use its state
    return result;
}

void node_leave(struct stage_context *context) {
    struct node *node = context->node;
    if (!node) return;
    io_thread_close(&node->io);
    issuer_close(&node->issuer);
    collector_close(&node->collector);
    weights_server_free(&node->weights_server);
    outcomes_free(&node->outcomes);
    for (size_t i = 0; i < node->waiting_count; i++) group_free(&node->waiting[i].group);
    free(node->waiting);
    remote_weights_release(&node->latest);
    node_counters_release(&node->counters);
    free(node->weights_path);
    node_config_release(&node->config);
    buf_release(&node->bulk);
    pthread_mutex_destroy(&node->lock);
    free(node->weights_dir);
    free(node);
    context->node = NULL;
}

// ---- what a stage asks of the run ----

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    struct node *node = context->node;
    if (!node) return OK;
    TRY(weights_server_put(node->weights_server, weights));
    if (node->io) io_thread_nudge(node->io); // it tells the other stages
    return OK;
}

void stage_recycle(struct stage_context *context, bool reference, const char *path) {
    if (context->node) weights_server_recycle(context->node->weights_server, reference, path);
}

bool node_trains(const struct stage_context *context) {
    return context->node && context->node->config.trains;
}

bool stage_follows_optim(const struct stage_context *context) {
    return node_trains(context) && context->stage->follows != FOLLOWS_NOTHING;
}

const char *stage_weights_dir(const struct stage_context *context) {
    return context->node ? context->node->weights_dir : NULL;
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
        if (result == OK) result = buf_append(record, piece.data, piece.size);
    }
    io_thread_end_transfer(node->io, &transfer);
    buf_release(&piece);
    *found = result == OK && !transfer.absent;
    return result;
}
