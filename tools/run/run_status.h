// The last report of every replica of a run, and what can be concluded from all of them: progress, rates of the last
// minute, who has had a group for too long.
#pragma once

#include "shared/wire/message.h"
#include "tools/deployment.h"

struct run_status;

// A replica as it is now. The strings are valid as long as the run_status, the report until the next update.
struct replica_status {
    const char *name; // "rollout-2"
    const char *stage, *machine;
    int number;
    const char *state;                   // "starting", "silent", or what it reports
    const struct message_status *report; // the last one, perhaps of a process that has ended; NULL: none
    int64_t alive;                       // 1: it was heard of in the last seconds, else 0
    int64_t restarts;
    double rate;        // groups a second in the last minute
    double busy;        // share of the last minute, 0 to 1
    double tokens_rate; // tokens a second of work in the last minute
    double typical;     // seconds for a group: the mean of the last minute, else an earlier one; -1: unknown
    double oldest_age;  // seconds for which it has had report->oldest_seq; -1: it has no group
};

// The run as a whole.
struct run_summary {
    const char *name;
    bool trains;                         // it has optim
    const struct message_status *source; // its last report, NULL: none. Valid until the next update
    int64_t settled;                     // groups that the run is done with
    double rate;                         // groups a second in the last minute, or in the last steps if they take longer
    double left;                         // seconds until the end; -1: unknown
    double reward, accuracy;             // of the last step, NaN: none
    const char *bottleneck, *next;       // the stages that were at work for most of the last minute; NULL: none was
    double bottleneck_busy, next_busy;   // shares of the last minute, means over the replicas
    int64_t failed_saves;                // of checkpoints, since one was written
    struct replica_status oldest; // the replica that has been at work on a group for longest; oldest_age -1: none
};

// A run in which nothing is done: the lowest group that a stage has not given on, of those that optim waits for.
struct standstill {
    double seconds;                // since a stage last finished a group, or without one since the oldest start
    int64_t seq;                   // of the group
    const char *sender, *receiver; // which replica gave it to which ("frames-2"); receiver NULL: nobody took it;
                                   // sender NULL: no stage reports it, and it is the lowest that is not settled
    const char *stage;             // of the receiver, also if nobody has taken it
    const char *source_state;
};

// Makes an empty table for the deployment's replicas; the deployment must outlive it. Free it with run_status_free.
void run_status_new(struct run_status **out, const struct deployment *deployment);

// NULL is fine; sets *run_status to NULL.
void run_status_free(struct run_status **run_status);

// Stores a STATUS that came at `now` (seconds). One of an unknown replica is ignored.
void run_status_update(struct run_status *run_status, const struct wire_message *message, double now);

// Sets *out to a STATUS with a replica's counters of a minute ago; its state is "silent" if it is so now. A table that
// gets these messages first knows the rates of the last minute at once. Returns false if the replica has not reported.
// Valid until the next update.
bool run_status_replay(const struct run_status *run_status, size_t index, double now, struct wire_message *out);

// Says that a replica's process has ended. The counts of its last report stay until there is another.
void run_status_forget(struct run_status *run_status, const struct replica *replica);

// Counts that the process of a replica is started again.
void run_status_restarted(struct run_status *run_status, const struct replica *replica);

// Returns how often that was, 0 for what is no replica of a stage.
int64_t run_status_restarts(const struct run_status *run_status, const struct replica *replica);

// Returns the number of replicas.
size_t run_status_count(const struct run_status *run_status);

// Sets *out to the replica at `index`, in the order of the flow.
void run_status_replica(const struct run_status *run_status, size_t index, double now, struct replica_status *out);

// Sets *out to the state of the run.
void run_status_summary(const struct run_status *run_status, double now, struct run_summary *out);

// Returns whether the replica at `index` has been at work on its oldest group for more than 30 s and five times as long
// as is typical of it (300 s if that is unknown).
bool run_status_is_slow(const struct run_status *run_status, size_t index, double now);

// Finds a replica that is slow, and sets *out to it. It is found once for each group, and again whenever the age has
// doubled. Returns false if there is none.
bool run_status_find_slow(struct run_status *run_status, double now, struct replica_status *out);

// Finds out whether no stage has finished a group for more than 30 s, though all have started, the run is not over, and
// none is at work; then sets *out, whose strings are valid until the next update. It is found once, and again whenever
// the time has doubled.
bool run_status_find_standstill(struct run_status *run_status, double now, struct standstill *out);

// ---- texts (run_status_text.c) ----

// Appends the progress as one line: step, rate, time left, reward, bottleneck, then groups and what each stage waits
// for.
void run_status_line(const struct run_status *run_status, double now, struct buf *out);

// Appends the same as a table. Its lines are not wider than `columns`, of which 50 are needed at least: what matters
// less is left out. It has a row for each replica, or for each stage if those are more than so many rows.
void run_status_table(const struct run_status *run_status, double now, int columns, int rows, struct buf *out);

// Sets *line to what run_status_find_slow has found, "rollout-2 has had group 17 for 10:02 (typical 0:40)", else to
// what run_status_find_standstill has: "nothing has been done for 0:45: source gave group 17 to frames-2, which waits
// for groups". Returns false if there is neither.
bool run_status_warning(struct run_status *run_status, double now, struct buf *line);

// Appends what the user of a run that is over wants to know: how it ended, where its result is, what to type next. At
// most three lines, each with its end. `seconds` is the time since `caravan run` was started.
void run_end_lines(const struct deployment *deployment, const struct run_status *run_status, double seconds,
                   struct buf *out);

// Appends the counters of the run and of each replica as OpenMetrics text for Prometheus, which node_exporter's
// textfile collector reads as well. What is not known yet is left out.
void run_metrics(const struct run_status *run_status, double now, struct buf *out);
