// The outcome of a group is kept until the source's ledger has it, because a source that is restarted asks for it
// again. Only a RUN_INFO tells how much the ledger has. A run without restarts therefore keeps an entry for each group,
// so an entry must be small.
#include "shared/stage/collector.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"

enum { STRING_MAX = 1000 }; // bytes of a string that is sent
static_assert(4 * STRING_MAX < 16384, "the strings of a message fit its first frame");

// What became of a group.
struct settled {
    int64_t step;     // TRAINED
    char *quarantine; // QUARANTINED: stage, reason and id, each with its NUL
    uint8_t kind;     // of the message that says so; 0: not settled yet
    bool withheld;    // until the stage has finished
};
static_assert(sizeof(struct settled) <= 24, "there is one for each group of a run");
static_assert(MESSAGE_KINDS <= UINT8_MAX, "a kind fits one byte");

struct collector {
    struct stage_context *context;
    struct group **early; // groups that came early
    size_t early_count;
    int64_t next; // seq to be handed out
    pthread_mutex_t lock;
    // Under the lock:
    bool started;      // RUN_INFO has come
    bool untrained;    // no step was trained before this process started
    int64_t total;     // groups of the data
    int64_t max_steps; // 0: no bound
    int64_t epoch;     // groups of an epoch
    int64_t base_end;  // groups of the run if none is quarantined from where this process started (max_steps)
    int64_t quarantined, quarantined_below; // since this process started; of them below settled_below
    int64_t step;
    struct settled *log; // of the seqs from log_begin on
    size_t log_count, log_capacity;
    int64_t log_begin;
    int64_t log_settled;   // entries of the log that are settled
    int64_t settled_below; // every seq below is settled and not withheld
    int64_t unused;
    bool finished;           // the stage has written what must not be lost
    double reward, accuracy; // means over the last step
    double reward_sum, accuracy_sum;
    int64_t rewarded, rewarded_step; // groups in the sums; the step that they belong to
};

status collector_open(struct collector **out, struct stage_context *context) {
    struct collector *collector;
    *out = NULL;
    NEW(&collector, 1);
    collector->context = context;
    collector->reward = collector->accuracy = NAN;
    pthread_mutex_init(&collector->lock, NULL);
    assert(context->stage->position);
    status result = context->stage->position(context->state, &collector->step, &collector->next);
    collector->untrained = collector->next < 0;
    if (collector->untrained) collector->next = 0;
    collector->settled_below = collector->log_begin = collector->next;
    *out = collector;
    if (result != OK) collector_close(out);
    return result;
}

void collector_close(struct collector **pointer) {
    struct collector *collector = *pointer;
    if (!collector) return;
    for (size_t i = 0; i < collector->early_count; i++) group_free(&collector->early[i]);
    for (size_t i = 0; i < collector->log_count; i++) free(collector->log[i].quarantine);
    free(collector->early);
    free(collector->log);
    pthread_mutex_destroy(&collector->lock);
    free(collector);
    *pointer = NULL;
}

// ---- the log; the lock is held ----

static struct settled *collector_entry(const struct collector *collector, int64_t seq) {
    assert(seq >= collector->log_begin && seq - collector->log_begin < (int64_t)collector->log_count);
    return &collector->log[seq - collector->log_begin];
}

// The message about a settled group; its strings are the entry's. The source knows the id of a trained group.
static struct wire_message collector_describe(const struct collector *collector, int64_t seq) {
    const struct settled *entry = collector_entry(collector, seq);
    struct wire_message message = {.kind = entry->kind, .seq = seq, .step = entry->step, .id = ""};
    if (entry->kind == MESSAGE_QUARANTINED) {
        assert(entry->quarantine);
        message.name = entry->quarantine;
        message.reason = message.name + strlen(message.name) + 1;
        message.id = message.reason + strlen(message.reason) + 1;
    }
    return message;
}

// Returns how many groups the run has if `quarantined` of this process's are.
static int64_t collector_end(struct collector *collector, int64_t quarantined) {
    assert(mutex_is_held(&collector->lock));
    const int64_t end = collector->base_end + quarantined;
    return collector->max_steps && end < collector->total ? end : collector->total;
}

