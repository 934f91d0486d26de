// The source in a pipeline: issues groups in order, as many at once as max_staleness allows (without optim, as many as
// keep rollout busy), and records in the ledger what became of them. What is lost on the way is given again by the
// stage that still has it.
//
// With optim, only optim knows what is trained: nothing is issued before it has sent its POSITION. Without optim, the
// ledger knows what is done: TRAINED then means that every stage has worked on the group, and there are no steps.

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/node.h"
#include "shared/store/ledger.h"

// Groups in flight without optim: several replicas of rollout can decode full batches while as many clips are decoded.
static const int64_t issuer_in_flight = 256;

// The stages keep what is above the lowest group in flight. One that takes very long holds the others up when they are
// so many times issuer_in_flight ahead of it.
static const int64_t issuer_ahead = 8;

// When so many groups in a row were quarantined, a training ends: their media are probably elsewhere, or a setting is
// wrong. One missing clip has fewer questions, and a shuffled data set with some missing clips never has so many in a
// row. An evaluation goes on, because it counts them as wrong, and the media of a part of its data may be missing.
static const int64_t issuer_failed_in_a_row = 32;

struct issuer {
    const struct node *node;
    struct ledger *ledger;
    int64_t total, per_step, staleness;
    int64_t epoch;      // groups of an epoch
    int64_t max_steps;  // 0: no bound
    int64_t end;        // groups of the run: `total`, or fewer by max_steps
    bool trains;        // the run has optim
    int64_t step;       // of optim
    int64_t reissued;   // groups in flight that were issued again
    bool ready;         // optim has sent its POSITION, or there is none
    bool reissue;       // what is in flight is to be issued again: the stages drop what they still have
    bool finished;      // the supervisors were told that the run is finished, or that it is refused
    struct buf refusal; // why the run cannot go on; empty: it can
    struct buf notices; // for the user, not sent yet: the name of a stage and a text, each with its NUL
};

// Tells the user something about a stage, as soon as a supervisor is there.
static void issuer_notify(struct issuer *issuer, const char *stage, const char *text) {
    buf_append(&issuer->notices, stage, strlen(stage) + 1);
    buf_append(&issuer->notices, text, strlen(text) + 1);
}

// ---- opening ----

// Opens RUN/ledger.lmdb. DATAERR when the run was started with other data, UNAVAILABLE when the disk fails.
static status issuer_open(struct node *node) {
    struct stage_context *context = node->context;
    const struct node_config *config = &node->config;
    struct issuer *issuer;
    struct arena memory = {0};
    struct buf described = {0};
    const struct stage *stage = context->stage;
    const struct source_options *options = stage_options(context);
    status result;
    NEW(&issuer, 1);
    node->part = issuer;
    issuer->node = node;
    issuer->per_step = options->groups_per_step;
    issuer->staleness = options->max_staleness;
    issuer->trains = config->trains;
    issuer->ready = issuer->reissue = !config->trains;
    assert(issuer->per_step > 0 && issuer->staleness >= 0);
    struct ledger_config ledger = {.groups_per_step = issuer->trains ? issuer->per_step : 0};
    TRY_TO(result, done, stage->describe(context->state, &issuer->total, &ledger.data, &described));
    ledger.described = described.data;
    // With optim, POSITION says what max_steps amounts to. Without it, a step is per_step groups.
    issuer->max_steps = options->max_steps;
    issuer->epoch = issuer->total / (options->epochs > 0 ? options->epochs : 1);
    issuer->end = issuer->total;
    if (issuer->max_steps && !issuer->trains && issuer->max_steps <= issuer->total / issuer->per_step)
        issuer->end = issuer->max_steps * issuer->per_step;
    const char *path = ledger_path(&memory, config->run_dir, options->common.store);
    TRY_TO(result, done, ledger_open(&issuer->ledger, path, &ledger));
    if (config->settings) {
        bool changed;
        TRY_TO(result, done, ledger_set_settings(issuer->ledger, strtoull(config->settings, NULL, 16), &changed));
        if (changed)
            issuer_notify(issuer, stage->name,
                          "the settings have changed: going over all groups again; what the store has of them with "
                          "these settings is not computed again");
    }
done:
    buf_release(&described);
    arena_release(&memory);
    return result;
}

