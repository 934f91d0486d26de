// The side of the weights of a run that computes with them. A copy, and a difference, is named after its hash, so that
// the replicas of a machine share it. Whoever has the lock of a kind is the only one that writes and removes its files.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/node.h"
#include "shared/stage/requests.h"

// What optim's file is called on this machine; what is not complete yet has a dot behind the hash.
static const char *const weights_copy_prefixes[2] = {"pulled-policy-", "pulled-reference-"};

void remote_weights_set(struct remote_weights *remote, const struct wire_message *message) {
    *remote = (struct remote_weights){
        .known = true,
        .policy = message->policy,
        .weights = {.reference = message->reference, .version = message->version, .hash = (uint64_t)message->hash},
        .size = message->size,
        .base = message->base,
        .difference = message->difference,
    };
    snprintf(remote->path, sizeof remote->path, "%s", message->path);
}

static bool weights_path_is_lent(const char *path) {
    const size_t length = strlen(path), size = strlen(LENT_WEIGHTS_SUFFIX);
    return length >= size && !strcmp(path + length - size, LENT_WEIGHTS_SUFFIX);
}

// Whether there is a regular file of that size.
static bool weights_path_has(const char *path, int64_t size) {
    struct stat info;
    return !stat(path, &info) && S_ISREG(info.st_mode) && info.st_size == size;
}

// ---- copies ----

// Downloads a file from optim into the open file `part`, from the end of that on; if not `resumes`, from its beginning,
// and `size` is the most that the file may have. BAD_SAMPLE when optim has it no more, or it is too large.
static status weights_download(struct io_thread *io, int64_t hash, int64_t size, bool resumes, const char *part,
                               int fd) {
    struct transfer transfer = {.stage = stage_kinds[STAGE_OPTIM].name,
                                .purpose = "weights",
                                .kind = MESSAGE_FETCH,
                                .hash = hash,
                                .id = "",
                                .total = resumes ? size : -1};
    struct stat info;
    struct buf bytes = {0};
    status result = OK;
    if (fstat(fd, &info)) return fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
    if (resumes && info.st_size <= size) transfer.received = info.st_size;
    int64_t offset = transfer.received;
    if (offset) log_debug("going on at byte %lld", (long long)offset);
    io_thread_begin_transfer(io, &transfer);
    for (bool ended = false; result == OK && !ended;) {
        result = io_thread_take_bytes(io, &transfer, -1, &bytes, &ended);
        if (result == OK && offset + (int64_t)bytes.size > size) result = fail(BAD_SAMPLE, "%s: too large", part);
        if (result == OK && !fd_pwrite_all(fd, bytes.data, bytes.size, offset))
            result = fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
        // The disk begins to write, so that fdatasync finds little left to do; where it cannot, fdatasync does all.
        if (result == OK && bytes.size) (void)sync_file_range(fd, offset, (off_t)bytes.size, SYNC_FILE_RANGE_WRITE);
        offset += (int64_t)bytes.size;
    }
    io_thread_end_transfer(io, &transfer);
    buf_release(&bytes);
    if (result == OK && transfer.absent) result = fail(BAD_SAMPLE, "%s: optim has it no more", part);
    if (result == OK && ftruncate(fd, offset)) result = fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
    return result;
}

