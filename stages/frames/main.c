// caravan-frames: finds the file of each image and video of a group, decodes, samples and resizes it once, and puts the
// frames into the store. The group gets their shapes, times and keys, not the pixels.
//
// Several groups are worked on at the same time, each by one thread of a pool. A thread that needs frames which another
// thread is decoding waits for them.
//
// A file that cannot be read quarantines its group, but not while the folder that holds the media is gone: then the
// run waits for the folder.
#include <assert.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/media/media.h"
#include "shared/base/signals.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_media.h"
#include "shared/store/frame_store.h"
#include "stages/frames/decode_again.h"
#include "stages/frames/media_folder.h"
#include "stages/frames/worker_pool.h"

// A key whose frames some thread is decoding.
struct locked_key {
    struct locked_key *next;
    char key[frame_key_size];
};

struct frames_stage {
    struct worker_pool *pool;
    struct decode_again *again; // NULL without --store
    struct stage_context *context;
    struct sampling_config sampling;
    const char *media_root;
    struct media_folder folder;
    bool inside;               // only files below media_root are opened
    double seconds_per_grid;   // NaN: measured
    struct frame_store *store; // NULL without --store
    int thread_count;          // that may decode at the same time
    atomic_int active_count;   // groups that the pool's threads are working on
    pthread_mutex_t lock;      // of locked_keys
    pthread_cond_t key_released;
    struct locked_key *locked_keys;
};
static_assert(offsetof(struct frames_stage, pool) == 0, "as the functions of worker_pool.h need");

// Waits until no other thread has locked own->key, and locks it.
static void frames_lock_key(struct frames_stage *stage, struct locked_key *own) {
    pthread_mutex_lock(&stage->lock);
    for (struct locked_key *other = stage->locked_keys; other;) {
        if (strcmp(other->key, own->key) == 0) {
            pthread_cond_wait(&stage->key_released, &stage->lock);
            other = stage->locked_keys;
        } else {
            other = other->next;
        }
    }
    own->next = stage->locked_keys;
    stage->locked_keys = own;
    pthread_mutex_unlock(&stage->lock);
}

static void frames_unlock_key(struct frames_stage *stage, struct locked_key *own) {
    pthread_mutex_lock(&stage->lock);
    struct locked_key **link = &stage->locked_keys;
    while (*link != own) link = &(*link)->next;
    *link = own->next;
    pthread_cond_broadcast(&stage->key_released);
    pthread_mutex_unlock(&stage->lock);
}

// Gets the frames of one image or video from the store or by decoding `path`, and sets own->key.
static status frames_get(struct frames_stage *stage, const char *path, bool video,
                         const struct sampling_config *sampling, struct locked_key *own, struct frames_view *view) {
    bool found = false;
    TRY(media_key(own->key, path, video, sampling, stage->store));
    frames_lock_key(stage, own);
    status result = stage->store ? frame_store_get(stage->store, own->key, view, &found) : OK;
    if (result == OK && !found) {
        // Processors that no other group uses help to decode this one; the frames are the same.
        int active = atomic_load(&stage->active_count);
        struct media_options options = {.threads = active > 1 ? stage->thread_count / active : stage->thread_count};
        result = media_decode(view, path, video, sampling, &options);
        if (result == OK && stage->store) result = frame_store_put(stage->store, own->key, &view->frames);
    }
    frames_unlock_key(stage, own);
    if (result == OK) media_folder_add(&stage->folder, path);
    if (result == OK && stage->store) {
        const struct frame_origin origin = {
            .path = path, .video = video, .start = sampling->start, .end = sampling->end, sampling->frame_rate};
        result = frame_store_remember_origin(stage->store, own->key, &origin);
    }
    return result;
}

