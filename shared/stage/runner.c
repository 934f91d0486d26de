// The one loop of every stage: receive groups while there is capacity, do some work, deliver what is done. It never
// waits for input while there is work, and never works on a group whose section is in the store already. A section's
// key in STORE/groups.lmdb is a hash of everything that it was computed from (the group's earlier sections, the stage's
// options, its weights), so an outdated section is never found.
#include "shared/stage/runner.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"

void runner_set_times(const struct stage_context *context, struct group *group, double taken) {
    const struct stage_time time = {.stage = string_of(context->stage->name),
                                    .in = (double)llround(taken * 1000) / 1000,
                                    .out = (double)llround(clock_realtime() * 1000) / 1000,
                                    .replica = context->replica};
    group_set_times(group, &time);
}

// Under --stdio, what a quick stage has finished is stored together, because each transaction waits for the disk.
enum { MAX_FINISHED = 64 };
static const double finished_seconds = 0.05; // how long one may wait for others while there is input

struct runner {
    struct stage_context *context;
    const struct channel *channel;
    struct group_record records[MAX_FINISHED]; // to be stored
    struct held_group *finished[MAX_FINISHED]; // their groups, then to be delivered
    size_t finished_count;
    double finished_since;    // monotonic seconds
    struct held_group **held; // [count], the groups that the stage has
    size_t count;
    bool draining; // no more groups will come
    bool idle;     // the stage can do nothing until it gets another group
};

// Stores and delivers the groups that wait for it.
static status runner_flush(struct runner *runner) {
    const size_t count = runner->finished_count;
    if (count) TRY(group_store_save_all(runner->context->store, runner->records, count));
    runner->finished_count = 0;
    for (size_t i = 0; i < count; i++) TRY(runner->channel->deliver(runner->channel->self, runner->finished[i], OK));
    return OK;
}

// Delivers a group, and stores it first: a section, unless it is -1, and the whole group where it leaves the pipeline.
// In a run at once, because its neighbours wait for it.
static status runner_finish(struct runner *runner, struct held_group *held, int section) {
    struct stage_context *context = runner->context;
    const double now = clock_monotonic();
    if (!context->store || (section < 0 && !context->last))
        return runner->channel->deliver(runner->channel->self, held, OK);
    if (!runner->finished_count) runner->finished_since = now;
    runner->records[runner->finished_count] = (struct group_record){held->group, held->key, section, !context->last};
    runner->finished[runner->finished_count++] = held;
    const bool together = context->stage->quick && !context->node && runner->finished_count < MAX_FINISHED;
    return together && now - runner->finished_since < finished_seconds ? OK : runner_flush(runner);
}

// The stage has the group.
static void runner_hold(struct runner *runner, struct held_group *held) {
    GROW(&runner->held, runner->count);
    runner->held[runner->count++] = held;
}

// Handles what the stage returned for a group: delivers it, quarantined or not, or refuses its line. What was computed
// while the weights changed counts for nothing: it may be of no version at all, and must not be stored under one.
static status runner_settle(struct runner *runner, struct held_group *held, status result) {
    struct stage_context *context = runner->context;
    struct group *group = held->group;
    if (context->stage->weights_intact && !context->stage->weights_intact(context->state)) {
        log_debug("the weights changed under group %s", group->id.data);
        assert(runner->channel->give_back);
        runner->channel->give_back(runner->channel->self, held);
        return OK;
    }
    if (result == DATAERR) return runner->channel->deliver(runner->channel->self, held, DATAERR);
    if (result != OK && result != BAD_SAMPLE) { // the stage may still be at work on it
        runner_hold(runner, held);
        return result;
    }
    if (result == BAD_SAMPLE) group_quarantine(group, context->stage->name, "%s", fail_text());
    context->quarantined += group->quarantine.present;
    runner_set_times(context, group, held->begun);
    // A quarantined group is tried again in the next run, so its section is not kept.
    return runner_finish(runner, held, group->quarantine.present ? -1 : context->stage->section);
}

