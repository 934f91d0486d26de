// A family of samples for each quantity: HELP, TYPE and UNIT, then a sample for the run or for each replica. A
// counter's samples end in _total. Times are the reader's, so no sample has one.
#include "tools/run/run_metrics.h"

#include <math.h>
#include <string.h>

struct metric_family {
    const char *name, *unit; // without "caravan_"; the name ends with the unit, "" for none
    const char *help;
    bool counter;
};

static void run_metrics_family(const struct metric_family *family, struct buf *out) {
    buf_printf(out, "# HELP caravan_%s %s\n", family->name, family->help);
    buf_printf(out, "# TYPE caravan_%s %s\n", family->name, family->counter ? "counter" : "gauge");
    if (*family->unit) buf_printf(out, "# UNIT caravan_%s %s\n", family->name, family->unit);
}

// Appends NAME="VALUE" with what OpenMetrics wants escaped.
static void run_metrics_label(const char *name, const char *value, struct buf *out) {
    buf_printf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            buf_puts(out, "\\n");
        else
            buf_printf(out, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    }
    buf_puts(out, "\"");
}

// Appends a sample. NULL for a replica: it is the run's, and `state` is its label unless it is NULL.
static void run_metrics_sample(const struct metric_family *family, const char *run,
                               const struct replica_status *replica, const char *state, double value, struct buf *out) {
    buf_printf(out, "caravan_%s%s{", family->name, family->counter ? "_total" : "");
    run_metrics_label("run", run, out);
    if (state) run_metrics_label(",state", state, out);
    if (replica) run_metrics_label(",stage", replica->stage, out);
    if (replica) buf_printf(out, ",replica=\"%d\"", replica->number);
    if (replica && *replica->machine) run_metrics_label(",machine", replica->machine, out);
    buf_printf(out, "} %.15g\n", value);
}

// ---- the run ----

static void run_metrics_groups(const struct run_summary *run, struct buf *out) {
    static const struct metric_family family = {"groups", "groups", "Groups of the run by what became of them.", false};
    const struct message_status *source = run->source;
    const struct {
        const char *state;
        int64_t count;
    } groups[] = {{run->trains ? "trained" : "done", source->done},
                  {"quarantined", source->run_quarantined},
                  {"unused", source->run_unused},
                  {"in_flight", source->held},
                  {"unissued", source->total - run->settled - source->held}};
    run_metrics_family(&family, out);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run_metrics_sample(&family, run->name, NULL, groups[i].state, (double)groups[i].count, out);
}

// Appends a family with one sample; none if the value is not a number.
static void run_metrics_value(const struct metric_family *family, const char *run, double value, struct buf *out) {
    if (isnan(value)) return;
    run_metrics_family(family, out);
    run_metrics_sample(family, run, NULL, NULL, value, out);
}

static void run_metrics_run(const struct run_summary *run, struct buf *out) {
    static const struct metric_family steps = {"trained_steps", "steps", "Steps trained.", false},
                                      reissued = {"reissued_groups", "groups",
                                                  "Groups in flight that the source issued again.", true},
                                      failed = {"failed_checkpoints", "checkpoints",
                                                "Checkpoints that could not be written since one was written.", false},
                                      reward = {"step_reward", "", "Mean reward of the last step.", false},
                                      accuracy = {"step_accuracy", "", "Mean accuracy of the last step.", false};
    if (run->source) {
        if (run->trains) run_metrics_value(&steps, run->name, (double)run->source->step, out);
        if (run->trains) run_metrics_value(&failed, run->name, (double)run->failed_saves, out);
        run_metrics_groups(run, out);
        run_metrics_value(&reissued, run->name, (double)run->source->reissued, out);
    }
    run_metrics_value(&reward, run->name, run->reward, out);
    run_metrics_value(&accuracy, run->name, run->accuracy, out);
}

// ---- the replicas ----

// A value that each replica has; a negative one is unknown.
struct replica_metric {
    struct metric_family family;
    enum message_field_type type;
    bool reported; // in struct message_status, else in struct replica_status
    size_t offset;
};

#define REPORTED(type, member) type, true, offsetof(struct message_status, member)
#define KNOWN(type, member)    type, false, offsetof(struct replica_status, member)
static const struct replica_metric replica_metrics[] = {
    {{"replica_up", "", "Whether the replica was heard of in the last seconds.", false}, KNOWN(FIELD_INT, alive)},
    {{"replica_uptime_seconds", "seconds", "Time since the process started.", false}, REPORTED(FIELD_REAL, up)},
    {{"replica_restarts", "", "Times that the process was started again.", true}, KNOWN(FIELD_INT, restarts)},
    {{"replica_taken_groups", "groups", "Groups received.", true}, REPORTED(FIELD_INT, taken)},
    {{"replica_done_groups", "groups", "Groups finished; of source: by the run.", true}, REPORTED(FIELD_INT, done)},
    {{"replica_quarantined_groups", "groups", "Groups quarantined.", true}, REPORTED(FIELD_INT, quarantined)},
    {{"replica_stored_groups", "groups", "Groups whose section was in the store.", true}, REPORTED(FIELD_INT, found)},
    {{"replica_dropped_groups", "groups", "Groups that came twice or too late.", true}, REPORTED(FIELD_INT, dropped)},
    {{"replica_worked_groups", "groups", "Groups that it worked on and finished.", true}, REPORTED(FIELD_INT, worked)},
    {{"replica_work_seconds", "seconds", "Time for which it had these groups, summed.", true},
     REPORTED(FIELD_REAL, work_seconds)},
    {{"replica_tokens", "tokens", "Tokens of the completions that passed.", true}, REPORTED(FIELD_INT, tokens)},
    {{"replica_busy_seconds", "seconds", "Time at work.", true}, REPORTED(FIELD_REAL, busy)},
    {{"replica_held_groups", "groups", "Groups here; of source: in flight.", false}, REPORTED(FIELD_INT, held)},
    {{"replica_waiting_groups", "groups", "Groups finished but not yet taken.", false}, REPORTED(FIELD_INT, waiting)},
    {{"replica_oldest_group_seconds", "seconds", "Time for which it has had its oldest group.", false},
     KNOWN(FIELD_REAL, oldest_age)},
};
#undef REPORTED
#undef KNOWN

static void run_metrics_replicas(const struct run_status *run_status, const char *run, double now,
                                 const struct replica_metric *metric, struct buf *out) {
    run_metrics_family(&metric->family, out);
    for (size_t i = 0; i < run_status_count(run_status); i++) {
        struct replica_status replica;
        run_status_replica(run_status, i, now, &replica);
        if (metric->reported && !replica.report) continue;
        const char *base = metric->reported ? (const char *)replica.report : (const char *)&replica;
        const void *at = base + metric->offset;
        const double value = metric->type == FIELD_INT ? (double)*(const int64_t *)at : *(const double *)at;
        if (value >= 0) run_metrics_sample(&metric->family, run, &replica, NULL, value, out);
    }
}

void run_metrics(const struct run_status *run_status, double now, struct buf *out) {
    struct run_summary run;
    run_status_summary(run_status, now, &run);
    run_metrics_run(&run, out);
    for (size_t i = 0; i < sizeof replica_metrics / sizeof *replica_metrics; i++)
        run_metrics_replicas(run_status, run.name, now, &replica_metrics[i], out);
    buf_puts(out, "# EOF\n");
}
