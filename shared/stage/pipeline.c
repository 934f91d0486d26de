// Three kinds of places in a run: the source feeds the line, the last stage settles what comes, and all between take a
// group, see to it that their weights are those that it needs, work, and pass it on.
#include "shared/stage/pipeline.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/feed.h"
#include "shared/stage/pull.h"
#include "shared/stage/shelf.h"
#include "shared/stage/signals.h"
#include "shared/stage/sink.h"

enum { RETRIES = 20 }; // of weights whose file went before it could be read

struct place {
    struct stage_context *context;
    struct node_config config;
    struct hub *hub;
    struct feed *feed;            // the source's
    struct sink *sink;            // the last stage's
    struct shelf *shelf;          // optim's
    char *folder;                 // for weights
    struct group *next;           // taken from the hub, waits for its weights
    int64_t held;                 // groups with the stage
    struct stage_weights weights; // in use; path is not kept
    int retries;
    struct arena arena;
    struct buf bulk; // of answers, in the hub's thread
    pthread_mutex_t lock;
    // Under the lock:
    const char *waits; // for what, NULL: working
    int64_t taken, done, quarantined, found, tokens;
    double waited, waiting_since;
};

// ---- counters ----

static void begin_wait(struct place *place, const char *what) {
    pthread_mutex_lock(&place->lock);
    if (!place->waits) place->waiting_since = runner_clock();
    place->waits = what;
    pthread_mutex_unlock(&place->lock);
}

static void end_wait(struct place *place) {
    pthread_mutex_lock(&place->lock);
    if (place->waits) place->waited += runner_clock() - place->waiting_since;
    place->waits = NULL;
    pthread_mutex_unlock(&place->lock);
}

static void count_group(struct place *place, const struct group *group) {
    int64_t tokens = 0;
    for (size_t i = 0; i < group->completion_count; i++) tokens += (int64_t)group->completions[i].tokens.count;
    pthread_mutex_lock(&place->lock);
    place->tokens += tokens;
    place->done++;
    place->quarantined = (int64_t)place->context->quarantined;
    place->found = (int64_t)place->context->found;
    pthread_mutex_unlock(&place->lock);
}

static void report(void *self, struct message_status *status) {
    struct place *place = self;
    double now = runner_clock();
    status->reward = status->accuracy = NAN;
    pthread_mutex_lock(&place->lock);
    status->taken = place->taken;
    status->done = place->done;
    status->quarantined = place->quarantined;
    status->found = place->found;
    status->tokens = place->tokens;
    status->up = now - place->context->started;
    status->busy = status->up - place->waited - (place->waits ? now - place->waiting_since : 0);
    status->state = place->waits ? place->waits : "working";
    pthread_mutex_unlock(&place->lock);
    if (place->feed) feed_report(place->feed, status);
    if (place->sink) sink_report(place->sink, status);
}

// ---- the hub's thread ----

static status answer_clip(struct place *place, struct wire *wire, struct wire_peer *peer,
                          const struct wire_message *request) {
    const struct stage *stage = place->context->stage;
    bool found = false;
    buf_clear(&place->bulk);
    if (stage->serve) TRY(stage->serve(place->context->state, request->id, &place->bulk, &found));
    const struct wire_message reply = {.kind = found ? MESSAGE_RECORD : MESSAGE_ABSENT,
                                       .id = request->id,
                                       .bulk = place->bulk.data,
                                       .bulk_size = place->bulk.size};
    return wire_send(wire, peer, &reply, NULL);
}

static status answer_weights(struct place *place, struct wire *wire, struct wire_peer *peer,
                             const struct wire_message *request) {
    struct wire_message reply;
    TRY(shelf_answer(place->shelf, request, &reply, &place->arena, &place->bulk));
    status result = wire_send(wire, peer, &reply, NULL);
    arena_release(&place->arena);
    return result;
}

static status joined(void *self, struct wire *wire, struct wire_peer *peer) {
    struct place *place = self;
    return place->feed ? feed_joined(place->feed, wire, peer) : OK;
}

