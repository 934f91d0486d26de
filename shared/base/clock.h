// The two clocks, and timed waits for condition variables.
//
// Durations, deadlines and waits use the monotonic clock, which no administrator and no time server can set. Times that
// people or other machines read use the real-time clock.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// Seconds since an arbitrary moment, the same for all processes of this machine until it restarts.
double clock_monotonic(void);

// The same in whole milliseconds.
int64_t clock_monotonic_ms(void);

// Seconds since 1970-01-01 UTC.
double clock_realtime(void);

// The same in whole nanoseconds, as the time stamps of files.
int64_t clock_realtime_ns(void);

// Initializes a condition variable for cond_wait_until. Destroy it with pthread_cond_destroy.
void cond_init_monotonic(pthread_cond_t *cond);

// Waits with `lock` held until `cond` is signalled (or wakes for no reason, as condition variables may) or
// clock_monotonic() has reached `deadline`. Returns false at the deadline.
bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double deadline);
