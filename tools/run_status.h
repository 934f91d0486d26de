// The last report of every replica of a run, and what can be concluded from all of them: progress, waits, lost groups.
#ifndef TOOLS_RUN_STATUS_H
#define TOOLS_RUN_STATUS_H

#include "shared/wire/message.h"
#include "tools/deployment.h"

struct run_status;

// Makes an empty table for the deployment's replicas; the deployment must outlive it. UNAVAILABLE. Free it with
// run_status_free.
status run_status_new(struct run_status **out, const struct deployment *deployment);

// NULL is fine; sets *run_status to NULL.
void run_status_free(struct run_status **run_status);

// Stores a STATUS that came at `now` (seconds). One of an unknown replica is ignored. DATAERR when its sets of groups
// are malformed; the table is then unchanged.
status run_status_update(struct run_status *run_status, const struct wire_message *message, double now);

// Discards the report of a replica whose process has ended.
void run_status_forget(struct run_status *run_status, const struct replica *replica);

// Appends the progress as one line: step, groups, rate, time left, what each stage waits for. UNAVAILABLE.
status run_status_line(const struct run_status *run_status, double now, struct buf *out);

// Appends the same as a table with a row for each replica. UNAVAILABLE.
status run_status_table(const struct run_status *run_status, double now, struct buf *out);

// Returns the steps trained so far, -1 while unknown.
int64_t run_status_step(const struct run_status *run_status);

// Finds the groups that are in flight and that no replica has had in progress for three reports: *seqs is an array of
// *count, valid until the next call. A group is found again after another three reports. None is found while a report
// is too old. UNAVAILABLE.
status run_status_find_lost(struct run_status *run_status, double now, const int64_t **seqs, size_t *count);

#endif
