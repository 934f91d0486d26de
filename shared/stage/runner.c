// The one loop of every stage: receive groups while there is capacity, do some work, deliver what is done. It never
// waits for input while there is work, and never works on a group whose section is in the store already. A section's
// key in STORE/groups.lmdb is a hash of everything that it was computed from (the group's earlier sections, the stage's
// options, its weights), so an outdated section is never found.
#include "shared/stage/runner.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"

void runner_add_times(struct group *group, const char *stage, double taken) {
    struct arena arena = {0};
    struct json *times = NULL;
    struct buf printed = {0};
    if (group->times.data && json_parse(&times, &arena, group->times.data, group->times.size) != OK) times = NULL;
    if (!times) times = json_new(&arena, JSON_OBJECT);
    struct json *pair = json_set(times, &arena, stage);
    pair->type = JSON_ARRAY;
    const double seconds[] = {taken, clock_realtime()};
    for (int i = 0; i < 2; i++) {
        const long long ms = llround(seconds[i] * 1000);
        struct json *number = json_push(pair, &arena);
        number->type = JSON_NUMBER;
        number->text = string_of(arena_printf(&arena, "%lld.%03lld", ms / 1000, ms % 1000));
    }
    json_print(&printed, times);
    group_string(group, &group->times, printed.data, printed.size);
    buf_release(&printed);
    arena_release(&arena);
}

// A group that the stage has.
struct held_group {
    struct group *group;
    double received_at; // in seconds since 1970
    struct section_key key;
};

// Under --stdio, what a quick stage has finished is stored together, because each transaction waits for the disk.
enum { FINISHED_MAX = 64 };
static const double finished_seconds = 0.05; // how long one may wait for others while there is input

struct runner {
    struct stage_context *context;
    const struct channel *channel;
    struct group_record finished[FINISHED_MAX]; // to be stored, then delivered
    size_t finished_count;
    double finished_since; // monotonic seconds
    struct held_group *held;
    size_t count, capacity; // of held
    bool draining;          // no more groups will come
    bool idle;              // the stage can do nothing until it gets another group
};

static status runner_deliver(struct runner *runner, struct group **group) {
    enum { PROGRESS_SECONDS = 10 };
    struct stage_context *context = runner->context;
    context->groups++;
    TRY(runner->channel->deliver(runner->channel->self, group, OK));
    const double now = clock_monotonic();
    if (context->node || now - context->progress_at < PROGRESS_SECONDS) return OK;
    context->progress_at = now;
    log_info("%zu groups, %zu quarantined, %.2f groups/s", context->groups, context->quarantined,
             (double)context->groups / (now - context->started));
    return OK;
}

// Stores and delivers the groups that wait for it.
static status runner_flush(struct runner *runner) {
    const size_t count = runner->finished_count;
    status result = count ? group_store_save_all(runner->context->store, runner->finished, count) : OK;
    runner->finished_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct group *group = runner->finished[i].group;
        if (result == OK)
            result = runner_deliver(runner, &group);
        else
            group_free(&group);
    }
    return result;
}

// Stores a group, with a section unless it is -1, and delivers it; in a run at once, because its neighbours wait for
// it, and the whole group only where it leaves the pipeline.
static status runner_finish(struct runner *runner, struct group *group, const struct section_key *key, int section) {
    struct stage_context *context = runner->context;
    const double now = clock_monotonic();
    if (!runner->finished_count) runner->finished_since = now;
    runner->finished[runner->finished_count++] = (struct group_record){group, *key, section, !context->last};
    const bool together = context->stage->quick && !context->node && runner->finished_count < FINISHED_MAX;
    return together && now - runner->finished_since < finished_seconds ? OK : runner_flush(runner);
}