static void issuer_close(struct node *node) {
    struct issuer *issuer = node->part;
    ledger_close(&issuer->ledger);
    buf_release(&issuer->refusal);
    buf_release(&issuer->notices);
    free(issuer);
    node->part = NULL;
}

// ---- issuing ----

// Puts the group at `seq` into the outbox; `ahead` groups are to be trained before it.
static status issuer_issue(struct issuer *issuer, int64_t seq, int64_t ahead) {
    struct stage_context *context = issuer->node->context;
    const double started = clock_realtime();
    assert(issuer->ready && seq >= 0 && seq < issuer->total && ahead >= 0);
    struct group *group = NULL;
    size_t line;
    TRY(context->stage->group_at(context->state, seq, &group, &line));
    int64_t policy = issuer->trains ? issuer->step + ahead / issuer->per_step - issuer->staleness : 0;
    group->requires.present = true;
    group->requires.policy = group->requires.reference = policy > 0 ? policy : 0;
    group->requires.exact = issuer->trains && issuer->staleness == 0;
    group->requires.order = seq;
    runner_set_times(context, group, started);
    issuer->reissued += ledger_state_of(issuer->ledger, seq) == LEDGER_IN_FLIGHT;
    const status result = ledger_issue(issuer->ledger, seq, group->id.data);
    if (result == OK) io_thread_put(issuer->node->io, group);
    group_free(&group);
    return result;
}

// Issues what may be issued, and tells the supervisor when the run is finished.
static status issuer_tick(void *self) {
    struct issuer *issuer = ((const struct node *)self)->part;
    struct io_thread *io = issuer->node->io;
    struct ledger *ledger = issuer->ledger;
    char summary[512];
    TRY(ledger_tick(ledger, clock_monotonic()));
    const bool supervised = io_thread_is_supervised(io);
    for (size_t at = 0; supervised && at < issuer->notices.size;) {
        const char *stage = issuer->notices.data + at, *text = stage + strlen(stage) + 1;
        const bool own = !strcmp(stage, issuer->node->context->stage->name);
        const struct wire_message notice = {
            .kind = MESSAGE_NOTICE, .name = stage, .replica = own, .machine = "", .reason = text};
        TRY(io_thread_broadcast(io, "report", &notice));
        at += strlen(stage) + strlen(text) + 2;
    }
    if (supervised) buf_clear(&issuer->notices);
    if (supervised && issuer->refusal.size && !issuer->finished) {
        const struct wire_message refused = {.kind = MESSAGE_END, .code = DATAERR, .reason = issuer->refusal.data};
        assert(!issuer->ready);
        issuer->finished = true;
        TRY(io_thread_broadcast(io, "report", &refused));
    }
    if (!issuer->ready) return OK;
    io_thread_set_issue(io, ledger->issue_number, ledger->settled_on_disk);
    if (issuer->reissue) {
        int64_t ahead = 0;
        issuer->reissue = false;
        for (int64_t seq = ledger->settled; seq < issuer->total; seq++)
            if (ledger_state_of(ledger, seq) == LEDGER_IN_FLIGHT) TRY(issuer_issue(issuer, seq, ahead++));
    }
    int64_t in_flight_max = (issuer->staleness + 1) * issuer->per_step;
    if (!issuer->trains && in_flight_max < issuer_in_flight) in_flight_max = issuer_in_flight;
    const int64_t ahead_end = ledger->settled + issuer_ahead * in_flight_max;
    const int64_t issue_end = issuer->end < ahead_end ? issuer->end : ahead_end;
    while (ledger->next_unissued < issue_end && ledger->counts[LEDGER_IN_FLIGHT] < in_flight_max)
        TRY(issuer_issue(issuer, ledger->next_unissued, ledger->counts[LEDGER_IN_FLIGHT]));
    if (issuer->finished || ledger->settled < issuer->end) return OK;
    int64_t unused = ledger->counts[LEDGER_UNUSED], trained = ledger->counts[LEDGER_TRAINED];
    // Every step trains per_step groups. The remainder was quarantined, but optim and the source ended before they
    // could record it.
    int64_t unrecorded = issuer->trains ? trained % issuer->per_step : 0, size = 0;
    const int64_t done = trained - unrecorded, quarantined = ledger->counts[LEDGER_QUARANTINED] + unrecorded;
    // A script must not go on to an evaluation of what was not trained. An evaluation counts what failed as wrong.
    const bool failed = quarantined > done || (issuer->trains && !done && unused);
    issuer->finished = true;
    if (issuer->trains) size = snprintf(summary, sizeof summary, "%lld steps, ", (long long)issuer->step);
    size += snprintf(summary + size, sizeof summary - (size_t)size, "%lld groups %s, %lld quarantined", (long long)done,
                     issuer->trains ? "trained" : "done", (long long)quarantined);
    assert(size > 0 && (size_t)size < sizeof summary);
    if (unused)
        size += snprintf(summary + size, sizeof summary - (size_t)size,
                         ", %lld left over: they did not fill a step of %lld", (long long)unused,
                         (long long)issuer->per_step);
    // A training tries again what it was given after its last step; an evaluation, what its ledger does not have.
    const char *again = !issuer->trains ? "without its ledger.lmdb the same command tries them again; "
                        : done          ? ""
                                        : "the same command tries them again; ";
    if (quarantined > done)
        snprintf(summary + size, sizeof summary - (size_t)size,
                 ": more than half of the samples failed (%ssee %s/logs/source.log)", again,
                 issuer->node->config.run_dir);
    const struct wire_message end = {.kind = MESSAGE_END, .code = failed ? DATAERR : OK, .reason = summary};
    return io_thread_broadcast(io, "report", &end);
}

