// A table with a row for each replica, filled from the STATUS messages. It knows nothing of processes or sockets.
#include "tools/run_status.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/seq_set.h"

// Ages of a report in seconds: shown as silent; too old to conclude from; its replica counts as dead.
enum { SILENT_SECONDS = 5, STALE_SECONDS = 2, DEAD_SECONDS = 10 };
static const double lost_seconds = 1.5; // three reports

struct row {
    const struct replica *replica;
    bool known;                   // it has reported since it was last forgotten
    double reported;              // seconds
    struct message_status report; // its strings are those below
    char state[64];
    char *in_hand, *in_flight;
};

// A group in flight that no replica has in progress.
struct missing_group {
    int64_t seq;
    double since;
};

struct run_status {
    const struct deployment *deployment;
    struct row *rows; // in the order of the stages: the source first, optim (if there is one) last
    size_t count;
    struct missing_group *missing;
    size_t missing_count;
    int64_t *lost;     // what run_status_find_lost has found
    double first_time; // seconds: when the source first had groups in flight, 0: not yet
    int64_t first_settled;
};

status run_status_new(struct run_status **out, const struct deployment *deployment) {
    struct run_status *run_status;
    *out = NULL;
    TRY(NEW(&run_status, 1));
    status result = NEW(&run_status->rows, deployment->count);
    if (result != OK) {
        free(run_status);
        return result;
    }
    run_status->deployment = deployment;
    for (size_t i = 0; i < deployment->count; i++)
        if (deployment->replicas[i].stage) run_status->rows[run_status->count++].replica = &deployment->replicas[i];
    assert(run_status->count > 0);
    *out = run_status;
    return OK;
}

