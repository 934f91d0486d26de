#include "shared/media/media.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/media/decode.h"
#include "shared/media/ffmpeg.h"

// ---- files ----

bool media_error_passes(int error) {
    return error != EIO && file_read_status(error) == UNAVAILABLE;
}

status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options) {
    char content[256]; // of a small file
    TRY(ffmpeg_open());
    if (video && !isnan(sampling->frame_rate)) return picture_clip_decode(view, path, sampling);
    const status result = video ? video_decode(view, path, sampling, options) : image_decode(view, path, sampling);
    if (result != BAD_SAMPLE) return result;
    file_read_tail(path, content, sizeof content);
    if (!file_is_lfs_pointer(content, strlen(content))) return result;
    return fail(BAD_SAMPLE, "a pointer of Git LFS, not the file: type git lfs pull in its directory");
}

// The hash of a file's content, from the store's cache while the file's stamp is the same.
static status media_hash_file(const char *path, struct frame_store *store, uint8_t hash[16]) {
    enum { BLOCK_SIZE = 1 << 20 };
    const int64_t two_seconds = 2000000000;
    XXH3_state_t *state = NULL;
    XXH128_canonical_t canonical;
    char *block = NULL;
    bool found = false;
    struct stat file;
    status result = OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &file)) TRY_TO(result, done, media_read_fail());
    if (!S_ISREG(file.st_mode)) TRY_TO(result, done, fail(BAD_SAMPLE, "not a file"));
    const struct file_stamp stamp = {
        .device = file.st_dev,
        .inode = file.st_ino,
        .size = (uint64_t)file.st_size,
        .modified = (int64_t)file.st_mtim.tv_sec * 1000000000 + file.st_mtim.tv_nsec,
        .changed = (int64_t)file.st_ctim.tv_sec * 1000000000 + file.st_ctim.tv_nsec,
    };
    if (store) TRY_TO(result, done, frame_store_recall_hash(store, path, &stamp, hash, &found));
    if (found) goto done;
    state = mem_checked(XXH3_createState());
    mem_new(&block, BLOCK_SIZE, 1);
    XXH3_128bits_reset(state);
    for (ssize_t count; (count = fd_read(fd, block, BLOCK_SIZE)) != 0;) {
        if (count < 0) TRY_TO(result, done, media_read_fail());
        XXH3_128bits_update(state, block, (size_t)count);
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    static_assert(sizeof canonical.digest == 16, "the hash of a file has 16 bytes");
    memcpy(hash, canonical.digest, sizeof canonical.digest);
    // A file that was written a moment ago may be written again with the same time stamp, so it is not cached.
    const int64_t now = clock_realtime_ns();
    const bool is_old = now - stamp.modified > two_seconds && now - stamp.changed > two_seconds;
    if (store && is_old) result = frame_store_remember_hash(store, path, &stamp, hash);
done:
    free(block);
    XXH3_freeState(state);
    if (fd >= 0) close(fd);
    return result;
}

// The bytes whose hash is the key. The version changes when the same file and values would give other frames.
struct media_key_input {
    char version[17];
    char kind;
    uint8_t hash[16];
    double values[6]; // those of the sampling_config that apply to the kind; the others are 0
    // They count only if it is not the whole file that is sampled. -1 stands for NaN.
    double start, end, frame_rate;
};

// The padding is hashed, too.
static_assert(offsetof(struct media_key_input, start) == 88, "keys on disk depend on the layout");
static_assert(sizeof(struct media_key_input) == 112, "keys on disk depend on the layout");

