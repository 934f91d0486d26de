// The run as a whole: what it is, its metrics, its quarantined groups, and the logs of its replicas. view_live.c has
// how far it is. All is read from the run's files, each time only what is new; what cannot be read is missing, and the
// page says so.
#include "tools/view/view_run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/stage_options.h"

// ---- about ----

// What the groups of a source have, and its models.
struct view_found {
    unsigned has;                                               // enum view_has
    bool judge, probability, named, reference_logprobs, frames; // of a few groups that were looked at
    bool tokenizer;                                             // the texts of the tokens can be told
    int64_t first_step, last_step;
};

// Asks all blocks, and looks at a few groups for what these do not tell.
static void view_run_find(struct view_groups *groups, const struct pipeline *pipeline, struct view_found *found) {
    enum { GROUPS = 4 };
    static const enum stage_id stages[] = {STAGE_ROLLOUT, STAGE_REFSCORE, STAGE_OPTIM};
    *found = (struct view_found){.first_step = INT64_MAX, .last_step = -1};
    for (size_t b = 0; b < view_block_count(groups); b++) {
        const struct view_block *block = view_block_at(groups, b);
        found->has |= block->has;
        if (block->first_step < found->first_step) found->first_step = block->first_step;
        if (block->last_step > found->last_step) found->last_step = block->last_step;
    }
    size_t at = groups->count;
    for (int k = 0; k < GROUPS && at > 0; k++, at = at > groups->count / GROUPS ? at - groups->count / GROUPS : 0) {
        struct group *group = NULL;
        size_t index = at;
        while (index > 0 && (groups->list[index - 1].number < 0 || !groups->list[index - 1].summary.completions))
            index--;
        if (!index) break;
        if (view_groups_get(groups, index - 1, &group) != OK || !group) continue; // its own page says why
        found->named |= group->prompt.options.count > 0;
        found->judge |= group->consistency.verdict.data != NULL;
        found->probability |= group->consistency.probability.data != NULL;
        found->reference_logprobs |= group->reference.logprobs != NULL;
        found->frames |= group->media_count > 0;
        group_free(&group);
    }
    for (size_t i = 0; pipeline && !found->tokenizer && i < sizeof stages / sizeof *stages; i++) {
        struct arena arena = {0};
        const struct pipeline_stage *stage = pipeline_find_stage(pipeline, stage_kinds[stages[i]].name);
        const char *model = stage ? pipeline_value(stage, "model") : NULL;
        found->tokenizer = model && !access(path_join(&arena, model, "tokenizer.json"), R_OK);
        arena_release(&arena);
    }
}

static void view_run_print_stages(const struct pipeline *pipeline, struct buf *out) {
    struct view_replica replica = {.pipeline = pipeline};
    const struct pipeline_stage *stage = NULL;
    buf_puts(out, "\"stages\": [");
    while (view_replica_next(&replica)) {
        if (replica.stage != stage) {
            buf_puts(out, stage ? "]}, {\"name\": " : "{\"name\": ");
            view_print_text(out, replica.stage->name);
            buf_puts(out, ", \"from\": ");
            view_print_text(out, stage ? stage->name : NULL);
            buf_puts(out, ", \"replicas\": [");
        }
        buf_puts(out, replica.stage == stage ? ", {\"name\": " : "{\"name\": ");
        stage = replica.stage;
        view_print_text(out, replica.name);
        buf_printf(out, ", \"number\": %d, \"machine\": ", replica.number);
        view_print_text(out, replica.machine >= 0 ? pipeline->machines[replica.machine].name : NULL);
        buf_puts(out, "}");
    }
    buf_puts(out, stage ? "]}]" : "]");
}

// Appends a sentence for the foot of the page.
static void view_run_note(struct buf *out, bool *first, const char *text) {
    buf_puts(out, *first ? "" : ", ");
    *first = false;
    view_print_text(out, text);
}

