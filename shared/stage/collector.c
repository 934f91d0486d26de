// The last stage of a pipeline: tells the source what became of each group.
//
// Optim gets the groups in order, each seq once. Other stages get them as they come, and several replicas may share
// them. In both cases an outcome is kept until the source's ledger has it, because a source that is restarted lacks
// what it had not written yet.
#include "shared/stage/node.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"

enum { MAX_STRING = 1000 }; // bytes of a string that is sent
static_assert(4 * MAX_STRING < 16384, "the strings of a message fit its first frame");

// Returns the strings of a group's outcome: the stage and the reason of its quarantine, and its id, each cut to
// MAX_STRING bytes, with its NUL. The caller releases them with free().
static char *outcome_strings(const struct group *group) {
    const char *strings[3] = {group->quarantine.stage.data, group->quarantine.reason.data, group->id.data};
    size_t sizes[3], total = 3;
    char *out, *at;
    for (int i = 0; i < 3; i++) total += sizes[i] = strings[i] ? strnlen(strings[i], MAX_STRING) : 0;
    NEW(&out, total);
    at = out;
    for (int i = 0; i < 3; i++) {
        if (sizes[i]) memcpy(at, strings[i], sizes[i]);
        at += sizes[i] + 1;
    }
    assert(at == out + total);
    return out;
}

// Lets a message have these strings.
static void outcome_set_strings(struct wire_message *message, const char *strings) {
    message->name = strings;
    message->reason = message->name + strlen(message->name) + 1;
    message->id = message->reason + strlen(message->reason) + 1;
}

// ---- optim ----

// What became of a group. Only a RUN_INFO tells how much the ledger has, so that a run without restarts keeps an entry
// for each group, which must be small:
//
//     log_begin          settled_below                  next
//     | settled, in order | settled out of order, or not | not handed out; of these some have come (HELD_EARLY)
struct settled {
    int64_t step;     // TRAINED
    char *quarantine; // QUARANTINED: the outcome's strings
    uint8_t kind;     // of the message that says so; 0: not settled yet
    bool withheld;    // until the stage has finished
};
static_assert(sizeof(struct settled) <= 24, "there is one for each group of a run");
static_assert(MESSAGE_KINDS <= UINT8_MAX, "a kind fits one byte");

struct collector {
    int64_t next; // seq to be handed out; the worker's own
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

// Begins at optim's position.
static status collector_open(struct node *node) {
    const struct stage_context *context = node->context;
    struct collector *collector;
    NEW(&collector, 1);
    node->part = collector;
    collector->reward = collector->accuracy = NAN;
    pthread_mutex_init(&collector->lock, NULL);
    TRY(context->stage->position(context->state, &collector->step, &collector->next));
    collector->untrained = collector->next < 0;
    if (collector->untrained) collector->next = 0;
    collector->settled_below = collector->log_begin = collector->next;
    return OK;
}

static void collector_close(struct node *node) {
    struct collector *collector = node->part;
    for (size_t i = 0; i < collector->log_count; i++) free(collector->log[i].quarantine);
    free(collector->log);
    pthread_mutex_destroy(&collector->lock);
    free(collector);
    node->part = NULL;
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
        outcome_set_strings(&message, entry->quarantine);
    }
    return message;
}

// Returns how many groups the run has if `quarantined` of this process's are.
static int64_t collector_end(struct collector *collector, int64_t quarantined) {
    assert(pthread_mutex_trylock(&collector->lock) == EBUSY); // the caller holds it
    const int64_t end = collector->base_end + quarantined;
    return collector->max_steps && end < collector->total ? end : collector->total;
}

