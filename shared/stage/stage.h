// The runner: what every stage does around its own work. Options, --stdio or sockets, order, store look-up,
// quarantine, signals, readiness, counters, progress, exit codes.
//
// A stage's main.c is a `stage` and one line: int main(...) { return stage_main(&my_stage, argc, argv); }
#ifndef SHARED_STAGE_STAGE_H
#define SHARED_STAGE_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/config/keys.h"
#include "shared/group/group.h"

typedef struct stage_context stage_context;

typedef struct stage {
    const char *name;       // as in keys_of()
    const key_table *table; // NULL: keys_of(name)
    unsigned needs;         // group_need: checked before the stage sees a group
    int section;            // the group_section that it adds and the runner stores, or -1

    // Set-up. *state is handed to all others. Fails with USAGE, INPUT or SERVICE before any group is read.
    status (*open)(void **state, stage_context *context);

    // What the section depends on besides the group and the keys: the hash of the weights. NULL: nothing.
    uint64_t (*version)(void *state);

    // Whether a section found in the store may be used (frames: only while its pixels are there). NULL: always.
    bool (*usable)(void *state, const group *group);

    // Simple stages: works on one group. DEFECT quarantines the group with fail_text() as the reason; INPUT says that
    // the line is not a group that this stage can read.
    status (*work)(void *state, group *group);

    // Stages that hold several groups at once set these three instead of `work`.
    // How many more groups may be taken now.
    int (*room)(void *state);
    // Hands a group over; the stage keeps it until it comes back through `advance`, unless this is not OK (DEFECT and
    // INPUT as in `work`).
    status (*take)(void *state, group *group);
    // Does some work (returns within about 100 ms where it can) and hands back one finished group, or NULL in
    // *done. DEFECT and INPUT with a group in *done are for that group, as in `work`. `draining`: no more groups will
    // come (end of the input, or asked to stop): finish what there is and hand everything back. STOPPED: nothing can be
    // done until another group is taken; when draining: nothing is held any more.
    status (*advance)(void *state, bool draining, group **done);

    // A source instead: no input; makes the next group, STOPPED at the end.
    status (*next)(void *state, group **out);

    // Releases everything; flushes. Called once, also after a failure, and with NULL when open failed early.
    status (*close)(void *state);
} stage;

// Runs a stage as a program: options, then --stdio or the pipeline. Returns the exit code.
int stage_main(const stage *stage, int argc, char **argv);

// The stage's settings, valid until close.
const settings *stage_settings(const stage_context *context);

// Whether the program was asked to stop (SIGTERM, SIGINT).
bool stage_stopping(const stage_context *context);

// True in a pipeline, false under --stdio.
bool stage_in_pipeline(const stage_context *context);

#endif
