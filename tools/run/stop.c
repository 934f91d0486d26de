// caravan stop FILE|RUN: stops a run on all its machines, as Ctrl-C does on one. It asks every supervisor that it
// reaches, each of which tells the others, and waits until they have ended.
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "tools/tools.h"
#include "tools/run/watcher.h"

static const struct option stop_options[] = {RUN_MEMBER, {0}};
const struct option_table stop_table = {.program = "caravan stop",
                                        .operands = "FILE|RUN",
                                        .help = "stops a run on all its machines; caravan run resumes it",
                                        .options = stop_options,
                                        .size = sizeof(struct run_member_options)};

enum stop_state { STOP_NOT_REACHED, STOP_ASKED, STOP_LOST, STOP_ENDED };

struct stop {
    struct watcher watcher;
    struct wire_peer **peers; // one for each machine
    enum stop_state *states;
    double *lost_at; // clock_monotonic() when its supervisor has gone without a goodbye
};

static status stop_on_event(struct stop *stop, const struct wire_event *event) {
    const struct wire_message end = {.kind = MESSAGE_END, .code = END, .reason = "caravan stop"};
    const struct deployment *deployment = &stop->watcher.deployment;
    size_t i = 0;
    while (i < deployment->machines && stop->peers[i] != event->peer) i++;
    if (i == deployment->machines) return OK;
    const char *machine = deployment_machine(deployment, (int)i);
    switch (event->kind) {
    case WIRE_JOINED:
        if (stop->states[i] == STOP_NOT_REACHED)
            log_info("stopping%s%s; waiting for the end", *machine ? " " : "", machine);
        stop->states[i] = STOP_ASKED;
        return wire_send(stop->watcher.wire, event->peer, &end, NULL);
    case WIRE_GONE:
        stop->states[i] = event->orderly ? STOP_ENDED : STOP_LOST;
        stop->lost_at[i] = clock_monotonic();
        return OK;
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    default:
        return OK;
    }
}

// Asks the supervisors to stop and waits for their end.
static status stop_run(struct stop *stop) {
    enum { WAIT_MS = 100 };
    const struct deployment *deployment = &stop->watcher.deployment;
    const double began = clock_monotonic();
    bool missed = false; // a machine was not reached in time
    NEW(&stop->peers, deployment->machines);
    NEW(&stop->states, deployment->machines);
    NEW(&stop->lost_at, deployment->machines);
    for (size_t i = 0; i < deployment->machines; i++) TRY(watcher_connect(&stop->watcher, (int)i, &stop->peers[i]));
    while (!signals_stopping()) {
        struct wire_event event;
        size_t reached = 0, left = 0;
        TRY(wire_poll(stop->watcher.wire, WAIT_MS, &event));
        TRY(stop_on_event(stop, &event));
        const double now = clock_monotonic();
        for (size_t i = 0; i < deployment->machines; i++) {
            // Who does not come back in time was killed.
            if (stop->states[i] == STOP_LOST && now - stop->lost_at[i] > WATCHER_ANSWER_SECONDS)
                stop->states[i] = STOP_ENDED;
            reached += stop->states[i] != STOP_NOT_REACHED;
            left += stop->states[i] == STOP_ASKED || stop->states[i] == STOP_LOST;
        }
        const bool late = now - began > WATCHER_ANSWER_SECONDS;
        if (!reached && late) return watcher_not_active(&stop->watcher);
        for (size_t i = 0; late && !missed && i < deployment->machines; i++)
            if (stop->states[i] == STOP_NOT_REACHED)
                log_info("%s is not reached from here", deployment_machine(deployment, (int)i));
        missed = late;
        if (reached && !left && (late || reached == deployment->machines)) {
            log_info("the run has stopped");
            return OK;
        }
    }
    return END;
}

int stop_main(int argc, char **argv) {
    struct run_member_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct stop stop = {0};
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &stop_table, &given, argc, argv, &path);
    if (result == OK) result = signals_open();
    if (result == OK) result = watcher_open(&stop.watcher, pipeline, given.machine, given.key, "stop");
    if (result == OK) result = stop_run(&stop);
    watcher_close(&stop.watcher);
    free(stop.peers);
    free(stop.states);
    free(stop.lost_at);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
