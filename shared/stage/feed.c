#include "shared/stage/feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/times.h"
#include "shared/store/ledger.h"
#include "shared/wire/seq_set.h"

enum { PATIENCE = 1800 }; // seconds without news after which everything in flight is issued again

struct feed {
    struct stage_context *context;
    struct hub **hub;
    struct ledger *ledger;
    int64_t total, per_step, staleness;
    int64_t step;      // optim's
    bool ready;        // optim has said where it stands
    bool reissue;      // everything in flight is to be issued again
    struct buf flying; // orders, as text
    bool finished;     // and the supervisors know
    time_t news;       // when optim was last heard
};

// ---- opening ----

status feed_open(struct feed **out, struct stage_context *context, const struct node_config *config) {
    struct feed *feed;
    struct arena memory = {0};
    status result;
    *out = NULL;
    TRY(NEW(&feed, 1));
    feed->context = context;
    feed->per_step = settings_int(context->settings, "groups_per_step");
    feed->staleness = settings_int(context->settings, "max_staleness");
    feed->news = time(NULL);
    TRY_TO(result, fail, context->stage->count(context->state, &feed->total));
    char *path = path_join(&memory, config->folder, "ledger.lmdb");
    TRY_TO(result, fail, path ? OK : fail_oom());
    uint64_t data = context->stage->version ? context->stage->version(context->state) : 0;
    const struct ledger_config run = {.data = data, .groups_per_step = feed->per_step};
    TRY_TO(result, fail, ledger_open(&feed->ledger, path, &run));
    arena_release(&memory);
    *out = feed;
    return OK;
fail:
    arena_release(&memory);
    feed_close(&feed);
    return result;
}

void feed_close(struct feed **feed) {
    if (!*feed) return;
    ledger_close(&(*feed)->ledger);
    buf_release(&(*feed)->flying);
    free(*feed);
    *feed = NULL;
}

void feed_connect(struct feed *feed, struct hub **hub) {
    feed->hub = hub;
}

// ---- issuing ----

static int64_t cap(const struct feed *feed) {
    return (feed->staleness + 1) * feed->per_step;
}

// Makes the group of that order, `ahead` groups of which optim has yet to train, and puts it into the flow.
static status issue(struct feed *feed, int64_t seq, int64_t ahead) {
    struct stage_context *context = feed->context;
    double started = runner_clock();
    struct group *group = NULL;
    status result = context->stage->make(context->state, seq, &group);
    if (result != OK) return result;
    int64_t policy = feed->step + ahead / feed->per_step - feed->staleness;
    group->requires.present = true;
    group->requires.policy = group->requires.reference = policy > 0 ? policy : 0;
    group->requires.exact = feed->staleness == 0;
    group->requires.order = seq;
    result = times_add(group, context->stage->name, started, runner_clock());
    if (result == OK) result = ledger_issue(feed->ledger, seq, group->id.data);
    if (result == OK) result = hub_put(*feed->hub, group);
    group_free(&group);
    return result;
}

static status issue_again(struct feed *feed) {
    int64_t ahead = 0, end = ledger_next_unissued(feed->ledger);
    feed->reissue = false;
    for (int64_t seq = ledger_settled(feed->ledger); seq < end; seq++) {
        enum ledger_state state = ledger_state_of(feed->ledger, seq);
        if (state == LEDGER_IN_FLIGHT || state == LEDGER_NEW) TRY(issue(feed, seq, ahead++));
    }
    return OK;
}

static status issue_fresh(struct feed *feed) {
    for (;;) {
        int64_t seq = ledger_next_unissued(feed->ledger), flying = ledger_in_flight(feed->ledger);
        if (seq >= feed->total || flying >= cap(feed)) return OK;
        TRY(issue(feed, seq, flying));
    }
}

// ---- hearing ----

status feed_joined(struct feed *feed, struct wire *wire, struct wire_peer *peer) {
    const char *purpose = wire_peer_purpose(peer);
    if (!strcmp(purpose, "report")) feed->finished = false;
    if (strcmp(purpose, "ledger") != 0 || !strcmp(wire_peer_name(peer), SUPERVISOR_NAME)) return OK;
    const struct wire_message plan = {.kind = MESSAGE_RUN_INFO,
                                      .count = feed->total,
                                      .per_step = feed->per_step,
                                      .seq = ledger_settled(feed->ledger)};
    return wire_send(wire, peer, &plan, NULL);
}

static status hear_at(struct feed *feed, const struct wire_message *message) {
    if (message->seq < ledger_settled(feed->ledger))
        log_info("going back to group %lld, step %lld", (long long)message->seq, (long long)message->step);
    TRY(ledger_rewind_to(feed->ledger, message->seq));
    feed->step = message->step;
    feed->ready = feed->reissue = true;
    feed->finished = false;
    return OK;
}

