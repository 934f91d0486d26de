#include "shared/base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "shared/base/memory.h"

enum { spin_turns = 4000 }; // about 20 microseconds: one product follows the next much sooner, a waiting stage sleeps

typedef struct worker {
    pool *pool;
    pthread_t thread;
    int index;
} worker;

struct pool {
    worker *workers; // all but the caller's
    int threads;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t work_here;
    pthread_cond_t all_done;
    void (*work)(void *, int, int);
    void *context;
    int tasks;
    atomic_int next;  // the next task to take
    atomic_uint loop; // counts loops; a change wakes the workers
    atomic_int busy;  // workers that have not finished the present loop
    int sleeping;     // workers in work_here, under lock
    atomic_bool ending;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_tasks(pool *pool, int thread) {
    for (;;) {
        int task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->tasks) return;
        pool->work(pool->context, task, thread);
    }
}

static unsigned await_loop(pool *pool, unsigned seen) {
    for (int turn = 0; turn < spin_turns; turn++) {
        if (atomic_load_explicit(&pool->loop, memory_order_acquire) != seen) break;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->loop) == seen) {
        pool->sleeping++;
        pthread_cond_wait(&pool->work_here, &pool->lock);
        pool->sleeping--;
    }
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->loop);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        seen = await_loop(pool, seen);
        if (atomic_load(&pool->ending)) return NULL;
        take_tasks(pool, self->index);
        if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->all_done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static int processors(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

status pool_new(pool **out, int threads) {
    *out = NULL;
    if (threads <= 0) threads = processors();
    pool *pool;
    TRY(NEW(&pool, 1));
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work_here, NULL);
    pthread_cond_init(&pool->all_done, NULL);
    status result = NEW(&pool->workers, (size_t)threads);
    for (int i = 1; result == OK && i < threads; i++) {
        worker *worker = &pool->workers[i - 1];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, worker_main, worker)) {
            result = fail(SERVICE, "cannot start thread %d of %d", i + 1, threads);
        } else {
            pool->started++;
        }
    }
    *out = pool;
    if (result != OK) pool_free(out);
    return result;
}

static void wake(pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->loop, 1, memory_order_release);
    if (pool->sleeping) pthread_cond_broadcast(&pool->work_here);
    pthread_mutex_unlock(&pool->lock);
}

void pool_free(pool **place) {
    pool *pool = *place;
    if (!pool) return;
    atomic_store(&pool->ending, true);
    wake(pool);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->all_done);
    pthread_cond_destroy(&pool->work_here);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
    *place = NULL;
}

int pool_threads(const pool *pool) {
    return pool->threads;
}

static void await_workers(pool *pool) {
    for (int turn = 0; turn < spin_turns; turn++) {
        if (!atomic_load_explicit(&pool->busy, memory_order_acquire)) return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->busy, memory_order_acquire)) pthread_cond_wait(&pool->all_done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(pool *pool, int tasks, void (*work)(void *context, int task, int thread), void *context) {
    if (pool->started == 0 || tasks <= 1) {
        for (int task = 0; task < tasks; task++) work(context, task, 0);
        return;
    }
    pool->work = work;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->busy, pool->started, memory_order_relaxed);
    wake(pool);
    take_tasks(pool, 0);
    await_workers(pool);
}