status media_key(char key[FRAME_KEY_SIZE], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store) {
    struct media_key_input input;
    XXH128_canonical_t canonical;
    memset(&input, 0, sizeof input);
    const bool pictures = video && !isnan(sampling->frame_rate);
    if (pictures) { // the hash of the hashes of the directory's pictures, in their order
        struct picture_list list;
        uint8_t(*hashes)[16] = NULL;
        status result = picture_list_read(&list, path);
        if (result == OK) NEW(&hashes, list.count);
        for (size_t i = 0; result == OK && i < list.count; i++)
            result = media_hash_file(list.paths[i], store, hashes[i]);
        if (result == OK) XXH128_canonicalFromHash(&canonical, XXH3_128bits(hashes, list.count * sizeof *hashes));
        free(hashes);
        picture_list_release(&list);
        TRY(result);
        memcpy(input.hash, canonical.digest, sizeof canonical.digest);
    } else {
        TRY(media_hash_file(path, store, input.hash));
    }
    memcpy(input.version, "caravan frames 1", sizeof input.version);
    input.kind = video ? 'v' : 'i';
    if (video) {
        input.values[0] = sampling->fps;
        input.values[1] = (double)sampling->min_frames;
        input.values[2] = (double)sampling->max_frames;
        input.values[3] = sampling->min_pixels;
        input.values[4] = sampling->max_pixels;
        input.values[5] = isnan(sampling->total_pixels) ? 0 : sampling->total_pixels;
    } else {
        input.values[0] = sampling->image_min_pixels;
        input.values[1] = sampling->image_max_pixels;
    }
    const bool whole = !video || (isnan(sampling->start) && isnan(sampling->end) && !pictures);
    input.start = isnan(sampling->start) ? -1 : sampling->start;
    input.end = isnan(sampling->end) ? -1 : sampling->end;
    input.frame_rate = pictures ? sampling->frame_rate : -1;
    const size_t size = whole ? offsetof(struct media_key_input, start) : sizeof input;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(&input, size));
    frame_key_print(key, canonical.digest);
    return OK;
}

// ---- prompts ----

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
    for (size_t m = 0; m < group->prompt.message_count; m++) {
        const struct message *message = &group->prompt.messages[m];
        for (size_t p = 0; p < message->part_count; p++) count += message->parts[p].kind != PART_TEXT;
    }
    return count;
}

struct string media_uri(const struct part *part) {
    assert(part->kind != PART_TEXT);
    return part->kind == PART_VIDEO ? part->video : part->image;
}

struct sampling_config media_sampling(const struct sampling_config *sampling, const struct part *part) {
    struct sampling_config own = *sampling;
    own.start = part->start;
    own.end = part->end;
    own.frame_rate = part->frame_rate;
    return own;
}

status media_path(char **path, struct arena *arena, const char *media_root, struct string uri) {
    static const char scheme_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+.-0123456789";
    *path = NULL;
    if (!uri.data || uri.size == 0) return fail(BAD_SAMPLE, "the image or video has no path");
    if (memchr(uri.data, 0, uri.size)) return fail(BAD_SAMPLE, "the path contains a NUL");
    char *name = arena_strndup(arena, uri.data, uri.size);
    bool is_file_uri = strncmp(name, "file://", 7) == 0;
    size_t scheme = strspn(name, scheme_chars);
    if (is_file_uri) {
        name += 7;
        if (strncmp(name, "localhost/", 10) == 0) name += 9;
    } else if (scheme > 0 && strncmp(name + scheme, "://", 3) == 0) {
        return fail(BAD_SAMPLE, "%s: only files can be opened", name);
    }
    *path = path_join(arena, media_root, name);
    if (is_file_uri && strchr(name, '%') && !path_exists(*path)) {
        // In place: %41 becomes A. %00 and a percent sign without two digits after it stay.
        char *out = name;
        for (const char *in = name; *in; out++) {
            const bool digits = *in == '%' && isxdigit((unsigned char)in[1]) && isxdigit((unsigned char)in[2]);
            const long byte = digits ? strtol((char[]){in[1], in[2], 0}, NULL, 16) : 0;
            *out = byte ? (char)byte : *in;
            in += byte ? 3 : 1;
        }
        *out = 0;
        *path = path_join(arena, media_root, name);
    }
    return OK;
}

// media_check_inside for one file; root is a real path.
static status media_check_file_inside(const char *root, const char *path) {
    char real[PATH_MAX];
    const size_t size = strcmp(root, "/") ? strlen(root) : 0;
    if (!realpath(path, real)) return media_read_fail(); // a magic link of /proc can be opened all the same
    if (!strncmp(real, root, size) && (real[size] == '/' || !real[size])) return OK;
    return fail(BAD_SAMPLE, "it lies outside media_root, which media_outside refuses");
}

status media_check_inside(const char *media_root, const char *path) {
    char root[PATH_MAX];
    struct stat info;
    struct picture_list list;
    if (!realpath(media_root ? media_root : ".", root))
        return fail(BAD_SAMPLE, "media_root: %s: %s", media_root ? media_root : ".", strerror(errno));
    TRY(media_check_file_inside(root, path));
    if (stat(path, &info) || !S_ISDIR(info.st_mode)) return OK;
    status result = picture_list_read(&list, path);
    if (result == BAD_SAMPLE) result = OK; // decoding it says what is wrong
    for (size_t i = 0; result == OK && i < list.count; i++) result = media_check_file_inside(root, list.paths[i]);
    picture_list_release(&list);
    return result;
}

