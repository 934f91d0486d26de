// A copy is named after its content, so that the replicas of a machine share it.
#include "shared/stage/weights_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"

enum { CHUNK_BYTES = 4 << 20, OLD_SECONDS = 600 };

status remote_weights_set(struct remote_weights *out, const struct wire_message *message) {
    *out = (struct remote_weights){
        .policy = message->policy,
        .size = message->size,
        .weights = {.reference = message->reference, .version = message->version, .hash = (uint64_t)message->hash},
        .path = strdup(message->path),
    };
    return out->path ? OK : fail_oom();
}

status remote_weights_copy(struct remote_weights *out, const struct remote_weights *from) {
    *out = (struct remote_weights){.policy = from->policy, .size = from->size, .weights = from->weights};
    out->weights.path = NULL;
    out->path = from->path ? strdup(from->path) : NULL;
    return out->path || !from->path ? OK : fail_oom();
}

bool remote_weights_lent(const struct remote_weights *remote) {
    const size_t length = remote->path ? strlen(remote->path) : 0, suffix = strlen(LENT_WEIGHTS_SUFFIX);
    return length > suffix && strcmp(remote->path + length - suffix, LENT_WEIGHTS_SUFFIX) == 0;
}

// Fetches the file into PATH.PID.part, syncs it and renames it to `path`.
static status weights_client_copy(struct io_thread *io, const struct remote_weights *remote, const char *path) {
    struct buf part = {0}, chunk = {0};
    TRY(buf_printf(&part, "%s.%d.part", path, (int)getpid()));
    int fd = open(part.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    status result = fd < 0 ? fail(UNAVAILABLE, "%s: %s", part.data, strerror(errno)) : OK;
    for (int64_t offset = 0; offset < remote->size && result == OK; offset += (int64_t)chunk.size) {
        const struct wire_message request = {
            .kind = MESSAGE_FETCH, .hash = (int64_t)remote->weights.hash, .offset = offset, .size = CHUNK_BYTES};
        struct wire_message reply = {0};
        struct arena arena = {0};
        buf_clear(&chunk);
        result = io_thread_call(io, "optim", "weights", &request, &reply, &arena, &chunk);
        if (result == OK && (reply.kind != MESSAGE_CHUNK || chunk.size == 0))
            result =
                fail(BAD_SAMPLE, "version %lld of the weights no longer exists", (long long)remote->weights.version);
        if (result == OK && !fd_write_all(fd, chunk.data, chunk.size))
            result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
        // The disk begins to write, so that fsync finds little left to do; where it cannot, fsync does all.
        if (result == OK) (void)sync_file_range(fd, offset, (off_t)chunk.size, SYNC_FILE_RANGE_WRITE);
        arena_release(&arena);
    }
    if (result == OK && fsync(fd)) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) && result == OK) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result == OK && rename(part.data, path)) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result != OK && fd >= 0) (void)unlink(part.data);
    buf_release(&chunk);
    buf_release(&part);
    return result;
}

// Whether there is a regular file of that size.
static bool weights_client_has(const char *path, int64_t size) {
    struct stat info;
    return !stat(path, &info) && S_ISREG(info.st_mode) && info.st_size == size;
}

status weights_client_download(struct io_thread *io, const char *dir, bool copy, struct remote_weights *remote) {
    const char *prefix = remote->weights.reference ? "pulled-reference-" : "pulled-policy-";
    struct buf name = {0}, path = {0};
    status result = OK;
    if (!*remote->path) return OK;
    if (remote_weights_lent(remote) || (!copy && weights_client_has(remote->path, remote->size))) {
        TRY_TO(result, done, buf_puts(&path, remote->path));
    } else {
        TRY_TO(result, done, buf_printf(&name, "%s%016llx", prefix, (unsigned long long)remote->weights.hash));
        TRY_TO(result, done, buf_printf(&path, "%s/%s", dir, name.data));
    }
    remote->copied = name.size > 0;
    if (remote->copied && !weights_client_has(path.data, remote->size)) {
        log_debug("fetching version %lld, %lld bytes", (long long)remote->weights.version, (long long)remote->size);
        TRY_TO(result, done, weights_client_copy(io, remote, path.data));
        dir_remove_old(dir, prefix, name.data, OLD_SECONDS); // no process opens those any more
    }
    free(remote->local);
    remote->local = path.data;
    remote->weights.path = path.data;
    path = (struct buf){0};
done:
    buf_release(&name);
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