// Makes a copy, the open file `copy`, from the copy before and their difference, which it downloads. BAD_SAMPLE when
// that is not possible.
static status weights_rebuild(struct io_thread *io, const char *dir, const struct remote_weights *remote, int copy) {
    const char *prefix = weights_copy_prefixes[remote->weights.reference];
    struct arena arena = {0};
    struct stat info = {0};
    const char *base_path = arena_printf(&arena, "%s/%s%016llx", dir, prefix, (unsigned long long)remote->base);
    const char *path =
        arena_printf(&arena, "%s/%s%016llx.difference", dir, prefix, (unsigned long long)remote->difference);
    const int base = remote->difference ? open(base_path, O_RDONLY | O_CLOEXEC) : -1;
    const int difference = base >= 0 ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    status result = OK;
    if (base < 0) TRY_TO(result, done, fail(BAD_SAMPLE, "%s: there is no such copy", base_path));
    if (difference < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    TRY_TO(result, done, weights_download(io, remote->difference, remote->size, false, path, difference));
    if (fstat(difference, &info)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    result = weights_difference_apply(difference, base, remote->size, copy);
    log_debug("version %lld of the weights: a difference of %lld bytes for %lld", (long long)remote->weights.version,
              (long long)info.st_size, (long long)remote->size);
    if (result == DATAERR) {
        log_info("%s: %s; fetching the whole file", path, fail_text());
        result = ftruncate(copy, 0) ? fail(UNAVAILABLE, "%s: %s", path, strerror(errno)) : BAD_SAMPLE;
    }
done:
    if (base >= 0) close(base);
    if (difference >= 0) close(difference);
    arena_release(&arena);
    return result;
}

status weights_fetch(struct io_thread *io, const char *dir, bool whole, struct remote_weights *remote) {
    const bool reference = remote->weights.reference;
    char lock[PATH_MAX + 64], part[sizeof remote->local + sizeof ".part"];
    const char *path = remote->local;
    int fd = -1;
    status result = OK;
    if (!*remote->path) return OK;
    remote->weights.path = remote->local;
    remote->copied = !weights_path_is_lent(remote->path) && (whole || !weights_path_has(remote->path, remote->size));
    if (!remote->copied) {
        snprintf(remote->local, sizeof remote->local, "%s", remote->path);
        return OK;
    }
    snprintf(remote->local, sizeof remote->local, "%s/%s%016llx", dir, weights_copy_prefixes[reference],
             (unsigned long long)remote->weights.hash);
    if (weights_path_has(path, remote->size)) return OK;
    snprintf(lock, sizeof lock, "%s/fetching-%s", dir, reference ? "reference" : "policy");
    snprintf(part, sizeof part, "%s.part", path); // stays when this is interrupted
    const int lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_fd < 0) return fail(UNAVAILABLE, "%s: %s", lock, strerror(errno));
    // Where files cannot be locked, each replica writes the same bytes.
    if (flock(lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        TRY_TO(result, done, fail(BAD_SAMPLE, "%s: another replica makes the copy", path));
    if (weights_path_has(path, remote->size)) goto done; // another one has just made it
    fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", part, strerror(errno)));
    result = whole ? BAD_SAMPLE : weights_rebuild(io, dir, remote, fd);
    if (result == BAD_SAMPLE) { // downloads what the part lacks
        log_debug("fetching version %lld to %s, %lld bytes", (long long)remote->weights.version, path,
                  (long long)remote->size);
        result = weights_download(io, (int64_t)remote->weights.hash, remote->size, true, part, fd);
        if (result == BAD_SAMPLE) (void)unlink(part);
    }
    if (result == OK && (fdatasync(fd) || (rename(part, path) && !weights_path_has(path, remote->size))))
        result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result == OK) {
        // The files of this kind are removed, except this one and the newest other copy.
        const char *prefix = weights_copy_prefixes[reference];
        DIR *directory = opendir(dir);
        struct stat info;
        struct timespec newest = {0};
        char second[NAME_MAX + 1] = "";
        for (int pass = 0; directory && pass < 2; pass++, rewinddir(directory))
            for (struct dirent *entry; (entry = readdir(directory));) {
                const char *name = entry->d_name;
                if (strncmp(name, prefix, strlen(prefix)) != 0 || !strcmp(name, path_base_name(path))) continue;
                if (pass == 0 && !strchr(name, '.') && !fstatat(dirfd(directory), name, &info, 0) &&
                    (info.st_mtim.tv_sec > newest.tv_sec ||
                     (info.st_mtim.tv_sec == newest.tv_sec && info.st_mtim.tv_nsec >= newest.tv_nsec))) {
                    newest = info.st_mtim;
                    snprintf(second, sizeof second, "%s", name);
                }
                if (pass == 1 && strcmp(name, second) != 0) (void)unlinkat(dirfd(directory), name, 0);
            }
        if (directory) closedir(directory);
    }
done:
    if (fd >= 0) close(fd);
    close(lock_fd); // and so unlocks it
    return result;
}

// ---- follower ----

status weights_follower_open(struct weights_follower *follower, struct stage_context *context) {
    const struct node_config *config = &context->node->config;
    struct arena arena = {0};
    follower->context = context;
    pthread_mutex_init(&follower->lock, NULL);
    follower->dir = mem_strdup(path_join(&arena, config->run_dir, "weights"));
    arena_release(&arena);
    return config->trains ? dir_make(follower->dir) : OK;
}

void weights_follower_close(struct weights_follower *follower) {
    if (follower->dir) pthread_mutex_destroy(&follower->lock);
    free(follower->dir);
}

static void weights_follower_set_latest(struct weights_follower *follower, struct io_thread *io,
                                        const struct remote_weights *latest) {
    pthread_mutex_lock(&follower->lock);
    follower->latest = *latest;
    pthread_mutex_unlock(&follower->lock);
    io_thread_nudge(io); // the worker loads them, or gives others back
}

static void weights_follower_get_latest(struct weights_follower *follower, struct remote_weights *latest) {
    pthread_mutex_lock(&follower->lock);
    *latest = follower->latest;
    pthread_mutex_unlock(&follower->lock);
}

status weights_follower_published(void *self, struct wire_peer *peer, const struct wire_message *message) {
    struct node *node = self;
    struct remote_weights latest;
    (void)peer;
    if ((message->reference == 1) != (node->context->stage->follows == FOLLOWS_REFERENCE)) return OK;
    remote_weights_set(&latest, message);
    weights_follower_set_latest(&node->weights, node->io, &latest);
    return OK;
}

status weights_follower_lost(void *self, struct wire_peer *peer) {
    struct node *node = self;
    const struct remote_weights none = {0};
    (void)peer;
    if (weights_path_is_lent(node->weights.latest.path)) weights_follower_set_latest(&node->weights, node->io, &none);
    return OK;
}

status weights_follower_return(struct weights_follower *follower, bool *returned) {
    struct stage_context *context = follower->context;
    struct remote_weights latest;
    *returned = false;
    if (!follower->any_loaded || !weights_path_is_lent(follower->loaded_path)) return OK;
    weights_follower_get_latest(follower, &latest);
    *returned = !latest.known || strcmp(latest.path, follower->loaded_path) != 0;
    if (!*returned) return OK;
    log_info("%s: given back, optim lends it no more", follower->loaded_path);
    follower->any_loaded = false;
    return context->stage->return_weights(context->state);
}

// Fetches the weights if need be and gives them to the stage. BUSY when that must be tried again: another replica
// fetches them, optim has newer ones by now, or the file is damaged.
static status weights_follower_load(struct weights_follower *follower, struct io_thread *io,
                                    struct remote_weights *remote, enum weights_verdict *verdict) {
    enum { MAX_FAILED_LOADS = 20, MAX_FAILED_COPIES = 2 };
    struct stage_context *context = follower->context;
    *verdict = WEIGHTS_BUSY;
    bool returned; // the stage has no group that it could forget
    TRY(weights_follower_return(follower, &returned));
    // Optim's own file could not be loaded, or what was made of a difference: perhaps a copy of the whole file can.
    const bool whole = follower->failed_loads > 0 && follower->failed_hash == remote->weights.hash;
    status result = weights_fetch(io, follower->dir, whole, remote);
    if (result == BAD_SAMPLE) return OK;
    TRY(result);
    log_debug("weights of version %lld", (long long)remote->weights.version);
    result = context->stage->load_weights(context->state, &remote->weights);
    if (result == BAD_SAMPLE) return OK;
    // The lent weights cannot be used: asks optim for files, and waits for what it publishes next.
    if (result == DATAERR && weights_path_is_lent(remote->path)) {
        char reason[1024]; // what fits a message
        snprintf(reason, sizeof reason, "%s", fail_text());
        const struct wire_message message = {.kind = MESSAGE_CANNOT_BORROW, .path = remote->path, .reason = reason};
        *verdict = WEIGHTS_LATER;
        pthread_mutex_lock(&follower->lock);
        follower->latest.refused |= !strcmp(follower->latest.path, remote->path);
        pthread_mutex_unlock(&follower->lock);
        log_info("%s; optim is asked for a file", reason);
        return io_thread_broadcast(io, "weights", &message);
    }
    // What was trained with one model must not be sampled from another; fail_text() has both hashes.
    if (result == DATAERR && !remote->weights.path) {
        const struct node_config *config = &context->node->config;
        const char *machine = config->machine;
        return fail_prefix(DATAERR, "%s%s's model directory differs from optim's, or its precision does",
                           *machine ? "machine " : "", *machine ? machine : config->stage);
    }
    // Optim's file was removed before it was opened, or the copy is damaged.
    if (result == DATAERR && follower->failed_loads < MAX_FAILED_LOADS && follower->failed_copies < MAX_FAILED_COPIES) {
        log_debug("%s; asking again", fail_text());
        follower->failed_hash = remote->weights.hash;
        follower->failed_loads++;
        follower->failed_copies += remote->copied;
        if (remote->copied) {
            log_info("%s; fetching it again", fail_text());
            (void)unlink(remote->local); // another replica may have been quicker
        }
        return OK;
    }
    TRY(result);
    follower->failed_loads = follower->failed_copies = 0;
    follower->loaded = remote->weights;
    follower->loaded.path = NULL;
    follower->any_loaded = true;
    memcpy(follower->loaded_path, remote->path, sizeof follower->loaded_path);
    context->weights_version = remote->weights.version;
    *verdict = WEIGHTS_READY;
    return OK;
}

status weights_follower_prepare(struct weights_follower *follower, struct io_thread *io, const struct group *group,
                                bool idle, enum weights_verdict *verdict) {
    const struct stage *stage = follower->context->stage;
    const int64_t needed = group->requires.policy;
    const bool exact = group->requires.exact == 1;
    struct remote_weights remote;
    *verdict = WEIGHTS_READY;
    if (!stage_follows_optim(follower->context) || group->quarantine.present) return OK;
    weights_follower_get_latest(follower, &remote);
    const bool other = remote.policy < needed || (exact && remote.policy > needed);
    if (!remote.known || remote.refused || (group->requires.present && other)) {
        // Optim is about to say that it has them; or it went back and will have them again, or this process has not
        // heard yet that it went back. If the group has been trained, it is dropped as soon as that is known.
        *verdict = WEIGHTS_LATER;
        return OK;
    }
    // Another path is that of another process of optim, or of a file instead of lent weights.
    const struct stage_weights *latest = &remote.weights, *loaded = &follower->loaded;
    bool in_use = follower->any_loaded && latest->version == loaded->version && latest->hash == loaded->hash &&
                  !strcmp(remote.path, follower->loaded_path);
    if (in_use && stage->weights_intact) in_use = stage->weights_intact(follower->context->state);
    if (in_use) return OK;
    *verdict = WEIGHTS_BUSY;
    return idle ? weights_follower_load(follower, io, &remote, verdict) : OK;
}