// ---- messages ----

// Tells optim how many groups there are; without optim the last stage needs no answer.
static status issuer_on_joined(void *self, struct wire_peer *peer) {
    const struct node *node = self;
    struct issuer *issuer = node->part;
    // It may be another process of the supervisor, which does not know the end yet.
    if (!peer->client) issuer->finished = false;
    if (!peer->client || !issuer->trains) return OK;
    const struct wire_message run_info = {.kind = MESSAGE_RUN_INFO,
                                          .count = issuer->total,
                                          .per_step = issuer->per_step,
                                          .max_steps = issuer->max_steps,
                                          .epoch = issuer->epoch,
                                          .seq = issuer->ledger->settled_on_disk};
    return io_thread_reply(node->io, peer, &run_info);
}

// The last stage says what became of a group. DATAERR when there is no such group.
static status issuer_on_settled(void *self, struct wire_peer *peer, const struct wire_message *message) {
    const struct node *node = self;
    struct issuer *issuer = node->part;
    const enum ledger_state state = message->kind == MESSAGE_TRAINED       ? LEDGER_TRAINED
                                    : message->kind == MESSAGE_QUARANTINED ? LEDGER_QUARANTINED
                                                                           : LEDGER_UNUSED;
    (void)peer;
    const struct ledger_entry entry = {.seq = message->seq,
                                       .state = state,
                                       .step = state == LEDGER_TRAINED ? message->step : -1,
                                       .id = *message->id ? message->id : NULL,
                                       .stage = message->name,
                                       .reason = message->reason};
    bool newly_settled = false;
    if (message->seq < 0 || message->seq >= issuer->total)
        return fail(DATAERR, "%s reported group %lld, but the data set has %lld",
                    issuer->trains ? "optim" : "the last stage", (long long)message->seq, (long long)issuer->total);
    TRY(ledger_settle(issuer->ledger, &entry, &newly_settled));
    if (state == LEDGER_TRAINED && issuer->step < message->step) issuer->step = message->step;
    if (!newly_settled || state != LEDGER_QUARANTINED) return OK;
    if (issuer->max_steps && issuer->trains && issuer->end < issuer->total) issuer->end++; // another one fills the step
    // Which sample it is: "sample 99, line 7 of train.jsonl".
    const struct stage_context *context = node->context;
    const struct source_options *options = stage_options(context);
    struct buf text = {0};
    struct group *group;
    size_t line = 0;
    TRY(context->stage->group_at(context->state, message->seq, &group, &line));
    const bool named = group->sample_id.data;
    buf_printf(&text, "%s %.200s", named ? "sample" : "group", named ? group->sample_id.data : group->id.data);
    if (line) buf_printf(&text, ", line %zu of %.200s", line, path_base_name(options->data));
    group_free(&group);
    buf_printf(&text, ": %.1000s", message->reason); // a string of a message has at most 4,000 bytes
    log_info("quarantined %s: %s: %s", message->id, message->name, text.data);
    issuer_notify(issuer, message->name, text.data);
    // Ends a training if it is one of too many in a row.
    int64_t first = message->seq, end = message->seq + 1;
    while (first > 0 && ledger_state_of(issuer->ledger, first - 1) == LEDGER_QUARANTINED) first--;
    while (ledger_state_of(issuer->ledger, end) == LEDGER_QUARANTINED) end++;
    if (issuer->trains && end - first >= issuer_failed_in_a_row && !issuer->refusal.size) {
        issuer->ready = false;
        buf_printf(&issuer->refusal, "%lld samples in a row failed, the last one: %s (see %.1000s/logs/source.log)",
                   (long long)(end - first), text.data, node->config.run_dir);
    }
    buf_release(&text);
    return OK;
}

