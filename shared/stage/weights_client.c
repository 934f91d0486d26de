// A copy, and a difference, is named after its hash, so that the replicas of a machine share it.
#include "shared/stage/weights_client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/requests.h"
#include "shared/stage/weights_difference.h"
#include "shared/stage/weights_versions.h"

#define DIFFERENCE_PREFIX "pulled-difference-"

static const char *const copy_prefixes[2] = {"pulled-policy-", "pulled-reference-"};

static bool weights_client_ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), size = strlen(end);
    return length >= size && !strcmp(text + length - size, end);
}

void remote_weights_set(struct remote_weights *out, const struct wire_message *message) {
    *out = (struct remote_weights){
        .policy = message->policy,
        .size = message->size,
        .base = message->base,
        .difference = message->difference,
        .weights = {.reference = message->reference, .version = message->version, .hash = (uint64_t)message->hash},
        .path = mem_strdup(message->path),
    };
}

void remote_weights_copy(struct remote_weights *out, const struct remote_weights *from) {
    *out = *from;
    out->local = NULL;
    out->copied = false;
    out->weights.path = NULL;
    out->path = from->path ? mem_strdup(from->path) : NULL;
}

bool remote_weights_lent(const struct remote_weights *remote) {
    return remote->path && weights_client_ends_with(remote->path, LENT_WEIGHTS_SUFFIX);
}

// A file that is downloaded into PATH.part. One replica of a machine downloads, and the others watch the part's time
// while they wait. If it stands still, one of them downloads into PATH.1.part, and so on: all have the same bytes.
struct download {
    const char *path;
    int64_t hash, size; // of the file; size -1: it is not known
    int64_t limit;      // the most bytes that it may have
    struct buf part;    // its name
    int fd;             // locked
    int watched;        // descriptor of the part that the others watch: fd, for a difference that of the copy
};

// Whether there is a regular file of that size; -1: of any size.
static bool weights_client_has(const char *path, int64_t size) {
    struct stat info;
    return !stat(path, &info) && S_ISREG(info.st_mode) && (size < 0 || info.st_size == size);
}

// Tells those that wait that the download goes on. Where that fails, they download the file, too.
static void weights_client_touch(const struct download *download) {
    if (download->watched >= 0) (void)futimens(download->watched, NULL);
}

// Opens the part and locks it; fd is -1 if that was not possible. *other: another replica has locked it, and wrote to
// it at *written; otherwise it was renamed or removed before we had the lock. Where files cannot be locked, each
// replica writes the same bytes.
static status weights_client_lock(struct download *download, bool *other, struct timespec *written) {
    const char *part = download->part.data;
    struct stat opened = {0}, named;
    const int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
    *other = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    const bool current = !fstat(fd, &opened) && !*other && !stat(part, &named) && opened.st_ino == named.st_ino &&
                         opened.st_dev == named.st_dev;
    *written = opened.st_mtim;
    if (current && !weights_client_has(download->path, download->size)) {
        download->fd = fd;
        if (download->watched < 0) download->watched = fd;
        return OK;
    }
    if (current) (void)unlink(part);
    close(fd);
    return OK;
}

// Locks a part, or waits until another replica has made the whole file (fd -1).
static status weights_client_open(struct io_thread *io, struct download *download) {
    enum { WAIT_MS = 50, STALLED_SECONDS = 30, PAUSE_SECONDS = 1 };
    struct timespec written, before = {0};             // when another replica wrote to the part
    double stalled = 0, looked_at = clock_monotonic(); // seconds since then, in which this process was not stopped
    int number = 0;
    bool other;
    buf_printf(&download->part, "%s.part", download->path);
    while (!weights_client_has(download->path, download->size)) {
        TRY(weights_client_lock(download, &other, &written));
        if (download->fd >= 0) return OK;
        if (!other) continue;
        const double now = clock_monotonic();
        stalled += now - looked_at < PAUSE_SECONDS ? now - looked_at : 0;
        looked_at = now;
        if (written.tv_sec != before.tv_sec || written.tv_nsec != before.tv_nsec) stalled = 0;
        before = written;
        if (stalled > STALLED_SECONDS) {
            log_info("%s: nobody has written to it for %d s; downloading it again", download->part.data,
                     STALLED_SECONDS);
            buf_clear(&download->part);
            buf_printf(&download->part, "%s.%d.part", download->path, ++number);
            stalled = 0;
        }
        weights_client_touch(download);
        TRY(io_thread_wait(io, WAIT_MS));
    }
    return OK;
}

static void weights_client_close(struct download *download) {
    if (download->fd >= 0) close(download->fd); // and so unlocks it
    buf_release(&download->part);
}

