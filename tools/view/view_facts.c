// What is kept of each source, read from the files of its run, each time only what is new; and how far the run is. What
// cannot be read is missing, and /api/run says so.
#include "tools/view/view_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"

// ---- what is kept ----

struct view_facts *view_run_facts(const struct view_call *call) {
    return &view_live_get(call->view)->facts[call->source - call->view->sources];
}

struct pipeline *view_run_pipeline(const struct view_call *call) {
    const struct view_live *live = view_live_get(call->view);
    return call->source == call->view->sources && live->pipeline ? live->pipeline : call->source->pipeline;
}

static void view_quarantine_truncate(struct view_quarantine *quarantine, size_t count) {
    for (size_t i = count; i < quarantine->count; i++) free(quarantine->list[i].id);
    quarantine->count = count;
}

void view_run_facts_release(struct view_facts *facts) {
    metric_table_release(&facts->metrics);
    run_events_release(&facts->events);
    ledger_close(&facts->ledger);
    view_quarantine_truncate(&facts->quarantine, 0);
    free(facts->quarantine.list);
    free(facts->ledger_why);
    *facts = (struct view_facts){0};
}

bool view_replica_next(struct view_replica *replica) {
    const struct pipeline *pipeline = replica->pipeline;
    if (!pipeline) return false;
    if (!replica->stage) replica->stage = pipeline->stages;
    if (replica->number == replica->stage->replicas * (int)pipeline_stage_machine_count(replica->stage)) {
        replica->stage++;
        replica->number = 0;
    }
    if (replica->stage == pipeline->stages + pipeline->stage_count) return false;
    const size_t machine = (size_t)(replica->number++ / replica->stage->replicas);
    replica->machine = pipeline->machine_count > 1 ? pipeline_stage_machine(replica->stage, machine) : -1;
    if (replica->number > 1)
        snprintf(replica->name, sizeof replica->name, "%s-%d", replica->stage->name, replica->number);
    else
        snprintf(replica->name, sizeof replica->name, "%s", replica->stage->name);
    return true;
}

// ---- the ledger ----

void view_ledger_read(struct view_call *call) {
    static const double pause = 5; // seconds between two tries
    struct view_facts *facts = view_run_facts(call);
    const struct pipeline *pipeline = view_run_pipeline(call);
    int64_t first = INT64_MAX; // the lowest seq that may be another one
    if (!pipeline) return;
    struct arena arena = {0};
    struct stat info;
    status result = OK;
    const char *path = ledger_path(&arena, pipeline->run, pipeline_value(&pipeline->stages[0], "store"));
    const bool found = !stat(path, &info);
    const bool same =
        found && facts->ledger_inode == (uint64_t)info.st_ino && facts->ledger_device == (uint64_t)info.st_dev;
    if (!same || !facts->ledger) first = 0;
    if (!same) ledger_close(&facts->ledger);
    if (same && !facts->ledger && clock_monotonic() - facts->ledger_tried < pause) goto done;
    free(facts->ledger_why);
    facts->ledger_why = NULL;
    if (!found) goto done;
    facts->ledger_inode = (uint64_t)info.st_ino;
    facts->ledger_device = (uint64_t)info.st_dev;
    if (facts->ledger)
        result = ledger_refresh(facts->ledger, &first);
    else
        result = ledger_open_read_only(&facts->ledger, path);
    if (result == OK) goto done;
    facts->ledger_why = mem_strdup(fail_text());
    facts->ledger_tried = clock_monotonic();
    ledger_close(&facts->ledger);
done:
    if (facts->ledger && first < facts->quarantine.next) facts->quarantine.next = first;
    arena_release(&arena);
}

static void view_quarantine_add(struct view_quarantine *quarantine, int64_t at, const char *id, const char *stage,
                                const char *reason) {
    struct buf strings = {0}, plain = {0};
    quarantine_reason(reason, &plain);
    buf_append(&strings, id, strlen(id) + 1);
    buf_append(&strings, stage, strlen(stage) + 1);
    buf_append(&strings, plain.data ? plain.data : "", plain.size + 1);
    buf_release(&plain);
    GROW(&quarantine->list, quarantine->count);
    struct quarantined *added = &quarantine->list[quarantine->count++];
    *added = (struct quarantined){.at = at, .id = strings.data};
    added->stage = added->id + strlen(added->id) + 1;
    added->reason = added->stage + strlen(added->stage) + 1;
}

enum { LEDGER_AT_ONCE = 16384 }; // entries

static status view_quarantine_visit(void *context, const struct ledger_entry *entry) {
    struct view_quarantine *quarantine = context;
    if (entry->seq - quarantine->next >= LEDGER_AT_ONCE) return END;
    if (entry->state == LEDGER_QUARANTINED)
        view_quarantine_add(quarantine, entry->seq, entry->id, entry->stage, entry->reason);
    return OK;
}

