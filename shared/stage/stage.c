// A stage as a program: options, set-up, the loop, the end, the exit code.
#include "shared/stage/stage.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/node.h"
#include "shared/stage/runner.h"
#include "shared/base/signals.h"

const void *stage_options(const struct stage_context *context) {
    return context->options.values;
}

bool stage_stopping(const struct stage_context *context) {
    (void)context;
    return signals_stopping();
}

bool stage_in_pipeline(const struct stage_context *context) {
    return context->node != NULL;
}

// Opens the store of the option `store`. In a training run, the sections of old groups are removed: optim goes back to
// its newest checkpoint at most, and what that needs again is computed again.
static status stage_open_store(struct stage_context *context, const struct common_options *options) {
    enum { SECTIONS_OF_GROUPS = 4096 };
    const struct group_keep keep = {.steps = options->store_keep.steps, .bytes = options->store_keep.bytes};
    if (!options->store) return OK;
    if (keep.steps && context->last && strcmp(context->stage->name, stage_kinds[STAGE_OPTIM].name) != 0)
        return fail(USAGE, "store_keep: only optim counts steps; give a size such as 20GiB");
    TRY(group_store_open(&context->store, options->store, false));
    group_store_set_keep(context->store, &keep, node_trains(context) ? SECTIONS_OF_GROUPS : 0);
    return OK;
}

int stage_main(const struct stage *stage, int argc, char **argv) {
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
    if (result == OK) result = options_init(&context.options, context.table, options);
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
    if (result == OK) result = stage_open_store(&context, options);
    if (result == OK && stage->open) result = stage->open(&context.state, &context);
    if (result == OK) result = options->node ? node_run(&context) : stdio_run(&context, STDIN_FILENO, STDOUT_FILENO);
    if (result != OK && result != END) log_info("%s", fail_text());
    // The first failure counts; one while closing after it is logged.
    status closed = stage->close ? stage->close(context.state) : OK;
    if (closed != OK) log_info("%s", fail_text());
    if (result == OK || result == END) result = closed;
    for (size_t i = 0; i < context.unfinished_count; i++) group_free(&context.unfinished[i]);
    free(context.unfinished);
    group_store_close(&context.store);
    node_leave(&context);
    if (result == OK && context.groups)
        log_info("%zu groups, %zu quarantined, %zu found in the store, %.1f s", context.groups, context.quarantined,
                 context.found, clock_monotonic() - context.started);
    options_release(&context.options);
    free(options);
    return status_exit_code(result);
}