static void collector_advance(struct collector *collector) {
    assert(mutex_is_held(&collector->lock) && collector->settled_below >= collector->log_begin);
    const int64_t end = collector->log_begin + (int64_t)collector->log_count;
    while (collector->settled_below < end) {
        const struct settled *entry = collector_entry(collector, collector->settled_below);
        if (!entry->kind || entry->withheld) break;
        collector->quarantined_below += entry->kind == MESSAGE_QUARANTINED;
        collector->settled_below++;
    }
}

// Adds an entry. Seqs before it that are not settled yet get zeroed entries.
static status collector_add_entry(struct collector *collector, int64_t seq, const struct settled *entry) {
    if (seq < collector->log_begin) return fail(BUG, "group %lld was settled before", (long long)seq);
    size_t at = (size_t)(seq - collector->log_begin);
    if (at >= collector->log_capacity) {
        size_t capacity = at + at / 2 + 64;
        RESIZE(&collector->log, capacity);
        memset(collector->log + collector->log_capacity, 0,
               (capacity - collector->log_capacity) * sizeof *collector->log);
        collector->log_capacity = capacity;
    }
    if (at >= collector->log_count) collector->log_count = at + 1;
    if (collector->log[at].kind) return fail(BUG, "group %lld was settled before", (long long)seq);
    collector->log[at] = *entry;
    collector->log_settled++;
    assert(collector->log_settled <= (int64_t)collector->log_count);
    return OK;
}

// ---- the I/O thread ----

// Sends the outcomes of the seqs in [begin, end).
static status collector_resend(const struct collector *collector, struct io_thread *io, struct wire_peer *peer,
                               int64_t begin, int64_t end) {
    for (int64_t seq = begin; seq < end; seq++) {
        const struct settled *entry = collector_entry(collector, seq);
        const struct wire_message message = collector_describe(collector, seq);
        if (entry->kind && !entry->withheld) TRY(io_thread_reply(io, peer, &message));
    }
    return OK;
}

// A source forgets everything from the seq of POSITION on. So the outcomes below that seq are sent before POSITION, and
// those above it afterwards.
status collector_message(struct collector *collector, struct io_thread *io, struct wire_peer *peer,
                         const struct wire_message *message) {
    status result;
    if (message->kind != MESSAGE_RUN_INFO) return OK;
    pthread_mutex_lock(&collector->lock);
    const int64_t here = collector->settled_below;
    collector->total = message->count;
    collector->max_steps = message->max_steps;
    collector->epoch = message->epoch;
    if (!collector->started) {
        const int64_t steps = collector->step < message->max_steps ? message->max_steps - collector->step : 0;
        const int64_t per_step = message->per_step > 0 ? message->per_step : 1, rest = message->count - here;
        collector->base_end = steps > rest / per_step ? message->count : here + steps * per_step;
    }
    collector->started = true;
    const int64_t known = message->seq < here ? message->seq : here; // the source's ledger has everything below
    if (known > collector->log_begin) {
        const size_t count = (size_t)(known - collector->log_begin);
        assert(count <= collector->log_count);
        for (size_t i = 0; i < count; i++) free(collector->log[i].quarantine);
        collector->log_count -= count;
        memmove(collector->log, collector->log + count, collector->log_count * sizeof *collector->log);
        memset(collector->log + collector->log_count, 0, count * sizeof *collector->log);
        collector->log_begin = known;
        collector->log_settled -= (int64_t)count;
        assert(collector->log_settled >= 0);
    }
    TRY_TO(result, done, collector_resend(collector, io, peer, collector->log_begin, here));
    // If no group is left, the source must not be told so before the stage has finished.
    const bool untrained = collector->untrained && here == 0 && collector->log_settled == 0;
    const struct wire_message position = {.kind = MESSAGE_POSITION,
                                          .step = collector->step,
                                          .seq = untrained ? -1 : here,
                                          .count = collector_end(collector, collector->quarantined_below)};
    if (here < collector_end(collector, collector->quarantined) || collector->finished)
        TRY_TO(result, done, io_thread_reply(io, peer, &position));
    result = collector_resend(collector, io, peer, here, collector->log_begin + (int64_t)collector->log_count);
done:
    pthread_mutex_unlock(&collector->lock);
    io_thread_nudge(io); // the worker waits for the first RUN_INFO, and for what it says about the end
    return result;
}

int64_t collector_epoch(struct collector *collector) {
    pthread_mutex_lock(&collector->lock);
    const int64_t epoch = collector->epoch;
    pthread_mutex_unlock(&collector->lock);
    return epoch;
}