// Handles what the stage returned for a group: delivers it, quarantined or not, or refuses its line. What was computed
// while the weights changed counts for nothing: it may be of no version at all, and must not be stored under one.
static status runner_settle(struct runner *runner, const struct held_group *held, status result) {
    struct stage_context *context = runner->context;
    struct group *group = held->group;
    if (context->stage->weights_intact && !context->stage->weights_intact(context->state)) {
        log_debug("the weights changed under group %s", group->id.data);
        return runner->channel->give_back(runner->channel->self, &group);
    }
    if (result == DATAERR) return runner->channel->deliver(runner->channel->self, &group, DATAERR);
    if (result != OK && result != BAD_SAMPLE) {
        group_free(&group);
        return result;
    }
    if (result == BAD_SAMPLE) group_quarantine(group, context->stage->name, "%s", fail_text());
    context->quarantined += group->quarantine.present;
    runner_add_times(group, context->stage->name, held->received_at);
    // A quarantined group is tried again in the next run, so its section is not kept.
    const int section = group->quarantine.present ? -1 : context->stage->section;
    if (!context->store || (section < 0 && !context->last)) return runner_deliver(runner, &group);
    return runner_finish(runner, group, &held->key, section);
}

// Sets *key to the key of the section that the stage is about to add. If *found, the group has the section now. Two
// stages add to `consistency`, so what the group has of that section already counts, too.
static status runner_find_section(const struct stage_context *context, struct section_key *key, struct group *group,
                                  bool *found) {
    const struct stage *stage = context->stage;
    struct buf inputs = {0};
    uint64_t hashes[2] = {0, stage->fingerprint ? stage->fingerprint(context->state) : 0};
    *found = false;
    options_hash(&context->options, &hashes[0]);
    buf_printf(&inputs, "%s %d ", stage->name, stage->section);
    buf_append(&inputs, hashes, sizeof hashes);
    status result = OK;
    const int end = stage->section + (stage->section == SECTION_CONSISTENCY);
    for (int section = SECTION_PROMPT; section < end && result == OK; section++)
        group_section_to_msgpack(group, (enum group_section)section, &inputs);
    if (result == OK) {
        XXH128_canonical_t canonical;
        static_assert(sizeof canonical.digest == sizeof key->bytes, "a key is a hash");
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(inputs.data, inputs.size));
        memcpy(key->bytes, canonical.digest, sizeof key->bytes);
        result = group_store_find(context->store, key, (enum group_section)stage->section, group, found);
    }
    buf_release(&inputs);
    if (result == OK && *found && stage->usable) *found = stage->usable(context->state, group);
    return result;
}

// Delivers a group that needs no work here: a quarantined one, or one whose section was found. The whole group is kept
// where it leaves the pipeline.
static status runner_pass(struct runner *runner, struct group *group) {
    const struct section_key none = {{0}};
    const bool keep = runner->context->store && runner->context->last;
    return keep ? runner_finish(runner, group, &none, -1) : runner_deliver(runner, &group);
}

// Passes a group on, finds its section in the store, or gives it to the stage. Takes the group over.
static status runner_begin(struct runner *runner, struct group *group) {
    struct stage_context *context = runner->context;
    const struct stage *stage = context->stage;
    struct held_group held = {.group = group, .received_at = clock_realtime()};
    bool found = false;
    if (group->quarantine.present) return runner_pass(runner, group);
    if (group_check(group, stage->needs) != OK) return runner->channel->deliver(runner->channel->self, &group, DATAERR);
    if (context->store && stage->section >= 0) {
        status result = runner_find_section(context, &held.key, group, &found);
        if (result != OK) group_free(&group);
        TRY(result);
    }
    if (found) {
        context->found++;
        return runner_pass(runner, group);
    }
    if (stage->work) return runner_settle(runner, &held, stage->work(context->state, group));
    if (runner->count == runner->capacity) {
        size_t capacity = runner->capacity ? runner->capacity * 2 : 16;
        RESIZE(&runner->held, capacity);
        status result = OK;
        if (result != OK) group_free(&group);
        TRY(result);
        runner->capacity = capacity;
    }
    status result = stage->submit(context->state, group);
    if (result != OK) return runner_settle(runner, &held, result);
    assert(runner->count < runner->capacity);
    runner->held[runner->count++] = held;
    runner->idle = false;
    return OK;
}

// Gives back the groups that the stage has forgotten with its weights.
static status runner_update_weights(struct runner *runner) {
    const struct channel *channel = runner->channel;
    bool forgotten = false;
    if (channel->update_weights) TRY(channel->update_weights(channel->self, &forgotten));
    while (forgotten && runner->count) TRY(channel->give_back(channel->self, &runner->held[--runner->count].group));
    return OK;
}

