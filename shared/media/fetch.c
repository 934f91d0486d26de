#include "shared/media/fetch.h"

#include <stdlib.h>
#include <string.h>

#include "shared/media/locate.h"
#include "shared/media/media.h"

// From another process, into the store and from there; without a store the view owns the record.
static status ask(struct frames_view *view, const struct media_source *source, const char *key, bool *found) {
    struct buf record = {0};
    *found = false;
    if (!source->ask) return OK;
    status result = source->ask(source->context, key, &record, found);
    if (result == OK && *found && source->store) {
        result = frame_store_put_record(source->store, key, record.data, record.size);
        buf_release(&record);
        return result == OK ? frame_store_get(source->store, key, view, found) : result;
    }
    if (result == OK && *found) result = frames_from_record(&view->frames, record.data, record.size);
    if (result == OK && *found)
        view->owned = record.data;
    else
        buf_release(&record);
    return result;
}

static status decode(struct frames_view *view, const struct media_source *source, const char *path, bool video,
                     const char *key, bool *found) {
    struct rules standard = rules_standard();
    const struct rules *rules = source->rules ? source->rules : &standard;
    char own[frame_key_size] = "";
    *found = false;
    TRY(media_key(own, path, video, rules, source->store));
    if (strcmp(own, key) != 0) return fail(BAD_SAMPLE, "the file or the keys of the frames stage are others");
    TRY(media_decode(view, path, video, rules, NULL));
    *found = true;
    return source->store ? frame_store_put(source->store, key, &view->frames) : OK;
}

static status from_file(struct frames_view *view, const struct media_source *source, const struct group *group,
                        size_t index, const char *key, bool *found) {
    const struct part *part = media_part(group, index);
    *found = false;
    if (!part) return fail(BAD_SAMPLE, "the prompt has no such medium");
    struct arena arena = {0};
    char *path = NULL;
    status result = media_locate(&path, &arena, source->media_root, media_written(part));
    if (result == OK && path) {
        result = decode(view, source, path, part->kind == PART_VIDEO, key, found);
        if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path);
    }
    arena_release(&arena);
    return result;
}

static status check_sizes(const struct frames *frames, const struct medium *medium) {
    if (frames->count == medium->frames && frames->height == medium->height && frames->width == medium->width)
        return OK;
    return fail(DATAERR, "frames %s are %d x %d x %d, the group says %lld x %lld x %lld", medium->key.data,
                frames->count, frames->height, frames->width, (long long)medium->frames, (long long)medium->height,
                (long long)medium->width);
}

status media_get(struct frames_view *view, const struct media_source *source, const struct group *group, size_t index) {
    *view = (struct frames_view){0};
    if (index >= group->media_count) return fail(DATAERR, "the group has %zu media", group->media_count);
    const struct medium *medium = &group->media[index];
    const char *key = medium->key.data;
    if (!key) return fail(DATAERR, "media[%zu].key: missing", index);
    bool found = false;
    status result = source->store ? frame_store_get(source->store, key, view, &found) : OK;
    if (result == OK && !found) result = ask(view, source, key, &found);
    if (result == OK && !found) {
        result = from_file(view, source, group, index, key, &found);
        if (result == BAD_SAMPLE) {
            result = fail_prefix(UNAVAILABLE, "frames %s are in no store here and cannot be decoded again", key);
        }
    }
    if (result == OK) result = check_sizes(&view->frames, medium);
    if (result != OK) frames_view_release(view);
    return result;
}
