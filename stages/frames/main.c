// caravan-frames: finds each image and clip of a group, decodes, samples and resizes it once, and puts it into the
// store; the group gets the facts and the keys.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shared/media/media_source.h"
#include "shared/media/media.h"
#include "shared/stage/stage.h"
#include "shared/store/frame_store.h"
#include "stages/frames/worker_pool.h"

// A medium that some thread is decoding now; others that need it wait.
struct busy_key {
    struct busy_key *next;
    char key[frame_key_size];
};

struct frames_stage {
    struct sampling_config sampling;
    const char *media_root;
    double seconds_per_grid;   // NaN: measured
    struct frame_store *store; // NULL without --store
    struct worker_pool *workers;
    int processors;
    atomic_int working;   // groups that workers have in hand now
    pthread_mutex_t lock; // of busy
    pthread_cond_t freed;
    struct busy_key *busy;
};

static void begin_key(struct frames_stage *stage, struct busy_key *own) {
    pthread_mutex_lock(&stage->lock);
    for (struct busy_key *other = stage->busy; other;) {
        if (strcmp(other->key, own->key) == 0) {
            pthread_cond_wait(&stage->freed, &stage->lock);
            other = stage->busy;
        } else {
            other = other->next;
        }
    }
    own->next = stage->busy;
    stage->busy = own;
    pthread_mutex_unlock(&stage->lock);
}

static void end_key(struct frames_stage *stage, struct busy_key *own) {
    pthread_mutex_lock(&stage->lock);
    struct busy_key **place = &stage->busy;
    while (*place != own) place = &(*place)->next;
    *place = own->next;
    pthread_cond_broadcast(&stage->freed);
    pthread_mutex_unlock(&stage->lock);
}

// The frames under `key`, from the store or by decoding `path`.
static status produce(struct frames_stage *stage, const char *key, const char *path, bool video,
                      struct frames_view *view) {
    bool found = false;
    if (stage->store) TRY(frame_store_get(stage->store, key, view, &found));
    if (found) return OK;
    // Processors that no other group keeps busy help to decode this one; the frames are the same.
    int others = atomic_load(&stage->working);
    struct media_options options = {.threads = others > 1 ? stage->processors / others : stage->processors};
    TRY(media_decode(view, path, video, &stage->sampling, &options));
    status result = stage->store ? frame_store_put(stage->store, key, &view->frames) : OK;
    if (result != OK) frames_view_release(view);
    return result;
}

static status describe(const struct frames_stage *stage, struct group *group, struct medium *medium, const char *key,
                       const struct frames *frames) {
    const char *kind = frames->video ? "video" : "image";
    TRY(group_string(group, &medium->kind, kind, strlen(kind)));
    TRY(group_string(group, &medium->key, key, strlen(key)));
    medium->frames = frames->count;
    medium->height = frames->height;
    medium->width = frames->width;
    medium->seconds_per_grid = NAN;
    if (!frames->video) return OK;
    medium->seconds_per_grid = isnan(stage->seconds_per_grid) ? frames->seconds_per_grid : stage->seconds_per_grid;
    TRY(group_doubles(group, &medium->timestamps, (size_t)frames->count));
    memcpy(medium->timestamps.data, frames->timestamps, (size_t)frames->count * sizeof(double));
    return OK;
}

static status work_on_file(struct frames_stage *stage, struct group *group, struct medium *medium, const char *path,
                           bool video) {
    struct busy_key own;
    struct frames_view view = {0};
    TRY(media_key(own.key, path, video, &stage->sampling, stage->store));
    begin_key(stage, &own);
    status result = produce(stage, own.key, path, video, &view);
    end_key(stage, &own);
    if (result == OK) result = describe(stage, group, medium, own.key, &view.frames);
    frames_view_release(&view);
    return result;
}

static status work_on_part(struct frames_stage *stage, struct group *group, struct medium *medium,
                           const struct part *part) {
    struct arena arena = {0};
    char *path;
    status result = media_path(&path, &arena, stage->media_root, media_uri(part));
    if (result == OK) {
        result = work_on_file(stage, group, medium, path, part->kind == PART_VIDEO);
        if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path);
    }
    arena_release(&arena);
    return result;
}

