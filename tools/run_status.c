#include "tools/run_status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/seq_set.h"

enum { NAME = 64, FRESH = 5, STALE = 2, DEAD = 10 }; // seconds but the first
static const double missing_seconds = 1.5;           // three reports

struct row {
    const struct replica *replica;
    bool known;
    double heard;
    struct message_status report; // its strings are those below
    char state[64];
    char *in_hand, *in_flight;
};

// A group in flight that nobody run_status_has in hand.
struct missing {
    int64_t seq;
    double since;
};

struct run_status {
    const struct deployment *deployment;
    struct row *rows;
    size_t count;
    struct missing *missing;
    size_t missing_count;
    double began;       // when the source was first heard, 0: not yet
    int64_t began_with; // settled orders then
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
    free(*run_status);
    *run_status = NULL;
}

static struct row *run_status_row(const struct run_status *run_status, const struct replica *replica) {
    for (size_t i = 0; i < run_status->count; i++)
        if (run_status->rows[i].replica == replica) return &run_status->rows[i];
    return NULL;
}

static status run_status_set_text(char **place, const char *text) {
    free(*place);
    *place = strdup(text);
    return *place ? OK : fail_oom();
}

static bool row_is_source(const struct row *row) {
    return !strcmp(row->replica->stage->name, "source");
}

static const struct row *run_status_source(const struct run_status *run_status) {
    return run_status->count && row_is_source(&run_status->rows[0]) && run_status->rows[0].known ? &run_status->rows[0]
                                                                                                 : NULL;
}

static const struct row *run_status_optim(const struct run_status *run_status) {
    return run_status->rows[run_status->count - 1].known ? &run_status->rows[run_status->count - 1] : NULL;
}

status run_status_update(struct run_status *run_status, const struct wire_message *message, double now) {
    struct row *row =
        run_status_row(run_status, deployment_find(run_status->deployment, message->name, (int)message->replica));
    if (!row) return OK;
    TRY(run_status_set_text(&row->in_hand, message->counters.in_hand));
    TRY(run_status_set_text(&row->in_flight, message->counters.in_flight));
    snprintf(row->state, sizeof row->state, "%s", message->counters.state);
    row->report = message->counters;
    row->report.state = row->state;
    row->report.in_hand = row->in_hand;
    row->report.in_flight = row->in_flight;
    row->known = true;
    row->heard = now;
    if (row_is_source(row) && !run_status->began && *row->in_flight) {
        run_status->began = now;
        run_status->began_with = row->report.settled;
    }
    return OK;
}

void run_status_forget(struct run_status *run_status, const struct replica *replica) {
    struct row *row = run_status_row(run_status, replica);
    if (row) row->known = false;
}

bool board_knows(const struct run_status *run_status, const struct replica *replica) {
    const struct row *row = run_status_row(run_status, replica);
    return row && row->known;
}

int64_t run_status_step(const struct run_status *run_status) {
    const struct row *source = run_status_source(run_status);
    return source ? source->report.step : -1;
}

// ---- words ----

