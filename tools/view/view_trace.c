// The times of the groups: a bar for each stage that had a group, and how busy the stages were.
//
// The bars are in the rows of the groups, and reading all rows of a long run takes too long for one request. So where a
// span has too many groups, its shares are those of windows: the beginning of each piece of the span, as long as can be
// read. A share of a window is an unbiased one, which that of some of the groups would not be. Rows that are not in
// memory yet take long, so a request is answered in parts: see struct view_call.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "tools/eval/figures.h"
#include "tools/view/view.h"

enum {
    MOST_PIECES = 400,
    LEAST_PIECES = 25, // of a span that is not read whole
    MOST_READ = 7000,  // groups for one answer
    MOST_BARS = 20000,
    MOST_EXPORTED = 40000, // bars
    WINDOW_STEPS = 256,    // lengths of a window that are tried
    MOST_STAGES = 255,
};

// A stage that had a group.
struct trace_bar {
    size_t group;    // index in the trace's
    double from, to; // seconds since 1970
    double waited;   // before it
    uint8_t stage;
    uint16_t replica;
};

struct trace_group {
    size_t index;     // of the source's
    struct string id; // as JSON
};

struct trace_stage {
    char *name;
    struct string json; // the name
    size_t groups;
    double *had; // of each group
    double waited;
};

// What was read of a span.
struct view_trace {
    double start, end; // of the run; NaN without groups
    double from, to;
    int pieces;
    double window;      // share of each piece that was looked at
    size_t inside;      // groups of the span
    size_t first;       // the first one that may be in the span
    size_t count;       // groups of the source when it was asked
    size_t next;        // the first one whose row was not read yet
    uint16_t *reach;    // of each group from `first` on, see view_trace_choose_windows; NULL: all are read
    struct arena arena; // of the JSON of names and ids
    struct trace_group *groups;
    size_t group_count;
    struct trace_bar *bars;
    size_t bar_count;
    struct trace_stage stages[MOST_STAGES];
    size_t stage_count;
};

static void view_trace_free(void *work) {
    struct view_trace *trace = work;
    for (size_t i = 0; i < trace->stage_count; i++) {
        free(trace->stages[i].name);
        free(trace->stages[i].had);
    }
    free(trace->reach);
    free(trace->groups);
    free(trace->bars);
    arena_release(&trace->arena);
    free(trace);
}

// Whether the group at an index was in the pipeline during the span.
static bool view_trace_has(const struct view_trace *trace, const struct numbered_summary *group) {
    return group->number >= 0 && group->summary.issued <= trace->to && group->summary.settled >= trace->from;
}

static double view_trace_width(const struct view_trace *trace) {
    return (trace->to - trace->from) / trace->pieces;
}

