// The state of a run as text: for people a line of progress, a table, and lines about what is slow and how it ended;
// for Prometheus metrics. What the texts say is concluded in run_status.c.
#include "tools/run/run_status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/config/stage_options.h"

enum { DURATION_SIZE = 32 };

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

// Appends the rate and the time left, each behind a comma.
static void run_text_rate(const struct run_summary *run, struct buf *out) {
    const long long left = (long long)run->left;
    if (run->rate >= 1) buf_printf(out, ", %.1f groups/s", run->rate);
    if (run->rate > 0 && run->rate < 1) buf_printf(out, ", %.1f groups/min", run->rate * 60);
    if (left < 0) return;
    buf_printf(out, ", %lld:%02lld:%02lld left", left / 3600, left / 60 % 60, left % 60);
}

static void run_text_groups(const struct run_summary *run, struct buf *out) {
    buf_printf(out, "%lld of %lld groups", (long long)run->settled, (long long)run->source->total);
}

// A terminal shows the beginning of the line, so what matters most comes first.
void run_status_line(const struct run_status *run_status, double now, struct buf *out) {
    struct run_summary run;
    struct replica_status replica, before = {0};
    run_status_summary(run_status, now, &run);
    if (!run.source) buf_puts(out, "starting");
    if (run.source && run.trains) buf_printf(out, "step %lld", (long long)run.source->step);
    if (run.source && !run.trains) run_text_groups(&run, out);
    run_text_rate(&run, out);
    if (!isnan(run.reward)) buf_printf(out, ", reward %.3f", run.reward);
    if (run.bottleneck) buf_printf(out, ", bottleneck %s", run.bottleneck);
    if (run.source && run.source->run_quarantined)
        buf_printf(out, ", %lld quarantined", (long long)run.source->run_quarantined);
    if (run.source && run.trains) buf_puts(out, ", ");
    if (run.source && run.trains) run_text_groups(&run, out);
    if (!isnan(run.accuracy)) buf_printf(out, ", accuracy %.3f", run.accuracy);
    // The state of each stage. A replica in the same state as the one before it is not listed, nor is a rank that
    // follows the first one.
    for (size_t i = 0; i < run_status_count(run_status); i++, before = replica) {
        run_status_replica(run_status, i, now, &replica);
        const bool same = i > 0 && !strcmp(before.stage, replica.stage) && !strcmp(before.state, replica.state);
        if (!strcmp(replica.state, "follows")) continue;
        if (!same && strcmp(replica.stage, "source") != 0) buf_printf(out, "; %s %s", replica.name, replica.state);
    }
}

// ---- the table ----

// Appends a line of what stands above the table, and ends it.
static void run_text_wrap(struct buf *line, int columns, struct buf *out) {
    enum { INDENT = 2 };
    text_wrap(line->data, 0, INDENT, columns, out);
    buf_clear(line);
    buf_puts(out, "\n");
}

// Appends what stands above the table: the run as a whole, on lines of at most `columns`.
static void run_text_summary(const struct run_summary *run, int columns, struct buf *out) {
    char age[DURATION_SIZE], typical[DURATION_SIZE];
    struct buf line = {0};
    buf_printf(&line, "%s%s", run->name, run->source ? ": " : "");
    if (run->source && run->trains) buf_printf(&line, "step %lld, ", (long long)run->source->step);
    if (run->source) run_text_groups(run, &line);
    run_text_rate(run, &line);
    run_text_wrap(&line, columns, out);
    if (run->bottleneck) {
        buf_printf(&line, "bottleneck: %s, at work for %.0f %% of the last minute", run->bottleneck,
                   100 * run->bottleneck_busy);
        if (run->next) buf_printf(&line, " (next: %s, %.0f %%)", run->next, 100 * run->next_busy);
        run_text_wrap(&line, columns, out);
    }
    if (run->source) {
        buf_printf(&line, "%lld in flight, %lld issued again, %lld quarantined", (long long)run->source->held,
                   (long long)run->source->reissued, (long long)run->source->run_quarantined);
        if (run->trains) buf_printf(&line, ", %lld left over", (long long)run->source->run_unused);
        run_text_wrap(&line, columns, out);
    }
    if (!isnan(run->reward)) {
        buf_printf(&line, "last step: reward %.3f", run->reward);
        if (!isnan(run->accuracy)) buf_printf(&line, ", accuracy %.3f", run->accuracy);
        run_text_wrap(&line, columns, out);
    }
    if (run->failed_saves) {
        buf_printf(&line, "no checkpoint could be written in the last %lld attempts (see optim.log)",
                   (long long)run->failed_saves);
        run_text_wrap(&line, columns, out);
    }
    if (run->oldest.oldest_age >= 0) {
        buf_printf(&line, "oldest: group %lld, in %s for %s (typical %s)", (long long)run->oldest.report->oldest_seq,
                   run->oldest.name, run_text_duration(run->oldest.oldest_age, age),
                   run_text_duration(run->oldest.typical, typical));
        run_text_wrap(&line, columns, out);
    }
    buf_release(&line);
}

