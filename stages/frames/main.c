// caravan-frames: finds the file of each image and video of a group, decodes, samples and resizes it once, and puts the
// frames into the store. The group gets their shapes, times and keys, not the pixels.
//
// Several groups are worked on at the same time, each by one thread of a pool. A thread that needs frames which another
// thread is decoding waits for them.
//
// A file that cannot be read quarantines its group, but not while the folder that holds the media is gone: then the
// run waits for the folder.
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/pool.h"
#include "shared/base/signals.h"
#include "shared/media/media.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_model.h"
#include "shared/store/frame_store.h"

// The folder that holds the media: media_root, and below it (or anywhere, without media_root) the directory that all
// media have in common that were read so far. A file that is missing while its folder is gone says nothing about the
// sample: a network file system may be away for a moment.
struct media_folder {
    const char *root;      // media_root, NULL: none
    char common[PATH_MAX]; // of the media that were read; "" before the first one
    double told_at;        // clock_monotonic() when the user was last told that it is gone; 0: it is there
};

// A key that another machine has asked for and that the store lacks.
struct asked_key {
    char key[FRAME_KEY_SIZE];
    bool twice; // it is decoded again
};

enum { MAX_AGAIN = 64 };

// Decodes frames that were evicted again, when another machine asks for them: a thread, and the keys that were asked
// for last, as a ring. A key that others have pushed out is asked for again later.
struct decode_again {
    pthread_t thread;
    bool started;
    pthread_cond_t changed;
    struct asked_key asked[MAX_AGAIN];
    int asked_next;
};

enum job_state { JOB_WAITING, JOB_IN_WORK, JOB_DONE, JOB_STATES };

enum { MAX_REASON = 1024 }; // as group_quarantine keeps

// A group that is submitted.
struct job {
    struct job *next;
    enum job_state state;
    struct group *group;
    status result;
    char reason[MAX_REASON];
};

// Threads that take jobs, and give them back when they are done.
struct worker_pool {
    pthread_t *threads;
    int thread_count, started;
    pthread_cond_t job_waiting, job_done;
    struct job *jobs; // those that are not done in the order of submission, the others in that of completion
    int job_count;
};

// A key whose frames some thread is decoding.
struct locked_key {
    struct locked_key *next;
    char key[FRAME_KEY_SIZE];
};

struct frames_stage {
    struct worker_pool pool;
    struct decode_again again; // runs with --store
    struct stage_context *context;
    struct sampling_config sampling;
    struct media_folder folder;
    bool inside;               // only files below media_root are opened
    double seconds_per_grid;   // NaN: measured
    struct frame_store *store; // NULL without --store
    int thread_count;          // that may decode at the same time
    atomic_int active_count;   // groups that the pool's threads are working on
    pthread_mutex_t lock;      // of what several threads use: the pool, `again`, the folder and locked_keys
    pthread_cond_t key_released;
    struct locked_key *locked_keys;
    bool stopping; // the threads end
};

// ---- the folder of the media ----

// UNAVAILABLE, naming the directory, when it cannot be entered or has no entry any more, as a mount point without its
// file system.
static status media_folder_check_directory(const char *path) {
    if (access(path, X_OK)) return fail(UNAVAILABLE, "the media's directory %s: %s", path, strerror(errno));
    DIR *dir = opendir(path);
    int count = 0;
    if (!dir && errno == EACCES) return OK; // it may be entered, not listed
    if (!dir) return fail(UNAVAILABLE, "the media's directory %s: %s", path, strerror(errno));
    while (count <= 2 && readdir(dir)) count++; // with . and ..
    closedir(dir);
    return count > 2 ? OK : fail(UNAVAILABLE, "the media's directory %s: it is empty now", path);
}

// Looks whether the folder of the media is gone, since `path` cannot be read (NULL: that names no file). UNAVAILABLE,
// naming it, when the file's own directory and media_root or the common directory are gone. From any thread.
static status media_folder_check(struct frames_stage *stage, const char *path) {
    struct media_folder *folder = &stage->folder;
    char common[PATH_MAX];
    struct arena arena = {0};
    const bool own = !path || media_folder_check_directory(path_parent(&arena, path)) == OK;
    arena_release(&arena);
    if (own) return OK; // where media were read before says nothing then
    pthread_mutex_lock(&stage->lock);
    snprintf(common, sizeof common, "%s", folder->common);
    pthread_mutex_unlock(&stage->lock);
    if (folder->root && access(folder->root, X_OK))
        return fail(UNAVAILABLE, "media_root %s: %s", folder->root, strerror(errno));
    return *common ? media_folder_check_directory(common) : OK;
}

