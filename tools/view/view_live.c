// The supervisor of the first source: connected to while its run is active, tried again while it is not, and what it
// reports as /api/live. A run may begin, end and go on while somebody looks at it; nothing of that ends the view.
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/signals.h"
#include "shared/config/stage_options.h"
#include "tools/view/view_run.h"

static const double view_live_pause = 5;        // seconds between two tries to connect, and looks at the settings
static const double view_live_moment_every = 2; // seconds between two moments of the history
enum { VIEW_MOMENTS = 1800 };                   // an hour

// ---- connecting ----

static void view_live_forget(struct view_live *live) {
    for (size_t i = 0; i < live->history_count; i++) free(live->history[i].busy);
    live->history_count = 0;
}

static void view_live_disconnect(struct view_live *live) {
    run_status_free(&live->run_status);
    if (live->open) watcher_close(&live->watcher);
    live->open = live->answers = false;
}

// Reads RUN/pipeline.yaml again if the run was started with other settings since.
static void view_live_read_settings(struct view *view) {
    struct view_live *live = view->live;
    const struct view_source *source = &view->sources[0];
    struct arena arena = {0};
    struct buf diagnostics = {0};
    struct stat info;
    struct pipeline *pipeline = NULL;
    char *path = path_join(&arena, source->run, "pipeline.yaml"), *directory = realpath(source->run, NULL);
    const bool found = directory && !stat(path, &info);
    if (found && (!live->settings_seen || live->settings_inode != (uint64_t)info.st_ino)) {
        const char *set = arena_printf(&arena, "run=%s", directory);
        live->settings_seen = true;
        live->settings_inode = (uint64_t)info.st_ino;
        if (pipeline_read(&pipeline, path, true, &set, 1, &diagnostics) == OK) {
            struct view_replica then = {.pipeline = live->pipeline ? live->pipeline : source->pipeline},
                                now = {.pipeline = pipeline};
            bool more, same;
            do {
                more = view_replica_next(&then);
                same = more == view_replica_next(&now) && !strcmp(then.name, now.name);
            } while (more && same);
            if (!same) view_live_forget(live);
            view_live_disconnect(live); // it has the deployment of the earlier pipeline
            pipeline_free(&live->pipeline);
            live->pipeline = pipeline;
        }
    }
    free(directory);
    buf_release(&diagnostics);
    arena_release(&arena);
}

// Connects to the supervisor of this machine, which may not be there yet: the wire goes on trying. Without a reason in
// live->why there was no run here to connect to.
static void view_live_try(struct view *view, int fd) {
    struct view_live *live = view->live;
    const double now = clock_monotonic();
    if (!view->sources[0].run || now < live->next_try) return;
    live->next_try = now + view_live_pause;
    view_live_read_settings(view);
    if (live->open) return;
    struct pipeline *pipeline = live->pipeline ? live->pipeline : view->sources[0].pipeline;
    struct arena arena = {0};
    int here;
    status result = deployment_find_here(pipeline, view->machine, &here);
    const char *path = arena_printf(&arena, "%s/nodes/" SUPERVISOR_NAME "-%d", pipeline->run, here + 1);
    // watcher_open would tell the terminal each time.
    if (result == OK && path_exists(path)) {
        live->open = true;
        TRY_TO(result, done, watcher_open(&live->watcher, pipeline, view->machine, view->key, "view"));
        run_status_new(&live->run_status, &live->watcher.deployment);
        TRY_TO(result, done, watcher_connect(&live->watcher, live->watcher.deployment.here, NULL));
        if (fd >= 0) wire_add_fd(live->watcher.wire, fd); // -1: there is nothing else to wait for
    }
done:
    arena_release(&arena);
    snprintf(live->why, sizeof live->why, "%s", result == OK ? "" : fail_text());
    if (result != OK) view_live_disconnect(live);
}