// Chooses the pieces of the span and the windows in them, so that at most MOST_READ groups are read: about as many of
// those that are under way where a piece begins as of those that begin in a window.
static void view_trace_choose_windows(struct view_trace *trace, struct view_groups *groups) {
    const double seconds = trace->to - trace->from;
    double under_way = 0; // seconds of the groups of the span, and of some around it
    trace->window = 1;
    trace->pieces = seconds < 0.001 ? 1 : seconds * 1000 < MOST_PIECES ? (int)(seconds * 1000) : MOST_PIECES;
    for (size_t b = trace->first / VIEW_BLOCK; b * VIEW_BLOCK < trace->count; b++) {
        const struct view_block *block = view_block_at(groups, b);
        const bool all =
            block->times == block->alive && block->last_issued <= trace->to && block->first_settled >= trace->from;
        for (size_t i = b * VIEW_BLOCK; i < block->end && !all; i++)
            trace->inside += view_trace_has(trace, &groups->list[i]);
        if (all) trace->inside += block->alive;
        under_way += block->seconds;
    }
    if (trace->inside <= MOST_READ || !(seconds > 0)) return;
    const double at_once = under_way / seconds; // groups
    if (trace->pieces * at_once > MOST_READ / 2.0) trace->pieces = (int)(MOST_READ / 2.0 / at_once);
    if (trace->pieces < LEAST_PIECES) trace->pieces = LEAST_PIECES;
    NEW(&trace->reach, trace->count - trace->first);
    for (;;) { // a group's reach: from how many steps of a window on it has the group
        size_t counts[WINDOW_STEPS + 1] = {0}, sum;
        int steps = 0;
        for (size_t i = trace->first; i < trace->count; i++) {
            if (!view_trace_has(trace, &groups->list[i])) continue;
            const struct group_summary *summary = &groups->list[i].summary;
            const double rate = trace->pieces / seconds, place = (summary->issued - trace->from) * rate,
                         last = (summary->settled - trace->from) * rate;
            uint16_t reach = 0; // it is under way where a piece begins
            if (place > 0 && place < trace->pieces && last < (int)place + 1)
                reach = (uint16_t)ceil((place - (int)place) * WINDOW_STEPS);
            trace->reach[i - trace->first] = reach;
            counts[reach]++;
        }
        for (sum = counts[0]; steps < WINDOW_STEPS && sum + counts[steps + 1] <= MOST_READ; steps++)
            sum += counts[steps + 1];
        trace->window = (double)steps / WINDOW_STEPS;
        if (steps || trace->pieces <= LEAST_PIECES) break;
        trace->pieces = trace->pieces / 2 < LEAST_PIECES ? LEAST_PIECES : trace->pieces / 2;
    }
    if (trace->window <= 0) trace->window = 1.0 / WINDOW_STEPS; // very many groups at the same time: some more are read
}

// Returns a string as JSON, in the trace's arena.
static struct string view_trace_json(struct view_trace *trace, struct string text) {
    struct buf json = {0};
    struct string kept;
    view_print_string(&json, text.data ? text : string_of("?"));
    arena_string(&trace->arena, &kept, json.data, json.size);
    buf_release(&json);
    return kept;
}

// Returns the index of a stage by its name.
static size_t view_trace_stage(struct view_trace *trace, struct string name) {
    size_t at = 0;
    while (at < trace->stage_count && !string_equals(name, trace->stages[at].name)) at++;
    if (at < trace->stage_count || at == MOST_STAGES) return at;
    trace->stages[trace->stage_count++] = (struct trace_stage){
        .name = mem_strndup(name.data, name.size),
        .json = view_trace_json(trace, name),
    };
    return at;
}

// Reads the groups of the span, or those of its windows, and adds their bars; the call may be unfinished then. USAGE if
// there are more than `most` bars.
static status view_trace_read(struct view_call *call, struct view_trace *trace, size_t most) {
    enum { AT_ONCE = 64 }; // rows that are read between two looks at the clock
    struct view_groups *groups = &call->source->groups;
    struct buf bytes = {0};
    status result = OK;
    for (size_t read = 0; trace->inside && trace->next < trace->count;) {
        struct group_row row;
        bool found;
        const size_t i = trace->next++;
        if (trace->reach && trace->reach[i - trace->first] > trace->window * WINDOW_STEPS) continue;
        if (!view_trace_has(trace, &groups->list[i])) continue;
        TRY_TO(result, done, view_groups_row(groups, i, &row, &bytes, &found));
        const double issued = groups->list[i].summary.issued;
        const size_t before = trace->bar_count;
        bool inside = false;
        for (size_t k = 0; found && k < row.count; k++) {
            const struct row_time *time = &row.times[k];
            const size_t stage = view_trace_stage(trace, time->stage);
            const double waited = k ? (double)(time->in - time[-1].out) : 0;
            if (stage == MOST_STAGES) continue;
            GROW(&trace->bars, trace->bar_count);
            struct trace_bar *bar = &trace->bars[trace->bar_count++];
            *bar = (struct trace_bar){
                .group = trace->group_count,
                .from = issued + (double)time->in,
                .to = issued + (double)time->out,
                .waited = waited < 0 ? 0 : waited, // the clocks of two machines may differ
                .stage = (uint8_t)stage,
                .replica = time->replica,
            };
            inside |= bar->from <= trace->to && bar->to >= trace->from;
        }
        if (inside) {
            GROW(&trace->groups, trace->group_count);
            struct trace_group *group = &trace->groups[trace->group_count++];
            *group = (struct trace_group){i, view_trace_json(trace, row.id)};
        } else {
            trace->bar_count = before;
        }
        if (trace->bar_count > most)
            TRY_TO(result, done, fail(USAGE, "the span has more than %zu bars: choose a shorter one", most));
        if (++read % AT_ONCE == 0 && trace->next < trace->count && !view_may_go_on(call)) break;
    }
done:
    buf_release(&bytes);
    return result;
}