// Appends the rest of the file to the part. BAD_SAMPLE when nobody has it any more, or it is too large.
static status weights_client_fetch(struct io_thread *io, const struct download *download) {
    enum { TOUCH_MS = 500 };
    struct transfer transfer = {.stage = "optim",
                                .purpose = "weights",
                                .kind = MESSAGE_FETCH,
                                .hash = download->hash,
                                .id = "",
                                .total = download->size};
    struct stat info;
    struct buf bytes = {0};
    status result = OK;
    if (fstat(download->fd, &info)) return fail(UNAVAILABLE, "%s: %s", download->part.data, strerror(errno));
    if (info.st_size <= download->size) transfer.received = info.st_size;
    int64_t offset = transfer.received;
    if (offset) log_debug("going on at byte %lld", (long long)offset);
    io_thread_begin_transfer(io, &transfer);
    for (bool ended = false; result == OK && !ended;) {
        result = io_thread_take_bytes(io, &transfer, TOUCH_MS, &bytes, &ended);
        weights_client_touch(download);
        if (result == OK && offset + (int64_t)bytes.size > download->limit)
            result = fail(BAD_SAMPLE, "%s: too large", download->path);
        if (result == OK && !fd_pwrite_all(download->fd, bytes.data, bytes.size, offset))
            result = fail(UNAVAILABLE, "%s: %s", download->part.data, strerror(errno));
        // The disk begins to write, so that fdatasync finds little left to do; where it cannot, fdatasync does all.
        if (result == OK && bytes.size)
            (void)sync_file_range(download->fd, offset, (off_t)bytes.size, SYNC_FILE_RANGE_WRITE);
        offset += (int64_t)bytes.size;
    }
    io_thread_end_transfer(io, &transfer);
    buf_release(&bytes);
    if (result == OK && transfer.absent) result = fail(BAD_SAMPLE, "%s: nobody has it any more", download->path);
    if (result == OK && ftruncate(download->fd, offset))
        result = fail(UNAVAILABLE, "%s: %s", download->part.data, strerror(errno));
    return result;
}

// The part is complete: gives it its name.
static status weights_client_rename(const struct download *download) {
    if (!rename(download->part.data, download->path) || weights_client_has(download->path, download->size)) return OK;
    return fail(UNAVAILABLE, "%s: %s", download->path, strerror(errno));
}

// Makes the part of a copy from the copy before and their difference, which it downloads. BAD_SAMPLE when that is not
// possible.
static status weights_client_rebuild(struct io_thread *io, const char *dir, const struct remote_weights *remote,
                                     const struct download *copy) {
    const struct wire_message has = {.kind = MESSAGE_HAS_WEIGHTS, .hash = remote->difference};
    struct download difference = {
        .hash = remote->difference, .size = -1, .limit = remote->size, .fd = -1, .watched = copy->fd};
    struct buf base = {0}, path = {0};
    struct stat info = {0};
    int base_fd = -1, difference_fd = -1;
    status result = OK;
    buf_printf(&base, "%s/%s%016llx", dir, copy_prefixes[remote->weights.reference], (unsigned long long)remote->base);
    buf_printf(&path, "%s/%s%016llx", dir, DIFFERENCE_PREFIX, (unsigned long long)remote->difference);
    difference.path = path.data;
    base_fd = remote->difference ? open(base.data, O_RDONLY | O_CLOEXEC) : -1;
    if (base_fd < 0) TRY_TO(result, done, fail(BAD_SAMPLE, "%s: there is no such copy", base.data));
    TRY_TO(result, done, weights_client_open(io, &difference));
    if (difference.fd >= 0) {
        result = weights_client_fetch(io, &difference);
        if (result == BAD_SAMPLE) (void)unlink(difference.part.data);
        TRY_TO(result, done, result);
        TRY_TO(result, done, weights_client_rename(&difference));
        TRY_TO(result, done, io_thread_broadcast(io, "weights", &has)); // optim may send others here for it
    }
    difference_fd = open(path.data, O_RDONLY | O_CLOEXEC);
    if (difference_fd < 0 || fstat(difference_fd, &info)) // another replica has removed it
        TRY_TO(result, done, fail(BAD_SAMPLE, "%s: %s", path.data, strerror(errno)));
    result = weights_difference_apply(difference_fd, base_fd, remote->size, copy->fd);
    log_debug("version %lld of the weights: a difference of %lld bytes for %lld", (long long)remote->weights.version,
              (long long)info.st_size, (long long)remote->size);
    if (result == DATAERR) {
        log_info("%s: %s; fetching the whole file", path.data, fail_text());
        (void)unlink(path.data);
        result = ftruncate(copy->fd, 0) ? fail(UNAVAILABLE, "%s: %s", copy->part.data, strerror(errno)) : BAD_SAMPLE;
    }
done:
    if (base_fd >= 0) close(base_fd);
    if (difference_fd >= 0) close(difference_fd);
    weights_client_close(&difference);
    buf_release(&base);
    buf_release(&path);
    return result;
}