static void view_run_print_notes(struct view_call *call, struct buf *out) {
    const struct view_facts *facts = view_run_facts(call);
    const struct view_live *live = view_live_get(call->view);
    const struct pipeline *pipeline = view_run_pipeline(call);
    struct arena arena = {0};
    bool first = true;
    buf_puts(out, "\"notes\": [");
    if (pipeline && !facts->events.found) view_run_note(out, &first, "events.jsonl is missing: restarts are not shown");
    if (pipeline && pipeline_optim(pipeline) && !facts->metrics.count)
        view_run_note(out, &first, "metrics.jsonl has no step yet");
    if (facts->ledger_why)
        view_run_note(out, &first,
                      arena_printf(&arena, "the ledger cannot be read: %s; quarantined groups are those of the store",
                                   facts->ledger_why));
    if (pipeline && call->source == call->view->sources && !live->answers && *live->why)
        view_run_note(out, &first, arena_printf(&arena, "the run's processes cannot be watched: %s", live->why));
    if (pipeline && call->source != call->view->sources)
        view_run_note(out, &first, "the run's processes are not watched: only those of the first one are");
    buf_puts(out, "]");
    arena_release(&arena);
}

// Appends which program has written RUN/pipeline.yaml, which its first words say, and what is a number.
static void view_run_print_numbers(struct view_call *call, const struct view_progress *progress,
                                   const struct view_found *found) {
    const struct pipeline *pipeline = view_run_pipeline(call);
    struct arena arena = {0};
    char line[128] = "";
    FILE *file = pipeline ? fopen(path_join(&arena, pipeline->run, "pipeline.yaml"), "re") : NULL;
    if (file && !fgets(line, sizeof line, file)) *line = 0;
    if (file) fclose(file);
    line[strcspn(line, ",\n")] = 0;
    arena_release(&arena);
    buf_puts(&call->out, "\"version\": ");
    view_print_text(&call->out, !strncmp(line, "# caravan ", strlen("# caravan ")) ? line + 2 : NULL);
    buf_puts(&call->out, ", ");
    const struct pipeline_stage *stage = pipeline ? &pipeline->stages[0] : NULL;
    const bool known = stage && stage->kind == &stage_kinds[STAGE_SOURCE], trains = known && pipeline_optim(pipeline);
    const struct source_options *source = known ? pipeline_options(stage) : NULL;
    const double per_step = trains ? (double)source->groups_per_step : NAN;
    // A quarantined group is in no step.
    const double steps = floor((progress->total - progress->quarantined) / per_step);
    const bool any = found->first_step <= found->last_step;
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"start", progress->start},
        {"seconds", view_live_answers(call) ? NAN : progress->end - progress->start},
        {"groups_per_step", per_step},
        {"in_flight_max", trains ? (double)(source->max_staleness + 1) * per_step : NAN},
        {"group_size", source ? (double)source->group_size : NAN},
        {"steps", !pipeline ? NAN
                  : trains  ? steps
                            : progress->total},
        {"first_step", any ? (double)found->first_step : NAN},
        {"last_step", any ? (double)found->last_step : NAN},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        buf_printf(&call->out, "\"%s\": ", numbers[i].name);
        view_print(&call->out, numbers[i].value);
        buf_puts(&call->out, ", ");
    }
}

