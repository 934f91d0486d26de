// The runner: what every stage does around its own work. Options, --stdio or sockets, the order of the groups, the
// look-up in the store, quarantine, signals, readiness, counters, progress, exit codes.
//
// A stage's main.c defines a struct stage and one line: int main(...) { return stage_main(&my_stage, argc, argv); }
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/ranks.h"
#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"

struct stage_context;

// A version of the weights. Version n of the policy is the one after n steps; the version of a reference is the step at
// which it last changed.
struct stage_weights {
    bool reference;
    int64_t version;
    uint64_t hash;    // that of model_hash and model_publish
    const char *path; // a file for model_swap; NULL: the model's directory as it is (version 0)
};

// The name of a file of lent weights ends so. It is of use on its own machine only, and is never copied.
#define LENT_WEIGHTS_SUFFIX ".lent"

enum stage_follows { FOLLOWS_NOTHING, FOLLOWS_POLICY, FOLLOWS_REFERENCE };

struct stage {
    const char *name;                 // as in stage_kinds[]
    const struct option_table *table; // NULL: that of its kind
    unsigned needs;                   // group_need: checked before the stage sees a group
    int section;                      // the group_section that it adds and the runner stores, or -1
    bool quick;                       // `work` takes well below a millisecond: groups may be stored together

    // Sets up; *state is passed to all other functions. USAGE, DATAERR or UNAVAILABLE before any group is read. NULL:
    // there is nothing to set up, and the state is the context.
    status (*open)(void **state, struct stage_context *context);

    // Returns a hash of everything else that the section depends on besides the group and the options: the weights.
    // NULL: nothing.
    uint64_t (*fingerprint)(void *state);

    // Returns whether a section found in the store may be used (frames: only while its pixels are there). NULL: always.
    bool (*usable)(void *state, const struct group *group);

    // ---- a stage that works on one group at a time ----

    // Works on a group. BAD_SAMPLE quarantines it with fail_text() as the reason; DATAERR means that the line is not a
    // group that this stage can read.
    status (*work)(void *state, struct group *group);

    // ---- a stage that works on several groups at once: these three instead of `work` ----

    // Returns how many more groups can be submitted now.
    int (*capacity)(void *state);

    // Submits a group. If this is OK, the stage has it until `poll` returns it; what it has when the run is stopped
    // is freed by the runner after close. BAD_SAMPLE and DATAERR as in `work`.
    status (*submit)(void *state, struct group *group);

    // Does some work, within about 100 ms where it can, and returns one finished group in *done, or NULL. BAD_SAMPLE
    // and DATAERR with a group in *done are about that group, as in `work`. `draining`: no more groups will come (end
    // of the input, or asked to stop), so the stage must finish and return all that it has. END: nothing can be done
    // until another group is submitted; when draining, the stage has none left.
    status (*poll)(void *state, bool draining, struct group **done);

    // Called when the stage has no group, after it has returned the last one. For work that no group waits for.
    // `run_over`: in a pipeline, optim has returned the last group of the run and the run is not told yet that
    // it is over; writes what must not be lost. May be NULL.
    status (*on_idle)(void *state, bool run_over);

    // Called in a pipeline when the stage was asked to stop, before close, while it can still tell the user something;
    // writes what must not be lost. NULL: there is nothing.
    status (*on_stop)(void *state);

    // ---- a source: these two instead; it has no input ----

    // *count = the number of groups, *hash = a hash of the data that they are made of. Appends lines "NAME VALUE" to
    // `data` that say what the hash covers, if that is known.
    status (*describe)(void *state, int64_t *count, uint64_t *hash, struct buf *data);

    // Makes the group at `seq`, its position in the order of issue, from 0; the same one whenever it is asked for. The
    // caller owns it. The runner sets `requires`. *line is set to the line of the data file, from 1, that the group is
    // made of, if that is known.
    status (*group_at)(void *state, int64_t seq, struct group **out, size_t *line);

    // ---- in a pipeline only ----