// ---- frames ----

// Gets the frames of one image or video from the store or by decoding `path`, and sets own->key.
static status frames_get(struct frames_stage *stage, const char *path, bool video,
                         const struct sampling_config *sampling, struct locked_key *own, struct frames_view *view) {
    bool found = false;
    TRY(media_key(own->key, path, video, sampling, stage->store));
    // Waits until no other thread has locked the key.
    pthread_mutex_lock(&stage->lock);
    for (struct locked_key *other = stage->locked_keys; other;) {
        const bool locked = strcmp(other->key, own->key) == 0;
        if (locked) pthread_cond_wait(&stage->key_released, &stage->lock);
        other = locked ? stage->locked_keys : other->next;
    }
    own->next = stage->locked_keys;
    stage->locked_keys = own;
    pthread_mutex_unlock(&stage->lock);

    status result = stage->store ? frame_store_get(stage->store, own->key, view, &found) : OK;
    if (result == OK && !found) {
        // Processors that no other group uses help to decode this one; the frames are the same.
        int active = atomic_load(&stage->active_count);
        struct media_options options = {.threads = active > 1 ? stage->thread_count / active : stage->thread_count};
        result = media_decode(view, path, video, sampling, &options);
        if (result == OK && stage->store) result = frame_store_put(stage->store, own->key, &view->frames);
    }

    struct media_folder *folder = &stage->folder;
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) + 1 : 0; // with the slash
    pthread_mutex_lock(&stage->lock);
    struct locked_key **link = &stage->locked_keys;
    while (*link != own) link = &(*link)->next;
    *link = own->next;
    pthread_cond_broadcast(&stage->key_released);
    // The folder of the media is what all directories have in common of which a file was read.
    if (result == OK && length && length < sizeof folder->common) {
        size_t same = 0;
        for (size_t i = 0; i < length && path[i] == folder->common[i]; i++)
            if (path[i] == '/') same = i + 1;
        if (!*folder->common) {
            memcpy(folder->common, path, length);
            same = length;
        }
        folder->common[same] = 0;
    }
    pthread_mutex_unlock(&stage->lock);
    if (result == OK && stage->store) {
        const struct frame_origin origin = {
            .path = path, .video = video, .start = sampling->start, .end = sampling->end, sampling->frame_rate};
        result = frame_store_remember_origin(stage->store, own->key, &origin);
    }
    return result;
}

// Describes the frames of each image and video of a group in its media. On failure the group has no section at all, and
// *path, in the arena, is the file that failed; NULL: none. *unread: it could not be read, and was not decoded.
static status frames_work_on_group(struct frames_stage *stage, struct group *group, struct arena *arena, char **path,
                                   bool *unread) {
    *path = NULL;
    *unread = true;
    group_media(group, media_part_count(group));
    status result = OK;
    for (size_t i = 0; result == OK && i < group->media_count; i++) {
        const struct part *part = media_part(group, i);
        const struct sampling_config sampling = media_sampling(&stage->sampling, part);
        struct locked_key own = {0};
        struct frames_view view = {0};
        result = media_path(path, arena, stage->folder.root, media_uri(part));
        if (result != OK) break;
        if (stage->inside) result = media_check_inside(stage->folder.root, *path);
        if (result == OK) result = frames_get(stage, *path, part->kind == PART_VIDEO, &sampling, &own, &view);
        *unread = !*own.key;
        if (result == BAD_SAMPLE || result == UNAVAILABLE) result = fail_prefix(result, "%s", *path);
        if (result == OK) media_describe(group, i, own.key, &view.frames, stage->seconds_per_grid);
        frames_view_release(&view);
    }
    if (result == OK) return OK;
    group->media = NULL;
    group->media_count = 0;
    return result;
}

