#include "stages/frames/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/memory.h"

// One group on its way through.
struct job {
    struct job *next;
    struct group *group;
    status result;
    char reason[512];
};

struct queue {
    struct job *first, **last;
};

struct workers {
    pthread_t *threads;
    int count, started;
    status (*work)(void *context, struct group *group);
    void *context;
    pthread_mutex_t lock; // of all below
    pthread_cond_t given, finished;
    struct queue waiting, done;
    int held;
    bool ending;
};

static void push(struct queue *queue, struct job *job) {
    job->next = NULL;
    *queue->last = job;
    queue->last = &job->next;
}

static struct job *pop(struct queue *queue) {
    struct job *job = queue->first;
    if (!job) return NULL;
    queue->first = job->next;
    if (!queue->first) queue->last = &queue->first;
    return job;
}

static void *worker_main(void *argument) {
    struct workers *workers = argument;
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        while (!workers->waiting.first && !workers->ending) pthread_cond_wait(&workers->given, &workers->lock);
        struct job *job = workers->ending ? NULL : pop(&workers->waiting);
        if (!job) break;
        pthread_mutex_unlock(&workers->lock);
        job->result = workers->work(workers->context, job->group);
        if (job->result != OK) strncpy(job->reason, fail_text(), sizeof job->reason - 1);
        pthread_mutex_lock(&workers->lock);
        push(&workers->done, job);
        pthread_cond_signal(&workers->finished);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

status workers_new(struct workers **out, int count, status (*work)(void *context, struct group *group), void *context) {
    *out = NULL;
    struct workers *workers;
    TRY(NEW(&workers, 1));
    workers->count = count;
    workers->work = work;
    workers->context = context;
    workers->waiting.last = &workers->waiting.first;
    workers->done.last = &workers->done.first;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->given, NULL);
    pthread_cond_init(&workers->finished, NULL);
    status result = NEW(&workers->threads, (size_t)count);
    for (int i = 0; result == OK && i < count; i++) {
        if (pthread_create(&workers->threads[i], NULL, worker_main, workers)) {
            result = fail(UNAVAILABLE, "cannot start decoder %d of %d", i + 1, count);
        } else {
            workers->started++;
        }
    }
    *out = workers;
    if (result != OK) workers_free(out);
    return result;
}

void workers_free(struct workers **place) {
    struct workers *workers = *place;
    if (!workers) return;
    pthread_mutex_lock(&workers->lock);
    workers->ending = true;
    pthread_cond_broadcast(&workers->given);
    pthread_mutex_unlock(&workers->lock);
    for (int i = 0; i < workers->started; i++) pthread_join(workers->threads[i], NULL);
    for (struct job *job; (job = pop(&workers->waiting));) free(job);
    for (struct job *job; (job = pop(&workers->done));) free(job);
    pthread_cond_destroy(&workers->given);
    pthread_cond_destroy(&workers->finished);
    pthread_mutex_destroy(&workers->lock);
    free(workers->threads);
    free(workers);
    *place = NULL;
}

int workers_room(struct workers *workers) {
    pthread_mutex_lock(&workers->lock);
    int room = workers->count * 2 - workers->held;
    pthread_mutex_unlock(&workers->lock);
    return room;
}

status workers_give(struct workers *workers, struct group *group) {
    struct job *job;
    TRY(NEW(&job, 1));
    job->group = group;
    pthread_mutex_lock(&workers->lock);
    push(&workers->waiting, job);
    workers->held++;
    pthread_cond_signal(&workers->given);
    pthread_mutex_unlock(&workers->lock);
    return OK;
}

status workers_take(struct workers *workers, double seconds, struct group **done) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    *done = NULL;
    pthread_mutex_lock(&workers->lock);
    bool none = workers->held == 0;
    int waited = 0;
    while (!none && !workers->done.first && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&workers->finished, &workers->lock, &until);
    }
    struct job *job = pop(&workers->done);
    if (job) workers->held--;
    pthread_mutex_unlock(&workers->lock);
    if (!job) return none ? END : OK;
    *done = job->group;
    status result = job->result == OK ? OK : fail(job->result, "%s", job->reason);
    free(job);
    return result;
}