// Passes a group on, finds its section in the store, or gives it to the stage.
static status runner_begin(struct runner *runner, struct held_group *held) {
    struct stage_context *context = runner->context;
    const struct stage *stage = context->stage;
    bool found = false;
    held->begun = clock_realtime();
    if (held->group->quarantine.present) return runner_finish(runner, held, -1);
    if (group_check(held->group, stage->needs) != OK)
        return runner->channel->deliver(runner->channel->self, held, DATAERR);
    if (context->store && stage->section >= 0) {
        struct buf inputs = {0};
        const uint64_t hashes[2] = {options_hash(&context->options, false),
                                    stage->fingerprint ? stage->fingerprint(context->state) : 0};
        buf_printf(&inputs, "%s %d ", stage->name, stage->section);
        buf_append(&inputs, hashes, sizeof hashes);
        // Two stages add to `consistency`, so what the group has of that section already counts, too.
        const int end = stage->section + (stage->section == SECTION_CONSISTENCY);
        for (int section = SECTION_PROMPT; section < end; section++)
            group_section_to_msgpack(held->group, (enum group_section)section, &inputs);
        XXH128_canonical_t canonical;
        static_assert(sizeof canonical.digest == sizeof held->key.bytes, "a key is a hash");
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(inputs.data, inputs.size));
        memcpy(held->key.bytes, canonical.digest, sizeof held->key.bytes);
        buf_release(&inputs);
        TRY(group_store_find(context->store, &held->key, (enum group_section)stage->section, held->group, &found));
        if (found && stage->usable) found = stage->usable(context->state, held->group);
    }
    if (found) {
        context->found++;
        return runner_finish(runner, held, -1);
    }
    status result = (stage->work ? stage->work : stage->submit)(context->state, held->group);
    if (stage->work || result != OK) return runner_settle(runner, held, result);
    runner_hold(runner, held);
    runner->idle = false;
    return OK;
}

// Receives groups while the stage has capacity and there are some; waits for one only if there is nothing else to do.
static status runner_fill(struct runner *runner) {
    const struct stage *stage = runner->context->stage;
    const struct channel *channel = runner->channel;
    for (;;) {
        bool forgotten = false;
        if (signals_stopping()) runner->draining = true;
        if (runner->draining) return OK;
        if (channel->update_weights) TRY(channel->update_weights(channel->self, &forgotten));
        while (forgotten && runner->count) channel->give_back(channel->self, runner->held[--runner->count]);
        int capacity = stage->work ? 1 : stage->capacity(runner->context->state);
        if (capacity <= 0) return OK;
        struct held_group *held = NULL;
        int timeout = (runner->count == 0 || runner->idle) && !runner->finished_count ? -1 : 0;
        status result = channel->receive(channel->self, capacity, timeout, &held);
        if (result == END) {
            runner->draining = true;
            return OK;
        }
        TRY(result);
        TRY(held ? runner_begin(runner, held) : runner_flush(runner));
        if (!held && timeout == 0) return OK;
    }
}

status runner_run(struct stage_context *context, const struct channel *channel) {
    struct runner runner = {.context = context, .channel = channel};
    const struct stage *stage = context->stage;
    status result;
    assert(stage->work || (stage->capacity && stage->submit && stage->poll));
    assert(!stage->weights_intact || channel->give_back || !context->node);
    do { // lets the stage work for a while between two fills, and settles the group that it returns, if any
        struct group *done = NULL;
        TRY_TO(result, end, runner_fill(&runner));
        if (context->node && signals_stopping()) goto end;
        if (runner.count) {
            result = stage->poll(context->state, runner.draining, &done);
            runner.idle = result == END;
        }
        if (done && (result == OK || result == BAD_SAMPLE || result == DATAERR)) {
            size_t at = 0;
            while (at < runner.count && runner.held[at]->group != done) at++;
            if (at == runner.count) TRY_TO(result, end, fail(BUG, "the stage returned a group that it was not given"));
            struct held_group *held = runner.held[at];
            runner.held[at] = runner.held[--runner.count];
            result = runner_settle(&runner, held, result);
        } else if (result == END && runner.draining && runner.count) {
            result = fail(BUG, "the stage kept %zu groups at the end", runner.count);
        } else if (result == END) {
            result = OK;
        }
        if (result == OK && !runner.count && stage->on_idle) result = stage->on_idle(context->state, false);
        if (result != OK) goto end;
    } while (runner.count || !runner.draining);
    result = runner_flush(&runner);
end:
    // After a failure the stage may still be at work on its groups: they are freed when it is closed.
    for (size_t i = 0; i < runner.count; i++) {
        RESIZE(&context->unfinished, context->unfinished_count + 1);
        context->unfinished[context->unfinished_count++] = runner.held[i]->group;
        runner.held[i]->group = NULL;
    }
    free(runner.held);
    return result;
}

// ---- stdio ----

// The filter: groups as JSON lines in, groups as JSON lines out, in the same order. A group that is done before an
// earlier one waits in its slot. A line that is not a group ends the run when everything before it is written.

enum { MAX_SLOTS = 1024 }; // slots above which no more lines are read while there is other work

struct stdio_slot {
    struct held_group held; // its group is NULL when it was delivered
    struct stdio_slot *next;
    size_t line;
    char *passing;   // a quarantined group's line, to be written as it came
    struct buf done; // the line to be written
    char *refused;   // why the line is not a group
};
static_assert(offsetof(struct stdio_slot, held) == 0, "a held group leads to its slot");

struct stdio_filter {
    struct stage_context *context;
    struct line_reader lines;
    int output;
    struct stdio_slot *first, **end; // in the order of the lines
    size_t count;
    bool closed;        // a line was not a group, so no more are read
    int64_t seq, total; // of a source: the next group, and their number
};