// Receives groups while the stage has capacity and there are some; waits for one only if there is nothing else to do.
static status runner_fill(struct runner *runner) {
    const struct stage *stage = runner->context->stage;
    for (;;) {
        if (signals_stopping()) runner->draining = true;
        if (runner->draining) return OK;
        TRY(runner_update_weights(runner));
        int capacity = stage->work ? 1 : stage->capacity(runner->context->state);
        if (capacity <= 0) return OK;
        struct group *group = NULL;
        int timeout = (runner->count == 0 || runner->idle) && !runner->finished_count ? -1 : 0;
        status result = runner->channel->receive(runner->channel->self, capacity, timeout, &group);
        if (result == END) {
            runner->draining = true;
            return OK;
        }
        TRY(result);
        TRY(group ? runner_begin(runner, group) : runner_flush(runner));
        if (!group && timeout == 0) return OK;
    }
}

// Lets the stage work for a while between two fills, and settles the group that it returns, if any.
static status runner_run_filter(struct runner *runner) {
    const struct stage *stage = runner->context->stage;
    do {
        struct group *done = NULL;
        status result = OK;
        TRY(runner_fill(runner));
        if (runner->context->node && signals_stopping()) return OK;
        if (runner->count) {
            result = stage->poll(runner->context->state, runner->draining, &done);
            runner->idle = result == END;
        }
        if (done && (result == OK || result == BAD_SAMPLE || result == DATAERR)) {
            size_t at = 0;
            while (at < runner->count && runner->held[at].group != done) at++;
            if (at == runner->count) return fail(BUG, "the stage returned a group that it was not given");
            struct held_group held = runner->held[at];
            runner->count--;
            memmove(&runner->held[at], &runner->held[at + 1], (runner->count - at) * sizeof held);
            TRY(runner_settle(runner, &held, result));
        } else if (result != END) {
            TRY(result);
        } else if (runner->draining && runner->count) {
            return fail(BUG, "the stage kept %zu groups at the end", runner->count);
        }
        if (!runner->count && stage->on_idle) TRY(stage->on_idle(runner->context->state, false));
    } while (runner->count || !runner->draining);
    return runner_flush(runner);
}

status runner_run(struct stage_context *context, const struct channel *channel) {
    struct runner runner = {.context = context, .channel = channel};
    const struct stage *stage = context->stage;
    assert(stage->group_at || stage->work || (stage->capacity && stage->submit && stage->poll));
    assert(!stage->weights_intact || channel->give_back || !context->node);
    int64_t total = 0;
    uint64_t hash;
    status result = stage->group_at ? stage->describe(context->state, &total, &hash) : runner_run_filter(&runner);
    // Without a pipeline a source delivers its groups one after the other.
    for (int64_t seq = 0; seq < total && result == OK && !signals_stopping(); seq++) {
        struct group *group = NULL;
        const double started = clock_realtime();
        result = stage->group_at(context->state, seq, &group);
        if (result == OK) context->quarantined += group->quarantine.present;
        if (result == OK) runner_add_times(group, stage->name, started);
        if (result == OK) result = runner_deliver(&runner, &group);
        group_free(&group);
    }
    for (size_t i = 0; i < runner.finished_count; i++) group_free(&runner.finished[i].group);
    // After a failure the stage may still be at work on these groups: they are freed when it is closed.
    if (runner.count) {
        NEW(&context->unfinished, runner.count);
        for (size_t i = 0; i < runner.count; i++) context->unfinished[i] = runner.held[i].group;
        context->unfinished_count = runner.count;
    }
    free(runner.held);
    return result;
}

// ---- stdio ----

// The filter: groups as JSON lines in, groups as JSON lines out, in the same order. A group that is done before an
// earlier one waits in its slot. A line that is not a group ends the run when everything before it is written.

enum { SLOTS_MAX = 1024 }; // slots above which no more lines are read while there is other work

struct stdio_slot {
    const struct group *group; // while the stage has it
    size_t line;
    char *passing;   // a quarantined group's line, to be written as it came
    struct buf done; // the line to be written
    char *refused;   // why the line is not a group
};

struct stdio_filter {
    struct line_reader lines;
    int output;
    struct stdio_slot *slots; // a ring in the order of the lines
    size_t first, count, capacity;
    bool closed; // a line was not a group, so no more are read
};

static struct stdio_slot *stdio_slot(struct stdio_filter *filter, size_t index) {
    assert(index < filter->capacity);
    return &filter->slots[(filter->first + index) % filter->capacity];
}

