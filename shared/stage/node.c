// A stage as a program (stage.h): options, set-up, then the filter or a place in a run, the end, the exit code. In a
// run every process takes a group, makes sure that it computes with the weights that the group needs, works, and passes
// it on; its role says how.
#include "shared/stage/node.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/requests.h"
#include "shared/wire/ranks_link.h"

// ---- counters of the worker, or of a source's hooks ----

// The process waits for `what`, a literal; nothing begins anew if it waits already.
static void node_begin_wait(struct node *node, const char *what) {
    pthread_mutex_lock(&node->lock);
    if (!node->counters.waits_for) node->counters.waiting_since = clock_monotonic();
    node->counters.waits_for = what;
    pthread_mutex_unlock(&node->lock);
}

static void node_end_wait(struct node *node) {
    struct node_counters *counters = &node->counters;
    pthread_mutex_lock(&node->lock);
    if (counters->waits_for) counters->waited += clock_monotonic() - counters->waiting_since;
    counters->waits_for = NULL;
    pthread_mutex_unlock(&node->lock);
}

static void node_on_report(void *self, struct message_status *report) {
    struct node *node = self;
    const struct node_counters *counters = &node->counters;
    const double now = clock_monotonic();
    pthread_mutex_lock(&node->lock);
    report->reward = report->accuracy = NAN;
    report->taken = counters->taken;
    report->done = counters->done;
    report->quarantined = counters->quarantined;
    report->found = counters->found;
    report->tokens = counters->tokens;
    report->up = now - node->context->started;
    report->busy = report->up - counters->waited - (counters->waits_for ? now - counters->waiting_since : 0);
    report->state = counters->waits_for ? counters->waits_for : "working";
    report->failed_saves = counters->failed_saves;
    report->worked = counters->worked;
    report->work_seconds = counters->work_seconds;
    report->done_age = counters->done ? now - counters->done_at : -1;
    pthread_mutex_unlock(&node->lock);
    if (node->role->hooks.report) node->role->hooks.report(node, report);
}

// ---- hooks: the I/O thread ----

// Of a process without a worker this is the work: between two events it waits. Its report says for what.
static status node_on_tick(void *self) {
    struct node *node = self;
    const bool works = node->role->no_worker;
    struct buf notices = {0}; // what stage_notify has left for the supervisors
    status result = OK;
    if (works) node_end_wait(node);
    if (io_thread_is_supervised(node->io)) {
        pthread_mutex_lock(&node->lock);
        notices = node->notices;
        node->notices = (struct buf){0};
        pthread_mutex_unlock(&node->lock);
    }
    for (size_t at = 0; at < notices.size && result == OK; at += strlen(notices.data + at) + 1) {
        const struct wire_message notice = {.kind = MESSAGE_NOTICE,
                                            .name = node->config.stage,
                                            .replica = node->config.replica,
                                            .machine = node->config.machine,
                                            .reason = notices.data + at};
        result = io_thread_broadcast(node->io, "report", &notice);
    }
    buf_release(&notices);
    if (result == OK && node->role->hooks.tick) result = node->role->hooks.tick(node);
    if (works) node_begin_wait(node, "waits");
    return result;
}

// Frames: answers with a piece of the clip.
static status node_on_get(void *self, struct wire_peer *peer, const struct wire_message *message) {
    struct node *node = self;
    const struct stage *stage = node->context->stage;
    struct wire_message reply = {.kind = MESSAGE_ABSENT, .id = message->id};
    bool found = false;
    TRY(message_check_range(message));
    buf_clear(&node->bulk);
    if (stage->serve_frames)
        TRY(stage->serve_frames(node->context->state, message->id, message->offset, (size_t)message->size, &node->bulk,
                                &reply.total, &found));
    if (found) reply.kind = MESSAGE_RECORD;
    reply.offset = message->offset;
    reply.bulk = node->bulk.data;
    reply.bulk_size = node->bulk.size;
    return io_thread_reply(node->io, peer, &reply);
}