static int64_t issuer_trained_steps(const struct issuer *issuer) {
    return (issuer->ledger->counts[LEDGER_TRAINED] + issuer->per_step - 1) / issuer->per_step;
}

// Optim says where it begins.
static status issuer_on_position(void *self, struct wire_peer *peer, const struct wire_message *message) {
    struct issuer *issuer = ((const struct node *)self)->part;
    const int64_t seq = message->seq;
    char text[160];
    (void)peer;
    if (!issuer->trains) return OK;
    const int64_t trained = issuer_trained_steps(issuer);
    issuer->finished = false;
    buf_clear(&issuer->refusal);
    if (seq == -1 && trained > 0) {
        // It was probably started with another directory: its checkpoints still exist.
        issuer->ready = false;
        buf_printf(&issuer->refusal,
                   "optim's directory is empty, but the ledger has %lld trained steps: start optim with the "
                   "directory of its checkpoints, or remove %.1000s/ledger.lmdb to train from the beginning",
                   (long long)trained, issuer->node->config.run_dir);
        return OK;
    }
    TRY(ledger_rewind_to(issuer->ledger, seq == -1 ? 0 : seq));
    issuer->step = message->step;
    if (issuer->max_steps) issuer->end = message->count < issuer->total ? message->count : issuer->total;
    issuer->ready = issuer->reissue = true;
    const int64_t lost = trained - issuer_trained_steps(issuer);
    if (lost <= 0) return OK;
    snprintf(text, sizeof text,
             "optim goes back from step %lld to step %lld: the steps since its newest checkpoint are trained again",
             (long long)message->step + (long long)lost, (long long)message->step);
    log_info("%s", text);
    issuer_notify(issuer, ((const struct node *)self)->context->stage->name, text);
    return OK;
}

// ---- counters ----

// Sets the source's counters.
static void issuer_report(void *self, struct message_status *counters) {
    const struct issuer *issuer = ((const struct node *)self)->part;
    const struct ledger *ledger = issuer->ledger;
    counters->total = issuer->end;
    counters->settled = ledger->settled;
    counters->step = issuer->step;
    counters->held = ledger->counts[LEDGER_IN_FLIGHT];
    counters->run_quarantined = ledger->counts[LEDGER_QUARANTINED];
    counters->run_unused = ledger->counts[LEDGER_UNUSED];
    counters->done = ledger->counts[LEDGER_TRAINED];
    counters->reissued = issuer->reissued;
    if (!issuer->ready) {
        counters->state = "waits for optim";
    } else if (counters->settled >= issuer->end) {
        counters->state = "finished";
    } else {
        const char *full = issuer->trains ? "waits for a step" : "enough in flight";
        counters->state = ledger->next_unissued >= issuer->end ? "all issued" : full;
    }
}

const struct role source_role = {
    .hooks = {.peers = {{.purpose = "report", .joined = issuer_on_joined},
                        {.purpose = "ledger", .clients = true, .joined = issuer_on_joined}},
              .messages = {[MESSAGE_POSITION] = issuer_on_position,
                           [MESSAGE_TRAINED] = issuer_on_settled,
                           [MESSAGE_QUARANTINED] = issuer_on_settled,
                           [MESSAGE_UNUSED] = issuer_on_settled},
              .tick = issuer_tick,
              .report = issuer_report},
    .no_worker = true,
    .open = issuer_open,
    .close = issuer_close,
};
