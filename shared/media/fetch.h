// How the stages after frames come to a medium's pixels: their own store, the frames stage, or the file itself.
#ifndef SHARED_MEDIA_FETCH_H
#define SHARED_MEDIA_FETCH_H

#include "shared/group/group.h"
#include "shared/media/rules.h"
#include "shared/store/frame_store.h"

struct media_source {
    struct frame_store *store; // NULL: none
    // Asks another process for a record (stage_fetch, say); NULL: nobody to ask.
    status (*ask)(void *context, const char *key, struct buf *record, bool *found);
    void *context;
    const char *media_root;    // NULL: the working folder
    const struct rules *rules; // NULL: the published ones
};

// Maps the frames of the group's index-th medium into *view, in this order: from the store; from whom `ask` asks, kept
// in the store; decoded from the path in the prompt, if that gives the same key. UNAVAILABLE, naming the medium and
// what was tried, when none of them has it; DATAERR when the group's sizes do not fit the frames. Release with
// frames_view_release.
status media_get(struct frames_view *view, const struct media_source *source, const struct group *group, size_t index);

#endif
