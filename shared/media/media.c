#include "shared/media/media.h"

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

// Part of every key: a change of the chain makes new keys.
static const char chain_version[] = "caravan frames 1";

status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options) {
    return video ? clip_decode(view, path, sampling, options) : still_decode(view, path, sampling);
}

static status hash_content(int fd, uint8_t hash[16]) {
    enum { block = 1 << 20 };
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(block);
    status result = state && buffer ? OK : fail(UNAVAILABLE, "memory is short");
    if (result == OK) XXH3_128bits_reset(state);
    for (ssize_t got = 1; result == OK && got != 0;) {
        got = fd_read(fd, buffer, block);
        if (got < 0) result = fail(BAD_SAMPLE, "%s", strerror(errno));
        if (got > 0) XXH3_128bits_update(state, buffer, (size_t)got);
    }
    if (result == OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(hash, canonical.digest, 16);
    }
    free(buffer);
    XXH3_freeState(state);
    return result;
}

static struct file_stamp facts_of(const struct stat *stat) {
    return (struct file_stamp){
        .device = stat->st_dev,
        .inode = stat->st_ino,
        .size = (uint64_t)stat->st_size,
        .modified = (int64_t)stat->st_mtim.tv_sec * 1000000000 + stat->st_mtim.tv_nsec,
        .changed = (int64_t)stat->st_ctim.tv_sec * 1000000000 + stat->st_ctim.tv_nsec,
    };
}

// A file that was touched a moment ago may change again without its facts showing it: it is not remembered.
static bool settled(const struct file_stamp *facts) {
    const int64_t moment = 2000000000;
    int64_t now = clock_realtime_ns();
    return now - facts->modified > moment && now - facts->changed > moment;
}

static status hash_file(int fd, const char *path, struct frame_store *store, uint8_t hash[16]) {
    struct stat stat;
    if (fstat(fd, &stat)) return fail(BAD_SAMPLE, "%s", strerror(errno));
    if (!S_ISREG(stat.st_mode)) return fail(BAD_SAMPLE, "not a file");
    struct file_stamp facts = facts_of(&stat);
    bool found = false;
    if (store) TRY(frame_store_recall_hash(store, path, &facts, hash, &found));
    if (found) return OK;
    TRY(hash_content(fd, hash));
    return store && settled(&facts) ? frame_store_remember_hash(store, path, &facts, hash) : OK;
}

// The sampling that the frames depend on; the others are zero.
static void key_from(char key[frame_key_size], const uint8_t hash[16], bool video,
                     const struct sampling_config *sampling) {
    struct {
        char version[sizeof chain_version];
        char kind;
        uint8_t hash[16];
        double numbers[6];
    } parts;
    memset(&parts, 0, sizeof parts);
    memcpy(parts.version, chain_version, sizeof chain_version);
    memcpy(parts.hash, hash, 16);
    parts.kind = video ? 'v' : 'i';
    if (video) {
        double total = isnan(sampling->total_pixels) ? 0 : sampling->total_pixels;
        double numbers[6] = {sampling->fps,        (double)sampling->min_frames, (double)sampling->max_frames,
                             sampling->min_pixels, sampling->max_pixels,         total};
        memcpy(parts.numbers, numbers, sizeof numbers);
    } else {
        parts.numbers[0] = sampling->image_min_pixels;
        parts.numbers[1] = sampling->image_max_pixels;
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(&parts, sizeof parts));
    for (int i = 0; i < 16; i++) {
        key[2 * i] = "0123456789abcdef"[canonical.digest[i] >> 4];
        key[2 * i + 1] = "0123456789abcdef"[canonical.digest[i] & 15];
    }
    key[32] = 0;
}

status media_key(char key[frame_key_size], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(BAD_SAMPLE, "%s", strerror(errno));
    uint8_t hash[16] = {0};
    status result = hash_file(fd, path, store, hash);
    close(fd);
    if (result == OK) key_from(key, hash, video, sampling);
    return result;
}
