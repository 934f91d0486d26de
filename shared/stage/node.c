// The worker's channel over the I/O thread, the I/O thread's hooks, and the counters that both keep.
#include "shared/stage/node.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/collector.h"
#include "shared/stage/issuer.h"
#include "shared/stage/signals.h"
#include "shared/stage/weights_client.h"
#include "shared/stage/weights_server.h"

// A group that the worker has received and neither delivered nor dropped.
struct node_group {
    int64_t seq;
    double since; // clock_monotonic()
};

struct node {
    struct stage_context *context;
    struct node_config config;
    struct io_thread *io;
    struct issuer *issuer;                 // of the source
    struct collector *collector;           // of optim
    struct weights_server *weights_server; // of optim
    char *weights_dir;
    struct group *next;        // received, waits for its weights
    struct group **given_back; // by the runner, to be done again
    size_t given_back_count;
    int64_t held;                 // groups that the stage has
    struct stage_weights weights; // in use; path is not kept
    char *weights_path;           // on optim's machine, "" for those of the model's directory; NULL: none are loaded
    int failed_loads;             // in a row, because the file was gone or damaged
    int failed_copies;            // of these, copies
    uint64_t failed_hash;         // of the last failed load
    struct arena arena;
    struct buf bulk; // of answers, in the I/O thread
    pthread_mutex_t lock;
    // Under the lock:
    const char *waits_for; // NULL: working
    int64_t taken, done, quarantined, found, tokens;
    double waited, waiting_since; // seconds
    struct node_group *groups;    // in the order in which they came
    size_t group_count;
    int64_t worked;      // groups that were delivered, neither found in the store nor quarantined
    double work_seconds; // the time that the worker had these
};

static void node_begin_wait(struct node *node, const char *what) {
    pthread_mutex_lock(&node->lock);
    if (!node->waits_for) node->waiting_since = clock_monotonic();
    node->waits_for = what;
    pthread_mutex_unlock(&node->lock);
}

static void node_end_wait(struct node *node) {
    pthread_mutex_lock(&node->lock);
    if (node->waits_for) node->waited += clock_monotonic() - node->waiting_since;
    node->waits_for = NULL;
    pthread_mutex_unlock(&node->lock);
}

// The worker has received a group.
static status node_add_group(struct node *node, int64_t seq) {
    pthread_mutex_lock(&node->lock);
    status result = RESIZE(&node->groups, node->group_count + 1);
    if (result == OK) node->groups[node->group_count++] = (struct node_group){seq, clock_monotonic()};
    pthread_mutex_unlock(&node->lock);
    return result;
}

// Locked. The worker has delivered or dropped a group. Returns the seconds for which it had it.
static double node_remove_group(struct node *node, int64_t seq) {
    size_t at = 0;
    assert(mutex_is_held(&node->lock));
    while (at < node->group_count && node->groups[at].seq != seq) at++;
    if (at == node->group_count) return 0;
    const double seconds = clock_monotonic() - node->groups[at].since;
    node->group_count--;
    memmove(&node->groups[at], &node->groups[at + 1], (node->group_count - at) * sizeof *node->groups);
    return seconds;
}

// ---- hooks: the I/O thread ----

static status node_on_event(void *self, struct io_thread *io, const struct wire_event *event) {
    struct node *node = self;
    const struct stage *stage = node->context->stage;
    const struct wire_message *message = &event->message;
    struct wire_message reply = {.kind = MESSAGE_ABSENT, .id = message->id};
    bool found = false;
    status result = OK;
    if (event->kind == WIRE_JOINED) return node->issuer ? issuer_joined(node->issuer, io, event->peer) : OK;
    if (event->kind == WIRE_TIMEOUT) return node->issuer ? issuer_tick(node->issuer, io) : OK;
    switch (message->kind) {
    case MESSAGE_GET:
        buf_clear(&node->bulk);
        if (stage->serve_frames) TRY(stage->serve_frames(node->context->state, message->id, &node->bulk, &found));
        if (found) reply.kind = MESSAGE_RECORD;
        reply.bulk = node->bulk.data;
        reply.bulk_size = node->bulk.size;
        return io_thread_reply(io, event->peer, &reply);
    case MESSAGE_FETCH:
        TRY(weights_server_chunk(node->weights_server, message, &reply, &node->bulk));
        return io_thread_reply(io, event->peer, &reply);
    case MESSAGE_GET_WEIGHTS:
        result = weights_server_latest(node->weights_server, message, &reply, &node->arena);
        if (result == OK) result = io_thread_reply(io, event->peer, &reply);
        arena_release(&node->arena);
        return result;
    default:
        if (node->issuer) return issuer_message(node->issuer, io, message);
        return node->collector ? collector_message(node->collector, io, event->peer, message) : OK;
    }
}