// Adds a moment to the history, when it is time.
static void view_live_note(struct view_live *live) {
    const double now = clock_monotonic();
    if (!live->answers || now < live->next_moment) return;
    live->next_moment = now + view_live_moment_every;
    const size_t count = run_status_count(live->run_status);
    if (count != live->replica_count) view_live_forget(live);
    live->replica_count = count;
    if (!live->history) NEW(&live->history, VIEW_MOMENTS);
    if (live->history_count == VIEW_MOMENTS) {
        free(live->history[0].busy);
        memmove(live->history, live->history + 1, --live->history_count * sizeof *live->history);
    }
    struct view_moment *moment = &live->history[live->history_count++];
    *moment = (struct view_moment){.seq = ++live->seq, .time = clock_realtime()};
    NEW(&moment->busy, count);
    for (size_t i = 0; i < count; i++) {
        struct replica_status replica;
        run_status_replica(live->run_status, i, now, &replica);
        moment->busy[i] = replica.alive ? (float)replica.busy : NAN;
    }
}

static void view_live_on_event(struct view_live *live, const struct wire_event *event) {
    switch (event->kind) {
    case WIRE_JOINED:
        live->answers = true;
        *live->why = 0;
        break;
    case WIRE_GONE: // the wire goes on trying; the next supervisor begins with other counts
        live->answers = false;
        run_status_free(&live->run_status);
        run_status_new(&live->run_status, &live->watcher.deployment);
        break;
    case WIRE_REFUSED:
        snprintf(live->why, sizeof live->why, "%s", event->message.reason);
        break;
    case WIRE_MESSAGE:
        if (event->message.kind == MESSAGE_STATUS)
            run_status_update(live->run_status, &event->message, clock_monotonic());
        break;
    default:
        break;
    }
}

struct view_live *view_live_get(struct view *view) {
    if (!view->live) {
        NEW(&view->live, 1);
        NEW(&view->live->facts, view->source_count);
    }
    return view->live;
}

status view_live_open(struct view *view) {
    view_live_get(view);
    // Opening a long ledger takes longer than a request may.
    for (size_t i = 0; i < view->source_count; i++)
        view_ledger_read(&(struct view_call){.view = view, .source = &view->sources[i]});
    return OK;
}

void view_live_close(struct view *view) {
    struct view_live *live = view->live;
    if (!live) return;
    view_live_disconnect(live);
    view_live_forget(live);
    for (size_t i = 0; i < view->source_count; i++) view_run_facts_release(&live->facts[i]);
    pipeline_free(&live->pipeline);
    free(live->history);
    free(live->facts);
    free(live);
    view->live = NULL;
}

status view_live_wait(struct view *view, int fd, int timeout_ms) {
    enum { SLICE_MS = 1000 }; // between two looks at what is due
    struct view_live *live = view->live;
    const int64_t until = clock_monotonic_ms() + timeout_ms;
    for (bool ready = false; !ready && !signals_stopping();) {
        int64_t left = timeout_ms < 0 ? SLICE_MS : until - clock_monotonic_ms();
        view_live_try(view, fd);
        view_live_note(live);
        if (left <= 0 && timeout_ms > 0) break;
        left = left < 0 ? 0 : left > SLICE_MS ? SLICE_MS : left;
        if (live->open) {
            struct wire_event event;
            if (wire_poll(live->watcher.wire, (int)left, &event) != OK) {
                snprintf(live->why, sizeof live->why, "%s", fail_text());
                view_live_disconnect(live);
                continue;
            }
            ready = event.kind == WIRE_READABLE;
            view_live_on_event(live, &event);
        } else {
            struct pollfd input = {.fd = fd, .events = POLLIN};
            if (poll(&input, 1, (int)left) < 0 && errno != EINTR) return fail(UNAVAILABLE, "poll: %s", strerror(errno));
            ready = input.revents != 0;
        }
        if (!timeout_ms) break;
    }
    return OK;
}

// ---- live ----

bool view_live_answers(const struct view_call *call) {
    return call->source == call->view->sources && view_live_get(call->view)->answers;
}

// A row of /api/live's table of replicas. NaN: null.
struct view_live_row {
    const char *name, *state;
    double rate, busy, held, waiting, done, tokens_rate, typical, oldest_seq, oldest_age, restarts;
    bool slow;
};

