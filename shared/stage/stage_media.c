#include "shared/stage/stage_media.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"

enum { RETRY_MS = 100 };
static const double log_seconds = 60;

struct stage_media {
    struct stage_context *context;
    struct frame_store *store; // NULL without --store
    struct sampling_config sampling;
    struct media_source source;
    double logged_at; // monotonic seconds of the last line about frames that are missing
};

status stage_media_sampling(struct sampling_config *sampling, const struct frames_options *options) {
    *sampling = (struct sampling_config){
        .fps = options->fps,
        .min_frames = options->min_frames,
        .max_frames = options->max_frames,
        .min_pixels = (double)options->min_pixels,
        .max_pixels = (double)options->max_pixels,
        .total_pixels = options->total_pixels ? (double)options->total_pixels : NAN,
        .image_min_pixels = (double)options->image_min_pixels,
        .image_max_pixels = (double)options->image_max_pixels,
        .start = NAN,
        .end = NAN,
        .frame_rate = NAN,
    };
    return sampling_config_check(sampling);
}

static status stage_media_request(void *self, const char *key, struct buf *record, bool *found) {
    return stage_fetch(((struct stage_media *)self)->context, key, record, found);
}

static status stage_media_wait(void *self, const char *key) {
    struct stage_media *media = self;
    const double now = clock_monotonic();
    struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
    (void)key; // the message names it
    if (now - media->logged_at >= log_seconds) {
        log_info("%s; asking again until they can be had", fail_text());
        media->logged_at = now;
    }
    (void)poll(&stop, 1, RETRY_MS);
    return signals_stopping() ? END : OK;
}

status stage_media_open(struct stage_media **out, struct stage_context *context) {
    const struct stage_model_options *given = stage_options(context);
    struct stage_media *media;
    status result;
    *out = NULL;
    NEW(&media, 1);
    media->context = context;
    media->logged_at = -log_seconds;
    TRY_TO(result, done, stage_media_sampling(&media->sampling, &given->frames));
    if (given->common.store)
        TRY_TO(result, done,
               frame_store_open(&media->store, given->common.store, (uint64_t)given->frames.store_limit, false));
    media->source = (struct media_source){.store = media->store,
                                          .request = stage_media_request,
                                          .wait = stage_in_pipeline(context) ? stage_media_wait : NULL,
                                          .context = media,
                                          .media_root = given->media_root,
                                          .inside = given->media_outside == MEDIA_OUTSIDE_REFUSE,
                                          .sampling = &media->sampling};
done:
    *out = media;
    if (result != OK) stage_media_close(out);
    return result;
}

void stage_media_close(struct stage_media **media) {
    if (!*media) return;
    frame_store_close(&(*media)->store);
    free(*media);
    *media = NULL;
}

status stage_media_get(struct stage_media *media, struct frames_view *view, const struct group *group, size_t index) {
    return media_get(view, &media->source, group, index);
}