const struct role middle_role = {
    .hooks = {.peers = {{.purpose = "weights", .gone = weights_follower_lost}},
              .messages = {[MESSAGE_WEIGHTS] = weights_follower_published, [MESSAGE_GET] = node_on_get}},
};

static const struct role follower_role = {.no_worker = false}; // of ranks above 0, which no group reaches

// ---- the channel: the worker ----

// Returns in *out a group that has waited and can be worked on, or NULL. *busy: the stage must finish what it has
// before it gets another one, because of its weights.
static status node_take_waiting(struct node *node, struct held_group **out, bool *busy) {
    struct held_group *held = io_thread_next_held(node->io, NULL, HELD_WAITING), *next;
    *out = NULL;
    *busy = false;
    for (; held && !*out && !*busy; held = next) {
        enum weights_verdict verdict = WEIGHTS_READY;
        next = io_thread_next_held(node->io, held, HELD_WAITING);
        // A group that was issued anew since comes again, and a settled one is not needed. Optim's are kept: what was
        // handed out in order is not handed out again.
        const bool current = held->issue == io_thread_issue(node->io) && held->seq >= io_thread_settled(node->io);
        if (!current && !node->role->receive) {
            io_thread_drop(node->io, held);
            continue;
        }
        const bool idle = !io_thread_next_held(node->io, NULL, HELD_WORKING);
        if (idle) node_begin_wait(node, "waits for weights"); // they may be loaded now
        const status result = weights_follower_prepare(&node->weights, node->io, held->group, idle, &verdict);
        if (idle) node_end_wait(node);
        TRY(result);
        *busy = verdict == WEIGHTS_BUSY;
        if (verdict == WEIGHTS_READY) *out = held;
    }
    return OK;
}

static status node_receive(void *self, int capacity, int timeout_ms, struct held_group **out) {
    enum { RETRY_MS = 100 }; // weights that could not be loaded are tried again
    struct node *node = self;
    struct held_group *received = NULL;
    bool busy;
    TRY(node_take_waiting(node, out, &busy));
    if (!*out) {
        const bool waiting = io_thread_next_held(node->io, NULL, HELD_WAITING) != NULL;
        if (waiting && (timeout_ms < 0 || timeout_ms > RETRY_MS)) timeout_ms = RETRY_MS;
        if (timeout_ms) node_begin_wait(node, waiting ? "waits for weights" : "waits for groups");
        const status result = node->role->receive
                                  ? node->role->receive(node, timeout_ms, &received)
                                  : io_thread_receive(node->io, busy ? 0 : capacity, timeout_ms, &received);
        node_end_wait(node);
        TRY(result);
        if (received) TRY(node_take_waiting(node, out, &busy));
    }
    if (!*out) return OK;
    io_thread_set_state(node->io, *out, HELD_WORKING);
    pthread_mutex_lock(&node->lock);
    node->counters.taken++;
    pthread_mutex_unlock(&node->lock);
    return OK;
}

static void node_give_back(void *self, struct held_group *held) {
    struct node *node = self;
    io_thread_set_state(node->io, held, HELD_WAITING);
    pthread_mutex_lock(&node->lock);
    node->counters.taken--;
    pthread_mutex_unlock(&node->lock);
}

static status node_deliver(void *self, struct held_group *held, status outcome) {
    struct node *node = self;
    struct stage_context *context = node->context;
    const struct group *group = held->group;
    struct node_counters *counters = &node->counters;
    if (outcome != OK) return fail_prefix(outcome, "group %s", group->id.data);
    context->groups++;
    pthread_mutex_lock(&node->lock);
    for (size_t i = 0; i < group->completion_count; i++)
        counters->tokens += (int64_t)group->completions[i].tokens.count;
    counters->done++;
    counters->done_at = clock_monotonic();
    if (!group->quarantine.present && counters->found == (int64_t)context->found) {
        counters->worked++;
        counters->work_seconds += counters->done_at - held->since;
    }
    counters->quarantined = (int64_t)context->quarantined;
    counters->found = (int64_t)context->found;
    pthread_mutex_unlock(&node->lock);
    if (node->role->deliver) return node->role->deliver(node, held);
    io_thread_send(node->io, held);
    return OK;
}