// *out = what the call keeps of its span, of which the first call reads the bounds, within the times of the run.
static status view_trace_open(struct view_call *call, struct view_trace **out) {
    struct view_groups *groups = &call->source->groups;
    const struct pipeline *pipeline = call->source->pipeline;
    struct view_trace *trace = *out = call->work;
    if (trace) return OK;
    NEW(&trace, 1);
    *out = call->work = trace;
    call->free_work = view_trace_free;
    for (size_t i = 0; pipeline && i < pipeline->stage_count; i++)
        (void)view_trace_stage(trace, string_of(pipeline->stages[i].name));
    TRY(view_number_argument(call, "from", &trace->from));
    TRY(view_number_argument(call, "to", &trace->to));
    if (trace->from > trace->to) return fail(USAGE, "from is after to");
    trace->start = trace->end = NAN;
    for (size_t b = 0; b < view_block_count(groups); b++) {
        const struct view_block *block = view_block_at(groups, b);
        trace->start = fmin(trace->start, block->first_issued);
        trace->end = fmax(trace->end, block->last_settled);
    }
    trace->from = isnan(trace->from) ? trace->start : fmin(fmax(trace->from, trace->start), trace->end);
    trace->to = isnan(trace->to) ? trace->end : fmin(fmax(trace->to, trace->start), trace->end);
    if (isnan(trace->start)) trace->from = trace->to = NAN;
    // A range of groups, of which those outside the span are left out one by one.
    trace->first = trace->count = groups->count;
    for (size_t b = view_block_count(groups); b-- > 0;) {
        const struct view_block *block = view_block_at(groups, b);
        if (!(block->first_issued <= trace->to && block->last_settled >= trace->from)) continue;
        if (trace->first == groups->count) trace->count = block->end;
        trace->first = b * VIEW_BLOCK;
    }
    trace->next = trace->first;
    return OK;
}

// ---- figures ----

static int view_trace_compare_bars(const void *a, const void *b) {
    const struct trace_bar *one = a, *two = b;
    if (one->stage != two->stage) return one->stage < two->stage ? -1 : 1;
    return (one->from > two->from) - (one->from < two->from);
}

static void view_trace_sort(struct view_trace *trace) {
    assert(trace->bars || !trace->bar_count);
    if (trace->bar_count) qsort(trace->bars, trace->bar_count, sizeof *trace->bars, view_trace_compare_bars);
}

// Appends a time to the microsecond.
static void view_trace_print_time(struct buf *out, double time) {
    view_print(out, round(time * 1e6) / 1e6);
}