// Works on one group in a thread of the pool. In a pipeline it waits while the folder of the media is gone, at most
// FOLDER_SECONDS, and begins again when it is there; the user is told. It may be there again before it is looked for: a
// file that could not be read, and now can, is tried once more. END when asked to stop meanwhile.
static status frames_work(struct frames_stage *stage, struct group *group) {
    enum { FOLDER_SECONDS = 600, TOLD_EVERY_SECONDS = 60, PAUSE_MS = 500 };
    struct media_folder *folder = &stage->folder;
    struct arena arena = {0};
    bool unread, again = false;
    char *path;
    status result;
    atomic_fetch_add(&stage->active_count, 1);
    for (;;) {
        char reason[MAX_REASON];
        result = frames_work_on_group(stage, group, &arena, &path, &unread);
        if (result != BAD_SAMPLE && result != UNAVAILABLE) break;
        snprintf(reason, sizeof reason, "%s", fail_text());
        const status failed = result;
        result = media_folder_check(stage, path);
        if (result == OK && unread && !again && path && !access(path, R_OK)) {
            again = true;
            continue;
        }
        if (result == OK) { // it is not the folder
            result = fail(failed, "%s", reason);
            break;
        }
        if (!stage_in_pipeline(stage->context)) break;
        const double begun = clock_monotonic();
        while (result == UNAVAILABLE) {
            const double now = clock_monotonic(), left = begun + FOLDER_SECONDS - now;
            struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
            if (left <= 0) break;
            pthread_mutex_lock(&stage->lock); // several threads wait
            const bool tell = !folder->told_at || now - folder->told_at >= TOLD_EVERY_SECONDS;
            if (tell) folder->told_at = now;
            pthread_mutex_unlock(&stage->lock);
            if (tell) stage_notify(stage->context, "%s; waiting for it for %.0f s", fail_text(), left);
            (void)poll(&stop, 1, PAUSE_MS);
            result = signals_stopping() ? END : media_folder_check(stage, path);
        }
        if (result != OK) break;
        pthread_mutex_lock(&stage->lock);
        const bool tell = folder->told_at > 0;
        folder->told_at = 0;
        pthread_mutex_unlock(&stage->lock);
        if (tell) stage_notify(stage->context, "the folder of the media is there again");
    }
    atomic_fetch_sub(&stage->active_count, 1);
    arena_release(&arena);
    return result;
}

// A section from an earlier run is usable while every file is unchanged and its frames are in the store.
static bool frames_usable(void *state, const struct group *group) {
    struct frames_stage *stage = state;
    if (!stage->store || media_part_count(group) != group->media_count) return false;
    struct arena arena = {0};
    bool usable = true;
    for (size_t i = 0; usable && i < group->media_count; i++) {
        const struct part *part = media_part(group, i);
        const char *stored_key = group->media[i].key.data;
        const struct sampling_config sampling = media_sampling(&stage->sampling, part);
        struct frames_view view = {0};
        char *path, key[FRAME_KEY_SIZE];
        bool found = false;
        usable = stored_key && media_path(&path, &arena, stage->folder.root, media_uri(part)) == OK &&
                 (!stage->inside || media_check_inside(stage->folder.root, path) == OK) &&
                 media_key(key, path, part->kind == PART_VIDEO, &sampling, stage->store) == OK &&
                 strcmp(key, stored_key) == 0 && frame_store_get(stage->store, key, &view, &found) == OK && found;
        frames_view_release(&view);
    }
    arena_release(&arena);
    return usable;
}

// ---- the pool ----

// Returns the link to the first job in that state, or to the end of the list. The caller holds the lock.
static struct job **worker_pool_find(struct worker_pool *pool, enum job_state state) {
    struct job **link = &pool->jobs;
    while (*link && (*link)->state != state) link = &(*link)->next;
    return link;
}

static void *worker_pool_run(void *argument) {
    struct frames_stage *stage = argument;
    struct worker_pool *pool = &stage->pool;
    pthread_mutex_lock(&stage->lock);
    while (!stage->stopping) {
        struct job *job = *worker_pool_find(pool, JOB_WAITING);
        if (!job) {
            pthread_cond_wait(&pool->job_waiting, &stage->lock);
            continue;
        }
        job->state = JOB_IN_WORK;
        pthread_mutex_unlock(&stage->lock);
        job->result = frames_work(stage, job->group);
        if (job->result != OK) snprintf(job->reason, sizeof job->reason, "%s", fail_text());
        pthread_mutex_lock(&stage->lock);
        job->state = JOB_DONE;
        // Done jobs leave in the order in which they were done: it goes behind the others.
        struct job **link = &pool->jobs;
        while (*link != job) link = &(*link)->next;
        *link = job->next;
        job->next = NULL;
        *worker_pool_find(pool, JOB_STATES) = job;
        pthread_cond_signal(&pool->job_done);
    }
    pthread_mutex_unlock(&stage->lock);
    return NULL;
}