static status node_update_weights(void *self, bool *forgotten) {
    struct node *node = self;
    const struct stage *stage = node->context->stage;
    char *refused = weights_publisher_refused(node->publisher);
    const status result = refused ? stage->publish_files(node->context->state, refused) : OK;
    free(refused);
    TRY(result);
    return weights_follower_return(&node->weights, forgotten);
}

struct channel node_channel(struct node *node) {
    return (struct channel){node, node_receive, node_deliver, node_give_back, node_update_weights};
}

// ---- the life of a node ----

static bool node_follows(const struct node *node) {
    return node->config.rank_count && node->config.replica > 1;
}

// Reads the node config at `path`; before the stage's open. Sets context->node, also when it fails, and context->last.
// DATAERR when the file is malformed, UNAVAILABLE when the run's directory cannot be written.
static status node_enter(struct stage_context *context, const char *path) {
    struct node *node;
    NEW(&node, 1);
    node->context = context;
    pthread_mutex_init(&node->lock, NULL);
    weights_publisher_new(&node->publisher);
    context->node = node;
    TRY(node_config_read(&node->config, path));
    context->replica = node->config.replica;
    context->last = node->config.last;
    node->role = node_follows(node)         ? &follower_role
                 : context->stage->group_at ? &source_role
                 : context->stage->position ? &optim_role
                 : node->config.last        ? &last_role
                                            : &middle_role;
    // As the supervisor names the process: "rollout", "rollout-2", "rollout-2@gpu1".
    char number[16] = "", suffix[64];
    const char *machine = node->config.machine;
    if (node->config.replica > 1) snprintf(number, sizeof number, "-%d", node->config.replica);
    snprintf(suffix, sizeof suffix, "%s%s%s", number, *machine ? "@" : "", machine);
    log_suffix(suffix);
    return weights_follower_open(&node->weights, context);
}

// Opens the ranks, if the process is one of several. Waits for the others; END when the program is asked to stop.
static status node_open_ranks(struct stage_context *context) {
    assert(context->node);
    const struct node_config *config = &context->node->config;
    const struct option *timeout = option_find(context->table, "rank_timeout");
    if (!config->rank_count) return OK;
    if (!context->stage->follow || !timeout) return fail(USAGE, "%s has no ranks", config->stage);
    const int own = config->replica - 1;
    return ranks_link_open(&context->ranks,
                           &(struct ranks_link_options){.own = own,
                                                        .count = (int)config->rank_count,
                                                        .run = config->run,
                                                        .ranks = config->ranks,
                                                        .listen = config->rank_listen,
                                                        .listen_count = config->rank_listen_count,
                                                        .security = config->ranks->key ? &config->security : NULL,
                                                        .timeout = options_number(&context->options, timeout)});
}

// Opens and starts the I/O thread.
static status node_start_io(struct stage_context *context) {
    struct node *node = context->node;
    struct transport *transport;
    node->hooks = node->role->hooks;
    node->hooks.tick = node_on_tick;
    node->hooks.report = node_on_report;
    TRY(zmq_transport_open(&transport, &node->config.security));
    TRY(io_thread_open(&node->io, &node->config, &node->hooks, node, transport));
    if (!node_follows(node) && stage_follows_optim(context))
        TRY(io_thread_connect(node->io, stage_kinds[STAGE_OPTIM].name, "weights"));
    TRY(io_thread_start(node->io));
    log_debug("ready");
    return OK;
}

// Runs a rank above 0, of which the supervisor alone hears.
static status node_follow(struct stage_context *context) {
    struct node *node = context->node;
    node_begin_wait(node, "waits for ranks");
    TRY(node_start_io(context));
    TRY(node_open_ranks(context));
    node_begin_wait(node, "follows");
    const status result = context->stage->follow(stage_options(context), context->ranks);
    node_end_wait(node);
    io_thread_close(&node->io);
    return result;
}