status view_run_about(struct view_call *call) {
    static const char *const kinds[] = {"run", "store", "file"};
    const struct view_source *source = call->source;
    struct buf *out = &call->out;
    struct view_progress progress;
    struct view_found found;
    if (!view_run_refresh(call)) return OK;
    const struct pipeline *pipeline = view_run_pipeline(call);
    view_run_find(&call->source->groups, pipeline, &found);
    view_run_progress(call, &progress);
    const struct view_facts *facts = view_run_facts(call);
    const struct pipeline_stage *reward =
        pipeline ? pipeline_find_stage(pipeline, stage_kinds[STAGE_REWARD].name) : NULL;
    const struct reward_options *rewards = reward && reward->kind ? pipeline_options(reward) : NULL;
    const char *texts[][2] = {{"name", source->name},
                              {"kind", kinds[source->kind]},
                              {"path", source->run ? source->run : source->path},
                              {"state", progress.state},
                              {"method", rewards ? methods[rewards->method].name : NULL},
                              {"device", *facts->metrics.device ? facts->metrics.device : NULL}};
    const bool bonus = rewards && found.has & HAS_REWARDS && methods[rewards->method].bonus != BONUS_NONE;
    const struct {
        const char *name;
        bool value;
    } flags[] = {
        {"trains", view_groups_trains(source) || (pipeline && pipeline_optim(pipeline))},
        {"rewards", found.has & HAS_REWARDS},
        {"bonus", found.has & HAS_BONUS || bonus},
        {"judge", found.judge},
        {"probability", found.probability},
        {"format", found.has & HAS_FORMAT},
        {"named", found.named},
        {"reference", found.has & HAS_REFERENCE},
        {"reference_logprobs", found.reference_logprobs},
        {"logprobs", found.has & HAS_LOGPROBS},
        {"frames", found.frames && source->frames.count > 0},
        {"tokenizer", found.tokenizer},
        {"rows", found.has & HAS_TIMES},
        {"events", facts->events.found},
    };
    buf_puts(out, "{");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        buf_printf(out, "\"%s\": ", texts[i][0]);
        view_print_text(out, texts[i][1]);
        buf_puts(out, ", ");
    }
    view_run_print_numbers(call, &progress, &found);
    buf_puts(out, "\"others\": [");
    for (size_t i = 0, count = 0; i < call->view->source_count; i++) {
        if (&call->view->sources[i] == source) continue;
        buf_puts(out, count++ ? ", " : "");
        view_print_text(out, call->view->sources[i].name);
    }
    buf_puts(out, "], ");
    view_run_print_stages(pipeline, out);
    buf_puts(out, ", \"settings\": ");
    if (pipeline)
        run_print_settings(pipeline, out);
    else
        buf_puts(out, "{}");
    buf_puts(out, ", \"has\": {");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        buf_printf(out, "%s\"%s\": %s", i ? ", " : "", flags[i].name, flags[i].value ? "true" : "false");
    buf_puts(out, "}, ");
    view_run_print_notes(call, out);
    buf_puts(out, "}");
    view_run_progress_release(&progress);
    return OK;
}

// ---- metrics ----

status view_run_metrics(struct view_call *call) {
    enum { MORE = 3, POINTS = 400, MOST_POINTS = 2000 };
    static const int64_t last = (int64_t)1 << 53;
    int64_t from, to, points;
    TRY(view_int_argument(call, "from", 0, last, 0, &from));
    TRY(view_int_argument(call, "to", 0, last, last, &to));
    TRY(view_int_argument(call, "points", 1, MOST_POINTS, POINTS, &points));
    if (!view_run_refresh(call)) return OK;
    const struct view_facts *facts = view_run_facts(call);
    const struct metric_table *metrics = &facts->metrics;
    const double *correct = metric_table_find(metrics, "all_correct"), *wrong = metric_table_find(metrics, "all_wrong");
    struct metric_column more[MORE] = {{.name = "rate"}, {.name = "likelihood"}, {.name = "no_signal"}};
    for (int i = 0; i < MORE; i++) NEW(&more[i].values, metrics->count);
    const double *times = metric_table_find(metrics, "time"), *groups = metric_table_find(metrics, "groups");
    size_t start = 0;
    for (size_t i = 0; i < metrics->count; i++) { // NaN at the first one, and where the run went on in between
        more[0].values[i] = NAN;
        if (!i || !times || !groups) continue;
        const double seconds = times[i] - times[i - 1];
        while (start < facts->events.start_count && facts->events.starts[start] <= times[i - 1]) start++;
        const bool resumed = start < facts->events.start_count && facts->events.starts[start] <= times[i];
        if (seconds > 0 && !resumed) more[0].values[i] = groups[i] / seconds;
    }
    // The likelihood is the mean over the groups of a step.
    double *likelihoods = more[1].values;
    size_t *counts;
    NEW(&counts, metrics->count);
    for (size_t b = 0; b < view_block_count(&call->source->groups) && metrics->count; b++) {
        const struct view_block *block = view_block_at(&call->source->groups, b);
        for (size_t i = 0; i < block->step_count; i++) {
            const struct view_block_step *at = &block->steps[i];
            if (at->step < metrics->steps[0]) continue;
            // Steps without a gap are found at once.
            size_t row = (size_t)(at->step - metrics->steps[0]);
            if (row >= metrics->count || metrics->steps[row] != at->step) row = metric_table_row(metrics, at->step);
            if (row >= metrics->count || metrics->steps[row] != at->step) continue;
            likelihoods[row] += at->likelihood;
            counts[row] += at->count;
        }
    }
    for (size_t i = 0; i < metrics->count; i++) likelihoods[i] = counts[i] ? likelihoods[i] / (double)counts[i] : NAN;
    free(counts);
    for (size_t i = 0; i < metrics->count; i++) more[2].values[i] = correct && wrong ? correct[i] + wrong[i] : NAN;
    metric_table_print(metrics, from, to, (size_t)points, more, MORE, &call->out);
    for (int i = 0; i < MORE; i++) free(more[i].values);
    return OK;
}