// Appends the shares of each piece. busy[stage] = the mean share. Sorts the bars by stage and begin.
static void view_trace_print_busy(struct view_trace *trace, double busy[MOST_STAGES], struct buf *out) {
    const double width = trace->inside ? view_trace_width(trace) : 0;
    const int pieces = width > 0 ? trace->pieces : 0;
    size_t at = 0; // of the bars
    double *seconds;
    view_trace_sort(trace);
    buf_puts(out, ", \"busy\": {\"time\": [");
    for (int i = 0; i < pieces; i++) {
        if (i) buf_puts(out, ", ");
        view_trace_print_time(out, trace->from + i * width);
    }
    buf_puts(out, "], \"width\": ");
    view_print(out, width);
    buf_puts(out, ", \"share\": [");
    NEW(&seconds, MOST_PIECES);
    for (size_t stage = 0; stage < trace->stage_count; stage++) {
        double until = -INFINITY, sum = 0;
        memset(seconds, 0, MOST_PIECES * sizeof *seconds);
        for (; at < trace->bar_count && trace->bars[at].stage == stage; at++) {
            const struct trace_bar *bar = &trace->bars[at];
            // The seconds during which the stage had a group, piece by piece.
            const double from = fmax(fmax(bar->from, until), trace->from), to = fmin(bar->to, trace->to);
            if (pieces && bar->to > until && from < to)
                for (int i = (int)((from - trace->from) / width); i < pieces && trace->from + i * width < to; i++) {
                    const double begin = trace->from + i * width;
                    seconds[i] += fmax(0, fmin(begin + trace->window * width, to) - fmax(begin, from));
                }
            until = fmax(until, bar->to);
        }
        buf_puts(out, stage ? ", [" : "[");
        for (int i = 0; i < pieces; i++) {
            const double share = fmin(1, seconds[i] / (trace->window * width));
            sum += share;
            if (i) buf_puts(out, ", ");
            view_print(out, round(share * 10000) / 10000);
        }
        buf_puts(out, "]");
        busy[stage] = pieces ? sum / pieces : NAN;
    }
    buf_puts(out, "]}");
    free(seconds);
}

// The columns of the table of stages.
enum trace_column { TRACE_GROUPS, TRACE_TYPICAL, TRACE_SLOWEST, TRACE_BUSY, TRACE_WAITED, TRACE_HAD, TRACE_COLUMNS };
static const char *const trace_columns[TRACE_COLUMNS] = {"groups", "typical", "slowest", "busy", "waited", "had"};

// Collects the times of each stage, and appends them. Of windows only the groups count that begin in one, because one
// that takes longer is more often under way where a piece begins.
static void view_trace_print_stages(struct view_trace *trace, const struct view_groups *groups, const double *busy,
                                    struct buf *out) {
    bool *counts;
    size_t counted = 0;
    NEW(&counts, trace->group_count);
    for (size_t i = 0; i < trace->group_count; i++) {
        const double issued = groups->list[trace->groups[i].index].summary.issued,
                     place = (issued - trace->from) / view_trace_width(trace);
        counts[i] = trace->window >= 1 || (issued >= trace->from && place - floor(place) <= trace->window);
        counted += counts[i];
    }
    for (size_t i = 0; i < trace->bar_count; i++) {
        const struct trace_bar *bar = &trace->bars[i];
        struct trace_stage *stage = &trace->stages[bar->stage];
        if (!counts[bar->group]) continue;
        GROW(&stage->had, stage->groups);
        stage->had[stage->groups++] = bar->to - bar->from;
        stage->waited += bar->waited;
    }
    free(counts);
    buf_puts(out, ", \"stages\": {\"name\": [");
    for (size_t i = 0; i < trace->stage_count; i++) {
        struct trace_stage *stage = &trace->stages[i];
        if (stage->groups) qsort(stage->had, stage->groups, sizeof *stage->had, figure_compare_numbers);
        if (i) buf_puts(out, ", ");
        buf_append(out, stage->json.data, stage->json.size);
    }
    for (int column = 0; column < TRACE_COLUMNS; column++) {
        buf_printf(out, "], \"%s\": [", trace_columns[column]);
        for (size_t i = 0; i < trace->stage_count; i++) {
            const struct trace_stage *stage = &trace->stages[i];
            const double count = (double)stage->groups;
            double value = NAN, sum = 0;
            for (size_t k = 0; k < stage->groups; k++) sum += stage->had[k];
            if (column == TRACE_GROUPS) // of all that the span has, as of those that were read
                value = trace->window >= 1 ? count
                        : counted          ? round(count * (double)trace->inside / (double)counted)
                                           : NAN;
            else if (column == TRACE_BUSY)
                value = stage->groups ? busy[i] : NAN;
            else if (stage->groups)
                value = column == TRACE_TYPICAL   ? stage->had[stage->groups / 2]
                        : column == TRACE_SLOWEST ? stage->had[stage->groups - 1]
                        : column == TRACE_WAITED  ? stage->waited / count
                                                  : sum / count;
            if (i) buf_puts(out, ", ");
            view_trace_print_time(out, value);
        }
    }
    buf_puts(out, "]}");
    if (trace->window >= 1) return;
    buf_puts(out, ", \"sampled\": ");
    view_print(out, trace->window);
}