status media_open_inside(int *fd, const char *media_root, const char *path) {
    char opened[32];
    *fd = open(path, O_PATH | O_CLOEXEC); // it is neither read nor waited for, whatever it is
    if (*fd < 0) return media_read_fail();
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", *fd);
    const status result = media_check_inside(media_root, opened);
    if (result == OK) return OK;
    close(*fd);
    *fd = -1;
    return result;
}

void media_describe(struct group *group, size_t index, const char *key, const struct frames *frames,
                    double seconds_per_grid) {
    struct medium *medium = &group->media[index];
    const char *kind = frames->video ? "video" : "image";
    medium->frames = frames->count;
    medium->height = frames->height;
    medium->width = frames->width;
    medium->seconds_per_grid = NAN;
    group_string(group, &medium->kind, kind, strlen(kind));
    group_string(group, &medium->key, key, strlen(key));
    if (!frames->video) return;
    medium->seconds_per_grid = isnan(seconds_per_grid) ? frames->seconds_per_grid : seconds_per_grid;
    GROUP_ARRAY(group, &medium->timestamps, (size_t)frames->count);
    memcpy(medium->timestamps.data, frames->timestamps, (size_t)frames->count * sizeof *frames->timestamps);
}

status media_get(struct frames_view *view, const struct media_source *source, const struct group *group, size_t index) {
    *view = (struct frames_view){0};
    if (index >= group->media_count) return fail(DATAERR, "the group has %zu media", group->media_count);
    const struct medium *medium = &group->media[index];
    const char *key = medium->key.data;
    if (!key) return fail(DATAERR, "media[%zu].key: missing", index);
    const struct frames *frames = &view->frames;
    bool found = false;
    status result;
    do {
        result = source->store ? frame_store_get(source->store, key, view, &found) : OK;
        if (result == OK && !found && source->request) { // by way of the store if there is one
            struct buf record = {0};
            struct frames received;
            bool stored = false;
            result = source->request(source->context, key, &record, &found);
            if (result == OK && found) result = frames_from_record(&received, record.data, record.size);
            if (result == OK && found && source->store) result = frame_store_put(source->store, key, &received);
            if (result == OK && found && source->store) result = frame_store_get(source->store, key, view, &stored);
            if (result == OK && found && !stored) { // no store, or it was evicted at once
                *view = (struct frames_view){.frames = received, .owned = record.data};
                record = (struct buf){0};
            }
            buf_release(&record);
        }
        if (result != OK || found) break;
        // Decodes the file that the prompt names, if that gives the same key.
        const struct part *part = media_part(group, index);
        const struct sampling_config published = sampling_config_default();
        struct arena arena = {0};
        char *path = NULL, file_key[FRAME_KEY_SIZE] = "";
        result = part ? media_path(&path, &arena, source->media_root, media_uri(part))
                      : fail(BAD_SAMPLE, "the prompt has no such image or video");
        if (result == OK) {
            const bool video = part->kind == PART_VIDEO;
            const struct sampling_config sampling =
                media_sampling(source->sampling ? source->sampling : &published, part);
            if (source->inside) result = media_check_inside(source->media_root, path);
            if (result == OK) result = media_key(file_key, path, video, &sampling, source->store);
            if (result == UNAVAILABLE) result = BAD_SAMPLE; // it is waited for, too
            if (result == OK && strcmp(file_key, key) != 0)
                result = fail(BAD_SAMPLE, "the file or the options of the frames stage have changed");
            if (result == OK) result = media_decode(view, path, video, &sampling, NULL);
            if (result == OK && source->store) result = frame_store_put(source->store, key, frames);
            if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", path);
        }
        arena_release(&arena);
        if (result != BAD_SAMPLE) break;
        frames_view_release(view);
        result = fail_prefix(UNAVAILABLE, "frames %s are not stored here and cannot be decoded again", key);
        if (source->wait) result = source->wait(source->context, key);
    } while (source->wait && result == OK);
    if (result == OK &&
        (frames->count != medium->frames || frames->height != medium->height || frames->width != medium->width)) {
        result = fail(DATAERR, "frames %s have the shape %d x %d x %d, but the group has %lld x %lld x %lld", key,
                      frames->count, frames->height, frames->width, (long long)medium->frames,
                      (long long)medium->height, (long long)medium->width);
    }
    if (result != OK) frames_view_release(view);
    return result;
}