static status run_status_add_time(struct buf *out, double seconds) {
    long long whole = (long long)seconds;
    return buf_printf(out, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

static status run_status_add_rate(const struct run_status *run_status, const struct row *source, double now,
                                  struct buf *out) {
    const struct message_status *report = &source->report;
    double seconds = run_status->began ? now - run_status->began : 0;
    int64_t done = report->settled - run_status->began_with;
    if (seconds < 1 || done <= 0) return OK;
    double rate = (double)done / seconds;
    TRY(rate >= 1 ? buf_printf(out, ", %.1f groups/s", rate) : buf_printf(out, ", %.1f groups/min", rate * 60));
    if (report->settled >= report->total) return OK;
    TRY(buf_puts(out, ", "));
    TRY(run_status_add_time(out, (double)(report->total - report->settled) / rate));
    return buf_puts(out, " left");
}

static const char *run_status_state_of(const struct row *row, double now) {
    if (!row->known) return "starting";
    return now - row->heard > FRESH ? "silent" : row->report.state;
}

// One stage's states: one word if all replicas do the same.
static status run_status_add_states(const struct run_status *run_status, double now, struct buf *out) {
    for (size_t i = 0; i < run_status->count; i++) {
        const struct row *row = &run_status->rows[i];
        bool same = i > 0 && run_status->rows[i - 1].replica->stage == row->replica->stage &&
                    !strcmp(run_status_state_of(&run_status->rows[i - 1], now), run_status_state_of(row, now));
        if (same || row_is_source(row)) continue;
        TRY(buf_printf(out, "; %s", row->replica->stage->name));
        if (row->replica->stage->replicas > 1 && row->replica->number > 1)
            TRY(buf_printf(out, "-%d", row->replica->number));
        TRY(buf_printf(out, " %s", run_status_state_of(row, now)));
    }
    return OK;
}

status run_status_line(struct run_status *run_status, double now, struct buf *out) {
    const struct row *source = run_status_source(run_status), *last = run_status_optim(run_status);
    if (source) {
        const struct message_status *report = &source->report;
        TRY(buf_printf(out, "step %lld, %lld of %lld groups", (long long)report->step, (long long)report->settled,
                       (long long)report->total));
        TRY(run_status_add_rate(run_status, source, now, out));
        if (report->run_quarantined) TRY(buf_printf(out, ", %lld quarantined", (long long)report->run_quarantined));
    } else {
        TRY(buf_puts(out, "starting"));
    }
    if (last && !isnan(last->report.reward))
        TRY(buf_printf(out, ", reward %.3f, accuracy %.3f", last->report.reward, last->report.accuracy));
    return run_status_add_states(run_status, now, out);
}

static status run_status_add_row(const struct row *row, double now, struct buf *out) {
    char name[NAME];
    const struct message_status *report = &row->report;
    snprintf(name, sizeof name, row->replica->number > 1 ? "%s-%d" : "%s", row->replica->stage->name,
             row->replica->number);
    TRY(buf_printf(out, "%-14s", name));
    if (!row->known) return buf_puts(out, " starting\n");
    double rate = report->up > 0 ? (double)report->done / report->up * 60 : 0;
    double tokens = report->busy > 0 ? (double)report->tokens / report->busy : 0;
    TRY(buf_printf(out, "%9.1f %7lld %7lld %6lld %6lld %5.0f%%", rate, (long long)report->done,
                   (long long)report->found, (long long)report->held, (long long)report->waiting,
                   report->up > 0 ? 100 * report->busy / report->up : 0));
    TRY(tokens >= 1 ? buf_printf(out, "%10.0f", tokens) : buf_printf(out, "%10s", ""));
    return buf_printf(out, "  %s\n", run_status_state_of(row, now));
}

status run_status_table(struct run_status *run_status, double now, struct buf *out) {
    const struct row *source = run_status_source(run_status), *last = run_status_optim(run_status);
    TRY(buf_printf(out, "%s", run_status->deployment->pipeline->name));
    if (source) {
        const struct message_status *report = &source->report;
        TRY(buf_printf(out, ": step %lld, %lld of %lld groups", (long long)report->step, (long long)report->settled,
                       (long long)report->total));
        TRY(run_status_add_rate(run_status, source, now, out));
        TRY(buf_printf(out, "\n%lld in flight, %lld quarantined, %lld left over", (long long)report->held,
                       (long long)report->run_quarantined, (long long)report->run_unused));
    }
    if (last && !isnan(last->report.reward))
        TRY(buf_printf(out, "; last step: reward %.3f, accuracy %.3f", last->report.reward, last->report.accuracy));
    TRY(buf_printf(out, "\n%-14s%9s %7s %7s %6s %6s %6s%10s  %s\n", "stage", "groups/min", "done", "stored", "held",
                   "queue", "busy", "tokens/s", "state"));
    for (size_t i = 0; i < run_status->count; i++) TRY(run_status_add_row(&run_status->rows[i], now, out));
    return OK;
}

// ---- lost groups ----

// A replica that is not there run_status_has nothing in hand.
static bool row_is_alive(const struct row *row, double now) {
    return row->known && now - row->heard <= DEAD;
}

// Whether what is known of all replicas is fresh enough to say that a group is nowhere.
static bool run_status_all_fresh(const struct run_status *run_status, double now) {
    for (size_t i = 0; i < run_status->count; i++)
        if (row_is_alive(&run_status->rows[i], now) && now - run_status->rows[i].heard > STALE) return false;
    return true;
}

static status run_status_in_progress(const struct run_status *run_status, double now, int64_t **seqs, size_t *count,
                                     int *whole) {
    *whole = 1;
    for (size_t i = 0; i < run_status->count; i++) {
        int all = 1;
        if (!row_is_alive(&run_status->rows[i], now)) continue;
        TRY(seq_set_parse(run_status->rows[i].in_hand, seqs, count, &all));
        *whole = *whole && all;
    }
    return OK;
}

static bool run_status_has(const int64_t *seqs, size_t count, int64_t seq) {
    for (size_t i = 0; i < count; i++)
        if (seqs[i] == seq) return true;
    return false;
}

static double missing_since(const struct run_status *run_status, int64_t seq, double now) {
    for (size_t i = 0; i < run_status->missing_count; i++)
        if (run_status->missing[i].seq == seq) return run_status->missing[i].since;
    return now;
}

// Replaces the list of missing groups by the flying that are in nobody's hands.
static status run_status_update_missing(struct run_status *run_status, double now, const int64_t *flying,
                                        size_t flying_count, const int64_t *hands, size_t hand_count) {
    struct missing *fresh;
    size_t count = 0;
    TRY(NEW(&fresh, flying_count));
    for (size_t i = 0; i < flying_count; i++)
        if (!run_status_has(hands, hand_count, flying[i]))
            fresh[count++] = (struct missing){flying[i], missing_since(run_status, flying[i], now)};
    free(run_status->missing);
    run_status->missing = fresh;
    run_status->missing_count = count;
    return OK;
}

status run_status_find_lost(struct run_status *run_status, double now, status (*lost)(void *context, int64_t seq),
                            void *context) {
    const struct row *source = run_status_source(run_status);
    int64_t *flying = NULL, *hands = NULL;
    size_t flying_count = 0, hand_count = 0;
    int whole = 0;
    status result = OK;
    if (!source || !run_status_all_fresh(run_status, now)) return OK;
    TRY_TO(result, done, seq_set_parse(source->in_flight, &flying, &flying_count, NULL));
    TRY_TO(result, done, run_status_in_progress(run_status, now, &hands, &hand_count, &whole));
    if (!whole) goto done;
    TRY_TO(result, done, run_status_update_missing(run_status, now, flying, flying_count, hands, hand_count));
    for (size_t i = 0; i < run_status->missing_count && result == OK; i++) {
        if (now - run_status->missing[i].since < missing_seconds) continue;
        run_status->missing[i].since = now;
        result = lost(context, run_status->missing[i].seq);
    }
done:
    free(flying);
    free(hands);
    return result;
}