// A replica, or all of a stage as one: means of shares, the longest times, otherwise sums.
struct table_row {
    struct replica_status replica; // its name and state are those of the first one
    struct message_status report;
    bool reported;    // at least one has
    int count, alike; // replicas, those in the state of the first one
};

// The columns between name and state, as they stand. Where not all fit, those of the lowest rank do. Rates, `busy` and
// `typical` are of the last minute, the other numbers since the start.
static const struct {
    const char *title;
    int width, rank;
    enum { TABLE_COUNT, TABLE_RATE, TABLE_SHARE, TABLE_TOKENS, TABLE_TIME } kind; // a count is an int64_t
    size_t offset;                                                                // in struct table_row
} table_columns[] = {
    {"groups/min", 10, 1, TABLE_RATE, offsetof(struct table_row, replica.rate)},
    {"done", 8, 6, TABLE_COUNT, offsetof(struct table_row, report.done)},
    {"stored", 7, 10, TABLE_COUNT, offsetof(struct table_row, report.found)},
    {"dropped", 8, 9, TABLE_COUNT, offsetof(struct table_row, report.dropped)},
    {"held", 6, 5, TABLE_COUNT, offsetof(struct table_row, report.held)},
    {"queue", 6, 4, TABLE_COUNT, offsetof(struct table_row, report.waiting)},
    {"busy", 7, 0, TABLE_SHARE, offsetof(struct table_row, replica.busy)},
    {"tokens/s", 9, 8, TABLE_TOKENS, offsetof(struct table_row, replica.tokens_rate)},
    {"typical", 9, 2, TABLE_TIME, offsetof(struct table_row, replica.typical)},
    {"oldest", 8, 3, TABLE_TIME, offsetof(struct table_row, replica.oldest_age)},
    {"restarts", 9, 7, TABLE_COUNT, offsetof(struct table_row, replica.restarts)},
};
enum { TABLE_COLUMNS = sizeof table_columns / sizeof *table_columns };

// What of the table is shown.
struct table {
    int name_width;
    bool shown[TABLE_COLUMNS];
};

static void table_row(const struct table_row *row, const struct table *table, struct buf *out) {
    char name[96];
    snprintf(name, sizeof name, "%s", row->replica.name);
    if (row->count > 1) snprintf(name, sizeof name, "%s x %d", row->replica.stage, row->count);
    buf_printf(out, "%-*s", table->name_width, name);
    for (int i = 0; i < TABLE_COLUMNS; i++) {
        const void *at = (const char *)row + table_columns[i].offset;
        const bool count = table_columns[i].kind == TABLE_COUNT;
        const double value = count ? 0 : *(const double *)at;
        char text[DURATION_SIZE] = "";
        if (!table->shown[i]) continue;
        // Of a replica that has not reported only the restarts are known.
        if (row->reported || at == &row->replica.restarts) {
            if (count) snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)at);
            if (table_columns[i].kind == TABLE_RATE) snprintf(text, sizeof text, "%.1f", value * 60);
            if (table_columns[i].kind == TABLE_SHARE) snprintf(text, sizeof text, "%.0f%%", 100 * value);
            if (table_columns[i].kind == TABLE_TOKENS && value >= 1) snprintf(text, sizeof text, "%.0f", value);
            if (table_columns[i].kind == TABLE_TIME) run_text_duration(value, text);
        }
        buf_printf(out, "%*s", table_columns[i].width, text);
    }
    buf_puts(out, "  ");
    if (row->alike < row->count) buf_printf(out, "%d ", row->alike);
    buf_printf(out, "%s\n", row->replica.state);
}

