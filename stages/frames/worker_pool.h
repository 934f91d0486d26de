// A pool of threads with a job queue: takes groups, calls a function on each, and gives them back when they are done.
// The state of a stage that uses one begins with its struct worker_pool *, so that worker_pool_capacity, _submit and
// _poll can be the stage's `capacity`, `submit` and `poll`.
#ifndef STAGES_FRAMES_WORKER_POOL_H
#define STAGES_FRAMES_WORKER_POOL_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

struct worker_pool;

// Starts `count` threads that call work(context, group) for each submitted group. UNAVAILABLE when a thread cannot be
// started. The caller frees the pool with worker_pool_free.
status worker_pool_new(struct worker_pool **out, int count, status (*work)(void *context, struct group *group),
                       void *context);

// Waits for the groups that are being worked on, ends the threads and frees; sets *pool to NULL. NULL is fine. Groups
// that were not polled stay with whoever submitted them.
void worker_pool_free(struct worker_pool **pool);

// Returns how many more groups can be submitted. The queue holds one waiting group per thread, so that no thread idles.
int worker_pool_capacity(void *state);

// Appends a group to the queue; it belongs to the pool until it is polled.
status worker_pool_submit(void *state, struct group *group);

// *done = a group that is done, or NULL when there was none within 50 ms. Returns what work returned for it, with the
// text of its failure; END when the pool holds no group.
status worker_pool_poll(void *state, bool draining, struct group **done);

#endif