void run_status_free(struct run_status **run_status) {
    if (!*run_status) return;
    for (size_t i = 0; i < (*run_status)->count; i++) {
        free((*run_status)->rows[i].in_hand);
        free((*run_status)->rows[i].in_flight);
    }
    free((*run_status)->rows);
    free((*run_status)->missing);
    free((*run_status)->lost);
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

// Returns the source's report, NULL while there is none.
static const struct message_status *run_status_source(const struct run_status *run_status) {
    const struct row *row = &run_status->rows[0];
    return row_is_source(row) && row->known ? &row->report : NULL;
}

// The groups that the run is done with, in any order.
static int64_t run_status_settled(const struct message_status *source) {
    return source->done + source->run_quarantined + source->run_unused;
}

status run_status_update(struct run_status *run_status, const struct wire_message *message, double now) {
    struct row *row =
        run_status_row(run_status, deployment_find(run_status->deployment, message->name, (int)message->replica));
    const struct message_status *report = &message->counters;
    char *in_hand = NULL, *in_flight = NULL;
    int64_t *seqs = NULL;
    size_t count = 0;
    status result;
    if (!row) return OK;
    TRY_TO(result, failed, seq_set_parse(report->in_hand, &seqs, &count, NULL));
    TRY_TO(result, failed, seq_set_parse(report->in_flight, &seqs, &count, NULL));
    in_hand = strdup(report->in_hand);
    in_flight = strdup(report->in_flight);
    if (!in_hand || !in_flight) TRY_TO(result, failed, fail_oom());
    free(seqs);
    free(row->in_hand);
    free(row->in_flight);
    row->in_hand = in_hand;
    row->in_flight = in_flight;
    snprintf(row->state, sizeof row->state, "%s", report->state);
    row->report = *report;
    row->report.state = row->state;
    row->report.in_hand = row->in_hand;
    row->report.in_flight = row->in_flight;
    row->known = true;
    row->reported = now;
    if (row_is_source(row) && run_status->first_time == 0 && *row->in_flight) {
        run_status->first_time = now;
        run_status->first_settled = run_status_settled(&row->report);
    }
    return OK;
failed:
    free(seqs);
    free(in_hand);
    free(in_flight);
    return fail_prefix(result, "the status of %s %lld", message->name, (long long)message->replica);
}

void run_status_forget(struct run_status *run_status, const struct replica *replica) {
    struct row *row = run_status_row(run_status, replica);
    if (row) row->known = false;
}

int64_t run_status_step(const struct run_status *run_status) {
    const struct message_status *source = run_status_source(run_status);
    return source ? source->step : -1;
}

// ---- as text ----

static const char *row_state(const struct row *row, double now) {
    if (!row->known) return "starting";
    return now - row->reported > SILENT_SECONDS ? "silent" : row->report.state;
}

// Appends the step if the run has steps, the groups, their rate and the time left.
static status run_status_add_progress(const struct run_status *run_status, const struct message_status *source,
                                      double now, struct buf *out) {
    double seconds = run_status->first_time > 0 ? now - run_status->first_time : 0;
    const int64_t settled = run_status_settled(source), done = settled - run_status->first_settled;
    if (pipeline_optim(run_status->deployment->pipeline)) TRY(buf_printf(out, "step %lld, ", (long long)source->step));
    TRY(buf_printf(out, "%lld of %lld groups", (long long)settled, (long long)source->total));
    if (seconds < 1 || done <= 0) return OK;
    double rate = (double)done / seconds;
    TRY(rate >= 1 ? buf_printf(out, ", %.1f groups/s", rate) : buf_printf(out, ", %.1f groups/min", rate * 60));
    if (settled >= source->total) return OK;
    long long left = (long long)((double)(source->total - settled) / rate);
    return buf_printf(out, ", %lld:%02lld:%02lld left", left / 3600, left / 60 % 60, left % 60);
}

status run_status_line(const struct run_status *run_status, double now, struct buf *out) {
    const struct message_status *source = run_status_source(run_status);
    const struct row *rows = run_status->rows, *optim = &rows[run_status->count - 1];
    if (source) {
        TRY(run_status_add_progress(run_status, source, now, out));
        if (source->run_quarantined) TRY(buf_printf(out, ", %lld quarantined", (long long)source->run_quarantined));
    } else {
        TRY(buf_puts(out, "starting"));
    }
    if (optim->known && !isnan(optim->report.reward))
        TRY(buf_printf(out, ", reward %.3f, accuracy %.3f", optim->report.reward, optim->report.accuracy));
    // The state of each stage. A replica in the same state as the one before it is not listed.
    for (size_t i = 0; i < run_status->count; i++) {
        const struct replica *replica = rows[i].replica;
        const char *state = row_state(&rows[i], now);
        bool same =
            i > 0 && rows[i - 1].replica->stage == replica->stage && !strcmp(row_state(&rows[i - 1], now), state);
        if (same || row_is_source(&rows[i])) continue;
        TRY(buf_printf(out, "; %s", replica->stage->name));
        if (replica->number > 1) TRY(buf_printf(out, "-%d", replica->number));
        TRY(buf_printf(out, " %s", state));
    }
    return OK;
}

status run_status_table(const struct run_status *run_status, double now, struct buf *out) {
    const struct message_status *source = run_status_source(run_status);
    const struct row *optim = &run_status->rows[run_status->count - 1];
    TRY(buf_puts(out, run_status->deployment->pipeline->name));
    if (source) {
        TRY(buf_puts(out, ": "));
        TRY(run_status_add_progress(run_status, source, now, out));
        TRY(buf_printf(out, "\n%lld in flight, %lld quarantined", (long long)source->held,
                       (long long)source->run_quarantined));
        if (pipeline_optim(run_status->deployment->pipeline))
            TRY(buf_printf(out, ", %lld left over", (long long)source->run_unused));
    }
    if (optim->known && !isnan(optim->report.reward))
        TRY(buf_printf(out, "; last step: reward %.3f, accuracy %.3f", optim->report.reward, optim->report.accuracy));
    TRY(buf_printf(out, "\n%-14s%9s %7s %7s %6s %6s %6s%10s  %s\n", "stage", "groups/min", "done", "stored", "held",
                   "queue", "busy", "tokens/s", "state"));
    for (size_t i = 0; i < run_status->count; i++) {
        const struct row *row = &run_status->rows[i];
        const struct message_status *report = &row->report;
        char name[64];
        if (row->replica->number > 1)
            snprintf(name, sizeof name, "%s-%d", row->replica->stage->name, row->replica->number);
        else
            snprintf(name, sizeof name, "%s", row->replica->stage->name);
        TRY(buf_printf(out, "%-14s", name));
        if (!row->known) {
            TRY(buf_puts(out, " starting\n"));
            continue;
        }
        double rate = report->up > 0 ? (double)report->done / report->up * 60 : 0;
        double busy = report->up > 0 ? 100 * report->busy / report->up : 0;
        double tokens = report->busy > 0 ? (double)report->tokens / report->busy : 0;
        TRY(buf_printf(out, "%9.1f %7lld %7lld %6lld %6lld %5.0f%%", rate, (long long)report->done,
                       (long long)report->found, (long long)report->held, (long long)report->waiting, busy));
        TRY(tokens >= 1 ? buf_printf(out, "%10.0f", tokens) : buf_printf(out, "%10s", ""));
        TRY(buf_printf(out, "  %s\n", row_state(row, now)));
    }
    return OK;
}

// ---- lost groups ----

status run_status_find_lost(struct run_status *run_status, double now, const int64_t **seqs, size_t *count) {
    const struct message_status *source = run_status_source(run_status);
    struct missing_group *missing = NULL;
    int64_t *in_flight = NULL, *in_hand = NULL;
    size_t in_flight_count = 0, in_hand_count = 0, missing_count = 0;
    status result = OK;
    free(run_status->lost);
    *seqs = run_status->lost = NULL;
    *count = 0;
    if (!source) return OK;
    for (size_t i = 0; i < run_status->count; i++) {
        const struct row *row = &run_status->rows[i];
        int whole = 1;
        if (!row->known || now - row->reported > DEAD_SECONDS) continue; // a dead replica has nothing in progress
        if (now - row->reported > STALE_SECONDS) goto done;
        TRY_TO(result, done, seq_set_parse(row->in_hand, &in_hand, &in_hand_count, &whole));
        if (!whole) goto done;
    }
    TRY_TO(result, done, seq_set_parse(source->in_flight, &in_flight, &in_flight_count, NULL));
    TRY_TO(result, done, NEW(&run_status->lost, in_flight_count));
    TRY_TO(result, done, NEW(&missing, in_flight_count));
    for (size_t i = 0; i < in_flight_count; i++) {
        int64_t seq = in_flight[i];
        size_t k = 0;
        while (k < in_hand_count && in_hand[k] != seq) k++;
        if (k < in_hand_count) continue;
        double since = now; // if it was not missing so far
        for (size_t m = 0; m < run_status->missing_count; m++)
            if (run_status->missing[m].seq == seq) since = run_status->missing[m].since;
        missing[missing_count++] = (struct missing_group){seq, since};
    }
    assert(missing_count <= in_flight_count);
    free(run_status->missing);
    run_status->missing = missing;
    run_status->missing_count = missing_count;
    for (size_t i = 0; i < missing_count; i++) {
        if (now - missing[i].since < lost_seconds) continue;
        missing[i].since = now;
        run_status->lost[(*count)++] = missing[i].seq;
    }
    *seqs = run_status->lost;
done:
    free(in_flight);
    free(in_hand);
    return result;
}