// Runs the open stage until the program is asked to stop. OK then; otherwise what failed.
static status node_run(struct stage_context *context) {
    enum { NOTICES_MS = 2000 }; // how long a supervisor is waited for
    struct node *node = context->node;
    assert(node);
    const struct stage *stage = context->stage;
    const struct role *role = node->role;
    const struct channel channel = node_channel(node);
    if (role->open) TRY(role->open(node));
    TRY(node_start_io(context));
    // Optim learns from RUN_INFO that it has had the last group; the others only stop when they are asked to.
    status result = role->no_worker ? OK : runner_run(context, &channel);
    const bool stopped = !role->no_worker && signals_stopping();
    if (result == OK && !role->no_worker && !stopped) {
        if (stage->on_idle) result = stage->on_idle(context->state, true);
        if (result == OK && role->finish) result = role->finish(node);
        if (result == OK) node_begin_wait(node, "finished");
    }
    if ((result == OK || result == END) && stopped && stage->on_stop) result = stage->on_stop(context->state);
    while (result == OK && !stopped) {
        struct held_group *held = NULL;
        result = io_thread_receive(node->io, 0, -1, &held);
        if (held) io_thread_drop(node->io, held);
    }
    if (result == END) result = OK;
    // What a stage says as it opens or ends may come before a supervisor has joined, or when the run is over. Not for
    // ever, since it may be gone.
    const int64_t until = clock_monotonic_ms() + NOTICES_MS;
    for (bool sent = false; !sent && clock_monotonic_ms() < until;) {
        pthread_mutex_lock(&node->lock);
        sent = !node->notices.size;
        pthread_mutex_unlock(&node->lock);
        if (!sent) usleep(10000);
    }
    io_thread_close(&node->io); // before the stage's close: hooks use its state
    return result;
}

// ---- the program ----

int stage_main(const struct stage *stage, int argc, char **argv) {
    enum { SECTIONS_OF_GROUPS = 4096 };
    const struct stage_kind *kind = stage_kind_find(stage->name);
    assert(stage->table || kind);
    struct stage_context context = {.stage = stage, .table = stage->table ? stage->table : &kind->options};
    struct common_options *options = NULL; // the first member of every stage's options
    int rest;
    log_open(context.table->program);
    context.started = context.progress_at = clock_monotonic();
    status result = fd_reserve_standard();
    (void)fd_raise_limit();
    if (result == OK) mem_new(&options, 1, context.table->size);
    assert(options || result != OK);
    if (result == OK) options_init(&context.options, context.table, options);
    if (result == OK) result = options_parse(&context.options, argc, argv, &rest);
    if (result == OK && options->device && device_is_list(options->device))
        result =
            fail(USAGE, "device: '%s' is for the replicas of a pipeline; a process has one device", options->device);
    log_timestamps(options && options->node);
    // `caravan run` has seen the files that the options name: what is gone since then may come back.
    if (result == DATAERR && options && options->node) result = UNAVAILABLE;
    if (result == OK) result = signals_open();
    context.last = options && !options->node;
    if (result == OK && options->node) result = node_enter(&context, options->node);
    const struct option *ranks = option_find(context.table, "ranks");
    if (result == OK && !options->node && ranks && options_number(&context.options, ranks) > 1)
        result = fail(USAGE, "ranks: only in a pipeline: `caravan run` starts them");
    const bool follows = result == OK && options->node && node_follows(context.node);
    if (result == OK && options->store && !follows) {
        const struct group_keep keep = {.steps = options->store_keep.steps, .bytes = options->store_keep.bytes};
        if (keep.steps && context.last && !stage->position)
            result = fail(USAGE, "store_keep: only optim counts steps; give a size such as 20GiB");
        if (result == OK) result = group_store_open(&context.store, options->store, false);
        // In a training run, the sections of old groups are removed: optim goes back to its newest checkpoint at most,
        // and what that needs again is computed again.
        const bool trains = context.node && context.node->config.trains;
        if (result == OK) group_store_set_keep(context.store, &keep, trains ? SECTIONS_OF_GROUPS : 0);
    }
    if (follows) {
        result = node_follow(&context);
    } else {
        if (result == OK && options->node) result = node_open_ranks(&context);
        if (result == OK && !stage->open) context.state = &context;
        if (result == OK && stage->open) result = stage->open(&context.state, &context);
        if (result == OK)
            result = options->node ? node_run(&context) : stdio_run(&context, STDIN_FILENO, STDOUT_FILENO);
    }
    if (result != OK && result != END) log_info("%s", fail_text());
    // The first failure counts; one while closing after it is logged.
    status closed = stage->close && !follows ? stage->close(context.state) : OK;
    if (closed != OK) log_info("%s", fail_text());
    if (result == OK || result == END) result = closed;
    for (size_t i = 0; i < context.unfinished_count; i++) group_free(&context.unfinished[i]);
    free(context.unfinished);
    group_store_close(&context.store);
    ranks_free(&context.ranks);
    struct node *node = context.node;
    if (node) { // after the stage's close
        io_thread_close(&node->io);
        if (node->part) node->role->close(node);
        weights_publisher_free(&node->publisher);
        weights_follower_close(&node->weights);
        node_config_release(&node->config);
        buf_release(&node->bulk);
        buf_release(&node->notices);
        pthread_mutex_destroy(&node->lock);
        free(node);
    }
    if (result == OK && context.groups)
        log_info("%zu groups, %zu quarantined, %zu found in the store, %.1f s", context.groups, context.quarantined,
                 context.found, clock_monotonic() - context.started);
    options_release(&context.options);
    free(options);
    return status_exit_code(result);
}