// ---- bars ----

// Appends the groups and the bars as columns.
static void view_trace_print_bars(const struct view_trace *trace, const struct view_source *source, struct buf *out) {
    const struct numbered_summary *list = source->groups.list;
    static const char *const columns[] = {"{\"number\": [", "], \"id\": [", "], \"step\": [", "], \"issued\": ["},
                             *const bars[] = {"{\"stage\": [", "], \"replica\": [", "], \"number\": [",
                                              "], \"from\": [", "], \"to\": ["};
    buf_puts(out, ", \"groups\": ");
    for (int column = 0; column < 4; column++) {
        buf_puts(out, columns[column]);
        for (size_t i = 0; i < trace->group_count; i++) {
            const size_t index = trace->groups[i].index;
            const int64_t step = view_groups_step(source, index);
            if (i) buf_puts(out, ", ");
            if (column == 0)
                view_print(out, (double)list[index].number);
            else if (column == 1)
                buf_append(out, trace->groups[i].id.data, trace->groups[i].id.size);
            else if (column == 2)
                view_print(out, step < 0 ? NAN : (double)step);
            else
                view_trace_print_time(out, list[index].summary.issued);
        }
    }
    buf_puts(out, "]}, \"bars\": ");
    for (int column = 0; column < 5; column++) {
        buf_puts(out, bars[column]);
        for (size_t i = 0; i < trace->bar_count; i++) {
            const struct trace_bar *bar = &trace->bars[i];
            if (i) buf_puts(out, ", ");
            if (column == 0)
                view_print(out, bar->stage);
            else if (column == 1)
                view_print(out, bar->replica ? (double)bar->replica : NAN);
            else if (column == 2)
                view_print(out, (double)list[trace->groups[bar->group].index].number);
            else
                view_trace_print_time(out, column == 3 ? bar->from : bar->to);
        }
    }
    buf_puts(out, "]}");
}

status view_trace_show(struct view_call *call) {
    const bool first = !call->work;
    struct view_trace *trace;
    double busy[MOST_STAGES];
    struct buf *out = &call->out;
    TRY(view_trace_open(call, &trace));
    if (first) view_trace_choose_windows(trace, &call->source->groups);
    TRY(view_trace_read(call, trace, SIZE_MAX));
    if (call->unfinished) return OK;
    const double times[] = {trace->start, trace->end, trace->from, trace->to};
    static const char *const names[] = {"{\"start\": ", ", \"end\": ", ", \"from\": ", ", \"to\": "};
    for (int i = 0; i < 4; i++) {
        buf_puts(out, names[i]);
        view_trace_print_time(out, times[i]);
    }
    view_trace_print_busy(trace, busy, out);
    view_trace_print_stages(trace, &call->source->groups, busy, out);
    if (trace->window < 1 || trace->bar_count > MOST_BARS)
        buf_puts(out, ", \"groups\": null, \"bars\": null");
    else
        view_trace_print_bars(trace, call->source, out);
    buf_puts(out, "}");
    return OK;
}

// ---- trace_lanes ----

// A row of Perfetto: bars of a replica that do not overlap. Where a replica has several groups at a time, it has
// several lanes.
struct trace_lane {
    uint8_t stage;
    uint16_t replica;
    int number;    // among those of the replica, from 1
    int64_t until; // microseconds
};

