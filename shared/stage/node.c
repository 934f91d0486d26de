// Three kinds of places in a run: the source feeds the line, the last stage settles what comes, and all between take a
// group, see to it that their weights are those that it needs, work, and pass it on.
#include "shared/stage/node.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/issuer.h"
#include "shared/stage/weights_client.h"
#include "shared/stage/weights_server.h"
#include "shared/stage/signals.h"
#include "shared/stage/collector.h"

enum { RETRIES = 20 }; // of weights whose file went before it could be read

struct node {
    struct stage_context *context;
    struct node_config config;
    struct io_thread *io;
    struct issuer *issuer;         // the source's
    struct collector *collector;   // the last stage's
    struct weights_server *server; // optim's
    char *folder;                  // for weights
    struct group *next;            // taken from the I/O thread, waits for its weights
    int64_t held;                  // groups with the stage
    struct stage_weights weights;  // in use; path is not kept
    int retries;
    struct arena arena;
    struct buf bulk; // of answers, in the I/O thread
    pthread_mutex_t lock;
    // Under the lock:
    const char *waits; // for what, NULL: working
    int64_t taken, done, quarantined, found, tokens;
    double waited, waiting_since;
};

// ---- counters ----

static void begin_wait(struct node *node, const char *what) {
    pthread_mutex_lock(&node->lock);
    if (!node->waits) node->waiting_since = clock_monotonic();
    node->waits = what;
    pthread_mutex_unlock(&node->lock);
}

static void end_wait(struct node *node) {
    pthread_mutex_lock(&node->lock);
    if (node->waits) node->waited += clock_monotonic() - node->waiting_since;
    node->waits = NULL;
    pthread_mutex_unlock(&node->lock);
}

static void count_group(struct node *node, const struct group *group) {
    int64_t tokens = 0;
    for (size_t i = 0; i < group->completion_count; i++) tokens += (int64_t)group->completions[i].tokens.count;
    pthread_mutex_lock(&node->lock);
    node->tokens += tokens;
    node->done++;
    node->quarantined = (int64_t)node->context->quarantined;
    node->found = (int64_t)node->context->found;
    pthread_mutex_unlock(&node->lock);
}

static void report(void *self, struct message_status *status) {
    struct node *node = self;
    double now = clock_monotonic();
    status->reward = status->accuracy = NAN;
    pthread_mutex_lock(&node->lock);
    status->taken = node->taken;
    status->done = node->done;
    status->quarantined = node->quarantined;
    status->found = node->found;
    status->tokens = node->tokens;
    status->up = now - node->context->started;
    status->busy = status->up - node->waited - (node->waits ? now - node->waiting_since : 0);
    status->state = node->waits ? node->waits : "working";
    pthread_mutex_unlock(&node->lock);
    if (node->issuer) issuer_report(node->issuer, status);
    if (node->collector) collector_report(node->collector, status);
}

// ---- the I/O thread ----

static status answer_clip(struct node *node, struct wire *wire, struct wire_peer *peer,
                          const struct wire_message *request) {
    const struct stage *stage = node->context->stage;
    bool found = false;
    buf_clear(&node->bulk);
    if (stage->serve_frames) TRY(stage->serve_frames(node->context->state, request->id, &node->bulk, &found));
    const struct wire_message reply = {.kind = found ? MESSAGE_RECORD : MESSAGE_ABSENT,
                                       .id = request->id,
                                       .bulk = node->bulk.data,
                                       .bulk_size = node->bulk.size};
    return wire_send(wire, peer, &reply, NULL);
}

static status answer_weights(struct node *node, struct wire *wire, struct wire_peer *peer,
                             const struct wire_message *request) {
    struct wire_message reply;
    TRY(weights_server_answer(node->server, request, &reply, &node->arena, &node->bulk));
    status result = wire_send(wire, peer, &reply, NULL);
    arena_release(&node->arena);
    return result;
}

static status joined(void *self, struct wire *wire, struct wire_peer *peer) {
    struct node *node = self;
    return node->issuer ? issuer_joined(node->issuer, wire, peer) : OK;
}

