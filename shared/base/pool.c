#include "shared/base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "shared/base/memory.h"

enum { spin_turns = 4000 }; // about 20 microseconds: one product follows the next much sooner, a waiting stage sleeps

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

// One loop follows the other. `ticket` has the loop's number in its upper half and how many tasks are still to be taken
// in its lower: who lowers it owns a task, and until that is done the loop's other fields stay as they are. So a worker
// that wakes late finds nothing to take, and nobody waits for it.
struct pool {
    struct worker *workers; // all but the caller's
    int threads;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t work_here;
    pthread_cond_t all_done;
    void (*work)(void *, int, int);
    void *context;
    int tasks;
    _Atomic uint64_t ticket;
    atomic_int left;     // tasks that are not done
    atomic_int sleeping; // workers in work_here, or about to be
    atomic_bool waiting; // the caller, in all_done, or about to be
    atomic_bool ending;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A task's number, or -1 when none is left.
static int take_task(struct pool *pool) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    for (;;) {
        uint32_t untaken = (uint32_t)ticket;
        if (untaken == 0) return -1;
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return pool->tasks - (int)untaken;
    }
}

static void wake_caller(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->all_done);
    pthread_mutex_unlock(&pool->lock);
}

// Does tasks until none is left.
static void work_on(struct pool *pool, int thread) {
    for (int task = take_task(pool); task >= 0; task = take_task(pool)) {
        pool->work(pool->context, task, thread);
        bool last = atomic_fetch_sub(&pool->left, 1) == 1;
        if (last && thread && atomic_load(&pool->waiting)) wake_caller(pool);
    }
}

static uint32_t loop_of(struct pool *pool) {
    return (uint32_t)(atomic_load(&pool->ticket) >> 32);
}

static uint32_t await_loop(struct pool *pool, uint32_t seen) {
    for (int turn = 0; turn < spin_turns; turn++) {
        uint32_t loop = loop_of(pool);
        if (loop != seen) return loop;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1); // before the look at the ticket, as start_loop looks after it has set it
    while (loop_of(pool) == seen) pthread_cond_wait(&pool->work_here, &pool->lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
    return loop_of(pool);
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    uint32_t seen = 0;
    for (;;) {
        seen = await_loop(self->pool, seen);
        if (atomic_load(&self->pool->ending)) return NULL;
        work_on(self->pool, self->index);
    }
}

static int processors(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

status pool_new(struct pool **out, int threads) {
    *out = NULL;
    if (threads <= 0) threads = processors();
    struct pool *pool;
    TRY(NEW(&pool, 1));
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work_here, NULL);
    pthread_cond_init(&pool->all_done, NULL);
    status result = NEW(&pool->workers, (size_t)threads);
    for (int i = 1; result == OK && i < threads; i++) {
        struct worker *worker = &pool->workers[i - 1];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, worker_main, worker)) {
            result = fail(UNAVAILABLE, "cannot start thread %d of %d", i + 1, threads);
        } else {
            pool->started++;
        }
    }
    *out = pool;
    if (result != OK) pool_free(out);
    return result;
}

static void start_loop(struct pool *pool, int tasks) {
    uint64_t loop = (uint64_t)(loop_of(pool) + 1) << 32;
    atomic_store(&pool->ticket, loop | (uint32_t)tasks);
    if (!atomic_load(&pool->sleeping)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work_here);
    pthread_mutex_unlock(&pool->lock);
}

void pool_free(struct pool **place) {
    struct pool *pool = *place;
    if (!pool) return;
    atomic_store(&pool->ending, true);
    start_loop(pool, 0);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->all_done);
    pthread_cond_destroy(&pool->work_here);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
    *place = NULL;
}

int pool_threads(const struct pool *pool) {
    return pool->threads;
}

static void await_tasks(struct pool *pool) {
    for (int turn = 0; turn < spin_turns; turn++) {
        if (!atomic_load_explicit(&pool->left, memory_order_acquire)) return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, true);
    while (atomic_load(&pool->left)) pthread_cond_wait(&pool->all_done, &pool->lock);
    atomic_store(&pool->waiting, false);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(struct pool *pool, int tasks, void (*work)(void *context, int task, int thread), void *context) {
    if (pool->started == 0 || tasks <= 1) {
        for (int task = 0; task < tasks; task++) work(context, task, 0);
        return;
    }
    pool->work = work;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->left, tasks, memory_order_relaxed);
    start_loop(pool, tasks);
    work_on(pool, 0);
    await_tasks(pool);
}
