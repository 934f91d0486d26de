#include "stages/frames/worker_pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/clock.h"
#include "shared/base/memory.h"

enum job_state { JOB_WAITING, JOB_IN_WORK, JOB_DONE, JOB_STATES };

struct job {
    struct job *next;
    enum job_state state;
    struct group *group;
    status result;
    char reason[512];
};

struct worker_pool {
    pthread_t *threads;
    int thread_count, started;
    status (*work)(void *context, struct group *group);
    void *context;
    pthread_mutex_t lock; // of all below
    pthread_cond_t job_waiting, job_done;
    struct job *jobs; // in the order in which they were submitted
    int job_count;
    bool stopping;
};

// Returns the link to the first job in that state, or to the end of the list. The caller holds the lock.
static struct job **worker_pool_find(struct worker_pool *pool, enum job_state state) {
    struct job **link = &pool->jobs;
    while (*link && (*link)->state != state) link = &(*link)->next;
    return link;
}

static void *worker_main(void *argument) {
    struct worker_pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        struct job *job = *worker_pool_find(pool, JOB_WAITING);
        if (!job) {
            pthread_cond_wait(&pool->job_waiting, &pool->lock);
            continue;
        }
        job->state = JOB_IN_WORK;
        pthread_mutex_unlock(&pool->lock);
        job->result = pool->work(pool->context, job->group);
        if (job->result != OK) snprintf(job->reason, sizeof job->reason, "%s", fail_text());
        pthread_mutex_lock(&pool->lock);
        job->state = JOB_DONE;
        pthread_cond_signal(&pool->job_done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

status worker_pool_new(struct worker_pool **out, int count, status (*work)(void *context, struct group *group),
                       void *context) {
    assert(count > 0);
    *out = NULL;
    struct worker_pool *pool;
    NEW(&pool, 1);
    pool->thread_count = count;
    pool->work = work;
    pool->context = context;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->job_waiting, NULL);
    cond_init_monotonic(&pool->job_done);
    NEW(&pool->threads, (size_t)count);
    status result = OK;
    for (int i = 0; result == OK && i < count; i++) {
        if (pthread_create(&pool->threads[i], NULL, worker_main, pool))
            result = fail(UNAVAILABLE, "cannot start thread %d of %d", i + 1, count);
        else
            pool->started++;
    }
    *out = pool;
    if (result != OK) worker_pool_free(out);
    return result;
}

void worker_pool_free(struct worker_pool **out) {
    struct worker_pool *pool = *out;
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->job_waiting);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL);
    for (struct job *job = pool->jobs, *next; job; job = next) {
        next = job->next;
        free(job);
    }
    pthread_cond_destroy(&pool->job_waiting);
    pthread_cond_destroy(&pool->job_done);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
    *out = NULL;
}

int worker_pool_capacity(void *state) {
    struct worker_pool *pool = *(struct worker_pool **)state;
    pthread_mutex_lock(&pool->lock);
    int capacity = pool->thread_count * 2 - pool->job_count;
    pthread_mutex_unlock(&pool->lock);
    return capacity;
}

status worker_pool_submit(void *state, struct group *group) {
    struct worker_pool *pool = *(struct worker_pool **)state;
    struct job *job;
    NEW(&job, 1);
    job->group = group;
    pthread_mutex_lock(&pool->lock);
    *worker_pool_find(pool, JOB_STATES) = job; // at the end
    pool->job_count++;
    pthread_cond_signal(&pool->job_waiting);
    pthread_mutex_unlock(&pool->lock);
    return OK;
}

status worker_pool_poll(void *state, bool draining, struct group **done) {
    struct worker_pool *pool = *(struct worker_pool **)state;
    const double deadline = clock_monotonic() + 0.05;
    (void)draining; // the groups in the pool are finished either way
    *done = NULL;
    pthread_mutex_lock(&pool->lock);
    const bool empty = !pool->jobs;
    bool waiting = !empty;
    struct job **link = worker_pool_find(pool, JOB_DONE), *job;
    while (!*link && waiting) {
        waiting = cond_wait_until(&pool->job_done, &pool->lock, deadline);
        link = worker_pool_find(pool, JOB_DONE);
    }
    job = *link;
    if (job) {
        *link = job->next;
        pool->job_count--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!job) return empty ? END : OK;
    *done = job->group;
    status result = job->result == OK ? OK : fail(job->result, "%s", job->reason);
    free(job);
    return result;
}
