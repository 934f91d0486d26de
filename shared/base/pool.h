// A pool of threads that share one loop at a time. It sleeps between loops (after a spin of microseconds).
#ifndef SHARED_BASE_POOL_H
#define SHARED_BASE_POOL_H

#include "shared/base/status.h"

struct pool;

// A pool of `threads` threads, the caller's own counted in; 0 means one for each processor that this process may use.
status pool_new(struct pool **out, int threads);

// Ends the threads; NULL is fine. Sets *pool to NULL.
void pool_free(struct pool **pool);

// How many threads it has, the caller's counted in.
int pool_threads(const struct pool *pool);

// Calls work(context, task, thread) for each task in 0..tasks-1, `thread` in 0..threads-1, and returns when all are
// done. Which thread takes which task is left to chance: results must depend on `task` alone. Not to be nested.
void pool_run(struct pool *pool, int tasks, void (*work)(void *context, int task, int thread), void *context);

#endif