// ---- what a stage asks of the run ----

const void *stage_options(const struct stage_context *context) {
    return context->options.values;
}

struct ranks *stage_ranks(struct stage_context *context) {
    return context->ranks;
}

bool stage_in_pipeline(const struct stage_context *context) {
    return context->node != NULL;
}

status stage_publish(struct stage_context *context, const struct stage_weights *weights) {
    return context->node ? weights_publish(context->node->publisher, context->node->io, weights) : OK;
}

void stage_recycle(struct stage_context *context, bool reference, const char *path) {
    if (context->node) weights_recycle(context->node->publisher, reference, path);
}

void stage_notify(struct stage_context *context, const char *format, ...) {
    struct node *node = context->node;
    char text[1024]; // as much as a supervisor writes of a line
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_info("%s", text);
    if (!node) return;
    pthread_mutex_lock(&node->lock);
    buf_append(&node->notices, text, strlen(text) + 1);
    pthread_mutex_unlock(&node->lock);
}

void stage_report_saves(struct stage_context *context, int64_t failed) {
    struct node *node = context->node;
    if (!node) return;
    pthread_mutex_lock(&node->lock);
    node->counters.failed_saves = failed;
    pthread_mutex_unlock(&node->lock);
}

bool stage_follows_optim(const struct stage_context *context) {
    return context->node && context->node->config.trains && context->stage->follows != FOLLOWS_NOTHING;
}

const char *stage_weights_dir(const struct stage_context *context) {
    return context->node ? context->node->weights.dir : NULL;
}

status stage_fetch(void *context, const char *key, struct buf *record, bool *found) {
    const struct node *node = ((const struct stage_context *)context)->node;
    *found = false;
    if (!node || !node->io) return OK;
    struct transfer transfer = {.stage = "frames", .purpose = "frames", .kind = MESSAGE_GET, .id = key, .total = -1};
    struct buf piece = {0};
    status result = OK;
    io_thread_begin_transfer(node->io, &transfer);
    for (bool ended = false; result == OK && !ended;) {
        result = io_thread_take_bytes(node->io, &transfer, -1, &piece, &ended);
        if (result == OK) buf_append(record, piece.data, piece.size);
    }
    io_thread_end_transfer(node->io, &transfer);
    buf_release(&piece);
    *found = result == OK && !transfer.absent;
    return result;
}