// ---- quarantine ----

// Groups that were quarantined by one stage for one reason.
struct quarantine_row {
    const char *stage, *reason;
    int64_t count;
    const char *ids[50];
};

static int quarantine_row_compare(const void *a, const void *b) {
    const struct quarantine_row *first = a, *second = b;
    if (first->count != second->count) return first->count > second->count ? -1 : 1;
    const int stages = strcmp(first->stage, second->stage);
    return stages ? stages : strcmp(first->reason, second->reason);
}

status view_run_quarantine(struct view_call *call) {
    enum { IDS = sizeof((struct quarantine_row){0}).ids / sizeof(char *) };
    const struct view_quarantine *quarantine = &view_run_facts(call)->quarantine;
    struct quarantine_row *rows = NULL;
    struct buf *out = &call->out;
    size_t count = 0;
    if (!view_run_refresh(call)) return OK;
    TRY(view_quarantine_read(call));
    if (call->unfinished) return OK;
    for (size_t i = 0; i < quarantine->count; i++) {
        const struct quarantined *group = &quarantine->list[i];
        size_t at = 0;
        while (at < count && (strcmp(rows[at].stage, group->stage) != 0 || strcmp(rows[at].reason, group->reason) != 0))
            at++;
        if (at == count) {
            GROW(&rows, count);
            rows[count++] = (struct quarantine_row){.stage = group->stage, .reason = group->reason};
        }
        if (rows[at].count < IDS) rows[at].ids[rows[at].count] = group->id;
        rows[at].count++;
    }
    if (count) qsort(rows, count, sizeof *rows, quarantine_row_compare);
    buf_puts(out, "[");
    for (size_t i = 0; i < count; i++) {
        buf_puts(out, i ? ", {\"stage\": " : "{\"stage\": ");
        view_print_text(out, rows[i].stage);
        buf_puts(out, ", \"reason\": ");
        view_print_text(out, rows[i].reason);
        buf_printf(out, ", \"count\": %lld, \"ids\": [", (long long)rows[i].count);
        for (int64_t k = 0; k < rows[i].count && k < IDS; k++) {
            buf_puts(out, k ? ", " : "");
            view_print_text(out, rows[i].ids[k]);
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "]");
    free(rows);
    return OK;
}

// ---- log ----

status view_run_log(struct view_call *call) {
    enum { BYTES = 16384, MOST_BYTES = 262144 };
    const struct pipeline *pipeline = view_run_pipeline(call);
    struct view_replica replica = {.pipeline = pipeline};
    struct arena arena = {0};
    struct buf text = {0};
    struct stat info;
    int64_t bytes;
    bool known = false;
    status result = OK;
    TRY(view_int_argument(call, "bytes", 1, MOST_BYTES, BYTES, &bytes));
    while (!known && view_replica_next(&replica)) known = !strcmp(replica.name, call->rest);
    if (!known) return fail(END, "no replica has the name '%.60s'", call->rest);
    const char *path = arena_printf(&arena, "%s/logs/%s.log", pipeline->run, replica.name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info))
        TRY_TO(result, done, fail(END, "%s has no log here: %s", replica.name, strerror(errno)));
    const int64_t from = info.st_size > bytes ? info.st_size - bytes : 0, size = info.st_size - from;
    buf_reserve(&text, (size_t)size);
    if (!fd_pread_all(fd, text.data, (size_t)size, from))
        TRY_TO(result, done, fail(file_read_status(errno), "%s: %s", path, strerror(errno)));
    text.size = (size_t)size;
    // From the first whole line on.
    const char *line = from ? memchr(text.data, '\n', text.size) : NULL;
    const size_t cut = from ? line ? (size_t)(line - text.data) + 1 : text.size : 0;
    utf8_replace(text.data + cut, text.size - cut, &call->out);
    call->type = "text/plain; charset=utf-8";
done:
    if (fd >= 0) close(fd);
    buf_release(&text);
    arena_release(&arena);
    return result;
}