static const struct {
    const char *name;
    size_t offset;
} view_live_columns[] = {
    {"rate", offsetof(struct view_live_row, rate)},
    {"busy", offsetof(struct view_live_row, busy)},
    {"held", offsetof(struct view_live_row, held)},
    {"waiting", offsetof(struct view_live_row, waiting)},
    {"done", offsetof(struct view_live_row, done)},
    {"tokens_rate", offsetof(struct view_live_row, tokens_rate)},
    {"typical", offsetof(struct view_live_row, typical)},
    {"oldest_seq", offsetof(struct view_live_row, oldest_seq)},
    {"oldest_age", offsetof(struct view_live_row, oldest_age)},
    {"restarts", offsetof(struct view_live_row, restarts)},
};

// Sets row `index` to what its replica has reported or, if nobody reports on it, to what metrics.prom has of it: the
// means of the whole time since its process started.
static void view_live_row_set(struct view_call *call, const struct view_progress *progress,
                              const struct view_replica *replica, size_t index, double now, struct view_live_row *row) {
    const struct run_status *run_status = view_live_answers(call) ? call->view->live->run_status : NULL;
    if (!run_status || index >= run_status_count(run_status)) {
        const struct replica_counters *counters =
            run_counters_find(&progress->counters, replica->stage->name, replica->number);
        row->state = progress->state;
        if (!counters) return;
        row->rate = counters->up > 0 ? counters->done / counters->up : NAN;
        row->busy = counters->up > 0 ? counters->busy / counters->up : NAN;
        row->held = counters->held;
        row->waiting = counters->waiting;
        row->done = counters->done;
        row->tokens_rate = counters->busy > 0 && counters->tokens > 0 ? counters->tokens / counters->busy : NAN;
        row->typical = counters->worked > 0 ? counters->work_seconds / counters->worked : NAN;
        row->restarts = counters->restarts;
        return;
    }
    struct replica_status reported;
    run_status_replica(run_status, index, now, &reported);
    const struct message_status *report = reported.report;
    const bool has_group = reported.oldest_age >= 0 && report;
    row->state = reported.state;
    row->restarts = (double)reported.restarts;
    row->slow = run_status_is_slow(run_status, index, now);
    if (!report) return;
    row->rate = reported.rate;
    row->busy = reported.busy;
    row->held = (double)report->held;
    row->waiting = (double)report->waiting;
    row->done = (double)report->done;
    row->tokens_rate = reported.tokens_rate > 0 ? reported.tokens_rate : NAN;
    row->typical = reported.typical >= 0 ? reported.typical : NAN;
    row->oldest_seq = has_group ? (double)report->oldest_seq : NAN;
    row->oldest_age = has_group ? reported.oldest_age : NAN;
}

static void view_live_print_replicas(struct view_call *call, const struct view_progress *progress) {
    struct buf *out = &call->out;
    struct view_replica replica = {.pipeline = view_run_pipeline(call)};
    struct view_live_row *rows = NULL;
    struct arena arena = {0};
    size_t count = 0;
    const double now = clock_monotonic();
    while (view_replica_next(&replica)) {
        GROW(&rows, count);
        struct view_live_row *row = &rows[count];
        *row = (struct view_live_row){NULL, NULL, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, false};
        row->name = arena_strndup(&arena, replica.name, strlen(replica.name));
        view_live_row_set(call, progress, &replica, count++, now, row);
    }
    buf_puts(out, "\"replicas\": {\"name\": [");
    for (size_t i = 0; i < count; i++) {
        buf_puts(out, i ? ", " : "");
        view_print_text(out, rows[i].name);
    }
    buf_puts(out, "], \"state\": [");
    for (size_t i = 0; i < count; i++) {
        buf_puts(out, i ? ", " : "");
        view_print_text(out, rows[i].state);
    }
    for (size_t k = 0; k < sizeof view_live_columns / sizeof *view_live_columns; k++) {
        buf_printf(out, "], \"%s\": [", view_live_columns[k].name);
        for (size_t i = 0; i < count; i++) {
            double value;
            memcpy(&value, (const char *)&rows[i] + view_live_columns[k].offset, sizeof value);
            buf_puts(out, i ? ", " : "");
            view_print(out, value);
        }
    }
    buf_puts(out, "], \"slow\": [");
    for (size_t i = 0; i < count; i++) buf_printf(out, "%s%s", i ? ", " : "", rows[i].slow ? "true" : "false");
    buf_puts(out, "]}");
    free(rows);
    arena_release(&arena);
}

