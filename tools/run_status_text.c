// Texts only: what they say is concluded in run_status.c.
#include "tools/run_status_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DURATION_SIZE = 32, COUNTERS_WIDTH = 78 }; // of the table, without name, restarts and state

// Writes a duration: "40 ms", "0.4 s", "1:05", "2:01:05"; "-" for a negative one. Returns `out`.
static const char *run_text_duration(double seconds, char out[static DURATION_SIZE]) {
    const long long whole = (long long)seconds;
    if (seconds < 0)
        snprintf(out, DURATION_SIZE, "-");
    else if (seconds < 0.1)
        snprintf(out, DURATION_SIZE, "%.0f ms", seconds * 1000);
    else if (seconds < 10)
        snprintf(out, DURATION_SIZE, "%.1f s", seconds);
    else if (whole < 3600)
        snprintf(out, DURATION_SIZE, "%lld:%02lld", whole / 60, whole % 60);
    else
        snprintf(out, DURATION_SIZE, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    return out;
}

// Appends the step if the run has steps, the groups, their rate and the time left.
static status run_text_progress(const struct run_summary *run, struct buf *out) {
    const long long left = (long long)run->left;
    if (run->trains) TRY(buf_printf(out, "step %lld, ", (long long)run->source->step));
    TRY(buf_printf(out, "%lld of %lld groups", (long long)run->settled, (long long)run->source->total));
    if (run->rate >= 1) TRY(buf_printf(out, ", %.1f groups/s", run->rate));
    if (run->rate > 0 && run->rate < 1) TRY(buf_printf(out, ", %.1f groups/min", run->rate * 60));
    if (left < 0) return OK;
    return buf_printf(out, ", %lld:%02lld:%02lld left", left / 3600, left / 60 % 60, left % 60);
}

status run_status_line(const struct run_status *run_status, double now, struct buf *out) {
    struct run_summary run;
    struct replica_status replica, before = {0};
    run_status_summary(run_status, now, &run);
    if (run.source) {
        TRY(run_text_progress(&run, out));
        if (run.source->run_quarantined)
            TRY(buf_printf(out, ", %lld quarantined", (long long)run.source->run_quarantined));
    } else {
        TRY(buf_puts(out, "starting"));
    }
    if (!isnan(run.reward)) TRY(buf_printf(out, ", reward %.3f, accuracy %.3f", run.reward, run.accuracy));
    // The state of each stage. A replica in the same state as the one before it is not listed.
    for (size_t i = 0; i < run_status_count(run_status); i++, before = replica) {
        run_status_replica(run_status, i, now, &replica);
        const bool same = i > 0 && !strcmp(before.stage, replica.stage) && !strcmp(before.state, replica.state);
        if (!same && strcmp(replica.stage, "source") != 0) TRY(buf_printf(out, "; %s %s", replica.name, replica.state));
    }
    return OK;
}

// Appends what stands above the table: the run as a whole.
static status run_text_summary(const struct run_summary *run, struct buf *out) {
    char age[DURATION_SIZE], typical[DURATION_SIZE];
    TRY(buf_puts(out, run->name));
    if (run->source) {
        TRY(buf_puts(out, ": "));
        TRY(run_text_progress(run, out));
        TRY(buf_printf(out, "\n%lld in flight, %lld issued again, %lld quarantined", (long long)run->source->held,
                       (long long)run->source->reissued, (long long)run->source->run_quarantined));
        if (run->trains) TRY(buf_printf(out, ", %lld left over", (long long)run->source->run_unused));
    }
    if (!isnan(run->reward))
        TRY(buf_printf(out, "; last step: reward %.3f, accuracy %.3f", run->reward, run->accuracy));
    if (run->oldest.oldest_age >= 0)
        TRY(buf_printf(out, "\noldest: group %lld, in %s for %s (typical %s)",
                       (long long)run->oldest.report->oldest_seq, run->oldest.name,
                       run_text_duration(run->oldest.oldest_age, age),
                       run_text_duration(run->oldest.typical, typical)));
    return buf_puts(out, "\n");
}

// Appends a row of the table. Rates, `busy` and `typical` are of the last minute, the other numbers since the start.
static status run_text_replica(const struct replica_status *replica, struct buf *out) {
    char typical[DURATION_SIZE], oldest[DURATION_SIZE];
    const struct message_status *report = replica->report;
    TRY(buf_printf(out, "%-14s", replica->name));
    if (!report)
        return buf_printf(out, "%*s %8lld  %s\n", COUNTERS_WIDTH, "", (long long)replica->restarts, replica->state);
    TRY(buf_printf(out, "%10.1f %7lld %6lld %7lld %5lld %5lld %5.0f%%", replica->rate * 60, (long long)report->done,
                   (long long)report->found, (long long)report->dropped, (long long)report->held,
                   (long long)report->waiting, 100 * replica->busy));
    TRY(replica->tokens_rate >= 1 ? buf_printf(out, "%9.0f", replica->tokens_rate) : buf_printf(out, "%9s", ""));
    return buf_printf(out, " %8s %7s %8lld  %s\n", run_text_duration(replica->typical, typical),
                      run_text_duration(replica->oldest_age, oldest), (long long)replica->restarts, replica->state);
}

status run_status_table(const struct run_status *run_status, double now, struct buf *out) {
    struct run_summary run;
    struct replica_status replica;
    run_status_summary(run_status, now, &run);
    TRY(run_text_summary(&run, out));
    TRY(buf_printf(out, "%-14s%10s %7s %6s %7s %5s %5s %6s%9s %8s %7s %8s  %s\n", "stage", "groups/min", "done",
                   "stored", "dropped", "held", "queue", "busy", "tokens/s", "typical", "oldest", "restarts", "state"));
    for (size_t i = 0; i < run_status_count(run_status); i++) {
        run_status_replica(run_status, i, now, &replica);
        TRY(run_text_replica(&replica, out));
    }
    return OK;
}

status run_status_slow_line(const struct replica_status *replica, struct buf *out) {
    char age[DURATION_SIZE], typical[DURATION_SIZE];
    TRY(buf_printf(out, "%s has had group %lld for %s", replica->name, (long long)replica->report->oldest_seq,
                   run_text_duration(replica->oldest_age, age)));
    if (replica->typical < 0) return buf_puts(out, " (it has finished none yet)");
    return buf_printf(out, " (typical %s)", run_text_duration(replica->typical, typical));
}