status view_quarantine_read(struct view_call *call) {
    struct view_facts *facts = view_run_facts(call);
    struct view_quarantine *quarantine = &facts->quarantine;
    struct view_groups *groups = &call->source->groups;
    const int64_t end = facts->ledger ? (int64_t)facts->ledger->size : (int64_t)groups->count;
    if (quarantine->of_ledger != (facts->ledger != NULL) || quarantine->next > end) quarantine->next = 0;
    quarantine->of_ledger = facts->ledger != NULL;
    size_t kept = quarantine->count;
    while (kept && quarantine->list[kept - 1].at >= quarantine->next) kept--;
    view_quarantine_truncate(quarantine, kept);
    while (quarantine->next < end) {
        const int64_t at = quarantine->next;
        struct group *group = NULL;
        if (facts->ledger) {
            TRY(ledger_each_from(facts->ledger, at, view_quarantine_visit, quarantine));
            quarantine->next = end - at > LEDGER_AT_ONCE ? at + LEDGER_AT_ONCE : end;
        } else {
            if (groups->list[at].number >= 0 && groups->list[at].summary.state == GROUP_QUARANTINED)
                TRY(view_groups_get(groups, (size_t)at, &group));
            quarantine->next++;
            if (!group) continue;
            const struct string stage = group->quarantine.stage, reason = group->quarantine.reason;
            view_quarantine_add(quarantine, at, group->id.data, stage.data ? stage.data : "",
                                reason.data ? reason.data : "");
            group_free(&group);
        }
        if (quarantine->next < end && !view_may_go_on(call)) break;
    }
    return OK;
}

// ---- how far it is ----

bool view_run_refresh(struct view_call *call) {
    struct view_facts *facts = view_run_facts(call);
    const struct pipeline *pipeline = view_run_pipeline(call);
    struct arena arena = {0};
    int64_t own = 0;
    bool more = pipeline != NULL, whole = true;
    if (!pipeline) return true;
    int64_t *seq = call->source == call->view->sources ? &view_live_get(call->view)->seq : &own;
    const char *path = path_join(&arena, pipeline->run, "metrics.jsonl");
    while (whole && metric_table_read(&facts->metrics, path) == OK && facts->metrics.file.more)
        whole = view_may_go_on(call);
    while (whole && more && run_events_read(&facts->events, pipeline, seq, &more) == OK && more)
        whole = view_may_go_on(call);
    arena_release(&arena);
    if (whole) view_ledger_read(call);
    return whole;
}

void view_run_progress(struct view_call *call, struct view_progress *out) {
    struct view_facts *facts = view_run_facts(call);
    const struct run_events *events = &facts->events;
    struct view_groups *groups = &call->source->groups;
    const struct pipeline *pipeline = view_run_pipeline(call);
    *out = (struct view_progress){NULL, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, {0}};
    if (!pipeline) {
        out->state = "finished";
        out->done = out->total = (double)groups->total;
        return;
    }
    if (events->start_count) {
        out->start = events->starts[0];
        out->end = events->last;
    }
    for (size_t i = 0; i < view_block_count(groups); i++) {
        const struct view_block *block = view_block_at(groups, i);
        out->start = fmin(out->start, block->first_issued);
        out->end = fmax(out->end, block->last_settled);
    }
    if (view_live_answers(call)) {
        struct run_summary run;
        run_status_summary(call->view->live->run_status, clock_monotonic(), &run);
        out->state = "running";
        if (!run.source) return;
        if (run.trains) out->step = (double)run.source->step;
        out->done = (double)run.settled;
        out->total = (double)run.source->total;
        out->rate = run.rate;
        out->left = run.left >= 0 ? run.left : NAN;
        out->in_flight = (double)run.source->held;
        out->reissued = (double)run.source->reissued;
        out->quarantined = (double)run.source->run_quarantined;
        return;
    }
    // What the files of a run say that nobody reports on.
    const struct run_counters *counters = &out->counters;
    const struct metric_table *metrics = &facts->metrics;
    if (run_counters_read(&out->counters, pipeline) != OK) run_counters_parse(&out->counters, "");
    if (pipeline_optim(pipeline))
        out->step = metrics->count ? (double)metrics->steps[metrics->count - 1] : counters->step;
    out->reissued = counters->reissued;
    out->done = counters->done + counters->quarantined + counters->unused;
    out->in_flight = counters->in_flight;
    out->quarantined = counters->quarantined;
    out->total = out->done + counters->in_flight + counters->unissued;
    if (facts->ledger) { // which is not as old
        const int64_t *counts = facts->ledger->counts;
        out->quarantined = (double)counts[LEDGER_QUARANTINED];
        out->in_flight = (double)counts[LEDGER_IN_FLIGHT];
        out->done = (double)(counts[LEDGER_TRAINED] + counts[LEDGER_QUARANTINED] + counts[LEDGER_UNUSED]);
    }
    const bool settled = out->done >= out->total; // not if one of them is unknown
    out->state = settled || events->done ? "finished" : "not active";
    const double seconds = out->end - out->start;
    if (seconds > 0) out->rate = out->done / seconds;
}

void view_run_progress_release(struct view_progress *progress) {
    run_counters_release(&progress->counters);
}