// Appends the moments and the events behind the number `after`.
static void view_live_print_news(struct view_call *call, int64_t after) {
    const struct view_live *live = view_live_get(call->view);
    struct buf *out = &call->out;
    const size_t count = call->source == call->view->sources ? live->history_count : 0;
    const struct run_events *events = &view_run_facts(call)->events;
    const struct metric_table *metrics = &view_run_facts(call)->metrics;
    const double *times = metric_table_find(metrics, "time");
    const char *before = "";
    size_t first = 0;
    while (first < count && live->history[first].seq <= after) first++;
    buf_puts(out, "\"history\": {\"time\": [");
    for (size_t i = first; i < count; i++) {
        buf_puts(out, i > first ? ", " : "");
        view_print(out, live->history[i].time);
    }
    buf_puts(out, "], \"busy\": [");
    for (size_t i = first; i < count; i++) {
        buf_puts(out, i > first ? ", [" : "[");
        for (size_t k = 0; k < live->replica_count; k++) {
            buf_puts(out, k ? ", " : "");
            view_print_float(out, live->history[i].busy[k]);
        }
        buf_puts(out, "]");
    }
    buf_puts(out, "]}, \"events\": [");
    for (size_t i = 0; i < events->count; i++) {
        const struct run_event *event = &events->list[i];
        if (event->seq <= after) continue;
        buf_printf(out, "%s{\"time\": ", before);
        before = ", ";
        view_print(out, event->time);
        buf_puts(out, ", \"name\": ");
        view_print_text(out, event->name);
        buf_puts(out, ", \"kind\": ");
        view_print_text(out, event->kind);
        buf_puts(out, ", \"text\": ");
        view_print_text(out, event->text);
        size_t low = 0; // the last step that was trained then is before
        for (size_t high = times ? metrics->count : 0; low < high;) {
            const size_t middle = low + (high - low) / 2;
            if (times[middle] <= event->time)
                low = middle + 1;
            else
                high = middle;
        }
        buf_puts(out, ", \"step\": ");
        view_print(out, low ? (double)metrics->steps[low - 1] : NAN);
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

status view_run_live(struct view_call *call) {
    struct view_live *live = view_live_get(call->view);
    struct view_progress progress;
    int64_t after;
    TRY(view_int_argument(call, "after", 0, (int64_t)1 << 53, -1, &after));
    if (!view_run_refresh(call)) return OK;
    view_run_progress(call, &progress);
    if (after > live->seq) after = -1; // of an earlier viewer
    // The versions of the weights that optim has published last.
    const struct pipeline *pipeline = view_run_pipeline(call);
    const struct pipeline_stage *stage = pipeline ? pipeline_optim(pipeline) : NULL;
    const struct optim_options *optim = stage ? pipeline_options(stage) : NULL;
    const bool refers = optim && isfinite(progress.step) &&
                        (optim->ema_every || pipeline_find_stage(pipeline, stage_kinds[STAGE_REFSCORE].name));
    const double reference = !refers                ? NAN
                             : optim->ema_every > 0 ? progress.step - fmod(progress.step, (double)optim->ema_every)
                                                    : 0;
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"step", progress.step},
                   {"done", progress.done},
                   {"total", progress.total},
                   {"rate", progress.rate},
                   {"left", progress.left},
                   {"in_flight", progress.in_flight},
                   {"reissued", progress.reissued},
                   {"quarantined", progress.quarantined},
                   {"policy", optim ? progress.step : NAN},
                   {"reference", reference}};
    struct buf *out = &call->out;
    buf_printf(out, "{\"seq\": %lld, \"time\": ", (long long)live->seq);
    view_print(out, clock_realtime());
    buf_puts(out, ", \"state\": ");
    view_print_text(out, progress.state);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        buf_printf(out, ", \"%s\": ", numbers[i].name);
        view_print(out, numbers[i].value);
    }
    buf_puts(out, ", ");
    view_live_print_replicas(call, &progress);
    buf_puts(out, ", ");
    view_live_print_news(call, after);
    buf_puts(out, "}");
    view_run_progress_release(&progress);
    return OK;
}