// In a worker's thread.
static status work_on_group(void *context, struct group *group) {
    struct frames_stage *stage = context;
    atomic_fetch_add(&stage->working, 1);
    status result = group_media(group, media_part_count(group));
    for (size_t i = 0; result == OK && i < group->media_count; i++) {
        result = work_on_part(stage, group, &group->media[i], media_part(group, i));
    }
    atomic_fetch_sub(&stage->working, 1);
    if (result == OK) return OK;
    group->media = NULL; // all or nothing
    group->media_count = 0;
    return result;
}

// A section from an earlier run holds as long as every file is what it was and its frames are in the store.
static bool still_there(struct frames_stage *stage, const struct group *group, size_t index) {
    const struct part *part = media_part(group, index);
    const struct medium *medium = &group->media[index];
    struct arena arena = {0};
    struct frames_view view = {0};
    char *path, key[frame_key_size];
    bool found = false;
    if (media_path(&path, &arena, stage->media_root, media_uri(part)) == OK &&
        media_key(key, path, part->kind == PART_VIDEO, &stage->sampling, stage->store) == OK && medium->key.data &&
        strcmp(key, medium->key.data) == 0) {
        found = frame_store_get(stage->store, key, &view, &found) == OK && found;
    }
    frames_view_release(&view);
    arena_release(&arena);
    return found;
}

static bool usable(void *state, const struct group *group) {
    struct frames_stage *stage = state;
    if (!stage->store || media_part_count(group) != group->media_count) return false;
    for (size_t i = 0; i < group->media_count; i++) {
        if (!still_there(stage, group, i)) return false;
    }
    return true;
}

static status frames_open(void **state, struct stage_context *context) {
    const struct frames_options *options = stage_options(context);
    struct frames_stage *stage;
    TRY(NEW(&stage, 1));
    *state = stage;
    pthread_mutex_init(&stage->lock, NULL);
    pthread_cond_init(&stage->freed, NULL);
    stage->sampling = (struct sampling_config){
        .fps = options->fps,
        .min_frames = options->min_frames,
        .max_frames = options->max_frames,
        .min_pixels = (double)options->min_pixels,
        .max_pixels = (double)options->max_pixels,
        .total_pixels = options->total_pixels ? (double)options->total_pixels : NAN,
        .image_min_pixels = (double)options->image_min_pixels,
        .image_max_pixels = (double)options->image_max_pixels,
    };
    TRY(sampling_config_check(&stage->sampling));
    stage->media_root = options->media_root;
    stage->seconds_per_grid = options->seconds_per_grid;
    const char *store = options->common.store;
    if (store) TRY(frame_store_open(&stage->store, store, (uint64_t)options->store_limit, false));
    stage->processors = (int)options->common.threads;
    if (!stage->processors) { // as many as this process may use
        cpu_set_t set;
        stage->processors = pthread_getaffinity_np(pthread_self(), sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    int workers = options->workers ? (int)options->workers : stage->processors;
    return worker_pool_new(&stage->workers, workers, work_on_group, stage);
}

static int room(void *state) {
    return worker_pool_capacity(((struct frames_stage *)state)->workers);
}

static status take(void *state, struct group *group) {
    return worker_pool_submit(((struct frames_stage *)state)->workers, group);
}

static status advance(void *state, bool draining, struct group **done) {
    (void)draining;
    const double patience = 0.05;
    return worker_pool_poll(((struct frames_stage *)state)->workers, patience, done);
}

static status serve(void *state, const char *key, struct buf *record, bool *found) {
    struct frames_stage *stage = state;
    struct frames_view view = {0};
    *found = false;
    if (stage->store) TRY(frame_store_get(stage->store, key, &view, found));
    status result = *found ? frames_to_record(&view.frames, record) : OK;
    frames_view_release(&view);
    return result;
}

static status close_frames(void *state) {
    struct frames_stage *stage = state;
    if (!stage) return OK;
    worker_pool_free(&stage->workers);
    frame_store_close(&stage->store);
    pthread_cond_destroy(&stage->freed);
    pthread_mutex_destroy(&stage->lock);
    free(stage);
    return OK;
}

static const struct stage frames_table = {
    .name = "frames",
    .section = SECTION_MEDIA,
    .open = frames_open,
    .usable = usable,
    .capacity = room,
    .submit = take,
    .poll = advance,
    .serve_frames = serve,
    .close = close_frames,
};

int main(int argc, char **argv) {
    return stage_main(&frames_table, argc, argv);
}
