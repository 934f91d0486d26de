// A table with a row for each replica, filled from the STATUS messages. It knows nothing of processes or sockets, and
// time is what its callers say.
//
// Rates are those of the last minute. They are taken from samples of the reports over `up`, the reporting process's own
// clock, so that a report that comes late changes nothing. A process that is silent is taken to do nothing meanwhile.
#include "tools/run/run_status.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SILENT_SECONDS = 5 }; // age of a report from which on its replica is shown as silent

// A stage has had a group for too long when it is so many times the typical time and more than so many seconds; if
// no time is typical yet, after more seconds.
enum { SLOW_TIMES = 5, SLOW_SECONDS = 30, SLOW_UNKNOWN_SECONDS = 300 };

enum { STILL_SECONDS = 30 }; // without a finished group, after which a run in which nobody is at work stands still

// ---- rate_window ----

// The counters of a process in the last minutes, from which rates follow that are those of now and not of the whole
// run: a short array, to which a sample is added every few seconds.

enum { RATE_SAMPLES = 32, MINUTE = 60, SAMPLE_SECONDS = 2 };
enum { PROGRESS_SAMPLE_SECONDS = 10, LEFT_SECONDS = 300, PROGRESS_CHANGES = 3 };
static_assert(RATE_SAMPLES > MINUTE / SAMPLE_SECONDS, "the samples cover the last minute");
static_assert(RATE_SAMPLES > LEFT_SECONDS / PROGRESS_SAMPLE_SECONDS, "the samples cover what the time left is from");

struct rate_sample {
    double time; // seconds, of the process's own clock
    int64_t done, tokens, worked;
    double busy, work_seconds;
};

// A zeroed struct is an empty window.
struct rate_window {
    struct rate_sample samples[RATE_SAMPLES]; // the oldest first
    size_t count;
};

// Adds a sample unless the newest one is less than `spacing` seconds older. A full window loses its oldest one.
static void rate_window_add(struct rate_window *window, const struct rate_sample *sample, double spacing) {
    struct rate_sample *samples = window->samples;
    assert(window->count <= RATE_SAMPLES);
    if (window->count && sample->time - samples[window->count - 1].time < spacing) return;
    if (window->count == RATE_SAMPLES) memmove(samples, samples + 1, --window->count * sizeof *samples);
    samples[window->count++] = *sample;
}

// Returns the sample from which on to count at `time`: the newest one that is at least `seconds` old and has at least
// `later` samples after it, else the oldest one. The window is not empty. Valid until the next rate_window_add.
static const struct rate_sample *rate_window_start(const struct rate_window *window, double time, double seconds,
                                                   size_t later) {
    size_t start = window->count > later ? window->count - 1 - later : 0;
    assert(window->count > 0);
    while (start > 0 && time - window->samples[start].time < seconds) start--;
    return &window->samples[start];
}

// ---- run_status ----

struct row {
    const struct replica *replica;
    bool known;                   // it has reported since it was last forgotten
    double reported;              // seconds
    struct message_status report; // its strings are those below
    char state[64], given_stage[64];
    double done_at;            // when it last finished a group, in seconds; below 0: never
    struct rate_window window; // of this process
    double typical;            // seconds for a group in the process before this one, -1: unknown
    int64_t restarts;
    int64_t slow_seq; // the group that was last found to be slow, -1: none
    double slow_age;  // its age then, seconds
};

struct run_status {
    const struct deployment *deployment;
    struct row *rows; // in the order of the stages: the source first, optim (if there is one) last
    size_t count;
    double still;                // seconds without a group when this was last found, 0: not
    struct rate_window progress; // of the source: a sample for each change; empty before groups are in flight
};

void run_status_new(struct run_status **out, const struct deployment *deployment) {
    struct run_status *run_status;
    *out = NULL;
    NEW(&run_status, 1);
    NEW(&run_status->rows, deployment->count);
    run_status->deployment = deployment;
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        if (!replica->stage) continue;
        run_status->rows[run_status->count++] =
            (struct row){.replica = replica, .typical = -1, .slow_seq = -1, .done_at = -1};
    }
    assert(run_status->count > 0);
    *out = run_status;
}

void run_status_free(struct run_status **run_status) {
    if (!*run_status) return;
    free((*run_status)->rows);
    free(*run_status);
    *run_status = NULL;
}

static bool row_is_source(const struct row *row) {
    return !strcmp(row->replica->stage->name, "source");
}

