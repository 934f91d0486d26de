#include "shared/base/pool.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

// About 20 microseconds: within a model one loop follows the next much sooner, and an idle stage sleeps.
enum { POOL_SPINS = 4000 };

struct pool_worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

// One loop follows another. The upper half of `ticket` is the loop's number, the lower half the number of tasks that
// no thread has taken. A thread that lowers it owns a task, and the loop's other fields do not change before that task
// is done. A worker that wakes late therefore finds nothing to take, and no loop waits for it.
struct pool {
    struct pool_worker *workers; // all but the caller's
    int threads;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t loop_started;
    pthread_cond_t loop_done;
    void (*work)(void *, int, int);
    void *context;
    int tasks;
    _Atomic uint64_t ticket;
    atomic_int unfinished; // tasks that are not done
    atomic_int sleeping;   // workers that wait for loop_started, or are about to
    atomic_bool waiting;   // the caller waits for loop_done, or is about to
    atomic_bool ending;
};
static_assert(sizeof(int) <= sizeof(uint32_t), "a number of tasks must fit into half of the ticket");

static void pool_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t pool_loop(struct pool *pool) {
    return (uint32_t)(atomic_load(&pool->ticket) >> 32);
}

// Returns a task's number, -1 if none is left.
static int pool_take_task(struct pool *pool) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    for (;;) {
        uint32_t untaken = (uint32_t)ticket;
        if (untaken == 0) return -1;
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return pool->tasks - (int)untaken;
    }
}

// Does tasks until none is left.
static void pool_work(struct pool *pool, int thread) {
    for (int task = pool_take_task(pool); task >= 0; task = pool_take_task(pool)) {
        assert(task < pool->tasks);
        pool->work(pool->context, task, thread);
        bool last = atomic_fetch_sub(&pool->unfinished, 1) == 1;
        if (!last || !thread || !atomic_load(&pool->waiting)) continue;
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->loop_done);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void *pool_worker_main(void *argument) {
    const struct pool_worker *worker = argument;
    struct pool *pool = worker->pool;
    for (uint32_t seen = 0; !atomic_load(&pool->ending); seen = pool_loop(pool)) {
        pool_work(pool, worker->index);
        for (int i = 0; i < POOL_SPINS && pool_loop(pool) == seen; i++) pool_relax();
        if (pool_loop(pool) != seen) continue;
        pthread_mutex_lock(&pool->lock);
        // Written before the ticket is read; pool_start_loop writes the ticket and then reads this.
        atomic_fetch_add(&pool->sleeping, 1);
        while (pool_loop(pool) == seen) pthread_cond_wait(&pool->loop_started, &pool->lock);
        atomic_fetch_sub(&pool->sleeping, 1);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

// Reads up to two numbers at the beginning of a file. Returns how many there are.
static int pool_read_numbers(const char *dir, const char *name, long long *first, long long *second) {
    char path[4500];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    const int count = file ? fscanf(file, "%lld %lld", first, second) : 0;
    if (file) fclose(file);
    return count;
}

int pool_quota(const char *root, const char *self) {
    char line[4096], dir[4400];
    long long least = INT_MAX, quota = 0, period = 0, none;
    FILE *file = fopen(self, "re");
    while (file && fgets(line, sizeof line, file)) { // NUMBER:CONTROLLERS:PATH
        line[strcspn(line, "\n")] = 0;
        const bool second = !strncmp(line, "0::", 3); // version of the interface
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = *controllers = ',';
        const char *cpu = strstr(controllers, ",cpu,");
        if (!second && (!cpu || cpu >= path)) continue;
        snprintf(dir, sizeof dir, "%s%s%s", root, second ? "" : "/cpu", path);
        // A cgroup, and each one that it is in, has so many microseconds of processors in each period.
        for (char *slash = dir; slash; slash = strlen(dir) > strlen(root) ? strrchr(dir, '/') : NULL) {
            if (slash != dir) *slash = 0;
            const bool limited = second ? pool_read_numbers(dir, "cpu.max", &quota, &period) == 2
                                        : pool_read_numbers(dir, "cpu.cfs_quota_us", &quota, &none) > 0 &&
                                              pool_read_numbers(dir, "cpu.cfs_period_us", &period, &none) > 0;
            if (limited && quota > 0 && period > 0 && (quota - 1) / period + 1 < least)
                least = (quota - 1) / period + 1;
        }
    }
    if (file) fclose(file);
    return (int)least;
}

int pool_processors(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    const int quota = pool_quota("/sys/fs/cgroup", "/proc/self/cgroup"), most = quota < count ? quota : count;
    return most > 0 ? most : 1;
}

status pool_new(struct pool **out, int threads) {
    *out = NULL;
    if (threads <= 0) threads = pool_processors();
    struct pool *pool;
    NEW(&pool, 1);
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->loop_started, NULL);
    pthread_cond_init(&pool->loop_done, NULL);
    NEW(&pool->workers, (size_t)threads);
    status result = OK;
    for (int i = 1; result == OK && i < threads; i++) {
        struct pool_worker *worker = &pool->workers[i - 1];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, pool_worker_main, worker))
            result = fail(UNAVAILABLE, "cannot start thread %d of %d", i + 1, threads);
        else
            pool->started++;
    }
    *out = pool;
    if (result != OK) pool_free(out);
    return result;
}

static void pool_start_loop(struct pool *pool, int tasks) {
    assert(tasks >= 0 && (uint32_t)atomic_load(&pool->ticket) == 0);
    uint64_t loop = (uint64_t)(pool_loop(pool) + 1) << 32;
    atomic_store(&pool->ticket, loop | (uint32_t)tasks);
    if (!atomic_load(&pool->sleeping)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->loop_started);
    pthread_mutex_unlock(&pool->lock);
}

void pool_free(struct pool **pointer) {
    struct pool *pool = *pointer;
    if (!pool) return;
    atomic_store(&pool->ending, true);
    pool_start_loop(pool, 0);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->loop_done);
    pthread_cond_destroy(&pool->loop_started);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
    *pointer = NULL;
}

int pool_threads(const struct pool *pool) {
    return pool->threads;
}

void pool_run(struct pool *pool, int tasks, void (*work)(void *context, int task, int thread), void *context) {
    if (pool->started == 0 || tasks <= 1) {
        for (int task = 0; task < tasks; task++) work(context, task, 0);
        return;
    }
    assert(atomic_load(&pool->unfinished) == 0); // calls must not nest
    pool->work = work;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->unfinished, tasks, memory_order_relaxed);
    pool_start_loop(pool, tasks);
    pool_work(pool, 0);
    for (int i = 0; i < POOL_SPINS; i++) {
        if (!atomic_load_explicit(&pool->unfinished, memory_order_acquire)) return;
        pool_relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, true);
    while (atomic_load(&pool->unfinished)) pthread_cond_wait(&pool->loop_done, &pool->lock);
    atomic_store(&pool->waiting, false);
    pthread_mutex_unlock(&pool->lock);
}
