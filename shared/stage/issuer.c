#include "shared/stage/issuer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/times.h"
#include "shared/store/ledger.h"
#include "shared/wire/seq_set.h"

enum { PATIENCE = 1800 }; // seconds without news after which everything in flight is issued again

struct issuer {
    struct stage_context *context;
    struct io_thread **io;
    struct ledger *ledger;
    int64_t total, per_step, staleness;
    int64_t step;      // optim's
    bool ready;        // optim has said where it stands
    bool reissue;      // everything in flight is to be issued again
    struct buf flying; // orders, as text
    bool finished;     // and the supervisors know
    double news;       // when optim was last heard
};

// ---- opening ----

status issuer_open(struct issuer **out, struct stage_context *context, const struct node_config *config) {
    const struct source_options *options = stage_options(context);
    struct issuer *issuer;
    struct arena memory = {0};
    status result;
    *out = NULL;
    TRY(NEW(&issuer, 1));
    issuer->context = context;
    issuer->per_step = options->groups_per_step;
    issuer->staleness = options->max_staleness;
    issuer->news = clock_monotonic();
    TRY_TO(result, fail, context->stage->count(context->state, &issuer->total));
    char *path = path_join(&memory, config->folder, "ledger.lmdb");
    TRY_TO(result, fail, path ? OK : fail_oom());
    uint64_t data = context->stage->fingerprint ? context->stage->fingerprint(context->state) : 0;
    const struct ledger_config run = {.data = data, .groups_per_step = issuer->per_step};
    TRY_TO(result, fail, ledger_open(&issuer->ledger, path, &run));
    arena_release(&memory);
    *out = issuer;
    return OK;
fail:
    arena_release(&memory);
    issuer_close(&issuer);
    return result;
}

void issuer_close(struct issuer **issuer) {
    if (!*issuer) return;
    ledger_close(&(*issuer)->ledger);
    buf_release(&(*issuer)->flying);
    free(*issuer);
    *issuer = NULL;
}

void issuer_connect(struct issuer *issuer, struct io_thread **io) {
    issuer->io = io;
}

// ---- issuing ----

static int64_t cap(const struct issuer *issuer) {
    return (issuer->staleness + 1) * issuer->per_step;
}

// Makes the group of that order, `ahead` groups of which optim has yet to train, and puts it into the flow.
static status issue(struct issuer *issuer, int64_t seq, int64_t ahead) {
    struct stage_context *context = issuer->context;
    double started = clock_realtime();
    struct group *group = NULL;
    status result = context->stage->group_at(context->state, seq, &group);
    if (result != OK) return result;
    int64_t policy = issuer->step + ahead / issuer->per_step - issuer->staleness;
    group->requires.present = true;
    group->requires.policy = group->requires.reference = policy > 0 ? policy : 0;
    group->requires.exact = issuer->staleness == 0;
    group->requires.order = seq;
    result = times_add(group, context->stage->name, started, clock_realtime());
    if (result == OK) result = ledger_issue(issuer->ledger, seq, group->id.data);
    if (result == OK) result = io_thread_put(*issuer->io, group);
    group_free(&group);
    return result;
}

static status issue_again(struct issuer *issuer) {
    int64_t ahead = 0, end = ledger_next_unissued(issuer->ledger);
    issuer->reissue = false;
    for (int64_t seq = ledger_settled(issuer->ledger); seq < end; seq++) {
        enum ledger_state state = ledger_state_of(issuer->ledger, seq);
        if (state == LEDGER_IN_FLIGHT || state == LEDGER_NEW) TRY(issue(issuer, seq, ahead++));
    }
    return OK;
}

static status issue_fresh(struct issuer *issuer) {
    for (;;) {
        int64_t seq = ledger_next_unissued(issuer->ledger), flying = ledger_in_flight(issuer->ledger);
        if (seq >= issuer->total || flying >= cap(issuer)) return OK;
        TRY(issue(issuer, seq, flying));
    }
}

// ---- hearing ----

status issuer_joined(struct issuer *issuer, struct wire *wire, struct wire_peer *peer) {
    const char *purpose = wire_peer_purpose(peer);
    if (!strcmp(purpose, "report")) issuer->finished = false;
    if (strcmp(purpose, "ledger") != 0 || !strcmp(wire_peer_name(peer), SUPERVISOR_NAME)) return OK;
    const struct wire_message plan = {.kind = MESSAGE_RUN_INFO,
                                      .count = issuer->total,
                                      .per_step = issuer->per_step,
                                      .seq = ledger_settled(issuer->ledger)};
    return wire_send(wire, peer, &plan, NULL);
}

static status hear_at(struct issuer *issuer, const struct wire_message *message) {
    if (message->seq < ledger_settled(issuer->ledger))
        log_info("going back to group %lld, step %lld", (long long)message->seq, (long long)message->step);
    TRY(ledger_rewind_to(issuer->ledger, message->seq));
    issuer->step = message->step;
    issuer->ready = issuer->reissue = true;
    issuer->finished = false;
    return OK;
}

