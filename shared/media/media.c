#include "shared/media/media.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/media/decode.h"

status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options) {
    return video ? video_decode(view, path, sampling, options) : image_decode(view, path, sampling);
}

static status media_hash_content(int fd, uint8_t hash[16]) {
    enum { block_size = 1 << 20 };
    XXH3_state_t *state = XXH3_createState();
    char *block = malloc(block_size);
    status result = state && block ? OK : fail_oom();
    if (result == OK) XXH3_128bits_reset(state);
    for (ssize_t count = 1; result == OK && count != 0;) {
        count = fd_read(fd, block, block_size);
        if (count < 0) result = fail(BAD_SAMPLE, "%s", strerror(errno));
        if (count > 0) XXH3_128bits_update(state, block, (size_t)count);
    }
    if (result == OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        static_assert(sizeof canonical.digest == 16, "the hash of a file has 16 bytes");
        memcpy(hash, canonical.digest, sizeof canonical.digest);
    }
    free(block);
    XXH3_freeState(state);
    return result;
}

// The hash of the file's content, from the store's cache while the file's stamp is the same.
static status media_hash_file(int fd, const char *path, struct frame_store *store, uint8_t hash[16]) {
    const int64_t two_seconds = 2000000000;
    struct stat file;
    if (fstat(fd, &file)) return fail(BAD_SAMPLE, "%s", strerror(errno));
    if (!S_ISREG(file.st_mode)) return fail(BAD_SAMPLE, "not a file");
    struct file_stamp stamp = {
        .device = file.st_dev,
        .inode = file.st_ino,
        .size = (uint64_t)file.st_size,
        .modified = (int64_t)file.st_mtim.tv_sec * 1000000000 + file.st_mtim.tv_nsec,
        .changed = (int64_t)file.st_ctim.tv_sec * 1000000000 + file.st_ctim.tv_nsec,
    };
    bool found = false;
    if (store) TRY(frame_store_recall_hash(store, path, &stamp, hash, &found));
    if (found) return OK;
    TRY(media_hash_content(fd, hash));
    // A file that was written a moment ago may be written again with the same time stamp, so it is not cached.
    int64_t now = clock_realtime_ns();
    bool is_old = now - stamp.modified > two_seconds && now - stamp.changed > two_seconds;
    return store && is_old ? frame_store_remember_hash(store, path, &stamp, hash) : OK;
}

// What is hashed. The version changes when the same file and values would give other frames.
struct media_key_input {
    char version[17];
    char kind;
    uint8_t hash[16];
    double values[6]; // those of the sampling_config that apply to the kind; the others are 0
};

// The padding is hashed, too.
static_assert(sizeof(struct media_key_input) == 88, "keys on disk depend on the layout");

status media_key(char key[frame_key_size], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(BAD_SAMPLE, "%s", strerror(errno));
    uint8_t hash[16] = {0};
    status result = media_hash_file(fd, path, store, hash);
    close(fd);
    if (result != OK) return result;

    struct media_key_input input;
    memset(&input, 0, sizeof input);
    memcpy(input.version, "caravan frames 1", sizeof input.version);
    memcpy(input.hash, hash, sizeof hash);
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
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(&input, sizeof input));
    frame_key_print(key, canonical.digest);
    return OK;
}