// Decodes frames again that were evicted. Called by the thread of decode_again.
static status frames_decode_again(void *context, const char *key) {
    struct frames_stage *stage = context;
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

// Gets the frames of one image or video and describes them in *medium.
static status frames_work_on_file(struct frames_stage *stage, struct group *group, struct medium *medium,
                                  const struct part *part, const char *path) {
    const struct sampling_config sampling = media_sampling(&stage->sampling, part);
    struct locked_key own;
    struct frames_view view = {0};
    const struct frames *frames = &view.frames;
    status result = frames_get(stage, path, part->kind == PART_VIDEO, &sampling, &own, &view);
    if (result == OK) {
        const char *kind = frames->video ? "video" : "image";
        medium->frames = frames->count;
        medium->height = frames->height;
        medium->width = frames->width;
        medium->seconds_per_grid = NAN;
        group_string(group, &medium->kind, kind, strlen(kind));
        if (result == OK) group_string(group, &medium->key, own.key, strlen(own.key));
    }
    if (result == OK && frames->video) {
        medium->seconds_per_grid = isnan(stage->seconds_per_grid) ? frames->seconds_per_grid : stage->seconds_per_grid;
        group_doubles(group, &medium->timestamps, (size_t)frames->count);
        size_t bytes = (size_t)frames->count * sizeof *frames->timestamps;
        if (result == OK) memcpy(medium->timestamps.data, frames->timestamps, bytes);
    }
    frames_view_release(&view);
    return result;
}

// Waits while the folder of the media is gone, at most FOLDER_SECONDS; the user is told. OK when it is there again. END
// when asked to stop; UNAVAILABLE.
static status frames_wait_for_folder(struct frames_stage *stage) {
    enum { FOLDER_SECONDS = 600, SAID_EVERY_SECONDS = 60, PAUSE_MS = 500 };
    struct media_folder *folder = &stage->folder;
    const double begun = clock_monotonic();
    status result = UNAVAILABLE;
    while (result == UNAVAILABLE) {
        const double now = clock_monotonic(), left = begun + FOLDER_SECONDS - now;
        struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
        if (left <= 0) return UNAVAILABLE;
        pthread_mutex_lock(&folder->lock); // several threads wait
        const bool tell = !folder->gone || now - folder->said >= SAID_EVERY_SECONDS;
        folder->gone = true;
        if (tell) folder->said = now;
        pthread_mutex_unlock(&folder->lock);
        if (tell) stage_notify(stage->context, "%s; waiting for it for %.0f s", fail_text(), left);
        (void)poll(&stop, 1, PAUSE_MS);
        if (signals_stopping()) return END;
        result = media_folder_check(folder);
    }
    pthread_mutex_lock(&folder->lock);
    const bool tell = folder->gone;
    folder->gone = false;
    pthread_mutex_unlock(&folder->lock);
    if (tell) stage_notify(stage->context, "the folder of the media is there again");
    return OK;
}

// Works on the media of a group. On failure the group has no section at all.
static status frames_work_on_group(struct frames_stage *stage, struct group *group) {
    struct arena arena = {0};
    group_media(group, media_part_count(group));
    status result = OK;
    for (size_t i = 0; result == OK && i < group->media_count; i++) {
        const struct part *part = media_part(group, i);
        char *path;
        result = media_path(&path, &arena, stage->media_root, media_uri(part));
        if (result != OK) break;
        if (stage->inside) result = media_check_inside(stage->media_root, path);
        if (result == OK) result = frames_work_on_file(stage, group, &group->media[i], part, path);
        if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path);
    }
    arena_release(&arena);
    if (result == OK) return OK;
    group->media = NULL;
    group->media_count = 0;
    return result;
}

// Works on one group in a thread of the pool.
static status frames_work(void *context, struct group *group) {
    struct frames_stage *stage = context;
    bool again = true; // the folder was gone, and is there now
    status result = OK;
    atomic_fetch_add(&stage->active_count, 1);
    while (again) {
        char reason[600];
        again = false;
        result = frames_work_on_group(stage, group);
        if (result != BAD_SAMPLE) break;
        snprintf(reason, sizeof reason, "%s", fail_text());
        result = media_folder_check(&stage->folder);
        if (result == OK) {
            result = fail(BAD_SAMPLE, "%s", reason);
        } else if (stage_in_pipeline(stage->context)) {
            result = frames_wait_for_folder(stage);
            again = result == OK;
        }
    }
    atomic_fetch_sub(&stage->active_count, 1);
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
        char *path, key[frame_key_size];
        bool found = false;
        usable = stored_key && media_path(&path, &arena, stage->media_root, media_uri(part)) == OK &&
                 (!stage->inside || media_check_inside(stage->media_root, path) == OK) &&
                 media_key(key, path, part->kind == PART_VIDEO, &sampling, stage->store) == OK &&
                 strcmp(key, stored_key) == 0 && frame_store_get(stage->store, key, &view, &found) == OK && found;
        frames_view_release(&view);
    }
    arena_release(&arena);
    return usable;
}

static status frames_open(void **state, struct stage_context *context) {
    const struct frames_options *options = stage_options(context);
    struct frames_stage *stage;
    NEW(&stage, 1);
    *state = stage;
    stage->context = context;
    pthread_mutex_init(&stage->lock, NULL);
    pthread_cond_init(&stage->key_released, NULL);
    media_folder_init(&stage->folder, options->media_root);
    TRY(stage_media_sampling(&stage->sampling, options));
    stage->media_root = options->media_root;
    stage->inside = options->media_outside == MEDIA_OUTSIDE_REFUSE;
    stage->seconds_per_grid = options->seconds_per_grid;
    const char *store = options->common.store;
    if (store) TRY(frame_store_open(&stage->store, store, (uint64_t)options->store_limit, false));
    stage->thread_count = (int)options->common.threads;
    if (!stage->thread_count) { // as many as the processors that this process may use
        cpu_set_t set;
        stage->thread_count = pthread_getaffinity_np(pthread_self(), sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    if (stage->store) TRY(decode_again_new(&stage->again, frames_decode_again, stage));
    int workers = options->workers ? (int)options->workers : stage->thread_count;
    return worker_pool_new(&stage->pool, workers, frames_work, stage);
}

static status frames_serve(void *state, const char *key, int64_t offset, size_t size, struct buf *bytes, int64_t *total,
                           bool *found) {
    const struct frames_stage *stage = state;
    *found = false;
    if (!stage->store) return OK;
    TRY(frame_store_read(stage->store, key, offset, size, bytes, total, found));
    if (!*found) decode_again_asked(stage->again, key);
    return OK;
}

static status frames_close(void *state) {
    struct frames_stage *stage = state;
    if (!stage) return OK;
    worker_pool_free(&stage->pool);
    decode_again_free(&stage->again);
    assert(!stage->locked_keys);
    frame_store_close(&stage->store);
    media_folder_release(&stage->folder);
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