static status said(void *self, struct wire *wire, struct wire_peer *peer, const struct wire_message *message) {
    struct node *node = self;
    if (message->kind == MESSAGE_GET) return answer_clip(node, wire, peer, message);
    if (message->kind == MESSAGE_GET_WEIGHTS || message->kind == MESSAGE_FETCH)
        return answer_weights(node, wire, peer, message);
    if (node->issuer) return issuer_said(node->issuer, wire, peer, message);
    if (node->collector) return collector_said(node->collector, wire, peer, message);
    return OK;
}

static status tick(void *self, struct wire *wire) {
    struct node *node = self;
    return node->issuer ? issuer_tick(node->issuer, wire) : OK;
}

// ---- the weights that a group needs ----

enum verdict { VERDICT_READY, VERDICT_DROP, VERDICT_LATER };

// Optim may stand before what the group needs only if it went back since: then the source issues the group again. One
// that must be of exactly this step and is older has been trained.
static enum verdict judge(const struct group *group, int64_t policy) {
    if (!group->requires.present) return VERDICT_READY;
    if (policy < group->requires.policy) return VERDICT_DROP;
    return group->requires.exact == 1 && policy > group->requires.policy ? VERDICT_DROP : VERDICT_READY;
}

static bool in_use(const struct node *node, const struct remote_weights *pulled) {
    const struct stage_weights *weights = &pulled->weights;
    if (weights->version != node->weights.version) return false;
    return weights->hash == node->weights.hash || (weights->version == 0 && !*pulled->remote);
}

static status use_weights(struct node *node, struct remote_weights *pulled, enum verdict *verdict) {
    struct stage_context *context = node->context;
    status result = weights_client_file(node->io, node->folder, pulled);
    if (result == BAD_SAMPLE) *verdict = VERDICT_LATER;
    if (result == BAD_SAMPLE) return OK;
    TRY(result);
    log_debug("weights of version %lld", (long long)pulled->weights.version);
    result = context->stage->load_weights(context->state, &pulled->weights);
    if (result == DATAERR && node->retries++ < RETRIES) { // the file went between the answer and its use
        log_debug("%s; asking again", fail_text());
        *verdict = VERDICT_LATER;
        return OK;
    }
    TRY(result);
    node->retries = 0;
    node->weights = pulled->weights;
    node->weights.path = NULL;
    context->weights_version = pulled->weights.version;
    return OK;
}

static status prepare(struct node *node, const struct group *group, enum verdict *verdict) {
    struct remote_weights pulled;
    bool reference = node->context->stage->follows == FOLLOWS_REFERENCE;
    begin_wait(node, "waits for weights");
    status result = weights_client_latest(node->io, reference, &pulled);
    end_wait(node);
    if (result != OK) return result;
    *verdict = judge(group, pulled.policy);
    if (*verdict == VERDICT_READY && !in_use(node, &pulled)) {
        if (node->held) {
            *verdict = VERDICT_LATER;
        } else {
            result = use_weights(node, &pulled, verdict);
        }
    }
    remote_weights_release(&pulled);
    return result;
}

// ---- the channel ----

static status take_group(struct node *node, int room, int timeout_ms) {
    if (node->next) return OK;
    if (timeout_ms) begin_wait(node, "waits for groups");
    status result = node->collector ? collector_receive(node->collector, node->io, timeout_ms, &node->next)
                                    : io_thread_receive(node->io, room, timeout_ms, &node->next);
    end_wait(node);
    return result;
}

