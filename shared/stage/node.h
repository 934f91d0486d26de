// A process of a run: what its parts share, and what it does by its place in the pipeline. Stages do not include this.
#pragma once

#include <pthread.h>

#include "shared/stage/io_hooks.h"
#include "shared/stage/io_thread.h"
#include "shared/stage/run_weights.h"
#include "shared/stage/runner.h"

// What a process does by its place in the pipeline. Functions that are NULL do nothing. The hooks' self is the node.
struct role {
    struct io_hooks hooks;
    bool no_worker; // the hooks do the work

    // Sets node->part up, after the stage's open and before there is an I/O thread.
    status (*open)(struct node *node);

    // Frees node->part; also when `open` failed or was not called.
    void (*close)(struct node *node);

    // Waits for a group instead of io_thread_receive. END: there will be no more.
    status (*receive)(struct node *node, int timeout_ms, struct held_group **out);

    // Passes a group on that the stage has finished, instead of io_thread_send.
    status (*deliver)(struct node *node, struct held_group *held);

    // The last group of the run was delivered, and the stage has written what must not be lost.
    status (*finish)(struct node *node);
};

extern const struct role source_role; // issues groups
extern const struct role middle_role; // passes them on
extern const struct role last_role;   // of a run without optim: tells the source what became of them
extern const struct role optim_role;  // the same, takes them in order and publishes weights

struct node {
    struct stage_context *context;
    const struct role *role;
    struct io_hooks hooks; // the role's, and around them what every node does
    struct node_config config;
    struct io_thread *io;
    void *part;                          // the role's own
    struct weights_follower weights;     // with which the stage computes
    struct weights_publisher *publisher; // of those that the stage trains
    struct buf bulk;                     // of answers, in the I/O thread
    pthread_mutex_t lock;
    // Under the lock:
    struct buf notices; // for the user, each with its NUL, not sent yet
    struct node_counters {
        const char *waits_for;        // NULL: working
        double waited, waiting_since; // seconds
        int64_t taken, done, quarantined, found, tokens;
        double done_at;       // clock_monotonic() of the last of `done`
        int64_t failed_saves; // of checkpoints, since one was written
        int64_t worked;       // groups that were delivered, neither found in the store nor quarantined
        double work_seconds;  // the time that the worker had these
    } counters;
};

// Returns the channel of the node (runner.h), through which its stage gets groups and passes them on. The node's
// weights are open (weights_follower_open), and so is its I/O thread when the channel is used.
struct channel node_channel(struct node *node);
