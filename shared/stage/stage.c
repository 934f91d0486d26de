// A stage as a program: options, set-up, the loop, the end, the exit code.
#include "shared/stage/stage.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/node.h"
#include "shared/stage/runner.h"
#include "shared/stage/signals.h"

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
    if (result == OK) result = mem_new(&options, 1, context.table->size);
    assert(options || result != OK);
    if (result == OK) result = options_init(&context.options, context.table, options);
    if (result == OK) result = options_parse(&context.options, argc, argv, &rest);
    log_timestamps(options && options->wiring);
    if (result == OK) result = signals_open();
    context.last = options && !options->wiring;
    if (result == OK && options->wiring) result = node_enter(&context, options->wiring);
    if (result == OK && options->store) result = group_store_open(&context.store, options->store, false);
    if (result == OK && stage->open) result = stage->open(&context.state, &context);
    if (result == OK) result = options->wiring ? node_run(&context) : stdio_run(&context, STDIN_FILENO, STDOUT_FILENO);
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