void collector_report(struct collector *collector, struct message_status *counters) {
    pthread_mutex_lock(&collector->lock);
    counters->total = collector_end(collector, collector->quarantined);
    counters->settled = collector->settled_below;
    counters->step = collector->step;
    counters->run_unused = collector->unused;
    counters->reward = collector->reward;
    counters->accuracy = collector->accuracy;
    pthread_mutex_unlock(&collector->lock);
}

// ---- the worker ----

status collector_receive(struct collector *collector, struct io_thread *io, int timeout_ms, struct group **out) {
    *out = NULL;
    for (;;) {
        pthread_mutex_lock(&collector->lock);
        const bool started = collector->started;
        pthread_mutex_unlock(&collector->lock);
        for (size_t i = 0; started && i < collector->early_count;) {
            struct group *group = collector->early[i];
            if (group->requires.order > collector->next) {
                i++;
                continue;
            }
            collector->early[i] = collector->early[--collector->early_count];
            if (group->requires.order < collector->next) { // handed out before
                io_thread_drop(io, group->requires.order);
                group_free(&group);
                continue;
            }
            collector->next++;
            *out = group;
            return OK;
        }
        pthread_mutex_lock(&collector->lock);
        const bool over = started && collector->next >= collector_end(collector, collector->quarantined);
        pthread_mutex_unlock(&collector->lock);
        if (over) return END;
        struct group *group;
        TRY(io_thread_receive(io, 1, timeout_ms, &group));
        if (!group) return OK;
        // Keeps it until the groups before it have come; a second copy of a seq is dropped.
        bool second = !group->requires.present;
        for (size_t i = 0; i < collector->early_count; i++)
            second |= collector->early[i]->requires.order == group->requires.order;
        if (!second) {
            RESIZE(&collector->early, collector->early_count + 1);
            collector->early[collector->early_count++] = group;
            continue;
        }
        io_thread_drop(io, group->requires.order);
        group_free(&group);
    }
}

static double collector_mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

// Copies the strings of a quarantine, each cut to STRING_MAX bytes. *out is NULL for a group that is not quarantined.
static void collector_copy_quarantine(const struct group *group, char **out) {
    const char *strings[3] = {group->quarantine.stage.data, group->quarantine.reason.data, group->id.data};
    size_t sizes[3], total = 3;
    *out = NULL;
    if (!group->quarantine.present) return;
    for (int i = 0; i < 3; i++) total += sizes[i] = strings[i] ? strnlen(strings[i], STRING_MAX) : 0;
    NEW(out, total);
    char *at = *out;
    for (int i = 0; i < 3; i++) {
        if (sizes[i]) memcpy(at, strings[i], sizes[i]);
        at += sizes[i] + 1;
    }
    assert(at == *out + total);
}

status collector_settle(struct collector *collector, struct io_thread *io, const struct group *group) {
    const int64_t seq = group->requires.order;
    struct settled entry = {.kind = MESSAGE_UNUSED};
    char id[STRING_MAX + 1] = "";
    collector_copy_quarantine(group, &entry.quarantine);
    pthread_mutex_lock(&collector->lock);
    if (entry.quarantine) {
        entry.kind = MESSAGE_QUARANTINED;
        collector->quarantined++;
    } else if (group->trained.present) {
        entry.kind = MESSAGE_TRAINED;
        entry.step = group->trained.step;
    }
    // The very last one is withheld.
    entry.withheld =
        collector->log_begin + collector->log_settled + 1 >= collector_end(collector, collector->quarantined);
    status result = collector_add_entry(collector, seq, &entry);
    struct wire_message message = {0};
    if (result == OK) {
        if (entry.kind == MESSAGE_TRAINED && entry.step > collector->step) collector->step = entry.step;
        const struct rewards *rewards = &group->rewards;
        // The means over the groups of one step, for the progress line.
        if (entry.kind == MESSAGE_TRAINED && rewards->present && rewards->total.count) {
            if (group->trained.step != collector->rewarded_step) {
                collector->reward_sum = collector->accuracy_sum = 0;
                collector->rewarded = 0;
            }
            collector->rewarded_step = group->trained.step;
            collector->reward_sum += collector_mean(&rewards->total);
            collector->accuracy_sum += rewards->accuracy.count ? collector_mean(&rewards->accuracy) : NAN;
            collector->rewarded++;
            collector->reward = collector->reward_sum / (double)collector->rewarded;
            collector->accuracy = collector->accuracy_sum / (double)collector->rewarded;
        }
        if (entry.kind == MESSAGE_UNUSED) collector->unused++;
        message = collector_describe(collector, seq);
        collector_advance(collector);
    } else {
        free(entry.quarantine);
    }
    if (entry.kind != MESSAGE_QUARANTINED) {
        strncpy(id, group->id.data, STRING_MAX);
        message.id = id;
    }
    // The message's strings are the entry's, so the copy is made under the lock.
    if (result == OK && !entry.withheld) result = io_thread_broadcast(io, "ledger", &message);
    pthread_mutex_unlock(&collector->lock);
    // As long as the source is not told, the group is in progress: no process may take it for lost.
    if (result == OK && !entry.withheld) io_thread_send(io, group);
    return result;
}