static status receive(void *self, int room, int timeout_ms, struct group **out) {
    struct node *node = self;
    enum verdict verdict = VERDICT_READY;
    *out = NULL;
    TRY(take_group(node, room, timeout_ms));
    if (!node->next) return OK;
    if (node->context->stage->follows != FOLLOWS_NOTHING && !node->next->quarantine.present)
        TRY(prepare(node, node->next, &verdict));
    if (verdict == VERDICT_DROP) {
        io_thread_drop(node->io, node->next->id.data);
        group_free(&node->next);
    } else if (verdict == VERDICT_LATER) {
        enum { NAP_US = 2000 };
        if (timeout_ms) usleep(NAP_US);
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

static status deliver(void *self, struct group **group) {
    struct node *node = self;
    node->held--;
    count_group(node, *group);
    status result =
        node->collector ? collector_settle(node->collector, node->io, *group) : io_thread_send(node->io, *group);
    group_free(group);
    return result;
}

static status refuse(void *self, struct group **group) {
    (void)self;
    status result = fail_prefix(DATAERR, "group %s", (*group)->id.data);
    group_free(group);
    return result;
}

static void wait_for_end(struct node *node, const char *what) {
    enum { NAP_US = 50000 };
    begin_wait(node, what);
    while (!signals_stopping()) usleep(NAP_US);
}

// The last stage is through before it is told to stop; others are told.
static status finish(void *self) {
    struct node *node = self;
    const struct stage *stage = node->context->stage;
    if (signals_stopping()) return OK;
    if (stage->finish) TRY(stage->finish(node->context->state));
    if (node->collector) TRY(collector_finish(node->collector, node->io));
    wait_for_end(node, "finished");
    return OK;
}

// ---- coming and going ----

status node_enter(struct stage_context *context, const char *config) {
    struct node *node;
    struct arena memory = {0};
    TRY(NEW(&node, 1));
    node->context = context;
    pthread_mutex_init(&node->lock, NULL);
    context->node = node;
    TRY(node_config_read(&node->config, config));
    TRY(weights_server_new(&node->server));
    char *folder = path_join(&memory, node->config.folder, "weights");
    node->folder = folder ? strdup(folder) : NULL;
    arena_release(&memory);
    return node->folder ? dir_make(node->folder) : fail_oom();
}

// The source has nothing to do but to live: its work is done in the I/O thread. What breaks there comes out of
// io_thread_receive.
static status stay_source(struct node *node) {
    struct group *none = NULL;
    status result = io_thread_receive(node->io, 0, -1, &none);
    return result == END ? OK : result;
}

status node_run(struct stage_context *context) {
    struct node *node = context->node;
    const struct io_hooks hooks = {.self = node, .joined = joined, .said = said, .tick = tick, .report = report};
    const struct channel channel = {node, receive, deliver, refuse, finish};
    bool source = context->stage->group_at != NULL;
    if (context->stage->fingerprint) node->weights.hash = context->stage->fingerprint(context->state);
    if (source) TRY(issuer_open(&node->issuer, context, &node->config));
    if (source) issuer_connect(node->issuer, &node->io);
    if (!source && node->config.last) TRY(collector_open(&node->collector, context));
    TRY(io_thread_open(&node->io, &node->config, &hooks, node->collector != NULL));
    log_debug("ready");
    status result = source ? stay_source(node) : runner_loop(context, &channel);
    io_thread_close(&node->io); // nobody asks the stage anything when it closes
    return result;
}

void node_leave(struct stage_context *context) {
    struct node *node = context->node;
    if (!node) return;
    io_thread_close(&node->io);
    issuer_close(&node->issuer);
    collector_close(&node->collector);
    weights_server_free(&node->server);
    group_free(&node->next);
    node_config_release(&node->config);
    arena_release(&node->arena);
    buf_release(&node->bulk);
    pthread_mutex_destroy(&node->lock);
    free(node->folder);
    free(node);
    context->node = NULL;
}

// ---- what a stage asks of the run ----

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    return context->node ? weights_server_put(context->node->server, weights) : OK;
}

void stage_recycle(struct stage_context *context, bool reference, const char *path) {
    if (context->node) weights_server_recycle(context->node->server, reference, path);
}

const char *stage_weights_folder(const struct stage_context *context) {
    return context->node ? context->node->folder : NULL;
}

status stage_fetch(struct stage_context *context, const char *key, struct buf *record, bool *found) {
    *found = false;
    if (!context->node || !context->node->io) return OK;
    const struct wire_message request = {.kind = MESSAGE_GET, .id = key};
    struct wire_message reply = {0};
    struct arena arena = {0};
    status result = io_thread_call(context->node->io, "frames", "frames", &request, &reply, &arena, record);
    *found = result == OK && reply.kind == MESSAGE_RECORD;
    arena_release(&arena);
    return result;
}
