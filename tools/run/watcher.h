// A connection to the supervisors of a run, for the subcommands that watch or stop it from outside.
#pragma once

#include <stdbool.h>

#include "shared/wire/wire.h"
#include "tools/deployment.h"

enum {
    WATCHER_ANSWER_SECONDS = 5, // within which a supervisor that is there answers
    WATCHER_BUSY_SECONDS = 120, // the same where this machine is too busy
};

struct watcher {
    struct deployment deployment;
    struct node_config config; // of this machine's supervisor
    struct wire *wire;
    long process; // this machine's supervisor, 0: not known
    bool told;    // that it does not answer
};

// Prepares to connect as `name`; `machine` and `key` are those of deployment_init. The pipeline must outlive it. USAGE
// or UNAVAILABLE, which also says that no run was started in the pipeline's directory, or that it is another user's.
// Release with watcher_close, after a failure too.
status watcher_open(struct watcher *watcher, struct pipeline *pipeline, const char *machine, const char *key,
                    const char *name);

// Connects to the supervisor of a machine; `peer` may be NULL. UNAVAILABLE.
status watcher_connect(struct watcher *watcher, int machine, struct wire_peer **peer);

// Whether to go on waiting for this machine's supervisor, of which nothing was heard since then (clock_monotonic()). It
// may be too busy while its process has the run's lock, which is said once on standard error.
bool watcher_waits(struct watcher *watcher, double since);

// Fails with UNAVAILABLE: no supervisor answers. Writes this to standard error, and which runs are active.
status watcher_not_active(const struct watcher *watcher);

// Says goodbye and frees what it holds.
void watcher_close(struct watcher *watcher);