static status said(void *self, struct wire *wire, struct wire_peer *peer, const struct wire_message *message) {
    struct place *place = self;
    if (message->kind == MESSAGE_GET) return answer_clip(place, wire, peer, message);
    if (message->kind == MESSAGE_GET_WEIGHTS || message->kind == MESSAGE_FETCH)
        return answer_weights(place, wire, peer, message);
    if (place->feed) return feed_said(place->feed, wire, peer, message);
    if (place->sink) return sink_said(place->sink, wire, peer, message);
    return OK;
}

static status tick(void *self, struct wire *wire) {
    struct place *place = self;
    return place->feed ? feed_tick(place->feed, wire) : OK;
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

static bool in_use(const struct place *place, const struct pulled *pulled) {
    const struct stage_weights *weights = &pulled->weights;
    if (weights->version != place->weights.version) return false;
    return weights->hash == place->weights.hash || (weights->version == 0 && !*pulled->remote);
}

static status use_weights(struct place *place, struct pulled *pulled, enum verdict *verdict) {
    struct stage_context *context = place->context;
    status result = pull_file(place->hub, place->folder, pulled);
    if (result == BAD_SAMPLE) *verdict = VERDICT_LATER;
    if (result == BAD_SAMPLE) return OK;
    TRY(result);
    log_debug("weights of version %lld", (long long)pulled->weights.version);
    result = context->stage->use(context->state, &pulled->weights);
    if (result == DATAERR && place->retries++ < RETRIES) { // the file went between the answer and its use
        log_debug("%s; asking again", fail_text());
        *verdict = VERDICT_LATER;
        return OK;
    }
    TRY(result);
    place->retries = 0;
    place->weights = pulled->weights;
    place->weights.path = NULL;
    context->weights_version = pulled->weights.version;
    return OK;
}

static status prepare(struct place *place, const struct group *group, enum verdict *verdict) {
    struct pulled pulled;
    bool reference = place->context->stage->follows == FOLLOWS_REFERENCE;
    begin_wait(place, "waits for weights");
    status result = pull_newest(place->hub, reference, &pulled);
    end_wait(place);
    if (result != OK) return result;
    *verdict = judge(group, pulled.policy);
    if (*verdict == VERDICT_READY && !in_use(place, &pulled)) {
        if (place->held) {
            *verdict = VERDICT_LATER;
        } else {
            result = use_weights(place, &pulled, verdict);
        }
    }
    pulled_release(&pulled);
    return result;
}

// ---- the channel ----

static status take_group(struct place *place, int room, int timeout_ms) {
    if (place->next) return OK;
    if (timeout_ms) begin_wait(place, "waits for groups");
    status result = place->sink ? sink_receive(place->sink, place->hub, timeout_ms, &place->next)
                                : hub_receive(place->hub, room, timeout_ms, &place->next);
    end_wait(place);
    return result;
}

static status receive(void *self, int room, int timeout_ms, struct group **out) {
    struct place *place = self;
    enum verdict verdict = VERDICT_READY;
    *out = NULL;
    TRY(take_group(place, room, timeout_ms));
    if (!place->next) return OK;
    if (place->context->stage->follows != FOLLOWS_NOTHING && !place->next->quarantine.present)
        TRY(prepare(place, place->next, &verdict));
    if (verdict == VERDICT_DROP) {
        hub_drop(place->hub, place->next->id.data);
        group_free(&place->next);
    } else if (verdict == VERDICT_LATER) {
        enum { NAP_US = 2000 };
        if (timeout_ms) usleep(NAP_US);
    } else {
        *out = place->next;
        place->next = NULL;
        place->held++;
        pthread_mutex_lock(&place->lock);
        place->taken++;
        pthread_mutex_unlock(&place->lock);
    }
    return OK;
}

static status deliver(void *self, struct group **group) {
    struct place *place = self;
    place->held--;
    count_group(place, *group);
    status result = place->sink ? sink_settle(place->sink, place->hub, *group) : hub_send(place->hub, *group);
    group_free(group);
    return result;
}

static status refuse(void *self, struct group **group) {
    (void)self;
    status result = fail_prefix(DATAERR, "group %s", (*group)->id.data);
    group_free(group);
    return result;
}

static void wait_for_end(struct place *place, const char *what) {
    enum { NAP_US = 50000 };
    begin_wait(place, what);
    while (!signals_stopping()) usleep(NAP_US);
}

// The last stage is through before it is told to stop; others are told.
static status finish(void *self) {
    struct place *place = self;
    const struct stage *stage = place->context->stage;
    if (signals_stopping()) return OK;
    if (stage->finish) TRY(stage->finish(place->context->state));
    if (place->sink) TRY(sink_finish(place->sink, place->hub));
    wait_for_end(place, "finished");
    return OK;
}

// ---- coming and going ----

status pipeline_enter(struct stage_context *context, const char *config) {
    struct place *place;
    struct arena memory = {0};
    TRY(NEW(&place, 1));
    place->context = context;
    pthread_mutex_init(&place->lock, NULL);
    context->place = place;
    TRY(node_config_read(&place->config, config));
    TRY(shelf_new(&place->shelf));
    char *folder = path_join(&memory, place->config.folder, "weights");
    place->folder = folder ? strdup(folder) : NULL;
    arena_release(&memory);
    return place->folder ? dir_make(place->folder) : fail_oom();
}

// The source has nothing to do but to live: its work is done in the hub's thread. What breaks there comes out of
// hub_receive.
static status stay_source(struct place *place) {
    struct group *none = NULL;
    status result = hub_receive(place->hub, 0, -1, &none);
    return result == END ? OK : result;
}

status pipeline_stay(struct stage_context *context) {
    struct place *place = context->place;
    const struct hub_hooks hooks = {.self = place, .joined = joined, .said = said, .tick = tick, .report = report};
    const struct channel channel = {place, receive, deliver, refuse, finish};
    bool source = context->stage->make != NULL;
    if (context->stage->version) place->weights.hash = context->stage->version(context->state);
    if (source) TRY(feed_open(&place->feed, context, &place->config));
    if (source) feed_connect(place->feed, &place->hub);
    if (!source && place->config.last) TRY(sink_open(&place->sink, context));
    TRY(hub_open(&place->hub, &place->config, &hooks, place->sink != NULL));
    log_debug("ready");
    status result = source ? stay_source(place) : runner_loop(context, &channel);
    hub_close(&place->hub); // nobody asks the stage anything when it closes
    return result;
}

void pipeline_leave(struct stage_context *context) {
    struct place *place = context->place;
    if (!place) return;
    hub_close(&place->hub);
    feed_close(&place->feed);
    sink_close(&place->sink);
    shelf_free(&place->shelf);
    group_free(&place->next);
    node_config_release(&place->config);
    arena_release(&place->arena);
    buf_release(&place->bulk);
    pthread_mutex_destroy(&place->lock);
    free(place->folder);
    free(place);
    context->place = NULL;
}

// ---- what a stage asks of the run ----

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    return context->place ? shelf_put(context->place->shelf, weights) : OK;
}

void stage_recycle(struct stage_context *context, bool reference, const char *path) {
    if (context->place) shelf_recycle(context->place->shelf, reference, path);
}

const char *stage_weights_folder(const struct stage_context *context) {
    return context->place ? context->place->folder : NULL;
}

status stage_fetch(struct stage_context *context, const char *key, struct buf *record, bool *found) {
    *found = false;
    if (!context->place || !context->place->hub) return OK;
    const struct wire_message request = {.kind = MESSAGE_GET, .id = key};
    struct wire_message reply = {0};
    struct arena arena = {0};
    status result = hub_ask(context->place->hub, "frames", "frames", &request, &reply, &arena, record);
    *found = result == OK && reply.kind == MESSAGE_RECORD;
    arena_release(&arena);
    return result;
}
