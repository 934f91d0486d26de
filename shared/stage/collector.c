// What was said to the source is kept, because a source that was restarted asks for it again.
#include "shared/stage/collector.h"

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

struct collector {
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

status collector_open(struct collector **out, struct stage_context *context) {
    struct collector *collector;
    TRY(NEW(&collector, 1));
    collector->context = context;
    collector->reward = collector->accuracy = NAN;
    pthread_mutex_init(&collector->lock, NULL);
    *out = collector;
    if (context->stage->position) TRY(context->stage->position(context->state, &collector->step, &collector->next));
    collector->front = collector->begun = collector->next;
    return OK;
}

void collector_close(struct collector **pointer) {
    struct collector *collector = *pointer;
    if (!collector) return;
    for (size_t i = 0; i < collector->early_count; i++) group_free(&collector->early[i]);
    for (size_t i = 0; i < collector->log_count; i++) arena_release(&collector->log[i].arena);
    free(collector->early);
    free(collector->log);
    pthread_mutex_destroy(&collector->lock);
    free(collector);
    *pointer = NULL;
}

// ---- the I/O thread ----

static status answer_plan(struct collector *collector, struct wire *wire, struct wire_peer *peer,
                          const struct wire_message *plan) {
    if (!collector->planned && !collector->context->stage->position)
        collector->front = collector->begun = collector->next = plan->seq;
    collector->planned = true;
    collector->total = plan->count;
    collector->per_step = plan->per_step > 0 ? plan->per_step : 1;
    if (!collector->context->stage->position) collector->step = collector->front / collector->per_step;
    // With nothing left to train the source must not hear so before the stage has finished.
    const struct wire_message at = {.kind = MESSAGE_POSITION, .step = collector->step, .seq = collector->front};
    if (collector->front < collector->total || collector->finished) TRY(wire_send(wire, peer, &at, NULL));
    for (size_t i = 0; i < collector->log_count; i++) {
        const struct settled *entry = &collector->log[i];
        if (entry->message.kind && !entry->withheld) TRY(wire_send(wire, peer, &entry->message, NULL));
    }
    return OK;
}

status collector_said(struct collector *collector, struct wire *wire, struct wire_peer *peer,
                      const struct wire_message *message) {
    if (message->kind != MESSAGE_RUN_INFO) return OK;
    pthread_mutex_lock(&collector->lock);
    status result = answer_plan(collector, wire, peer, message);
    pthread_mutex_unlock(&collector->lock);
    return result;
}

// ---- the working thread ----

static status add_early(struct collector *collector, struct io_thread *io, struct group *group) {
    bool second = !group->requires.present || group->requires.order < collector->next;
    for (size_t i = 0; i < collector->early_count; i++)
        if (collector->early[i]->requires.order == group->requires.order) second = true;
    status result = second ? OK : RESIZE(&collector->early, collector->early_count + 1);
    if (second || result != OK) {
        io_thread_drop(io, group->id.data);
        group_free(&group);
        return result;
    }
    collector->early[collector->early_count++] = group;
    return OK;
}

static struct group *take_next(struct collector *collector) {
    for (size_t i = 0; i < collector->early_count; i++) {
        struct group *group = collector->early[i];
        if (group->requires.order != collector->next) continue;
        collector->early[i] = collector->early[--collector->early_count];
        collector->next++;
        return group;
    }
    return NULL;
}

static bool all_handed_out(struct collector *collector) {
    pthread_mutex_lock(&collector->lock);
    bool all = collector->planned && collector->next >= collector->total;
    pthread_mutex_unlock(&collector->lock);
    return all;
}

static bool planned(struct collector *collector) {
    pthread_mutex_lock(&collector->lock);
    bool planned = collector->planned;
    pthread_mutex_unlock(&collector->lock);
    return planned;
}

// One of the groups that can be handed out now, if there is one; quarantined ones are settled on the way.
static status hand_out(struct collector *collector, struct io_thread *io, struct group **out) {
    *out = NULL;
    while ((*out = take_next(collector)) && (*out)->quarantine.present) {
        status result = collector_settle(collector, io, *out);
        group_free(out);
        TRY(result);
    }
    return OK;
}

status collector_receive(struct collector *collector, struct io_thread *io, int timeout_ms, struct group **out) {
    for (;;) {
        enum { SLICE = 200, NAP_US = 20000 };
        if (!planned(collector)) {
            if (signals_stopping()) return END;
            usleep(NAP_US);
            if (timeout_ms >= 0) return OK;
            continue;
        }
        TRY(hand_out(collector, io, out));
        if (*out) return OK;
        if (all_handed_out(collector)) return END;
        struct group *group;
        int wait = timeout_ms < 0 || timeout_ms > SLICE ? SLICE : timeout_ms;
        TRY(io_thread_receive(io, 1, wait, &group));
        if (group) TRY(add_early(collector, io, group));
        if (!group && timeout_ms >= 0) return OK;
    }
}

static double mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

// The means over the groups of one step, for those who watch.
static void add_rewards(struct collector *collector, const struct group *group) {
    if (!group->rewards.present || !group->rewards.total.count || !group->rewards.accuracy.count) return;
    if (group->trained.step != collector->sum_step)
        collector->reward_sum = collector->accuracy_sum = 0, collector->rewarded = 0;
    collector->sum_step = group->trained.step;
    collector->reward_sum += mean(&group->rewards.total);
    collector->accuracy_sum += mean(&group->rewards.accuracy);
    collector->rewarded++;
    collector->reward = collector->reward_sum / (double)collector->rewarded;
    collector->accuracy = collector->accuracy_sum / (double)collector->rewarded;
}

static struct wire_message describe(struct collector *collector, const struct group *group) {
    const bool aside = group->quarantine.present, steps = collector->context->stage->position != NULL;
    struct wire_message message = {.seq = group->requires.order, .id = group->id.data};
    if (aside) {
        message.kind = MESSAGE_QUARANTINED;
        message.name = group->quarantine.stage.data ? group->quarantine.stage.data : "";
        message.reason = group->quarantine.reason.data ? group->quarantine.reason.data : "";
    } else if (group->trained.present || !steps) {
        message.kind = MESSAGE_TRAINED;
        message.step = group->trained.present ? group->trained.step : message.seq / collector->per_step + 1;
    } else {
        message.kind = MESSAGE_UNUSED;
    }
    return message;
}

static void advance_front(struct collector *collector) {
    size_t at = (size_t)(collector->front - collector->begun);
    while (at < collector->log_count && collector->log[at].message.kind && !collector->log[at].withheld) at++;
    collector->front = collector->begun + (int64_t)at;
}

// Keeps a copy of what is said; texts are cut to what a message holds.
static status keep_settled(struct collector *collector, struct wire_message *message) {
    enum { TEXT_MOST = 1000 };
    size_t at = (size_t)(message->seq - collector->begun);
    if (at >= collector->log_count) {
        TRY(RESIZE(&collector->log, at + 1));
        memset(collector->log + collector->log_count, 0, (at + 1 - collector->log_count) * sizeof *collector->log);
        collector->log_count = at + 1;
    }
    struct settled *entry = &collector->log[at];
    const char **texts[3] = {&message->id, &message->name, &message->reason};
    for (int i = 0; i < 3; i++) {
        if (!*texts[i]) continue;
        *texts[i] = arena_strndup(&entry->arena, *texts[i], strnlen(*texts[i], TEXT_MOST));
        if (!*texts[i]) return fail_oom();
    }
    if (!entry->message.kind) collector->known++;
    entry->message = *message;
    entry->withheld = collector->begun + collector->known >= collector->total;
    advance_front(collector);
    return OK;
}

static status settle_locked(struct collector *collector, const struct group *group, struct wire_message *message) {
    *message = describe(collector, group);
    if (message->seq < collector->begun) return fail(BUG, "group %s was settled before", group->id.data);
    if (message->kind == MESSAGE_TRAINED && message->step > collector->step) collector->step = message->step;
    if (message->kind == MESSAGE_TRAINED) add_rewards(collector, group);
    if (message->kind == MESSAGE_UNUSED) collector->left++;
    return keep_settled(collector, message);
}

status collector_settle(struct collector *collector, struct io_thread *io, const struct group *group) {
    struct wire_message message;
    pthread_mutex_lock(&collector->lock);
    status result = settle_locked(collector, group, &message);
    bool withheld = result == OK && collector->log[message.seq - collector->begun].withheld;
    pthread_mutex_unlock(&collector->lock);
    // As long as the source is not told, the group is in hand: nobody must believe it lost.
    if (result != OK || withheld) return result;
    TRY(io_thread_broadcast(io, "ledger", &message));
    return io_thread_send(io, group);
}

status collector_finish(struct collector *collector, struct io_thread *io) {
    struct wire_message message = {.kind = MESSAGE_POSITION};
    pthread_mutex_lock(&collector->lock);
    collector->finished = true;
    for (size_t i = 0; i < collector->log_count; i++) {
        if (!collector->log[i].withheld) continue;
        collector->log[i].withheld = false;
        message = collector->log[i].message;
    }
    advance_front(collector);
    message.step = message.kind == MESSAGE_POSITION ? collector->step : message.step;
    message.seq = message.kind == MESSAGE_POSITION ? collector->front : message.seq;
    pthread_mutex_unlock(&collector->lock);
    return io_thread_broadcast(io, "ledger", &message);
}

void collector_report(struct collector *collector, struct message_status *status) {
    pthread_mutex_lock(&collector->lock);
    status->total = collector->total;
    status->settled = collector->front;
    status->step = collector->step;
    status->run_unused = (int64_t)collector->left;
    status->reward = collector->reward;
    status->accuracy = collector->accuracy;
    pthread_mutex_unlock(&collector->lock);
}