    // With optim, loads its weights of the kind that `follows` says, before a group that needs them; the stage has no
    // group then. DATAERR when the file cannot be opened any more; BAD_SAMPLE when optim is about to publish others.
    enum stage_follows follows;
    status (*load_weights)(void *state, const struct stage_weights *weights);

    // Whether the weights are still those that load_weights loaded: lent ones change under the stage when optim takes a
    // step. The result of a group for which they are not is thrown away, and the group is done again. NULL: always.
    bool (*weights_intact)(void *state);

    // Gives back the memory of weights that optim had lent and lends no more: another process of optim needs it. The
    // stage forgets the groups that it has; the runner gives them to it again, after load_weights.
    status (*return_weights)(void *state);

    // Optim: publishes files from now on, because a stage cannot use what was lent; `reason` is one line for the user.
    status (*publish_files)(void *state, const char *reason);

    // Optim, after open: the steps trained, and the seq below which everything is trained, -1 when no step was ever
    // trained in its directory.
    status (*position)(void *state, int64_t *step, int64_t *seq);

    // Frames: appends up to `size` bytes from `offset` on of the record that its store has of a clip, for another
    // machine; *total is the record's size. Called from the I/O thread. DATAERR when the key is malformed or the record
    // has no byte there.
    status (*serve_frames)(void *state, const char *key, int64_t offset, size_t size, struct buf *bytes, int64_t *total,
                           bool *found);

    // Optim: runs a process of rank 1 or above, in which nothing else of this struct is called: follows rank 0 until
    // that says that it is over. `options` as stage_options has them; a request to stop is rank 0's to answer. The
    // runner frees the ranks. NULL: the stage has one process.
    status (*follow)(const void *options, struct ranks *ranks);

    // Writes what is left to write and releases everything. Called once, also after a failure, and with NULL when open
    // failed early. NULL: nothing.
    status (*close)(void *state);
};

// Runs a stage as a program: options, then --stdio or the pipeline. Returns the exit code.
int stage_main(const struct stage *stage, int argc, char **argv);

// The stage's options: the struct of its table, as struct rollout_options. Valid until close.
const void *stage_options(const struct stage_context *context);

// Optim: the processes that train with this one, which is rank 0; open since before `open`, and the runner's, which
// frees them after close. NULL: this process trains alone.
struct ranks *stage_ranks(struct stage_context *context);

// True in a pipeline, false under --stdio.
bool stage_in_pipeline(const struct stage_context *context);

// Logs a line. In a pipeline it is for the user, too: the supervisors write it on their terminals.
void stage_notify(struct stage_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Optim: tells `caravan top` and the metrics how many attempts to write a checkpoint have failed since one was last
// written.
void stage_report_saves(struct stage_context *context, int64_t failed);

// Whether the stage computes with optim's weights: it follows them, in a pipeline with optim. Otherwise its weights are
// those of its model directory.
bool stage_follows_optim(const struct stage_context *context);

// Optim, in a pipeline: publishes the newest weights of their kind. Called after open has read the checkpoint, and
// after each step before its groups are handed back; the reference before the policy of the same step. The runner owns
// the file from then on and removes it when no process can need it any more. Does nothing under --stdio. UNAVAILABLE
// when the file cannot be found.
status stage_publish(struct stage_context *context, const struct stage_weights *weights);

// Optim, in a pipeline: returns the number of groups of an epoch, which is known when it has a group; 0 under --stdio.
int64_t stage_epoch(const struct stage_context *context);

// Before the next weights of that kind are written: renames the file of the oldest ones, if it is not needed any more,
// to `path`, where it can be overwritten.
void stage_recycle(struct stage_context *context, bool reference, const char *path);

// The directory for such files, in the run's directory on this machine. NULL under --stdio.
const char *stage_weights_dir(const struct stage_context *context);

// Requests a clip that this machine's store lacks from the frames stage and appends it to `record`. From any thread.
// *found is false when no replica has it, and under --stdio. END when the program is asked to stop. `context` is a
// struct stage_context, so that this can be the `request` of a media_source.
status stage_fetch(void *context, const char *key, struct buf *record, bool *found);
