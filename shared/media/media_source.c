#include "shared/media/media_source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/media/media.h"

const struct part *media_part(const struct group *group, size_t index) {
    for (size_t m = 0; m < group->prompt.message_count; m++) {
        const struct message *message = &group->prompt.messages[m];
        for (size_t p = 0; p < message->part_count; p++) {
            if (message->parts[p].kind != PART_TEXT && index-- == 0) return &message->parts[p];
        }
    }
    return NULL;
}

size_t media_part_count(const struct group *group) {
    size_t count = 0;
    while (media_part(group, count)) count++;
    return count;
}

struct string media_uri(const struct part *part) {
    assert(part->kind != PART_TEXT);
    return part->kind == PART_VIDEO ? part->video : part->image;
}

// ---- paths ----

static int media_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// In place: %41 becomes A. %00 and a percent sign without two digits after it stay.
static void media_decode_percent(char *path) {
    char *out = path;
    for (const char *in = path; *in; out++) {
        int high = *in == '%' ? media_hex_digit(in[1]) : -1, low = high >= 0 ? media_hex_digit(in[2]) : -1;
        if (low >= 0 && (high || low)) {
            *out = (char)(high << 4 | low);
            in += 3;
        } else {
            *out = *in++;
        }
    }
    *out = 0;
}

status media_path(char **path, struct arena *arena, const char *media_root, struct string uri) {
    static const char scheme_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+.-0123456789";
    *path = NULL;
    if (!uri.data || uri.size == 0) return fail(BAD_SAMPLE, "an image or video without a path");
    if (memchr(uri.data, 0, uri.size)) return fail(BAD_SAMPLE, "a path that contains a NUL");
    char *name = arena_strndup(arena, uri.data, uri.size);
    if (!name) return fail(UNAVAILABLE, "out of memory");
    bool is_file_uri = strncmp(name, "file://", 7) == 0;
    size_t scheme = strspn(name, scheme_chars);
    if (is_file_uri) {
        name += 7;
        if (strncmp(name, "localhost/", 10) == 0) name += 9;
    } else if (scheme > 0 && strncmp(name + scheme, "://", 3) == 0) {
        return fail(BAD_SAMPLE, "%s: only files can be opened", name);
    }
    *path = path_join(arena, media_root, name);
    if (*path && is_file_uri && strchr(name, '%') && !path_exists(*path)) {
        media_decode_percent(name);
        *path = path_join(arena, media_root, name);
    }
    return *path ? OK : fail(UNAVAILABLE, "out of memory");
}

// ---- frames ----

// Gets the record from another process and puts it into the store. Without a store the view owns the record.
static status media_request(struct frames_view *view, const struct media_source *source, const char *key, bool *found) {
    struct buf record = {0};
    *found = false;
    if (!source->request) return OK;
    status result = source->request(source->context, key, &record, found);
    if (result == OK && *found && source->store) {
        result = frame_store_put_record(source->store, key, record.data, record.size);
        if (result == OK) result = frame_store_get(source->store, key, view, found);
    } else if (result == OK && *found) {
        result = frames_from_record(&view->frames, record.data, record.size);
        if (result == OK) {
            view->owned = record.data;
            record = (struct buf){0};
        }
    }
    buf_release(&record);
    return result;
}

// Decodes the file at `path` if its key is `key`, and puts the frames into the store.
static status media_decode_key(struct frames_view *view, const struct media_source *source, const char *path,
                               bool video, const char *key) {
    struct sampling_config published = sampling_config_default();
    const struct sampling_config *sampling = source->sampling ? source->sampling : &published;
    char file_key[frame_key_size] = "";
    TRY(media_key(file_key, path, video, sampling, source->store));
    if (strcmp(file_key, key) != 0) return fail(BAD_SAMPLE, "the file or the options of the frames stage have changed");
    TRY(media_decode(view, path, video, sampling, NULL));
    return source->store ? frame_store_put(source->store, key, &view->frames) : OK;
}

status media_get(struct frames_view *view, const struct media_source *source, const struct group *group, size_t index) {
    *view = (struct frames_view){0};
    if (index >= group->media_count) return fail(DATAERR, "the group has %zu media", group->media_count);
    const struct medium *medium = &group->media[index];
    const char *key = medium->key.data;
    if (!key) return fail(DATAERR, "media[%zu].key: missing", index);
    bool found = false;
    status result = source->store ? frame_store_get(source->store, key, view, &found) : OK;
    if (result == OK && !found) result = media_request(view, source, key, &found);
    if (result == OK && !found) {
        const struct part *part = media_part(group, index);
        struct arena arena = {0};
        char *path = NULL;
        result = part ? media_path(&path, &arena, source->media_root, media_uri(part))
                      : fail(BAD_SAMPLE, "the prompt has no such image or video");
        if (result == OK) {
            result = media_decode_key(view, source, path, part->kind == PART_VIDEO, key);
            if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path);
        }
        arena_release(&arena);
        if (result == BAD_SAMPLE)
            result = fail_prefix(UNAVAILABLE, "frames %s are not stored here and cannot be decoded again", key);
    }
    const struct frames *frames = &view->frames;
    if (result == OK &&
        (frames->count != medium->frames || frames->height != medium->height || frames->width != medium->width)) {
        result = fail(DATAERR, "frames %s have the shape %d x %d x %d, but the group has %lld x %lld x %lld", key,
                      frames->count, frames->height, frames->width, (long long)medium->frames,
                      (long long)medium->height, (long long)medium->width);
    }
    if (result != OK) frames_view_release(view);
    return result;
}