status collector_finish(struct collector *collector, struct io_thread *io) {
    pthread_mutex_lock(&collector->lock);
    struct wire_message message = {.kind = MESSAGE_POSITION};
    collector->finished = true;
    for (size_t i = 0; i < collector->log_count; i++) {
        if (!collector->log[i].withheld) continue;
        collector->log[i].withheld = false;
        message = collector_describe(collector, collector->log_begin + (int64_t)i);
    }
    collector_advance(collector);
    if (message.kind == MESSAGE_POSITION) {
        message.step = collector->step;
        message.seq = collector->settled_below;
        message.count = collector_end(collector, collector->quarantined);
    }
    status result = io_thread_broadcast(io, "ledger", &message);
    pthread_mutex_unlock(&collector->lock);
    return result;
}

// ---- outcomes ----

struct outcome {
    struct outcome *next;
    struct wire_message message; // its strings are in `arena`
    struct arena arena;
};

struct outcomes {
    pthread_mutex_t lock;
    struct outcome *first; // under the lock
};

void outcomes_new(struct outcomes **out) {
    NEW(out, 1);
    pthread_mutex_init(&(*out)->lock, NULL);
}

// Locked. Removes what the source has recorded: the groups below a seq.
static void outcomes_remove_below(struct outcomes *outcomes, int64_t seq) {
    for (struct outcome **link = &outcomes->first; *link;) {
        struct outcome *outcome = *link;
        if (outcome->message.seq >= seq) {
            link = &outcome->next;
            continue;
        }
        *link = outcome->next;
        arena_release(&outcome->arena);
        free(outcome);
    }
}

void outcomes_free(struct outcomes **outcomes) {
    if (!*outcomes) return;
    outcomes_remove_below(*outcomes, INT64_MAX);
    pthread_mutex_destroy(&(*outcomes)->lock);
    free(*outcomes);
    *outcomes = NULL;
}

status outcomes_tell(struct outcomes *outcomes, struct io_thread *io, const struct group *group) {
    const struct string given[3] = {group->id, group->quarantine.stage, group->quarantine.reason};
    char strings[3][STRING_MAX + 1];
    for (int i = 0; i < 3; i++) snprintf(strings[i], sizeof strings[i], "%s", given[i].data ? given[i].data : "");
    const struct wire_message message = {.kind = group->quarantine.present ? MESSAGE_QUARANTINED : MESSAGE_TRAINED,
                                         .seq = group->requires.order,
                                         .id = strings[0],
                                         .name = strings[1],
                                         .reason = strings[2]};
    struct outcome *outcome;
    NEW(&outcome, 1);
    status result = message_copy(&message, &outcome->message, &outcome->arena);
    if (result != OK) {
        arena_release(&outcome->arena);
        free(outcome);
        return result;
    }
    pthread_mutex_lock(&outcomes->lock);
    outcomes_remove_below(outcomes, io_thread_settled(io));
    outcome->next = outcomes->first;
    outcomes->first = outcome;
    pthread_mutex_unlock(&outcomes->lock);
    return io_thread_broadcast(io, "ledger", &message);
}

status outcomes_tell_again(struct outcomes *outcomes, struct io_thread *io, struct wire_peer *peer) {
    status result = OK;
    pthread_mutex_lock(&outcomes->lock);
    outcomes_remove_below(outcomes, io_thread_settled(io));
    for (const struct outcome *outcome = outcomes->first; outcome && result == OK; outcome = outcome->next)
        result = io_thread_reply(io, peer, &outcome->message);
    pthread_mutex_unlock(&outcomes->lock);
    return result;
}
