// A pool of threads that share one loop at a time. Between loops its threads sleep, after spinning for microseconds.
#pragma once

#include "shared/base/status.h"

struct pool;

// Returns how many processors this process may use, 1 or more: those that it may run on, and no more than its cgroups
// give it time of, as to a container.
int pool_processors(void);

// Returns how many processors' time the cgroups allow, rounded up; INT_MAX: any. `root` is /sys/fs/cgroup and `self`
// /proc/self/cgroup, of either version of the interface; others in tests.
int pool_quota(const char *root, const char *self);

// Makes a pool of `threads` threads, the caller's own included; 0 means one for each processor that this process may
// use. Free it with pool_free. UNAVAILABLE.
status pool_new(struct pool **out, int threads);

// Ends the threads and sets *pool to NULL. NULL is fine.
void pool_free(struct pool **pool);

// Returns the number of threads, the caller's included.
int pool_threads(const struct pool *pool);

// Calls work(context, task, thread) for each task in 0..tasks-1, with `thread` in 0..threads-1, and returns when all
// are done. Which thread takes which task is not determined: results must depend on `task` alone. Calls must not nest.
void pool_run(struct pool *pool, int tasks, void (*work)(void *context, int task, int thread), void *context);
