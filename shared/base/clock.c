#include "shared/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static struct timespec clock_read(clockid_t id) {
    struct timespec time;
    int failed = clock_gettime(id, &time);
    assert(!failed); // Linux has both clocks
    (void)failed;
    return time;
}

double clock_monotonic(void) {
    struct timespec time = clock_read(CLOCK_MONOTONIC);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int64_t clock_monotonic_ms(void) {
    struct timespec time = clock_read(CLOCK_MONOTONIC);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / NS_PER_MS;
}

double clock_realtime(void) {
    struct timespec time = clock_read(CLOCK_REALTIME);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int64_t clock_realtime_ns(void) {
    struct timespec time = clock_read(CLOCK_REALTIME);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

void cond_init_monotonic(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    int failed = pthread_condattr_init(&attributes);
    failed |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    failed |= pthread_cond_init(cond, &attributes);
    failed |= pthread_condattr_destroy(&attributes);
    assert(!failed); // glibc allocates nothing here
    (void)failed;
}

bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double deadline) {
    assert(deadline >= 0);
    struct timespec until = {.tv_sec = (time_t)deadline};
    until.tv_nsec = (long)((deadline - (double)until.tv_sec) * 1e9);
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}
