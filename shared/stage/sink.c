// What was said to the source is kept, because a source that was restarted asks for it again.
#include "shared/stage/sink.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/stage/signals.h"

struct settled {
    struct wire_message message;
    bool withheld; // until the stage has finished
    struct arena arena;
};

struct sink {
    struct stage_context *context;
    struct group **early; // groups whose turn has not come
    size_t early_count;
    int64_t next; // order to be handed out
    size_t left;  // groups that did not fill a step
    pthread_mutex_t lock;
    // Under the lock:
    bool planned;
    int64_t total, per_step;
    int64_t begun; // the order at which `log` begins
    int64_t step;
    struct settled *log; // by order - begun; kind 0: not settled yet
    size_t log_count;
    int64_t known;           // entries of the log that are settled
    bool finished;           // so is the stage
    int64_t front;           // every order below is settled
    double reward, accuracy; // of the last step
    double reward_sum, accuracy_sum;
    int64_t rewarded, sum_step;
};

status sink_open(struct sink **out, struct stage_context *context) {
    struct sink *sink;
    TRY(NEW(&sink, 1));
    sink->context = context;
    sink->reward = sink->accuracy = NAN;
    pthread_mutex_init(&sink->lock, NULL);
    *out = sink;
    if (context->stage->position) TRY(context->stage->position(context->state, &sink->step, &sink->next));
    sink->front = sink->begun = sink->next;
    return OK;
}

void sink_close(struct sink **pointer) {
    struct sink *sink = *pointer;
    if (!sink) return;
    for (size_t i = 0; i < sink->early_count; i++) group_free(&sink->early[i]);
    for (size_t i = 0; i < sink->log_count; i++) arena_release(&sink->log[i].arena);
    free(sink->early);
    free(sink->log);
    pthread_mutex_destroy(&sink->lock);
    free(sink);
    *pointer = NULL;
}

// ---- the hub's thread ----

static status answer_plan(struct sink *sink, struct wire *wire, struct wire_peer *peer,
                          const struct wire_message *plan) {
    if (!sink->planned && !sink->context->stage->position) sink->front = sink->begun = sink->next = plan->seq;
    sink->planned = true;
    sink->total = plan->count;
    sink->per_step = plan->per_step > 0 ? plan->per_step : 1;
    if (!sink->context->stage->position) sink->step = sink->front / sink->per_step;
    // With nothing left to train the source must not hear so before the stage has finished.
    const struct wire_message at = {.kind = MESSAGE_POSITION, .step = sink->step, .seq = sink->front};
    if (sink->front < sink->total || sink->finished) TRY(wire_send(wire, peer, &at, NULL));
    for (size_t i = 0; i < sink->log_count; i++) {
        const struct settled *entry = &sink->log[i];
        if (entry->message.kind && !entry->withheld) TRY(wire_send(wire, peer, &entry->message, NULL));
    }
    return OK;
}

status sink_said(struct sink *sink, struct wire *wire, struct wire_peer *peer, const struct wire_message *message) {
    if (message->kind != MESSAGE_RUN_INFO) return OK;
    pthread_mutex_lock(&sink->lock);
    status result = answer_plan(sink, wire, peer, message);
    pthread_mutex_unlock(&sink->lock);
    return result;
}

// ---- the working thread ----

static status add_early(struct sink *sink, struct hub *hub, struct group *group) {
    bool second = !group->requires.present || group->requires.order < sink->next;
    for (size_t i = 0; i < sink->early_count; i++)
        if (sink->early[i]->requires.order == group->requires.order) second = true;
    status result = second ? OK : RESIZE(&sink->early, sink->early_count + 1);
    if (second || result != OK) {
        hub_drop(hub, group->id.data);
        group_free(&group);
        return result;
    }
    sink->early[sink->early_count++] = group;
    return OK;
}

static struct group *take_next(struct sink *sink) {
    for (size_t i = 0; i < sink->early_count; i++) {
        struct group *group = sink->early[i];
        if (group->requires.order != sink->next) continue;
        sink->early[i] = sink->early[--sink->early_count];
        sink->next++;
        return group;
    }
    return NULL;
}

static bool all_handed_out(struct sink *sink) {
    pthread_mutex_lock(&sink->lock);
    bool all = sink->planned && sink->next >= sink->total;
    pthread_mutex_unlock(&sink->lock);
    return all;
}

static bool planned(struct sink *sink) {
    pthread_mutex_lock(&sink->lock);
    bool planned = sink->planned;
    pthread_mutex_unlock(&sink->lock);
    return planned;
}

// One of the groups that can be handed out now, if there is one; quarantined ones are settled on the way.
static status hand_out(struct sink *sink, struct hub *hub, struct group **out) {
    *out = NULL;
    while ((*out = take_next(sink)) && (*out)->quarantine.present) {
        status result = sink_settle(sink, hub, *out);
        group_free(out);
        TRY(result);
    }
    return OK;
}