// Makes PATH: rebuilds it or fetches what its part lacks, syncs it and renames it. The part stays when that is
// interrupted.
static status weights_client_copy(struct io_thread *io, const char *dir, const struct remote_weights *remote,
                                  bool whole, const char *path) {
    struct download copy = {.path = path,
                            .hash = (int64_t)remote->weights.hash,
                            .size = remote->size,
                            .limit = remote->size,
                            .fd = -1,
                            .watched = -1};
    status result = OK;
    TRY_TO(result, done, weights_client_open(io, &copy));
    if (copy.fd < 0) goto done;
    result = whole ? BAD_SAMPLE : weights_client_rebuild(io, dir, remote, &copy);
    if (result == BAD_SAMPLE) {
        log_debug("fetching version %lld to %s, %lld bytes", (long long)remote->weights.version, path,
                  (long long)remote->size);
        result = weights_client_fetch(io, &copy);
        if (result == BAD_SAMPLE) (void)unlink(copy.part.data);
    }
    TRY_TO(result, done, result);
    if (fdatasync(copy.fd)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    result = weights_client_rename(&copy);
done:
    weights_client_close(&copy);
    return result;
}

// Removes the files with a prefix except `keep` and the newest other one, and the parts that nobody downloads.
static void weights_client_prune(const char *path, const char *prefix, const char *keep) {
    DIR *dir = opendir(path);
    struct stat info;
    struct timespec newest = {0};
    char second[NAME_MAX + 1] = "";
    for (int pass = 0; dir && pass < 2; pass++, rewinddir(dir))
        for (struct dirent *entry; (entry = readdir(dir));) {
            const char *name = entry->d_name;
            if (strncmp(name, prefix, strlen(prefix)) != 0 || !strcmp(name, keep)) continue;
            const bool part = weights_client_ends_with(name, ".part");
            if (pass == 0 && !part && !fstatat(dirfd(dir), name, &info, 0) &&
                (info.st_mtim.tv_sec > newest.tv_sec ||
                 (info.st_mtim.tv_sec == newest.tv_sec && info.st_mtim.tv_nsec >= newest.tv_nsec))) {
                newest = info.st_mtim;
                snprintf(second, sizeof second, "%s", name);
            }
            if (pass == 0 || !strcmp(name, second)) continue;
            const int fd = part ? openat(dirfd(dir), name, O_RDONLY | O_CLOEXEC) : -1;
            if (!part || (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB))) (void)unlinkat(dirfd(dir), name, 0);
            if (fd >= 0) close(fd);
        }
    if (dir) closedir(dir);
}

status weights_client_download(struct io_thread *io, const char *dir, bool whole, struct remote_weights *remote) {
    const char *prefix = copy_prefixes[remote->weights.reference];
    struct buf name = {0}, difference = {0}, path = {0};
    status result = OK;
    if (!*remote->path) return OK;
    if (remote_weights_lent(remote) || (!whole && weights_client_has(remote->path, remote->size))) {
        buf_puts(&path, remote->path);
    } else {
        buf_printf(&name, "%s%016llx", prefix, (unsigned long long)remote->weights.hash);
        buf_printf(&path, "%s/%s", dir, name.data);
    }
    remote->copied = name.size > 0;
    if (remote->copied && !weights_client_has(path.data, remote->size)) {
        TRY_TO(result, done, weights_client_copy(io, dir, remote, whole, path.data));
        weights_client_prune(dir, prefix, name.data);
        buf_printf(&difference, "%s%016llx", DIFFERENCE_PREFIX, (unsigned long long)remote->difference);
        weights_client_prune(dir, DIFFERENCE_PREFIX, difference.data);
    }
    free(remote->local);
    remote->local = path.data;
    remote->weights.path = path.data;
    path = (struct buf){0};
done:
    buf_release(&name);
    buf_release(&difference);
    buf_release(&path);
    return result;
}

status weights_client_serve(const char *dir, const struct wire_message *fetch, struct wire_message *reply,
                            struct buf *bulk) {
    const char *const prefixes[] = {copy_prefixes[0], copy_prefixes[1], DIFFERENCE_PREFIX};
    struct buf path = {0};
    status result = OK;
    for (int i = 0; i < 3 && result == OK && (!i || reply->kind == MESSAGE_ABSENT); i++) {
        buf_clear(&path);
        buf_printf(&path, "%s/%s%016llx", dir, prefixes[i], (unsigned long long)fetch->hash);
        if (result == OK) result = weights_read_piece(path.data, fetch, reply, bulk);
    }
    buf_release(&path);
    return result;
}

void weights_client_discard(const struct remote_weights *remote) {
    if (!remote->copied) return;
    log_info("%s; fetching it again", fail_text());
    (void)unlink(remote->local); // another replica may have been quicker
}

void remote_weights_release(struct remote_weights *remote) {
    free(remote->path);
    free(remote->local);
    *remote = (struct remote_weights){0};
}