void run_status_table(const struct run_status *run_status, double now, int columns, int rows, struct buf *out) {
    enum { NAME = 14, STATE = 19 }; // widths, with the blanks around
    struct run_summary run;
    struct replica_status replica;
    struct table table = {.name_width = NAME};
    struct table_row row = {0};
    const size_t count = run_status_count(run_status), began = out->size;
    run_status_summary(run_status, now, &run);
    run_text_summary(&run, columns, out);
    for (size_t i = began; i < out->size; i++) rows -= out->data[i] == '\n';
    const bool folded = count > (size_t)(rows > 1 ? rows - 1 : 0); // one row for all replicas of a stage
    for (size_t i = 0; i < count; i++) {
        run_status_replica(run_status, i, now, &replica);
        const int width = (int)strlen(replica.name) + 1;
        if (width > table.name_width) table.name_width = width;
    }
    int left = columns - table.name_width - STATE;
    for (int rank = 0; rank < TABLE_COLUMNS; rank++)
        for (int i = 0; i < TABLE_COLUMNS; i++) {
            if (table_columns[i].rank != rank || left < table_columns[i].width) continue;
            table.shown[i] = true;
            left -= table_columns[i].width;
        }
    buf_printf(out, "%-*s", table.name_width, "stage");
    for (int i = 0; i < TABLE_COLUMNS; i++)
        if (table.shown[i]) buf_printf(out, "%*s", table_columns[i].width, table_columns[i].title);
    buf_puts(out, "  state\n");
    for (size_t i = 0; i < count; i++) {
        run_status_replica(run_status, i, now, &replica);
        struct replica_status *sum = &row.replica;
        if (i && (!folded || strcmp(replica.stage, sum->stage) != 0)) {
            table_row(&row, &table, out);
            row = (struct table_row){0};
        }
        if (!row.count++) {
            *sum = replica;
            sum->rate = sum->busy = sum->tokens_rate = 0;
            sum->restarts = 0;
        }
        row.alike += !strcmp(replica.state, sum->state);
        sum->rate += replica.rate;
        sum->busy += (replica.busy - sum->busy) / row.count;
        sum->tokens_rate += replica.tokens_rate;
        sum->typical = fmax(sum->typical, replica.typical);
        sum->oldest_age = fmax(sum->oldest_age, replica.oldest_age);
        sum->restarts += replica.restarts;
        if (!replica.report) continue;
        row.reported = true;
        row.report.done += replica.report->done;
        row.report.found += replica.report->found;
        row.report.dropped += replica.report->dropped;
        row.report.held += replica.report->held;
        row.report.waiting += replica.report->waiting;
    }
    table_row(&row, &table, out);
}

bool run_status_warning(struct run_status *run_status, double now, struct buf *line) {
    char duration[DURATION_SIZE];
    struct replica_status replica;
    struct standstill still;
    const char *between = "";
    buf_clear(line);
    if (run_status_find_slow(run_status, now, &replica)) {
        buf_printf(line, "%s has had group %lld for %s", replica.name, (long long)replica.report->oldest_seq,
                   run_text_duration(replica.oldest_age, duration));
        if (replica.typical < 0)
            buf_puts(line, " (it has finished none yet)");
        else
            buf_printf(line, " (typical %s)", run_text_duration(replica.typical, duration));
        return true;
    }
    if (!run_status_find_standstill(run_status, now, &still)) return false;
    const long long seq = (long long)still.seq;
    buf_printf(line, "nothing has been done for %s: ", run_text_duration(still.seconds, duration));
    if (!still.sender) {
        buf_printf(line, "group %lld is not settled, and no stage reports it; source: %s", seq, still.source_state);
        return true;
    }
    if (still.receiver)
        buf_printf(line, "%s gave group %lld to %s, which ", still.sender, seq, still.receiver);
    else
        buf_printf(line, "%s has group %lld, which no replica of %s has taken: ", still.sender, seq, still.stage);
    for (size_t i = 0; i < run_status_count(run_status); i++) {
        run_status_replica(run_status, i, now, &replica);
        if (strcmp(replica.stage, still.stage) != 0) continue;
        if (still.receiver && strcmp(replica.name, still.receiver) != 0) continue;
        if (!still.receiver) buf_printf(line, "%s%s ", between, replica.name);
        buf_printf(line, "%s%s", strncmp(replica.state, "waits", 5) ? "is " : "", replica.state);
        between = ", ";
    }
    return true;
}

// ---- run end ----

