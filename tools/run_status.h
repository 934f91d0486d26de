// What every replica of a run said last about itself, and what can be read from it: progress, waits, lost groups.
#ifndef TOOLS_RUN_STATUS_H
#define TOOLS_RUN_STATUS_H

#include "shared/wire/message.h"
#include "tools/deployment.h"

struct run_status;

// An empty run_status for the deployment's replicas; the deployment must outlive it.
status run_status_new(struct run_status **out, const struct deployment *deployment);

// NULL is fine; sets *run_status to NULL.
void run_status_free(struct run_status **run_status);

// A STATUS has come at `now` (seconds).
status run_status_update(struct run_status *run_status, const struct wire_message *message, double now);

// The replica's process has ended: what it said does not hold any more.
void run_status_forget(struct run_status *run_status, const struct replica *replica);

// Whether the replica has said anything since it was last forgotten.
bool board_knows(const struct run_status *run_status, const struct replica *replica);

// Progress as one line: step, groups, rate, time left, what each stage waits for.
status run_status_line(struct run_status *run_status, double now, struct buf *out);

// The same as a table, a row a replica.
status run_status_table(struct run_status *run_status, double now, struct buf *out);

// Steps trained so far, -1 while unknown.
int64_t run_status_step(const struct run_status *run_status);

// Calls lost for every group that is in flight and that nobody had in hand during three reports, as far as all
// replicas' words are fresh; then again after another three.
status run_status_find_lost(struct run_status *run_status, double now, status (*lost)(void *context, int64_t seq),
                            void *context);

#endif