struct trace_lanes {
    struct trace_lane *list;
    size_t count;
};

// Returns the first lane that is free for the bar, and takes it up to `until`.
static size_t trace_lanes_take(struct trace_lanes *lanes, const struct trace_bar *bar, int64_t from, int64_t until) {
    int number = 1;
    for (size_t i = 0; i < lanes->count; i++) {
        struct trace_lane *lane = &lanes->list[i];
        if (lane->stage != bar->stage || lane->replica != bar->replica) continue;
        number++;
        if (lane->until > from) continue;
        lane->until = until;
        return i;
    }
    GROW(&lanes->list, lanes->count);
    lanes->list[lanes->count] = (struct trace_lane){bar->stage, bar->replica, number, until};
    return lanes->count++;
}

// The span in the Trace Event Format: complete events, in microseconds since the start of the run.
status view_trace_export(struct view_call *call) {
    struct view_trace *trace;
    struct trace_lanes lanes = {0};
    struct buf *out = &call->out;
    TRY(view_trace_open(call, &trace));
    trace->window = trace->pieces = 1;
    trace->inside = trace->count - trace->first; // at most
    TRY(view_trace_read(call, trace, MOST_EXPORTED));
    if (call->unfinished) return OK;
    view_trace_sort(trace);
    buf_puts(out, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"start\": ");
    view_print(out, trace->start);
    buf_puts(out,
             "}, \"traceEvents\": [\n{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": ");
    view_print_text(out, call->source->name);
    buf_puts(out, "}}");
    for (size_t i = 0; i < trace->bar_count; i++) {
        const struct trace_bar *bar = &trace->bars[i];
        const struct trace_group *group = &trace->groups[bar->group];
        const int64_t from = llround((bar->from - trace->start) * 1e6), to = llround((bar->to - trace->start) * 1e6),
                      step = view_groups_step(call->source, group->index);
        const size_t lane = trace_lanes_take(&lanes, bar, from, to > from ? to : from);
        buf_puts(out, ",\n{\"name\": ");
        buf_append(out, group->id.data, group->id.size);
        buf_puts(out, ", \"cat\": ");
        buf_append(out, trace->stages[bar->stage].json.data, trace->stages[bar->stage].json.size);
        buf_printf(
            out, ", \"ph\": \"X\", \"pid\": 1, \"tid\": %zu, \"ts\": %lld, \"dur\": %lld, \"args\": {\"number\": %lld",
            lane + 1, (long long)from, (long long)(to > from ? to - from : 0),
            (long long)call->source->groups.list[group->index].number);
        if (step >= 0) buf_printf(out, ", \"step\": %lld", (long long)step);
        buf_puts(out, "}}");
    }
    for (size_t i = 0; i < lanes.count; i++) { // their names and their order
        const struct trace_lane *lane = &lanes.list[i];
        const int number = lane->number < 127 ? lane->number : 127;
        struct buf name = {0};
        buf_puts(&name, trace->stages[lane->stage].name);
        if (lane->replica > 1) buf_printf(&name, "-%d", lane->replica);
        if (lane->number > 1) buf_printf(&name, " (%d)", lane->number);
        buf_printf(out, ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %zu, \"name\": \"thread_name\", \"args\": {\"name\": ",
                   i + 1);
        view_print_string(out, (struct string){name.data, name.size});
        buf_printf(out,
                   "}},\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %zu, \"name\": \"thread_sort_index\", \"args\": "
                   "{\"sort_index\": %d}}",
                   i + 1, lane->stage << 23 | lane->replica << 7 | number);
        buf_release(&name);
    }
    buf_puts(out, "\n]}\n");
    if (!call->source->trace_file) { // in a header, so of plain characters alone
        char *name = arena_printf(&call->view->arena, "%.100s.trace.json", call->source->name);
        for (char *at = name; *at; at++)
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at)) *at = '_';
        call->source->trace_file = name;
    }
    call->file_name = call->source->trace_file;
    free(lanes.list);
    return OK;
}