static void stdio_release_slot(struct stdio_slot *slot) {
    buf_release(&slot->done);
    free(slot->passing);
    free(slot->refused);
    *slot = (struct stdio_slot){0};
}

// Adds a slot at the end, for the line that was read last.
static void stdio_add_slot(struct stdio_filter *filter, struct stdio_slot **out) {
    if (filter->count == filter->capacity) {
        size_t capacity = filter->capacity ? filter->capacity * 2 : 64;
        struct stdio_slot *wider;
        NEW(&wider, capacity);
        for (size_t i = 0; i < filter->count; i++) wider[i] = *stdio_slot(filter, i);
        free(filter->slots);
        filter->slots = wider;
        filter->first = 0;
        filter->capacity = capacity;
    }
    *out = stdio_slot(filter, filter->count++);
    **out = (struct stdio_slot){.line = filter->lines.number};
}

// Writes the slots at the front that are done. DATAERR when the line of the first one is not a group.
static status stdio_flush(struct stdio_filter *filter) {
    while (filter->count) {
        struct stdio_slot *slot = stdio_slot(filter, 0);
        if (slot->refused) return fail(DATAERR, "line %zu: %s", slot->line, slot->refused);
        if (!slot->done.size) return OK;
        if (!fd_write_all(filter->output, slot->done.data, slot->done.size))
            return errno == EPIPE ? fail(END, "standard output is closed")
                                  : fail(UNAVAILABLE, "standard output: %s", strerror(errno));
        stdio_release_slot(slot);
        filter->first = (filter->first + 1) % filter->capacity;
        filter->count--;
    }
    return OK;
}

// Records that a line is not a group, for the reason in fail_text(). Nothing after it is read.
static status stdio_refuse_slot(struct stdio_filter *filter, struct stdio_slot *slot) {
    assert(!slot->refused && !slot->done.size);
    filter->closed = true;
    slot->group = NULL;
    slot->refused = mem_strdup(fail_text());
    return stdio_flush(filter);
}

static status stdio_receive(void *self, int capacity, int timeout_ms, struct group **out) {
    struct stdio_filter *filter = self;
    struct stdio_slot *slot;
    const char *line;
    size_t size = 0;
    (void)capacity;
    if (filter->closed) return END;
    if (timeout_ms >= 0 && filter->count >= SLOTS_MAX) return OK;
    TRY(line_reader_next(&filter->lines, timeout_ms, &line, &size));
    if (!line) return OK;
    stdio_add_slot(filter, &slot);
    status result = group_from_json(out, line, size);
    if (result == DATAERR) {
        TRY(stdio_refuse_slot(filter, slot));
        return END;
    }
    TRY(result);
    slot->group = *out;
    if (!(*out)->quarantine.present) return OK;
    slot->passing = mem_strndup(line, size);
    return OK;
}

static status stdio_deliver(void *self, struct group **group, status outcome) {
    struct stdio_filter *filter = self;
    struct stdio_slot *slot = NULL;
    status result = OK;
    for (size_t i = 0; i < filter->count && !slot; i++)
        if (stdio_slot(filter, i)->group == *group) slot = stdio_slot(filter, i);
    if (!slot) stdio_add_slot(filter, &slot); // a source's group
    if (result == OK && outcome != OK) {
        result = stdio_refuse_slot(filter, slot);
    } else if (result == OK) {
        if (slot->passing)
            buf_puts(&slot->done, slot->passing);
        else
            group_to_json(*group, &slot->done);
        if (result == OK) buf_puts(&slot->done, "\n");
        slot->group = NULL;
        if (result == OK) result = stdio_flush(filter);
    }
    group_free(group);
    return result;
}

status stdio_run(struct stage_context *context, int input, int output) {
    struct stdio_filter filter = {.lines = {.fd = input}, .output = output};
    struct channel channel = {&filter, stdio_receive, stdio_deliver, NULL, NULL};
    status result = runner_run(context, &channel);
    if (result == OK) result = stdio_flush(&filter);
    while (filter.count) {
        stdio_release_slot(stdio_slot(&filter, 0));
        filter.first = (filter.first + 1) % filter.capacity;
        filter.count--;
    }
    free(filter.slots);
    line_reader_release(&filter.lines);
    return result;
}