static status settle(struct feed *feed, const struct wire_message *message, enum ledger_state state) {
    const struct ledger_entry entry = {.seq = message->seq,
                                       .state = state,
                                       .step = state == LEDGER_TRAINED ? message->step : -1,
                                       .id = message->id,
                                       .stage = message->name,
                                       .reason = message->reason};
    bool news = false;
    if (message->seq < 0 || message->seq >= feed->total)
        return fail(DATAERR, "optim speaks of group %lld, which there is not", (long long)message->seq);
    TRY(ledger_settle(feed->ledger, &entry, &news));
    if (state == LEDGER_TRAINED && feed->step < message->step) feed->step = message->step;
    feed->news = time(NULL);
    if (!news || state != LEDGER_QUARANTINED) return OK;
    const struct wire_message notice = {
        .kind = MESSAGE_NOTICE, .name = message->name, .replica = 0, .machine = "", .reason = message->reason};
    log_info("quarantined %s: %s: %s", message->id, message->name, message->reason);
    return hub_post(*feed->hub, "report", &notice);
}

// One group may have been lost; what it needs of optim is what it needed before.
static status hear_reissue(struct feed *feed, const struct wire_message *message) {
    int64_t ahead = 0;
    if (message->seq < 0) feed->reissue = true;
    if (message->seq < 0 || !feed->ready || ledger_state_of(feed->ledger, message->seq) != LEDGER_IN_FLIGHT) return OK;
    log_info("issuing group %lld again: %s", (long long)message->seq, message->reason);
    for (int64_t seq = ledger_settled(feed->ledger); seq < message->seq; seq++)
        if (ledger_state_of(feed->ledger, seq) == LEDGER_IN_FLIGHT) ahead++;
    return issue(feed, message->seq, ahead);
}

status feed_said(struct feed *feed, struct wire *wire, struct wire_peer *peer, const struct wire_message *message) {
    (void)wire;
    (void)peer;
    switch (message->kind) {
    case MESSAGE_POSITION:
        return hear_at(feed, message);
    case MESSAGE_TRAINED:
        return settle(feed, message, LEDGER_TRAINED);
    case MESSAGE_QUARANTINED:
        return settle(feed, message, LEDGER_QUARANTINED);
    case MESSAGE_UNUSED:
        return settle(feed, message, LEDGER_UNUSED);
    case MESSAGE_REISSUE:
        return hear_reissue(feed, message);
    default:
        return OK;
    }
}

static status say_finished(struct feed *feed) {
    char summary[256];
    if (feed->finished || ledger_settled(feed->ledger) < feed->total) return OK;
    int64_t left = ledger_count(feed->ledger, LEDGER_UNUSED), trained = ledger_count(feed->ledger, LEDGER_TRAINED);
    // Every step trains per_step groups, so what is over was put aside while neither optim nor we lived to note it.
    int64_t unnoted = trained % feed->per_step;
    feed->finished = true;
    int size =
        snprintf(summary, sizeof summary, "%lld steps, %lld groups trained, %lld quarantined", (long long)feed->step,
                 (long long)(trained - unnoted), (long long)(ledger_count(feed->ledger, LEDGER_QUARANTINED) + unnoted));
    if (left)
        snprintf(summary + size, sizeof summary - (size_t)size, ", %lld left over: they did not fill a step of %lld",
                 (long long)left, (long long)feed->per_step);
    const struct wire_message end = {.kind = MESSAGE_END, .code = 0, .reason = summary};
    return hub_post(*feed->hub, "report", &end);
}

status feed_tick(struct feed *feed, struct wire *wire) {
    (void)wire;
    if (!feed->ready) return OK;
    if (time(NULL) - feed->news > PATIENCE) {
        feed->news = time(NULL);
        feed->reissue = true;
    }
    if (feed->reissue) TRY(issue_again(feed));
    TRY(issue_fresh(feed));
    return say_finished(feed);
}

static status list_flying(struct feed *feed) {
    int64_t *seqs = NULL;
    size_t count = 0;
    TRY(NEW(&seqs, (size_t)ledger_in_flight(feed->ledger)));
    for (int64_t seq = ledger_settled(feed->ledger); seq < ledger_next_unissued(feed->ledger); seq++)
        if (ledger_state_of(feed->ledger, seq) == LEDGER_IN_FLIGHT) seqs[count++] = seq;
    buf_clear(&feed->flying);
    status result = seq_set_format(seqs, count, &feed->flying);
    free(seqs);
    return result;
}

void feed_report(struct feed *feed, struct message_status *status) {
    status->in_flight = feed->ready && list_flying(feed) == OK ? feed->flying.data : "";
    status->total = feed->total;
    status->settled = ledger_settled(feed->ledger);
    status->step = feed->step;
    status->held = ledger_in_flight(feed->ledger);
    status->run_quarantined = ledger_count(feed->ledger, LEDGER_QUARANTINED);
    status->run_unused = ledger_count(feed->ledger, LEDGER_UNUSED);
    status->done = ledger_count(feed->ledger, LEDGER_TRAINED);
    if (!feed->ready) {
        status->state = "waits for optim";
    } else if (status->settled >= feed->total) {
        status->state = "finished";
    } else {
        status->state = ledger_next_unissued(feed->ledger) >= feed->total ? "all issued" : "at the bound of staleness";
    }
}