// The queue holds one waiting group per thread, so that no thread idles.
static int worker_pool_capacity(void *state) {
    struct frames_stage *stage = state;
    struct worker_pool *pool = &stage->pool;
    pthread_mutex_lock(&stage->lock);
    int capacity = pool->thread_count * 2 - pool->job_count;
    pthread_mutex_unlock(&stage->lock);
    return capacity;
}

static status worker_pool_submit(void *state, struct group *group) {
    struct frames_stage *stage = state;
    struct worker_pool *pool = &stage->pool;
    struct job *job;
    NEW(&job, 1);
    job->group = group;
    pthread_mutex_lock(&stage->lock);
    *worker_pool_find(pool, JOB_STATES) = job; // at the end
    pool->job_count++;
    pthread_cond_signal(&pool->job_waiting);
    pthread_mutex_unlock(&stage->lock);
    return OK;
}

// *done is NULL when no group was done within 50 ms.
static status worker_pool_poll(void *state, bool draining, struct group **done) {
    struct frames_stage *stage = state;
    struct worker_pool *pool = &stage->pool;
    const double deadline = clock_monotonic() + 0.05;
    (void)draining; // the groups in the pool are finished either way
    *done = NULL;
    pthread_mutex_lock(&stage->lock);
    const bool empty = !pool->jobs;
    bool waiting = !empty;
    struct job **link = worker_pool_find(pool, JOB_DONE), *job;
    while (!*link && waiting) {
        waiting = cond_wait_until(&pool->job_done, &stage->lock, deadline);
        link = worker_pool_find(pool, JOB_DONE);
    }
    job = *link;
    if (job) {
        *link = job->next;
        pool->job_count--;
    }
    pthread_mutex_unlock(&stage->lock);
    if (!job) return empty ? END : OK;
    *done = job->group;
    status result = job->result == OK ? OK : fail(job->result, "%s", job->reason);
    free(job);
    return result;
}

// ---- decoding again ----

// Decodes frames again that were evicted.
static status decode_again(struct frames_stage *stage, const char *key) {
    struct sampling_config sampling = stage->sampling;
    struct frame_origin origin;
    struct locked_key own;
    struct frames_view view = {0};
    struct arena arena = {0};
    bool known = false;
    status result = frame_store_recall_origin(stage->store, key, &arena, &origin, &known);
    if (result == OK && !known) result = fail(BAD_SAMPLE, "it is not known from which file they were");
    if (result == OK) {
        sampling.start = origin.start;
        sampling.end = origin.end;
        sampling.frame_rate = origin.frame_rate;
        result = frames_get(stage, origin.path, origin.video, &sampling, &own, &view);
        if (result == OK && strcmp(own.key, key) != 0)
            result = fail(BAD_SAMPLE, "%s or the options of the frames stage have changed", origin.path);
    }
    frames_view_release(&view);
    arena_release(&arena);
    return result;
}

static void *decode_again_run(void *argument) {
    struct frames_stage *stage = argument;
    struct decode_again *again = &stage->again;
    pthread_mutex_lock(&stage->lock);
    while (!stage->stopping) {
        struct asked_key *asked = again->asked, *const end = asked + MAX_AGAIN;
        while (asked < end && !asked->twice) asked++;
        if (asked == end) {
            pthread_cond_wait(&again->changed, &stage->lock);
            continue;
        }
        char key[FRAME_KEY_SIZE];
        memcpy(key, asked->key, sizeof key);
        pthread_mutex_unlock(&stage->lock);
        if (decode_again(stage, key) != OK) log_info("frames %s cannot be decoded again: %s", key, fail_text());
        pthread_mutex_lock(&stage->lock);
        if (!strcmp(asked->key, key)) *asked = (struct asked_key){0};
    }
    pthread_mutex_unlock(&stage->lock);
    return NULL;
}

// ---- the stage ----