static status settle(struct issuer *issuer, const struct wire_message *message, enum ledger_state state) {
    const struct ledger_entry entry = {.seq = message->seq,
                                       .state = state,
                                       .step = state == LEDGER_TRAINED ? message->step : -1,
                                       .id = message->id,
                                       .stage = message->name,
                                       .reason = message->reason};
    bool news = false;
    if (message->seq < 0 || message->seq >= issuer->total)
        return fail(DATAERR, "optim speaks of group %lld, which there is not", (long long)message->seq);
    TRY(ledger_settle(issuer->ledger, &entry, &news));
    if (state == LEDGER_TRAINED && issuer->step < message->step) issuer->step = message->step;
    issuer->news = clock_monotonic();
    if (!news || state != LEDGER_QUARANTINED) return OK;
    const struct wire_message notice = {
        .kind = MESSAGE_NOTICE, .name = message->name, .replica = 0, .machine = "", .reason = message->reason};
    log_info("quarantined %s: %s: %s", message->id, message->name, message->reason);
    return io_thread_broadcast(*issuer->io, "report", &notice);
}

// One group may have been lost; what it needs of optim is what it needed before.
static status hear_reissue(struct issuer *issuer, const struct wire_message *message) {
    int64_t ahead = 0;
    if (message->seq < 0) issuer->reissue = true;
    if (message->seq < 0 || !issuer->ready || ledger_state_of(issuer->ledger, message->seq) != LEDGER_IN_FLIGHT)
        return OK;
    log_info("issuing group %lld again: %s", (long long)message->seq, message->reason);
    for (int64_t seq = ledger_settled(issuer->ledger); seq < message->seq; seq++)
        if (ledger_state_of(issuer->ledger, seq) == LEDGER_IN_FLIGHT) ahead++;
    return issue(issuer, message->seq, ahead);
}

status issuer_said(struct issuer *issuer, struct wire *wire, struct wire_peer *peer,
                   const struct wire_message *message) {
    (void)wire;
    (void)peer;
    switch (message->kind) {
    case MESSAGE_POSITION:
        return hear_at(issuer, message);
    case MESSAGE_TRAINED:
        return settle(issuer, message, LEDGER_TRAINED);
    case MESSAGE_QUARANTINED:
        return settle(issuer, message, LEDGER_QUARANTINED);
    case MESSAGE_UNUSED:
        return settle(issuer, message, LEDGER_UNUSED);
    case MESSAGE_REISSUE:
        return hear_reissue(issuer, message);
    default:
        return OK;
    }
}

static status say_finished(struct issuer *issuer) {
    char summary[256];
    if (issuer->finished || ledger_settled(issuer->ledger) < issuer->total) return OK;
    int64_t left = ledger_count(issuer->ledger, LEDGER_UNUSED), trained = ledger_count(issuer->ledger, LEDGER_TRAINED);
    // Every step trains per_step groups, so what is over was put aside while neither optim nor we lived to note it.
    int64_t unnoted = trained % issuer->per_step;
    issuer->finished = true;
    int size = snprintf(summary, sizeof summary, "%lld steps, %lld groups trained, %lld quarantined",
                        (long long)issuer->step, (long long)(trained - unnoted),
                        (long long)(ledger_count(issuer->ledger, LEDGER_QUARANTINED) + unnoted));
    if (left)
        snprintf(summary + size, sizeof summary - (size_t)size, ", %lld left over: they did not fill a step of %lld",
                 (long long)left, (long long)issuer->per_step);
    const struct wire_message end = {.kind = MESSAGE_END, .code = 0, .reason = summary};
    return io_thread_broadcast(*issuer->io, "report", &end);
}

status issuer_tick(struct issuer *issuer, struct wire *wire) {
    (void)wire;
    if (!issuer->ready) return OK;
    if (clock_monotonic() - issuer->news > PATIENCE) {
        issuer->news = clock_monotonic();
        issuer->reissue = true;
    }
    if (issuer->reissue) TRY(issue_again(issuer));
    TRY(issue_fresh(issuer));
    return say_finished(issuer);
}

static status list_flying(struct issuer *issuer) {
    int64_t *seqs = NULL;
    size_t count = 0;
    TRY(NEW(&seqs, (size_t)ledger_in_flight(issuer->ledger)));
    for (int64_t seq = ledger_settled(issuer->ledger); seq < ledger_next_unissued(issuer->ledger); seq++)
        if (ledger_state_of(issuer->ledger, seq) == LEDGER_IN_FLIGHT) seqs[count++] = seq;
    buf_clear(&issuer->flying);
    status result = seq_set_format(seqs, count, &issuer->flying);
    free(seqs);
    return result;
}

void issuer_report(struct issuer *issuer, struct message_status *status) {
    status->in_flight = issuer->ready && list_flying(issuer) == OK ? issuer->flying.data : "";
    status->total = issuer->total;
    status->settled = ledger_settled(issuer->ledger);
    status->step = issuer->step;
    status->held = ledger_in_flight(issuer->ledger);
    status->run_quarantined = ledger_count(issuer->ledger, LEDGER_QUARANTINED);
    status->run_unused = ledger_count(issuer->ledger, LEDGER_UNUSED);
    status->done = ledger_count(issuer->ledger, LEDGER_TRAINED);
    if (!issuer->ready) {
        status->state = "waits for optim";
    } else if (status->settled >= issuer->total) {
        status->state = "finished";
    } else {
        status->state =
            ledger_next_unissued(issuer->ledger) >= issuer->total ? "all issued" : "at the bound of staleness";
    }
}
