// What every replica of a run said last about itself, and what can be read from it: progress, waits, lost groups.
#ifndef TOOLS_BOARD_H
#define TOOLS_BOARD_H

#include "shared/wire/message.h"
#include "tools/deployment.h"

struct board;

// An empty board for the deployment's replicas; the deployment must outlive it.
status board_new(struct board **out, const struct deployment *deployment);

// NULL is fine; sets *board to NULL.
void board_free(struct board **board);

// A STATUS has come at `now` (seconds).
status board_hear(struct board *board, const struct wire_message *message, double now);

// The replica's process has ended: what it said does not hold any more.
void board_forget(struct board *board, const struct replica *replica);

// Whether the replica has said anything since it was last forgotten.
bool board_knows(const struct board *board, const struct replica *replica);

// Progress as one line: step, groups, rate, time left, what each stage waits for.
status board_line(struct board *board, double now, struct buf *out);

// The same as a table, a row a replica.
status board_table(struct board *board, double now, struct buf *out);

// Steps trained so far, -1 while unknown.
int64_t board_step(const struct board *board);

// Calls lost for every group that is in flight and that nobody had in hand during three reports, as far as all
// replicas' words are fresh; then again after another three.
status board_find_lost(struct board *board, double now, status (*lost)(void *context, int64_t seq), void *context);

#endif