static void collector_advance(struct collector *collector) {
    assert(pthread_mutex_trylock(&collector->lock) == EBUSY); // the caller holds it
    assert(collector->settled_below >= collector->log_begin);
    const int64_t end = collector->log_begin + (int64_t)collector->log_count;
    while (collector->settled_below < end) {
        const struct settled *entry = collector_entry(collector, collector->settled_below);
        if (!entry->kind || entry->withheld) break;
        collector->quarantined_below += entry->kind == MESSAGE_QUARANTINED;
        collector->settled_below++;
    }
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

// Answers RUN_INFO with what the source does not know yet. A source forgets everything from the seq of POSITION on. So
// the outcomes below that seq are sent before POSITION, and those above it afterwards.
static status collector_on_run_info(void *self, struct wire_peer *peer, const struct wire_message *message) {
    const struct node *node = self;
    struct io_thread *io = node->io;
    struct collector *collector = node->part;
    status result;
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

int64_t stage_epoch(const struct stage_context *context) {
    if (!context->node || context->node->role != &optim_role) return 0;
    struct collector *collector = context->node->part;
    pthread_mutex_lock(&collector->lock);
    const int64_t epoch = collector->epoch;
    pthread_mutex_unlock(&collector->lock);
    return epoch;
}

static void collector_report(void *self, struct message_status *counters) {
    struct collector *collector = ((const struct node *)self)->part;
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

// The next group in order; a quarantined one must be delivered before the next call. END when every group that there
// will ever be was handed out.
static status collector_receive(struct node *node, int timeout_ms, struct held_group **out) {
    struct collector *collector = node->part;
    for (*out = NULL;;) {
        pthread_mutex_lock(&collector->lock);
        const bool started = collector->started;
        const int64_t end = collector_end(collector, collector->quarantined);
        pthread_mutex_unlock(&collector->lock);
        struct held_group *held = started ? io_thread_next_held(node->io, NULL, HELD_EARLY) : NULL, *other = NULL;
        for (struct held_group *next; held; held = next) {
            next = io_thread_next_held(node->io, held, HELD_EARLY);
            if (held->seq < collector->next) { // it was handed out before
                io_thread_drop(node->io, held);
            } else if (held->seq == collector->next) {
                collector->next++;
                held->since = clock_monotonic();
                io_thread_set_state(node->io, held, HELD_WAITING);
                *out = held;
                return OK;
            }
        }
        if (started && collector->next >= end) return END;
        TRY(io_thread_receive(node->io, 1, timeout_ms, &held));
        if (!held) return OK;
        // Keeps it until the groups before it have come; a second copy of a seq is dropped.
        while ((other = io_thread_next_held(node->io, other, HELD_EARLY)) && other->seq != held->seq) {
        }
        if (other || !held->group->requires.present)
            io_thread_drop(node->io, held);
        else
            io_thread_set_state(node->io, held, HELD_EARLY);
    }
}

static double collector_mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

// The group is quarantined, or the stage has finished it: tells the source, except for the very last group, which waits
// for collector_finish. BUG when the group was settled before.
static status collector_deliver(struct node *node, struct held_group *held) {
    struct collector *collector = node->part;
    const struct group *group = held->group;
    const int64_t seq = group->requires.order;
    struct settled entry = {.kind = MESSAGE_UNUSED,
                            .quarantine = group->quarantine.present ? outcome_strings(group) : NULL};
    char id[MAX_STRING + 1] = "";
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
    const size_t at = (size_t)(seq - collector->log_begin);
    const bool again = seq < collector->log_begin || (at < collector->log_count && collector->log[at].kind);
    status result = again ? fail(BUG, "group %lld was settled before", (long long)seq) : OK;
    struct wire_message message = {0};
    if (result == OK) {
        if (at >= collector->log_capacity) { // seqs before it that are not settled yet get zeroed entries
            const size_t capacity = at + at / 2 + 64;
            RESIZE(&collector->log, capacity);
            memset(collector->log + collector->log_capacity, 0,
                   (capacity - collector->log_capacity) * sizeof *collector->log);
            collector->log_capacity = capacity;
        }
        if (at >= collector->log_count) collector->log_count = at + 1;
        collector->log[at] = entry;
        collector->log_settled++;
        assert(collector->log_settled <= (int64_t)collector->log_count);
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
        strncpy(id, group->id.data, MAX_STRING);
        message.id = id;
    }
    // The message's strings are the entry's, so the copy is made under the lock.
    if (result == OK && !entry.withheld) result = io_thread_broadcast(node->io, "ledger", &message);
    pthread_mutex_unlock(&collector->lock);
    // As long as the source is not told, the group is in progress: no process may take it for lost.
    if (result != OK || entry.withheld)
        io_thread_set_state(node->io, held, HELD_DONE);
    else
        io_thread_send(node->io, held);
    return result;
}

// The stage has returned every group and has written what must not be lost: tells the source the outcome of the very
// last group, so that a run is never over too early.
static status collector_finish(struct node *node) {
    struct collector *collector = node->part;
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
    status result = io_thread_broadcast(node->io, "ledger", &message);
    pthread_mutex_unlock(&collector->lock);
    return result;
}

const struct role optim_role = {
    .hooks = {.greedy = true,
              .peers = {{.purpose = "weights",
                         .clients = true,
                         .joined = weights_publisher_joined,
                         .gone = weights_publisher_gone}},
              .messages = {[MESSAGE_RUN_INFO] = collector_on_run_info,
                           [MESSAGE_FETCH] = weights_publisher_fetch,
                           [MESSAGE_CANNOT_BORROW] = weights_publisher_cannot_borrow},
              .tick = weights_publisher_tick,
              .report = collector_report},
    .open = collector_open,
    .close = collector_close,
    .receive = collector_receive,
    .deliver = collector_deliver,
    .finish = collector_finish,
};

// ---- outcomes ----

// What became of the groups of a run without optim. node->part is the first of them, under the node's lock.
struct outcome {
    struct outcome *next;
    struct wire_message message;
    char *strings; // of the message
};

// Removes what the source has recorded: the groups below a seq. Returns the first of the others.
static struct outcome *outcomes_remove_below(struct outcome *first, int64_t seq) {
    for (struct outcome **link = &first; *link;) {
        struct outcome *outcome = *link;
        if (outcome->message.seq >= seq) {
            link = &outcome->next;
            continue;
        }
        *link = outcome->next;
        free(outcome->strings);
        free(outcome);
    }
    return first;
}

static void outcomes_close(struct node *node) {
    node->part = outcomes_remove_below(node->part, INT64_MAX);
}

// Tells the source that the run is done with a group, quarantined or not.
static status outcomes_deliver(struct node *node, struct held_group *held) {
    const struct group *group = held->group;
    struct outcome *outcome;
    NEW(&outcome, 1);
    outcome->strings = outcome_strings(group);
    outcome->message = (struct wire_message){.kind = group->quarantine.present ? MESSAGE_QUARANTINED : MESSAGE_TRAINED,
                                             .seq = group->requires.order};
    outcome_set_strings(&outcome->message, outcome->strings);
    pthread_mutex_lock(&node->lock);
    outcome->next = outcomes_remove_below(node->part, io_thread_settled(node->io));
    node->part = outcome;
    const status result = io_thread_broadcast(node->io, "ledger", &outcome->message); // a copy, as it may be removed
    pthread_mutex_unlock(&node->lock);
    io_thread_send(node->io, held);
    return result;
}

// The source has joined: tells it again.
static status outcomes_on_source(void *self, struct wire_peer *peer) {
    struct node *node = self;
    status result = OK;
    pthread_mutex_lock(&node->lock);
    node->part = outcomes_remove_below(node->part, io_thread_settled(node->io));
    for (const struct outcome *outcome = node->part; outcome && result == OK; outcome = outcome->next)
        result = io_thread_reply(node->io, peer, &outcome->message);
    pthread_mutex_unlock(&node->lock);
    return result;
}

const struct role last_role = {
    .hooks = {.peers = {{.purpose = "ledger", .joined = outcomes_on_source}}},
    .close = outcomes_close,
    .deliver = outcomes_deliver,
};