static void node_on_report(void *self, struct message_status *counters) {
    struct node *node = self;
    const double now = clock_monotonic();
    pthread_mutex_lock(&node->lock);
    counters->reward = counters->accuracy = NAN;
    counters->taken = node->taken;
    counters->done = node->done;
    counters->quarantined = node->quarantined;
    counters->found = node->found;
    counters->tokens = node->tokens;
    counters->up = now - node->context->started;
    counters->busy = counters->up - node->waited - (node->waits_for ? now - node->waiting_since : 0);
    counters->state = node->waits_for ? node->waits_for : "working";
    counters->worked = node->worked;
    counters->work_seconds = node->work_seconds;
    counters->oldest_seq = node->group_count ? node->groups[0].seq : -1;
    counters->oldest_age = node->group_count ? now - node->groups[0].since : -1;
    pthread_mutex_unlock(&node->lock);
    if (node->issuer) issuer_report(node->issuer, counters);
    if (node->collector) collector_report(node->collector, counters);
}

// ---- the weights that a group needs ----

enum verdict { VERDICT_READY, VERDICT_DROP, VERDICT_LATER };

// Downloads the weights if need be and gives them to the stage. LATER when optim has newer ones by now.
static status node_load_weights(struct node *node, struct remote_weights *remote, enum verdict *verdict) {
    enum { FAILED_LOADS_MAX = 20, FAILED_COPIES_MAX = 2 };
    struct stage_context *context = node->context;
    *verdict = VERDICT_LATER;
    // Optim's own file could not be loaded: perhaps a copy can.
    const bool copy = node->failed_loads > 0 && node->failed_hash == remote->weights.hash;
    status result = weights_client_download(node->io, node->weights_dir, copy, remote);
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
    context->weights_version = remote->weights.version;
    *verdict = VERDICT_READY;
    return OK;
}

// Asks optim for its newest weights and loads them when they are not in use yet and the stage has no group.
static status node_prepare_weights(struct node *node, const struct group *group, enum verdict *verdict) {
    struct remote_weights remote;
    bool reference = node->context->stage->follows == FOLLOWS_REFERENCE;
    node_begin_wait(node, "waits for weights");
    status result = weights_client_latest(node->io, reference, &remote);
    node_end_wait(node);
    TRY(result);
    const struct stage_weights *latest = &remote.weights;
    // Another path is that of another process of optim: what its predecessor lent is gone.
    bool in_use = latest->version == node->weights.version && latest->hash == node->weights.hash &&
                  node->weights_path && strcmp(remote.path, node->weights_path) == 0;
    const struct stage *stage = node->context->stage;
    if (in_use && stage->weights_intact) in_use = stage->weights_intact(node->context->state);
    // Optim may be behind what the group needs only if it went back since; the source then issues the group again. A
    // group that needs exactly an older version has been trained.
    const int64_t needed = group->requires.policy;
    const bool outdated = remote.policy < needed || (group->requires.exact == 1 && remote.policy > needed);
    *verdict = group->requires.present && outdated ? VERDICT_DROP : VERDICT_READY;
    if (*verdict == VERDICT_READY && !in_use && node->held) {
        *verdict = VERDICT_LATER;
    } else if (*verdict == VERDICT_READY && !in_use) {
        result = node_load_weights(node, &remote, verdict);
    }
    remote_weights_release(&remote);
    return result;
}

// ---- the channel: the worker ----

static status node_receive(void *self, int capacity, int timeout_ms, struct group **out) {
    struct node *node = self;
    enum verdict verdict = VERDICT_READY;
    status result = OK;
    *out = NULL;
    if (!node->next && node->given_back_count) {
        node->next = node->given_back[--node->given_back_count];
    } else if (!node->next) {
        if (timeout_ms) node_begin_wait(node, "waits for groups");
        result = node->collector ? collector_receive(node->collector, node->io, timeout_ms, &node->next)
                                 : io_thread_receive(node->io, capacity, timeout_ms, &node->next);
        node_end_wait(node);
        if (result == OK && node->next) result = node_add_group(node, node->next->requires.order);
    }
    TRY(result);
    if (!node->next) return OK;
    if (stage_follows_optim(node->context) && !node->next->quarantine.present)
        TRY(node_prepare_weights(node, node->next, &verdict));
    if (verdict == VERDICT_DROP) {
        pthread_mutex_lock(&node->lock);
        (void)node_remove_group(node, node->next->requires.order);
        pthread_mutex_unlock(&node->lock);
        io_thread_drop(node->io, node->next->id.data);
        group_free(&node->next);
    } else if (verdict == VERDICT_LATER) {
        enum { PAUSE_US = 2000 };
        if (timeout_ms) usleep(PAUSE_US);
    } else {
        *out = node->next;
        node->next = NULL;
        node->held++;
        pthread_mutex_lock(&node->lock);
        node->taken++;
        pthread_mutex_unlock(&node->lock);
    }
    return OK;
}

