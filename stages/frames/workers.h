// The decoders: threads that take groups and give them back with their media.
#ifndef STAGES_FRAMES_WORKERS_H
#define STAGES_FRAMES_WORKERS_H

#include "shared/base/status.h"
#include "shared/group/group.h"

struct workers;

// `count` threads that call work(context, group) for each group they are given.
status workers_new(struct workers **out, int count, status (*work)(void *context, struct group *group), void *context);

// Waits for the groups at work and ends the threads; groups that still wait come back from nowhere: take them back
// first. NULL is fine; sets *workers to NULL.
void workers_free(struct workers **workers);

// How many more groups may be given: enough that no thread waits for the next one.
int workers_room(struct workers *workers);

// Hands over a group.
status workers_give(struct workers *workers, struct group *group);

// *done = a group that has been worked on, or NULL if none was within `seconds`; the result is what work answered for
// it, with its failure text. END: none is held.
status workers_take(struct workers *workers, double seconds, struct group **done);

#endif