static status frames_open(void **state, struct stage_context *context) {
    const struct frames_options *options = stage_options(context);
    struct frames_stage *stage;
    NEW(&stage, 1);
    *state = stage;
    stage->context = context;
    pthread_mutex_init(&stage->lock, NULL);
    pthread_cond_init(&stage->key_released, NULL);
    pthread_cond_init(&stage->pool.job_waiting, NULL);
    cond_init_monotonic(&stage->pool.job_done);
    pthread_cond_init(&stage->again.changed, NULL);
    stage->folder.root = options->media_root;
    TRY(stage_media_sampling(&stage->sampling, options));
    stage->inside = options->media_outside == MEDIA_OUTSIDE_REFUSE;
    stage->seconds_per_grid = options->seconds_per_grid;
    const char *store = options->common.store;
    if (store) TRY(frame_store_open(&stage->store, store, (uint64_t)options->store_limit, false));
    stage->thread_count = options->common.threads ? (int)options->common.threads : pool_processors();
    if (stage->store) {
        stage->again.started = pthread_create(&stage->again.thread, NULL, decode_again_run, stage) == 0;
        if (!stage->again.started) return fail(UNAVAILABLE, "cannot start a thread");
    }
    struct worker_pool *pool = &stage->pool;
    pool->thread_count = options->workers ? (int)options->workers : stage->thread_count;
    NEW(&pool->threads, (size_t)pool->thread_count);
    for (; pool->started < pool->thread_count; pool->started++)
        if (pthread_create(&pool->threads[pool->started], NULL, worker_pool_run, stage))
            return fail(UNAVAILABLE, "cannot start thread %d of %d", pool->started + 1, pool->thread_count);
    return OK;
}

// A key that the store lacks is decoded again when it is asked for a second time, because a process on a machine that
// has the file decodes it itself and does not ask again. From any thread.
static status frames_serve(void *state, const char *key, int64_t offset, size_t size, struct buf *bytes, int64_t *total,
                           bool *found) {
    struct frames_stage *stage = state;
    struct decode_again *again = &stage->again;
    *found = false;
    if (!stage->store) return OK;
    TRY(frame_store_read(stage->store, key, offset, size, bytes, total, found));
    if (*found) return OK;
    assert(strlen(key) < FRAME_KEY_SIZE); // as the store has checked
    pthread_mutex_lock(&stage->lock);
    struct asked_key *asked = again->asked, *const end = asked + MAX_AGAIN;
    while (asked < end && strcmp(asked->key, key) != 0) asked++;
    if (asked == end) {
        asked = &again->asked[again->asked_next];
        again->asked_next = (again->asked_next + 1) % MAX_AGAIN;
        strcpy(asked->key, key);
        asked->twice = false;
    } else if (!asked->twice) {
        asked->twice = true;
        pthread_cond_signal(&again->changed);
    }
    pthread_mutex_unlock(&stage->lock);
    return OK;
}

static status frames_close(void *state) {
    struct frames_stage *stage = state;
    if (!stage) return OK;
    struct worker_pool *pool = &stage->pool;
    pthread_mutex_lock(&stage->lock);
    stage->stopping = true;
    pthread_cond_broadcast(&pool->job_waiting);
    pthread_cond_signal(&stage->again.changed);
    pthread_mutex_unlock(&stage->lock);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL); // finishes the groups in work
    for (struct job *job = pool->jobs, *next; job; job = next) {
        next = job->next;
        free(job);
    }
    free(pool->threads);
    if (stage->again.started) pthread_join(stage->again.thread, NULL); // waits for the key that is being decoded
    assert(!stage->locked_keys);
    frame_store_close(&stage->store);
    pthread_cond_destroy(&pool->job_waiting);
    pthread_cond_destroy(&pool->job_done);
    pthread_cond_destroy(&stage->again.changed);
    pthread_cond_destroy(&stage->key_released);
    pthread_mutex_destroy(&stage->lock);
    free(stage);
    return OK;
}

static const struct stage frames_stage_table = {
    .name = "frames",
    .section = SECTION_MEDIA,
    .open = frames_open,
    .usable = frames_usable,
    .capacity = worker_pool_capacity,
    .submit = worker_pool_submit,
    .poll = worker_pool_poll,
    .serve_frames = frames_serve,
    .close = frames_close,
};

int main(int argc, char **argv) {
    return stage_main(&frames_stage_table, argc, argv);
}
