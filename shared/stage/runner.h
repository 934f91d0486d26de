// What the parts of the runner share: the context, the channel between a stage and its neighbours, and the loop over
// it. Stages do not include this.
#ifndef SHARED_STAGE_RUNNER_H
#define SHARED_STAGE_RUNNER_H

#include "shared/stage/stage.h"
#include "shared/store/group_store.h"

struct node;

struct stage_context {
    const struct stage *stage;
    const struct option_table *table;
    struct options options;    // values: the struct of the stage's table, see stage_options()
    void *state;               // the stage's own
    struct group_store *store; // NULL without --store
    struct node *node;         // in a run; NULL under --stdio
    int64_t weights_version;   // of the weights in use, when they are optim's
    struct group **left;       // given to the stage and not handed back: freed when it is closed
    size_t left_count;
    size_t groups, quarantined, found; // delivered; of them put aside by this stage; of them taken from the store
    double started, said;              // seconds: of the run, of the last word about progress
};

// Where groups come from and where they go: standard input and output, or sockets.
struct channel {
    void *self;
    // Waits up to timeout_ms (-1: until there is one or the program is asked to stop) for a group. `room`: how many the
    // stage could take. OK with NULL in *out: none yet. END: no more will come.
    status (*receive)(void *self, int room, int timeout_ms, struct group **out);
    // Sends a finished group on and frees it. END: nobody listens any more.
    status (*deliver)(void *self, struct group **group);
    // A group that the stage cannot read, for the reason in fail_text(); frees it.
    status (*refuse)(void *self, struct group **group);
    // After the last group.
    status (*finish)(void *self);
};

// Takes groups from the channel through the stage until the channel ends or the program is asked to stop; everything
// held then is finished (in a run: given up, for the source issues it again). The stage must be open. Also runs a
// source, by its `count` and `group_at`.
status runner_loop(struct stage_context *context, const struct channel *channel);

// Sets times[stage] = [taken, now] in the group, in seconds since 1970; other stages' times stay. UNAVAILABLE when
// memory is short.
status runner_add_times(struct group *group, const char *stage, double taken);

// The channel of JSON lines over two file descriptors, and the whole run over standard input and output.
status stdio_run(struct stage_context *context, int input, int output);

#endif