void run_end_lines(const struct deployment *deployment, const struct run_status *run_status, double seconds,
                   struct buf *out) {
    const struct pipeline *pipeline = deployment->pipeline;
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const long long whole = (long long)seconds;
    struct run_summary run;
    bool scores = false;
    run_status_summary(run_status, 0, &run);
    buf_printf(out, "this start took %lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    if (!isnan(run.reward)) buf_printf(out, "; last step: reward %.3f", run.reward);
    if (!isnan(run.accuracy)) buf_printf(out, ", accuracy %.3f", run.accuracy);
    buf_puts(out, "\n");
    for (size_t i = 0; i < pipeline->stage_count; i++) scores |= pipeline->stages[i].kind == &stage_kinds[STAGE_SCORE];
    if (!optim) buf_printf(out, "next: caravan %s %s\n", scores ? "eval" : "groups ls", pipeline->run);
    if (!optim || pipeline_stage_machine(optim, 0) != deployment->here) return;
    // Where the newest checkpoint is, and what to do with it: also the options with which the same command trains on.
    struct arena arena = {0};
    char *path = realpath(path_join(&arena, pipeline_value(optim, "out"), "latest"), NULL);
    arena_release(&arena);
    if (!path) return;
    const struct source_options *source = pipeline_options(&pipeline->stages[0]);
    const bool limited = source->max_steps != 0; // by the steps or by the data: twice both is enough
    buf_printf(out, "newest checkpoint: %s\n", path);
    const struct stage_model_options *model = pipeline_options(optim); // its first member
    buf_puts(out, "next: evaluate it with a file of pipelines/eval and --set model=");
    if (model->lora || model->adapter) buf_printf(out, "%s --set adapter=", model->dir);
    buf_puts(out, "CHECKPOINT, or train on with ");
    if (limited) buf_printf(out, "--set source.max_steps=%lld ", 2LL * source->max_steps);
    const long long epochs = (long long)source->epochs * (limited ? 2 : 1) + !limited;
    buf_printf(out, "--set source.epochs=%lld", epochs);
    // A schedule whose end is given, as RUN/pipeline.yaml does, is over: the learning rate would stay 0.
    const struct optim_options *options = pipeline_options(optim);
    const char *step = strrchr(path, '-');
    const long long done = step ? strtoll(step + 1, NULL, 10) : 0;
    if (deployment->steps_given && options->schedule == OPTIM_SCHEDULE_COSINE && options->steps <= done)
        buf_printf(out, " --set optim.steps=%lld",
                   limited ? 2LL * source->max_steps : (done * epochs + source->epochs - 1) / source->epochs);
    buf_puts(out, "\n");
    free(path);
}

// ---- run metrics ----

// A family of samples for each quantity: HELP, TYPE and UNIT, then a sample for the run or for each replica. A
// counter's samples end in _total. Times are the reader's, so no sample has one.

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

// Appends a family with one sample; none if the value is not a number.
static void run_metrics_value(const struct metric_family *family, const char *run, double value, struct buf *out) {
    if (isnan(value)) return;
    run_metrics_family(family, out);
    run_metrics_sample(family, run, NULL, NULL, value, out);
}

static const struct metric_family metric_steps = {"trained_steps", "steps", "Steps trained.", false},
                                  metric_reissued = {"reissued_groups", "groups",
                                                     "Groups in flight that the source issued again.", true},
                                  metric_groups = {"groups", "groups", "Groups of the run by what became of them.",
                                                   false},
                                  metric_failed = {"failed_checkpoints", "checkpoints",
                                                   "Checkpoints that could not be written since one was written.",
                                                   false},
                                  metric_reward = {"step_reward", "", "Mean reward of the last step.", false},
                                  metric_accuracy = {"step_accuracy", "", "Mean accuracy of the last step.", false};

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

void run_metrics(const struct run_status *run_status, double now, struct buf *out) {
    struct run_summary run;
    run_status_summary(run_status, now, &run);
    const struct message_status *source = run.source;
    if (source) {
        const struct {
            const char *state;
            int64_t count;
        } states[] = {{run.trains ? "trained" : "done", source->done},
                      {"quarantined", source->run_quarantined},
                      {"unused", source->run_unused},
                      {"in_flight", source->held},
                      {"unissued", source->total - run.settled - source->held}};
        if (run.trains) run_metrics_value(&metric_steps, run.name, (double)source->step, out);
        if (run.trains) run_metrics_value(&metric_failed, run.name, (double)run.failed_saves, out);
        run_metrics_family(&metric_groups, out);
        for (size_t i = 0; i < sizeof states / sizeof *states; i++)
            run_metrics_sample(&metric_groups, run.name, NULL, states[i].state, (double)states[i].count, out);
        run_metrics_value(&metric_reissued, run.name, (double)source->reissued, out);
    }
    run_metrics_value(&metric_reward, run.name, run.reward, out);
    run_metrics_value(&metric_accuracy, run.name, run.accuracy, out);
    for (size_t m = 0; m < sizeof replica_metrics / sizeof *replica_metrics; m++) {
        const struct replica_metric *metric = &replica_metrics[m];
        run_metrics_family(&metric->family, out);
        for (size_t i = 0; i < run_status_count(run_status); i++) {
            struct replica_status replica;
            run_status_replica(run_status, i, now, &replica);
            if (metric->reported && !replica.report) continue;
            const char *base = metric->reported ? (const char *)replica.report : (const char *)&replica;
            const void *at = base + metric->offset;
            const double value = metric->type == FIELD_INT ? (double)*(const int64_t *)at : *(const double *)at;
            if (value >= 0) run_metrics_sample(&metric->family, run.name, &replica, NULL, value, out);
        }
    }
    buf_puts(out, "# EOF\n");
}
