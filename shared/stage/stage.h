// The runner: what every stage does around its own work. Options, --stdio or sockets, order, store look-up,
// quarantine, signals, readiness, counters, progress, exit codes.
//
// A stage's main.c is a `stage` and one line: int main(...) { return stage_main(&my_stage, argc, argv); }
#ifndef SHARED_STAGE_STAGE_H
#define SHARED_STAGE_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"

struct stage_context;

// A version of the weights. Version n is the policy after n steps; a reference's is the step at which it last changed.
struct stage_weights {
    bool reference;
    int64_t version;
    uint64_t hash;    // as model_hash and model_publish say
    const char *path; // a file for model_swap; NULL: the model folder as it is (version 0)
};

enum stage_follows { FOLLOWS_NOTHING, FOLLOWS_POLICY, FOLLOWS_REFERENCE };

struct stage {
    const char *name;                 // as in stage_kinds[]
    const struct option_table *table; // NULL: that of its kind
    unsigned needs;                   // group_need: checked before the stage sees a group
    int section;                      // the group_section that it adds and the runner stores, or -1

    // Set-up. *state is handed to all others. Fails with USAGE, DATAERR or UNAVAILABLE before any group is read.
    status (*open)(void **state, struct stage_context *context);

    // What the section depends on besides the group and the keys: the hash of the weights. NULL: nothing.
    uint64_t (*fingerprint)(void *state);

    // Whether a section found in the store may be used (frames: only while its pixels are there). NULL: always.
    bool (*usable)(void *state, const struct group *group);

    // Simple stages: works on one group. BAD_SAMPLE quarantines the group with fail_text() as the reason; DATAERR says
    // that the line is not a group that this stage can read.
    status (*work)(void *state, struct group *group);

    // Stages that hold several groups at once set these three instead of `work`.
    // How many more groups may be taken now.
    int (*capacity)(void *state);
    // Hands a group over; the stage keeps it until it comes back through `poll`, unless this is not OK (BAD_SAMPLE
    // and DATAERR as in `work`). What it holds when the run is stopped is freed by the runner, before close.
    status (*submit)(void *state, struct group *group);
    // Does some work (returns within about 100 ms where it can) and in_progress back one finished group, or NULL in
    // *done. BAD_SAMPLE and DATAERR with a group in *done are for that group, as in `work`. `draining`: no more groups
    // will come (end of the input, or asked to stop): finish what there is and hand everything back. END: nothing can
    // be done until another group is taken; when draining: nothing is held any more.
    status (*poll)(void *state, bool draining, struct group **done);

    // Called when nothing is held, after the last group has been handed back: work that others need not wait for. NULL:
    // none.
    status (*on_idle)(void *state);

    // A source instead: no input. How many groups there are in all, and the one at a place in the order of issue, from
    // 0: the same one whenever it is asked for. `requires` is the runner's to set.
    status (*count)(void *state, int64_t *out);
    status (*group_at)(void *state, int64_t node, struct group **out);

    // In a pipeline alone. What a stage that computes with weights gets from optim before a group needs them; it holds
    // no group then. `follows` says whose.
    enum stage_follows follows;
    status (*load_weights)(void *state, const struct stage_weights *weights);
    // Optim: where it stands after open: steps trained, and the place in the order of issue below which all is trained.
    status (*position)(void *state, int64_t *step, int64_t *node);
    // The last stage, when it has handed back the last group that there will ever be, and before the run is told that
    // it is over: what must not be lost is written here. NULL: nothing.
    status (*finish)(void *state);
    // Frames: appends what its store has of a clip, for another machine. Called from another thread.
    status (*serve_frames)(void *state, const char *key, struct buf *record, bool *found);

    // Releases everything; flushes. Called once, also after a failure, and with NULL when open failed early.
    status (*close)(void *state);
};

// Runs a stage as a program: options, then --stdio or the pipeline. Returns the exit code.
int stage_main(const struct stage *stage, int argc, char **argv);

// The stage's options: the struct of its table, as struct rollout_options. Valid until close.
const void *stage_options(const struct stage_context *context);

// Whether the program was asked to stop (SIGTERM, SIGINT).
bool stage_stopping(const struct stage_context *context);

// True in a pipeline, false under --stdio.
bool stage_in_pipeline(const struct stage_context *context);

// Optim, in a pipeline: from now on these are the newest weights of their kind. After open has read the checkpoint, and
// after each step before its groups are handed back; the reference before the policy of the same step. The file is the
// runner's from then on: it goes when nobody can need it any more. Under --stdio nothing happens.
status stage_publish(struct stage_context *context, const struct stage_weights *weights);

// Before the next one is written: the file of the oldest weights of that kind becomes `path`, if it is not needed any
// more, to be written over.
void stage_recycle(struct stage_context *context, bool reference, const char *path);

// Where such files go: a folder of the run on this machine. NULL under --stdio.
const char *stage_weights_folder(const struct stage_context *context);

// Asks the frames stage for a clip that this machine's store lacks; appends it to `record`. From any thread. *found is
// false when nobody has it, or under --stdio.
status stage_fetch(struct stage_context *context, const char *key, struct buf *record, bool *found);

#endif