static struct row *run_status_row(const struct run_status *run_status, const struct replica *replica) {
    for (size_t i = 0; i < run_status->count; i++)
        if (run_status->rows[i].replica == replica) return &run_status->rows[i];
    return NULL;
}

// Returns the source's row if it has ever reported, else NULL.
static const struct row *run_status_source(const struct run_status *run_status) {
    const struct row *row = &run_status->rows[0];
    return row_is_source(row) && row->window.count ? row : NULL;
}

// The groups that the run is done with, in any order.
static int64_t run_status_settled(const struct message_status *source) {
    return source->done + source->run_quarantined + source->run_unused;
}

// ---- the last minute ----

// The `up` of the row's process now.
static double row_time(const struct row *row, double now) {
    return row->report.up + now - row->reported;
}

static struct rate_sample row_sample(const struct row *row) {
    const struct message_status *report = &row->report;
    return (struct rate_sample){.time = report->up,
                                .done = row_is_source(row) ? run_status_settled(report) : report->done,
                                .tokens = report->tokens,
                                .worked = report->worked,
                                .busy = report->busy,
                                .work_seconds = report->work_seconds};
}

// Returns the seconds that a group takes: the mean of the last minute, else since the process started, else what was
// known of the process before it; -1: unknown.
static double row_typical(const struct row *row, double now) {
    if (!row->window.count) return row->typical;
    const struct message_status *report = &row->report;
    const struct rate_sample *start = rate_window_start(&row->window, row_time(row, now), MINUTE, 0);
    if (report->worked > start->worked)
        return (report->work_seconds - start->work_seconds) / (double)(report->worked - start->worked);
    return report->worked > 0 ? report->work_seconds / (double)report->worked : row->typical;
}

// Returns the groups a second that the run has settled in the last `seconds`, 0 if there is none. As groups are settled
// a step at a time, and a step may take longer than that, at least the last changes count.
static double run_status_rate(const struct run_status *run_status, double now, double seconds) {
    const struct rate_window *progress = &run_status->progress;
    const struct row *source = &run_status->rows[0];
    const double time = row_time(source, now);
    if (!progress->count) return 0;
    const struct rate_sample *start = rate_window_start(progress, time, seconds, PROGRESS_CHANGES);
    if (time - start->time < 1) return 0;
    return (double)(run_status_settled(&source->report) - start->done) / (time - start->time);
}

// ---- reports ----

void run_status_update(struct run_status *run_status, const struct wire_message *message, double now) {
    struct row *row =
        run_status_row(run_status, deployment_find(run_status->deployment, message->name, (int)message->replica));
    const struct message_status *report = &message->counters;
    struct rate_window *progress = &run_status->progress;
    if (!row) return;
    const bool source = row_is_source(row);
    // From another process than the last one, or its counters have gone back as the source's do when optim goes back.
    const bool anew = !row->window.count || report->pid != row->report.pid || report->up < row->report.up ||
                      report->done < row->report.done;
    if (!row->known && !anew) return; // of a process that has ended meanwhile
    if (anew) {
        row->typical = row_typical(row, now);
        row->window.count = 0;
        row->slow_seq = -1;
    }
    snprintf(row->state, sizeof row->state, "%s", report->state);
    snprintf(row->given_stage, sizeof row->given_stage, "%s", report->given_stage);
    row->report = *report;
    row->report.state = row->state;
    row->report.given_stage = row->given_stage;
    if (report->done_age >= 0) row->done_at = now - report->done_age;
    row->restarts = report->restarts;
    row->known = true;
    row->reported = now;
    const struct rate_sample zero = {0}, sample = row_sample(row);
    // Of all stages but the source, whose counts are the run's, it is known that they began with 0.
    if (!row->window.count && !source) rate_window_add(&row->window, &zero, 0);
    rate_window_add(&row->window, &sample, row->window.count == 1 ? 0 : SAMPLE_SECONDS);
    if (source && anew) progress->count = 0;
    if (source && (progress->count ? progress->samples[progress->count - 1].done != sample.done : row->report.held))
        rate_window_add(progress, &sample, PROGRESS_SAMPLE_SECONDS);
}

