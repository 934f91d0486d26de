// What a replica reports of its work: the groups that it has and has had, and how long it waited. The worker counts,
// the I/O thread reports; the calls lock.
#ifndef SHARED_STAGE_NODE_COUNTERS_H
#define SHARED_STAGE_NODE_COUNTERS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/wire/message.h"

// A group that the worker has received and neither delivered nor dropped.
struct node_group {
    int64_t seq, issue;
    double since; // clock_monotonic()
};

struct node_counters {
    pthread_mutex_t lock;
    const char *waits_for;        // NULL: working
    double waited, waiting_since; // seconds
    int64_t taken, done, quarantined, found, tokens;
    double done_at;            // clock_monotonic() of the last of `done`
    int64_t failed_saves;      // of checkpoints, since one was written
    int64_t worked;            // groups that were delivered, neither found in the store nor quarantined
    double work_seconds;       // the time that the worker had these
    struct node_group *groups; // in the order in which they came
    size_t group_count;
};

// Sets a zeroed struct up, once. Release it with node_counters_release.
void node_counters_init(struct node_counters *counters);

// Frees what it holds.
void node_counters_release(struct node_counters *counters);

// The worker waits for `what`, a literal; nothing begins anew if it waits already.
void node_counters_begin_wait(struct node_counters *counters, const char *what);

// The worker does not wait any more; nothing if it did not.
void node_counters_end_wait(struct node_counters *counters);

// The worker has received a group.
void node_counters_receive(struct node_counters *counters, int64_t seq, int64_t issue);

// A group that was received will not be worked on.
void node_counters_drop(struct node_counters *counters, int64_t seq);

// The stage has taken a group that was received.
void node_counters_take(struct node_counters *counters);

// The stage takes it later. Returns the issue of the group, 0 if it was not received.
int64_t node_counters_give_back(struct node_counters *counters, int64_t seq);

// The stage has finished a group. found, quarantined: the groups so far that were in the store, and that are defective.
void node_counters_deliver(struct node_counters *counters, const struct group *group, size_t found, size_t quarantined);

// So many attempts to write a checkpoint have failed since one was last written.
void node_counters_set_failed_saves(struct node_counters *counters, int64_t count);

// Fills in what is counted here, reward and accuracy as NaN. started: clock_monotonic() when the program began.
void node_counters_report(struct node_counters *counters, double started, struct message_status *report);

#endif