static status node_give_back(void *self, struct group **group) {
    struct node *node = self;
    status result = RESIZE(&node->given_back, node->given_back_count + 1);
    if (result == OK) {
        node->given_back[node->given_back_count++] = *group;
        *group = NULL;
    }
    group_free(group);
    TRY(result);
    node->held--;
    assert(node->held >= 0);
    pthread_mutex_lock(&node->lock);
    node->taken--;
    pthread_mutex_unlock(&node->lock);
    return OK;
}

// The last stage, unless it is optim: tells the source that the run is done with a group. Nothing is remembered here.
// If the message is lost, the source issues the group again, and its sections are found in the store.
static status node_settle(struct node *node, const struct group *group) {
    enum { STRING_MAX = 1000 }; // bytes of a string that is sent
    const struct string given[3] = {group->id, group->quarantine.stage, group->quarantine.reason};
    char strings[3][STRING_MAX + 1];
    for (int i = 0; i < 3; i++) snprintf(strings[i], sizeof strings[i], "%s", given[i].data ? given[i].data : "");
    const struct wire_message message = {.kind = group->quarantine.present ? MESSAGE_QUARANTINED : MESSAGE_TRAINED,
                                         .seq = group->requires.order,
                                         .id = strings[0],
                                         .name = strings[1],
                                         .reason = strings[2]};
    return io_thread_broadcast(node->io, "ledger", &message);
}

static status node_deliver(void *self, struct group **group, status outcome) {
    struct node *node = self;
    int64_t tokens = 0;
    status result;
    if (outcome != OK) {
        result = fail_prefix(outcome, "group %s", (*group)->id.data);
        group_free(group);
        return result;
    }
    for (size_t i = 0; i < (*group)->completion_count; i++) tokens += (int64_t)(*group)->completions[i].tokens.count;
    node->held--;
    assert(node->held >= 0);
    pthread_mutex_lock(&node->lock);
    node->tokens += tokens;
    node->done++;
    const double seconds = node_remove_group(node, (*group)->requires.order);
    if (!(*group)->quarantine.present && node->found == (int64_t)node->context->found) {
        node->worked++;
        node->work_seconds += seconds;
    }
    node->quarantined = (int64_t)node->context->quarantined;
    node->found = (int64_t)node->context->found;
    pthread_mutex_unlock(&node->lock);
    if (node->collector) {
        result = collector_settle(node->collector, node->io, *group);
    } else {
        result = node->config.last ? node_settle(node, *group) : OK;
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
    TRY(io_thread_open(&node->io, &node->config, &hooks, node->collector != NULL));
    TRY(io_thread_start(node->io));
    log_debug("ready");
    // The source's work is done by the hooks. Optim learns from RUN_INFO that it has had the last group; the others
    // only stop when they are asked to.
    status result = source ? OK : runner_run(context, &channel);
    const bool stopped = !source && signals_stopping();
    if (result == OK && !source && !stopped) {
        if (stage->on_idle) result = stage->on_idle(context->state, true);
        if (result == OK && node->collector) result = collector_finish(node->collector, node->io);
        if (result == OK) node_begin_wait(node, "finished");
    }
    while (result == OK && !stopped) {
        struct group *group = NULL;
        result = io_thread_receive(node->io, 0, -1, &group);
        if (group) io_thread_drop(node->io, group->id.data);
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
    group_free(&node->next);
    for (size_t i = 0; i < node->given_back_count; i++) group_free(&node->given_back[i]);
    free(node->given_back);
    free(node->groups);
    free(node->weights_path);
    node_config_release(&node->config);
    arena_release(&node->arena);
    buf_release(&node->bulk);
    pthread_mutex_destroy(&node->lock);
    free(node->weights_dir);
    free(node);
    context->node = NULL;
}

// ---- what a stage asks of the run ----

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    return context->node ? weights_server_put(context->node->weights_server, weights) : OK;
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
    const struct wire_message request = {.kind = MESSAGE_GET, .id = key};
    struct wire_message reply = {0};
    struct arena arena = {0};
    status result = io_thread_call(node->io, "frames", "frames", &request, &reply, &arena, record);
    *found = result == OK && reply.kind == MESSAGE_RECORD;
    arena_release(&arena);
    return result;
}