static void stdio_remove_first(struct stdio_filter *filter) {
    struct stdio_slot *slot = filter->first;
    filter->first = slot->next;
    if (!filter->first) filter->end = &filter->first;
    filter->count--;
    group_free(&slot->held.group);
    buf_release(&slot->done);
    free(slot->passing);
    free(slot->refused);
    free(slot);
}

// Writes the slots at the front that are done. DATAERR when the line of the first one is not a group.
static status stdio_flush(struct stdio_filter *filter) {
    for (struct stdio_slot *slot; (slot = filter->first); stdio_remove_first(filter)) {
        if (slot->refused) return fail(DATAERR, "line %zu: %s", slot->line, slot->refused);
        if (!slot->done.size) return OK;
        if (!fd_write_all(filter->output, slot->done.data, slot->done.size))
            return errno == EPIPE ? fail(END, "standard output is closed")
                                  : fail(UNAVAILABLE, "standard output: %s", strerror(errno));
    }
    return OK;
}

// Records that a line is not a group, for the reason in fail_text(). Nothing after it is read.
static status stdio_refuse_slot(struct stdio_filter *filter, struct stdio_slot *slot) {
    assert(!slot->refused && !slot->done.size);
    filter->closed = true;
    slot->refused = mem_strdup(fail_text());
    return stdio_flush(filter);
}

// Makes the next group of a source, or reads the one of the next line.
static status stdio_receive(void *self, int capacity, int timeout_ms, struct held_group **out) {
    struct stdio_filter *filter = self;
    const struct stage *stage = filter->context->stage;
    const double begun = clock_realtime();
    const char *line = NULL;
    size_t size = 0;
    (void)capacity;
    *out = NULL;
    if (filter->closed) return END;
    if (timeout_ms >= 0 && filter->count >= MAX_SLOTS) return OK;
    if (!stage->group_at) TRY(line_reader_next(&filter->lines, timeout_ms, &line, &size));
    if (!stage->group_at && !line) return OK;
    struct stdio_slot *slot;
    NEW(&slot, 1);
    slot->line = filter->lines.number;
    slot->held.begun = begun;
    *filter->end = slot;
    filter->end = &slot->next;
    filter->count++;
    const status result = line ? group_from_json(&slot->held.group, line, size)
                               : stage->group_at(filter->context->state, filter->seq++, &slot->held.group, &slot->line);
    if (line && result == DATAERR) {
        TRY(stdio_refuse_slot(filter, slot));
        return END;
    }
    TRY(result);
    if (line && slot->held.group->quarantine.present) slot->passing = mem_strndup(line, size);
    *out = &slot->held;
    return OK;
}

static status stdio_deliver(void *self, struct held_group *held, status outcome) {
    enum { PROGRESS_SECONDS = 10 };
    struct stdio_filter *filter = self;
    struct stage_context *context = filter->context;
    struct stdio_slot *slot = (struct stdio_slot *)held;
    const double now = clock_monotonic();
    if (outcome == OK && slot->passing) buf_puts(&slot->done, slot->passing);
    if (outcome == OK && !slot->passing) group_to_json(held->group, &slot->done);
    if (outcome == OK) buf_puts(&slot->done, "\n");
    group_free(&held->group);
    if (outcome != OK) return stdio_refuse_slot(filter, slot);
    context->groups++;
    TRY(stdio_flush(filter));
    if (now - context->progress_at < PROGRESS_SECONDS) return OK;
    context->progress_at = now;
    log_info("%zu groups, %zu quarantined, %.2f groups/s", context->groups, context->quarantined,
             (double)context->groups / (now - context->started));
    return OK;
}

status stdio_run(struct stage_context *context, int input, int output) {
    struct stdio_filter filter = {.context = context, .lines = {.fd = input}, .output = output};
    const struct channel channel = {&filter, stdio_receive, stdio_deliver, NULL, NULL};
    const bool source = context->stage->group_at;
    struct held_group *held;
    struct buf data = {0};
    uint64_t hash;
    filter.end = &filter.first;
    status result =
        source ? context->stage->describe(context->state, &filter.total, &hash, &data) : runner_run(context, &channel);
    while (source && result == OK && filter.seq < filter.total && !signals_stopping()) { // one group after the other
        TRY_TO(result, done, stdio_receive(&filter, 1, -1, &held));
        assert(held);
        context->quarantined += held->group->quarantine.present;
        runner_set_times(context, held->group, held->begun);
        result = stdio_deliver(&filter, held, OK);
    }
    if (result == OK) result = stdio_flush(&filter);
done:
    while (filter.count) stdio_remove_first(&filter);
    line_reader_release(&filter.lines);
    buf_release(&data);
    return result;
}