status sink_receive(struct sink *sink, struct hub *hub, int timeout_ms, struct group **out) {
    for (;;) {
        enum { SLICE = 200, NAP_US = 20000 };
        if (!planned(sink)) {
            if (signals_stopping()) return END;
            usleep(NAP_US);
            if (timeout_ms >= 0) return OK;
            continue;
        }
        TRY(hand_out(sink, hub, out));
        if (*out) return OK;
        if (all_handed_out(sink)) return END;
        struct group *group;
        int wait = timeout_ms < 0 || timeout_ms > SLICE ? SLICE : timeout_ms;
        TRY(hub_receive(hub, 1, wait, &group));
        if (group) TRY(add_early(sink, hub, group));
        if (!group && timeout_ms >= 0) return OK;
    }
}

static double mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

// The means over the groups of one step, for those who watch.
static void add_rewards(struct sink *sink, const struct group *group) {
    if (!group->rewards.present || !group->rewards.total.count || !group->rewards.accuracy.count) return;
    if (group->trained.step != sink->sum_step) sink->reward_sum = sink->accuracy_sum = 0, sink->rewarded = 0;
    sink->sum_step = group->trained.step;
    sink->reward_sum += mean(&group->rewards.total);
    sink->accuracy_sum += mean(&group->rewards.accuracy);
    sink->rewarded++;
    sink->reward = sink->reward_sum / (double)sink->rewarded;
    sink->accuracy = sink->accuracy_sum / (double)sink->rewarded;
}

static struct wire_message describe(struct sink *sink, const struct group *group) {
    const bool aside = group->quarantine.present, steps = sink->context->stage->position != NULL;
    struct wire_message message = {.seq = group->requires.order, .id = group->id.data};
    if (aside) {
        message.kind = MESSAGE_QUARANTINED;
        message.name = group->quarantine.stage.data ? group->quarantine.stage.data : "";
        message.reason = group->quarantine.reason.data ? group->quarantine.reason.data : "";
    } else if (group->trained.present || !steps) {
        message.kind = MESSAGE_TRAINED;
        message.step = group->trained.present ? group->trained.step : message.seq / sink->per_step + 1;
    } else {
        message.kind = MESSAGE_UNUSED;
    }
    return message;
}

static void advance_front(struct sink *sink) {
    size_t at = (size_t)(sink->front - sink->begun);
    while (at < sink->log_count && sink->log[at].message.kind && !sink->log[at].withheld) at++;
    sink->front = sink->begun + (int64_t)at;
}

// Keeps a copy of what is said; texts are cut to what a message holds.
static status keep_settled(struct sink *sink, struct wire_message *message) {
    enum { TEXT_MOST = 1000 };
    size_t at = (size_t)(message->seq - sink->begun);
    if (at >= sink->log_count) {
        TRY(RESIZE(&sink->log, at + 1));
        memset(sink->log + sink->log_count, 0, (at + 1 - sink->log_count) * sizeof *sink->log);
        sink->log_count = at + 1;
    }
    struct settled *entry = &sink->log[at];
    const char **texts[3] = {&message->id, &message->name, &message->reason};
    for (int i = 0; i < 3; i++) {
        if (!*texts[i]) continue;
        *texts[i] = arena_strndup(&entry->arena, *texts[i], strnlen(*texts[i], TEXT_MOST));
        if (!*texts[i]) return fail_oom();
    }
    if (!entry->message.kind) sink->known++;
    entry->message = *message;
    entry->withheld = sink->begun + sink->known >= sink->total;
    advance_front(sink);
    return OK;
}

static status settle_locked(struct sink *sink, const struct group *group, struct wire_message *message) {
    *message = describe(sink, group);
    if (message->seq < sink->begun) return fail(BUG, "group %s was settled before", group->id.data);
    if (message->kind == MESSAGE_TRAINED && message->step > sink->step) sink->step = message->step;
    if (message->kind == MESSAGE_TRAINED) add_rewards(sink, group);
    if (message->kind == MESSAGE_UNUSED) sink->left++;
    return keep_settled(sink, message);
}

status sink_settle(struct sink *sink, struct hub *hub, const struct group *group) {
    struct wire_message message;
    pthread_mutex_lock(&sink->lock);
    status result = settle_locked(sink, group, &message);
    bool withheld = result == OK && sink->log[message.seq - sink->begun].withheld;
    pthread_mutex_unlock(&sink->lock);
    // As long as the source is not told, the group is in hand: nobody must believe it lost.
    if (result != OK || withheld) return result;
    TRY(hub_post(hub, "ledger", &message));
    return hub_send(hub, group);
}

status sink_finish(struct sink *sink, struct hub *hub) {
    struct wire_message message = {.kind = MESSAGE_POSITION};
    pthread_mutex_lock(&sink->lock);
    sink->finished = true;
    for (size_t i = 0; i < sink->log_count; i++) {
        if (!sink->log[i].withheld) continue;
        sink->log[i].withheld = false;
        message = sink->log[i].message;
    }
    advance_front(sink);
    message.step = message.kind == MESSAGE_POSITION ? sink->step : message.step;
    message.seq = message.kind == MESSAGE_POSITION ? sink->front : message.seq;
    pthread_mutex_unlock(&sink->lock);
    return hub_post(hub, "ledger", &message);
}

void sink_report(struct sink *sink, struct message_status *status) {
    pthread_mutex_lock(&sink->lock);
    status->total = sink->total;
    status->settled = sink->front;
    status->step = sink->step;
    status->run_unused = (int64_t)sink->left;
    status->reward = sink->reward;
    status->accuracy = sink->accuracy;
    pthread_mutex_unlock(&sink->lock);
}