bool run_status_replay(const struct run_status *run_status, size_t index, double now, struct wire_message *out) {
    const struct row *row = &run_status->rows[index];
    assert(index < run_status->count);
    if (!row->known) return false;
    const struct rate_sample *start = rate_window_start(&row->window, row->report.up, MINUTE, 0);
    *out = (struct wire_message){.kind = MESSAGE_STATUS,
                                 .name = replica_stage(row->replica),
                                 .replica = row->replica->number,
                                 .machine = deployment_machine(run_status->deployment, row->replica->machine),
                                 .counters = row->report};
    const double late = now - row->reported;
    if (late > SILENT_SECONDS) out->counters.state = "silent";
    if (row->report.oldest_age >= 0) out->counters.oldest_age += late;
    if (row->report.done_age >= 0) out->counters.done_age += late;
    // What a settled group has become since then does not matter here.
    out->counters.done = start->done - (row_is_source(row) ? row->report.run_quarantined + row->report.run_unused : 0);
    out->counters.tokens = start->tokens;
    out->counters.worked = start->worked;
    out->counters.up = start->time;
    out->counters.busy = start->busy;
    out->counters.work_seconds = start->work_seconds;
    return true;
}

void run_status_forget(struct run_status *run_status, const struct replica *replica) {
    struct row *row = run_status_row(run_status, replica);
    if (row) row->known = false;
}

void run_status_restarted(struct run_status *run_status, const struct replica *replica) {
    struct row *row = run_status_row(run_status, replica);
    if (row) row->restarts++;
}

int64_t run_status_restarts(const struct run_status *run_status, const struct replica *replica) {
    const struct row *row = run_status_row(run_status, replica);
    return row ? row->restarts : 0;
}

// ---- conclusions ----

size_t run_status_count(const struct run_status *run_status) {
    return run_status->count;
}

void run_status_replica(const struct run_status *run_status, size_t index, double now, struct replica_status *out) {
    const struct row *row = &run_status->rows[index];
    const struct message_status *report = &row->report;
    assert(index < run_status->count);
    *out = (struct replica_status){.name = row->replica->name,
                                   .stage = row->replica->stage->name,
                                   .machine = deployment_machine(run_status->deployment, row->replica->machine),
                                   .number = row->replica->number,
                                   .restarts = row->restarts,
                                   .state = "starting",
                                   .oldest_age = -1,
                                   .typical = row_typical(row, now)};
    if (row->window.count) out->report = report;
    if (!row->known) return;
    out->alive = now - row->reported <= SILENT_SECONDS;
    out->state = out->alive ? report->state : "silent";
    if (report->oldest_age >= 0) out->oldest_age = report->oldest_age + now - row->reported;
    const struct rate_sample *start = rate_window_start(&row->window, row_time(row, now), MINUTE, 0),
                             end = row_sample(row);
    const double seconds = row_time(row, now) - start->time, busy = end.busy - start->busy;
    if (seconds > 0) out->rate = (double)(end.done - start->done) / seconds;
    if (seconds > 0) out->busy = busy / seconds;
    if (busy > 0) out->tokens_rate = (double)(end.tokens - start->tokens) / busy;
}

// Whether the replica has a group and is at work on it. Who waits for more groups, as optim does in the middle of a
// step, is not slow.
static bool run_status_is_at_work(const struct replica_status *replica) {
    return replica->oldest_age >= 0 && replica->report && strcmp(replica->report->state, "waits for groups") != 0;
}

void run_status_summary(const struct run_status *run_status, double now, struct run_summary *out) {
    const double least = 0.02; // of the minute: so long at least a stage is at work that is a bottleneck
    const struct row *source = run_status_source(run_status), *optim = &run_status->rows[run_status->count - 1];
    while (replica_follows(optim->replica)) optim--; // only the first rank knows what was trained
    *out = (struct run_summary){.name = run_status->deployment->pipeline->name,
                                .trains = pipeline_optim(run_status->deployment->pipeline) != NULL,
                                .left = -1,
                                .reward = optim->window.count ? optim->report.reward : NAN,
                                .accuracy = optim->window.count ? optim->report.accuracy : NAN,
                                .failed_saves = optim->window.count ? optim->report.failed_saves : 0};
    out->oldest.oldest_age = -1;
    for (size_t i = 0, end; i < run_status->count; i = end) {
        const struct pipeline_stage *stage = run_status->rows[i].replica->stage;
        int count = 0; // without ranks that follow the first one, whose work is that one's
        double busy = 0;
        for (end = i; end < run_status->count && run_status->rows[end].replica->stage == stage; end++) {
            struct replica_status replica;
            run_status_replica(run_status, end, now, &replica);
            if (run_status_is_at_work(&replica) && replica.oldest_age > out->oldest.oldest_age) out->oldest = replica;
            busy += replica.busy;
            count += !replica_follows(run_status->rows[end].replica);
        }
        // While the others wait, the bottleneck is at work.
        busy /= (double)count;
        if (busy < least || busy <= out->next_busy) continue;
        const bool most = busy > out->bottleneck_busy;
        out->next = most ? out->bottleneck : stage->name;
        out->next_busy = most ? out->bottleneck_busy : busy;
        if (most) out->bottleneck = stage->name;
        if (most) out->bottleneck_busy = busy;
    }
    if (!source) return;
    out->source = &source->report;
    out->settled = run_status_settled(&source->report);
    out->rate = run_status_rate(run_status, now, MINUTE);
    // From the last five minutes: what the run did before, at its start or before a fault, says nothing about its end,
    // and a minute alone would make the time jump.
    const double rate = run_status_rate(run_status, now, LEFT_SECONDS);
    if (rate > 0 && out->settled < source->report.total)
        out->left = (double)(source->report.total - out->settled) / rate;
}

