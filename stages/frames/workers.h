// The decoders: threads that take groups and give them back with their media.
#ifndef STAGES_FRAMES_WORKERS_H
#define STAGES_FRAMES_WORKERS_H

#include "shared/base/status.h"
#include "shared/group/group.h"

typedef struct workers workers;

// `count` threads that call work(context, group) for each group they are given.
status workers_new(workers **out, int count, status (*work)(void *context, group *group), void *context);

// Waits for the groups at work and ends the threads; groups that still wait come back from nowhere: take them back
// first. NULL is fine; sets *workers to NULL.
void workers_free(workers **workers);

// How many more groups may be given: enough that no thread waits for the next one.
int workers_room(workers *workers);

// Hands over a group.
status workers_give(workers *workers, group *group);

// *done = a group that has been worked on, or NULL if none was within `seconds`; the result is what work answered for
// it, with its failure text. STOPPED: none is held.
status workers_take(workers *workers, double seconds, group **done);

#endif
