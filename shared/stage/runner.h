// What the parts of the runner share: the context, the channel between a stage and its neighbours, and the loop over
// it. Stages do not include this.
#pragma once

#include "shared/stage/flow.h"
#include "shared/stage/stage.h"

struct node;

struct stage_context {
    const struct stage *stage;
    const struct option_table *table;
    struct options options;    // values: the struct of the stage's table, see stage_options()
    void *state;               // the stage's own
    struct group_store *store; // NULL without --store
    bool last;                 // no stage comes after it in its pipeline; also set under --stdio, where it may be so
    struct node *node;         // in a run; NULL under --stdio
    struct ranks *ranks;       // that train with this process; NULL: it has none
    int64_t replica;           // which of the stage's processes this is, from 1; 0 under --stdio
    int64_t weights_version;   // of the weights in use, when they are optim's
    struct group **unfinished; // the stage has them when it is closed; freed afterwards
    size_t unfinished_count;
    size_t groups, quarantined, found; // delivered; of them quarantined by this stage; of them found in the store
    double started, progress_at;       // monotonic seconds: of the start, of the last progress line
};

// Where groups come from and where they go: standard input and output, or sockets.
struct channel {
    void *self;
    // Waits up to timeout_ms (-1: until there is one or the program is asked to stop) for a group. `capacity`: how many
    // the stage could hold. OK with NULL in *out: none yet. END: no more will come.
    status (*receive)(void *self, int capacity, int timeout_ms, struct held_group **out);
    // Sends a finished group on and frees it. END: the reader is gone. `outcome` is OK, or DATAERR for a group that the
    // stage cannot read, for the reason in fail_text(): it is not sent.
    status (*deliver)(void *self, struct held_group *held, status outcome);
    // Takes back a group whose weights changed while the stage had it; `receive` returns it again with present weights,
    // unless nobody needs it any more. NULL where stages have no weights of optim's.
    void (*give_back)(void *self, struct held_group *held);
    // Called between two groups, and while `receive` waits when something has come: lets the stage give back lent
    // weights, or publish files instead of lending. *forgotten: the stage has forgotten its groups. May be NULL.
    status (*update_weights)(void *self, bool *forgotten);
};

// Passes groups from the channel through the open stage until the channel ends or the program is asked to stop. What
// the stage has then is finished; in a pipeline it is given up, since the source issues it again.
status runner_run(struct stage_context *context, const struct channel *channel);

// Sets times[stage] = [taken, now, replica] in the group, in seconds since 1970; other stages' times stay.
void runner_set_times(const struct stage_context *context, struct group *group, double taken);

// Runs the stage as a filter of JSON lines from `input` to `output`. DATAERR when a line is not a group.
status stdio_run(struct stage_context *context, int input, int output);