bool run_status_is_slow(const struct run_status *run_status, size_t index, double now) {
    const struct row *row = &run_status->rows[index];
    struct replica_status replica;
    if (!row->known || row->report.oldest_age + now - row->reported <= SLOW_SECONDS) return false;
    run_status_replica(run_status, index, now, &replica);
    const double bound = replica.typical < 0 ? SLOW_UNKNOWN_SECONDS : SLOW_TIMES * replica.typical;
    return run_status_is_at_work(&replica) && replica.oldest_age > bound;
}

bool run_status_find_slow(struct run_status *run_status, double now, struct replica_status *out) {
    for (size_t i = 0; i < run_status->count; i++) {
        struct row *row = &run_status->rows[i];
        if (!run_status_is_slow(run_status, i, now)) continue;
        run_status_replica(run_status, i, now, out);
        if (row->slow_seq == row->report.oldest_seq && out->oldest_age < 2 * row->slow_age) continue;
        row->slow_seq = row->report.oldest_seq;
        row->slow_age = out->oldest_age;
        return true;
    }
    return false;
}

// Whether optim has the group that the row's replica gave. It waits for the other ones of a step.
static bool row_gave_to_optim(const struct row *row) {
    return row->report.given_replica && !strcmp(row->given_stage, stage_kinds[STAGE_OPTIM].name);
}

bool run_status_find_standstill(struct run_status *run_status, double now, struct standstill *out) {
    const struct row *source = run_status_source(run_status), *sender = NULL;
    const int64_t settled = source ? source->report.settled : 0;
    int64_t lowest = 0;
    bool busy = !source || settled >= source->report.total;
    bool reported = false; // the lowest group that is not settled; or one is not heard, whose last report may be wrong
    for (size_t i = 0; i < run_status->count && !busy; i++) {
        const struct row *row = &run_status->rows[i];
        const struct message_status *report = &row->report;
        struct replica_status replica;
        run_status_replica(run_status, i, now, &replica);
        const bool heard = replica.alive && strcmp(replica.state, "silent") != 0;
        busy = !replica.report || (heard && (!strcmp(replica.state, "working") || run_status_is_at_work(&replica)));
        reported = reported || !heard;
        if (!heard || report->given_seq < 0) continue;
        reported = reported || report->given_seq <= settled;
        // A stage learns late what is settled. Of two that have given the same group, the one that is further on has
        // given it last.
        const int64_t seq = report->given_seq > settled ? report->given_seq : settled;
        const bool optim = row_gave_to_optim(row), before = sender && row_gave_to_optim(sender);
        if (sender && (optim > before || (optim == before && seq > lowest))) continue;
        sender = row;
        lowest = seq;
    }
    double done_at = -1, started_at = INFINITY; // when the last group was finished, when the oldest process started
    for (size_t i = 0; i < run_status->count; i++) {
        const struct row *row = &run_status->rows[i];
        done_at = fmax(done_at, row->done_at);
        started_at = fmin(started_at, row->reported - row->report.up);
    }
    const double seconds = busy ? 0 : now - (done_at >= 0 ? done_at : started_at);
    if (seconds <= STILL_SECONDS) run_status->still = 0;
    if (seconds <= STILL_SECONDS || seconds < 2 * run_status->still) return false;
    run_status->still = seconds;
    struct replica_status first;
    run_status_replica(run_status, 0, now, &first);
    *out = (struct standstill){.seconds = seconds, .seq = settled, .source_state = first.state};
    if (!reported || !sender) return true;
    const struct message_status *report = &sender->report;
    const struct replica *receiver =
        deployment_find(run_status->deployment, report->given_stage, (int)report->given_replica);
    out->seq = lowest;
    out->sender = sender->replica->name;
    out->receiver = receiver ? receiver->name : NULL;
    out->stage = report->given_stage;
    return true;
}
