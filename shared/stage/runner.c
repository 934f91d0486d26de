// The one loop of every stage: take what there is room for, do some work, send on what is done. It never waits for
// input while there is work, and never works on a group that the store has already.
#include <json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/stage/section_cache.h"
#include "shared/stage/runner.h"
#include "shared/stage/signals.h"

static struct json_object *runner_time(double seconds) {
    char text[64];
    snprintf(text, sizeof text, "%.3f", seconds);
    return json_object_new_double_s(seconds, text);
}

status runner_add_times(struct group *group, const char *stage, double taken) {
    struct json_object *times = group->times.data ? json_tokener_parse(group->times.data) : NULL;
    struct json_object *pair = json_object_new_array_ext(2);
    if (!times) times = json_object_new_object();
    status result = times && pair ? OK : fail_oom();
    if (result == OK) {
        json_object_array_add(pair, runner_time(taken));
        json_object_array_add(pair, runner_time(clock_realtime()));
        json_object_object_add(times, stage, pair);
        pair = NULL;
        size_t size;
        const char *text = json_object_to_json_string_length(times, JSON_C_TO_STRING_PLAIN, &size);
        result = group_string(group, &group->times, text, size);
    }
    json_object_put(pair);
    json_object_put(times);
    return result;
}

// A group that the stage holds.
struct held {
    struct group *group;
    double taken;
    struct section_key key;
};

struct loop {
    struct stage_context *context;
    const struct channel *channel;
    struct held *held;
    size_t count, room; // of held
    bool ended;         // no more groups will come
    bool idle;          // the stage can do nothing until it gets another group
};

static void say_progress(struct stage_context *context) {
    enum { EVERY = 10 };
    double now = clock_monotonic();
    if (context->node || now - context->said < EVERY) return;
    context->said = now;
    log_info("%zu groups, %zu quarantined, %.2f a second", context->groups, context->quarantined,
             (double)context->groups / (now - context->started));
}

static status deliver(struct loop *loop, struct group **group) {
    loop->context->groups++;
    TRY(loop->channel->deliver(loop->channel->self, group));
    say_progress(loop->context);
    return OK;
}

// What becomes of a group after the stage answered `result` for it.
static status settle(struct loop *loop, const struct held *held, status result) {
    struct stage_context *context = loop->context;
    struct group *group = held->group;
    if (result == DATAERR) return loop->channel->refuse(loop->channel->self, &group);
    if (result == BAD_SAMPLE) result = group_quarantine(group, context->stage->name, "%s", fail_text());
    if (result == OK && group->quarantine.present) context->quarantined++;
    if (result == OK) result = runner_add_times(group, context->stage->name, held->taken);
    if (result == OK && context->store) result = section_cache_save(context, &held->key, group);
    if (result != OK) {
        group_free(&group);
        return result;
    }
    return deliver(loop, &group);
}

static status hold(struct loop *loop, const struct held *held) {
    const struct stage *stage = loop->context->stage;
    if (loop->count == loop->room) {
        size_t room = loop->room ? loop->room * 2 : 16;
        TRY(RESIZE(&loop->held, room));
        loop->room = room;
    }
    status result = stage->submit(loop->context->state, held->group);
    if (result != OK) return settle(loop, held, result);
    loop->held[loop->count++] = *held;
    loop->idle = false;
    return OK;
}

// A group has come: pass it on, find it in the store, or give it to the stage.
static status begin(struct loop *loop, struct group *group) {
    struct stage_context *context = loop->context;
    struct held held = {.group = group, .taken = clock_realtime()};
    if (group->quarantine.present) return deliver(loop, &group);
    if (group_check(group, context->stage->needs) != OK) return loop->channel->refuse(loop->channel->self, &group);
    if (context->store) {
        bool found = false;
        status result = section_cache_find(context, &held.key, group, &found);
        if (result != OK) group_free(&group);
        if (result != OK) return result;
        if (found) {
            context->found++;
            return deliver(loop, &group);
        }
    }
    if (context->stage->work) return settle(loop, &held, context->stage->work(context->state, group));
    return hold(loop, &held);
}

static int room_of(const struct loop *loop) {
    const struct stage *stage = loop->context->stage;
    return stage->work ? 1 : stage->capacity(loop->context->state);
}

// Takes groups as long as the stage has room and there are some; waits for one only if there is nothing else to do.
static status fill(struct loop *loop) {
    for (;;) {
        if (signals_stopping()) loop->ended = true;
        int room = loop->ended ? 0 : room_of(loop);
        if (room <= 0) return OK;
        struct group *group = NULL;
        int timeout = loop->count == 0 || loop->idle ? -1 : 0;
        status result = loop->channel->receive(loop->channel->self, room, timeout, &group);
        if (result == END) {
            loop->ended = true;
            return OK;
        }
        TRY(result);
        if (group) TRY(begin(loop, group));
        if (!group && timeout == 0) return OK;
    }
}

static status give_back(struct loop *loop, struct group *done, status result) {
    for (size_t i = 0; i < loop->count; i++) {
        if (loop->held[i].group != done) continue;
        struct held held = loop->held[i];
        memmove(&loop->held[i], &loop->held[i + 1], (loop->count - i - 1) * sizeof held);
        loop->count--;
        return settle(loop, &held, result);
    }
    return fail(BUG, "the stage handed back a group that it was not given");
}

static status advance(struct loop *loop) {
    struct group *done = NULL;
    status result = loop->context->stage->poll(loop->context->state, loop->ended, &done);
    loop->idle = result == END;
    if (done && (result == OK || result == BAD_SAMPLE || result == DATAERR)) return give_back(loop, done, result);
    if (result != END) return result;
    if (!loop->ended) return OK;
    return loop->count ? fail(BUG, "the stage kept %zu groups at the end", loop->count) : OK;
}

// Without a pipeline a source's groups go out one after the other.
static status run_source(struct loop *loop) {
    const struct stage *stage = loop->context->stage;
    int64_t total = 0;
    TRY(stage->count(loop->context->state, &total));
    for (int64_t seq = 0; seq < total && !signals_stopping(); seq++) {
        struct held held = {.taken = clock_realtime()};
        TRY(stage->group_at(loop->context->state, seq, &held.group));
        status result = runner_add_times(held.group, stage->name, held.taken);
        if (result == OK) result = deliver(loop, &held.group);
        group_free(&held.group);
        TRY(result);
    }
    return OK;
}

static status run_filter(struct loop *loop) {
    do {
        TRY(fill(loop));
        if (loop->context->node && signals_stopping()) return OK;
        if (loop->count) TRY(advance(loop));
        if (!loop->count && loop->context->stage->on_idle) TRY(loop->context->stage->on_idle(loop->context->state));
    } while (loop->count || !loop->ended);
    return OK;
}

status runner_loop(struct stage_context *context, const struct channel *channel) {
    struct loop loop = {.context = context, .channel = channel};
    status result = context->stage->group_at ? run_source(&loop) : run_filter(&loop);
    // After a failure the stage may still be at work on what it holds.
    if (loop.count && NEW(&context->left, loop.count) == OK)
        for (; context->left_count < loop.count; context->left_count++)
            context->left[context->left_count] = loop.held[context->left_count].group;
    free(loop.held);
    return result == OK ? channel->finish(channel->self) : result;
}
