#include "shared/stage/weights_client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/signals.h"

enum { PIECE = 4 << 20, NAP_US = 100000 };

static status take_version(const struct wire_message *reply, bool reference, struct remote_weights *out) {
    *out = (struct remote_weights){
        .policy = reply->policy,
        .size = reply->size,
        .remote = strdup(reply->path),
        .weights = {.reference = reference, .version = reply->version, .hash = (uint64_t)reply->hash}};
    return out->remote ? OK : fail_oom();
}

status weights_client_latest(struct io_thread *io, bool reference, struct remote_weights *out) {
    const struct wire_message request = {.kind = MESSAGE_GET_WEIGHTS, .reference = reference};
    *out = (struct remote_weights){0};
    while (!signals_stopping()) {
        struct wire_message reply = {0};
        struct arena arena = {0};
        struct buf none = {0};
        status result = io_thread_call(io, "optim", "weights", &request, &reply, &arena, &none);
        bool known = result == OK && reply.kind == MESSAGE_WEIGHTS;
        if (known) result = take_version(&reply, reference, out);
        arena_release(&arena);
        buf_release(&none);
        if (known || result != OK) return result;
        usleep(NAP_US);
    }
    return END;
}

static bool seen_from_here(const struct remote_weights *pulled) {
    struct stat about;
    return !stat(pulled->remote, &about) && S_ISREG(about.st_mode) && about.st_size == pulled->size;
}

static status copy_pieces(struct io_thread *io, const struct remote_weights *pulled, int fd, const char *path) {
    struct buf piece = {0};
    status result = OK;
    for (int64_t offset = 0; offset < pulled->size && result == OK;) {
        const struct wire_message request = {
            .kind = MESSAGE_FETCH, .hash = (int64_t)pulled->weights.hash, .offset = offset, .size = PIECE};
        struct wire_message reply = {0};
        struct arena arena = {0};
        buf_clear(&piece);
        result = io_thread_call(io, "optim", "weights", &request, &reply, &arena, &piece);
        if (result == OK && (reply.kind != MESSAGE_CHUNK || piece.size == 0))
            result = fail(BAD_SAMPLE, "version %lld of the weights is gone", (long long)pulled->weights.version);
        if (result == OK && !fd_write_all(fd, piece.data, piece.size))
            result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
        offset += (int64_t)piece.size;
        arena_release(&arena);
    }
    buf_release(&piece);
    return result;
}

static status copy_file(struct io_thread *io, const struct remote_weights *pulled, const char *path) {
    struct buf part = {0};
    TRY(buf_printf(&part, "%s.%d.part", path, (int)getpid()));
    int fd = open(part.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    status result = fd < 0 ? fail(UNAVAILABLE, "%s: %s", part.data, strerror(errno)) : OK;
    if (result == OK) result = copy_pieces(io, pulled, fd, path);
    if (fd >= 0 && close(fd) && result == OK) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result == OK && rename(part.data, path)) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result != OK && fd >= 0) (void)unlink(part.data);
    buf_release(&part);
    return result;
}

// Removes other copies of the kind that are older than ten minutes: nobody opens those any more.
static void remove_old(const char *folder, const char *prefix, const char *keep) {
    enum { OLD = 600 };
    DIR *entries = opendir(folder);
    struct dirent *entry;
    struct stat about;
    while (entries && (entry = readdir(entries))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || !strcmp(entry->d_name, keep)) continue;
        int at = dirfd(entries);
        if (!fstatat(at, entry->d_name, &about, 0) && time(NULL) - about.st_mtime > OLD)
            (void)unlinkat(at, entry->d_name, 0); // another replica may have been quicker
    }
    if (entries) closedir(entries);
}

status weights_client_file(struct io_thread *io, const char *folder, struct remote_weights *pulled) {
    struct buf name = {0}, path = {0};
    status result = OK;
    const char *prefix = pulled->weights.reference ? "pulled-reference-" : "pulled-policy-";
    if (!*pulled->remote) return OK;
    if (seen_from_here(pulled)) {
        pulled->weights.path = strdup(pulled->remote);
        return pulled->weights.path ? OK : fail_oom();
    }
    TRY_TO(result, done, buf_printf(&name, "%s%016llx", prefix, (unsigned long long)pulled->weights.hash));
    TRY_TO(result, done, buf_printf(&path, "%s/%s", folder, name.data));
    if (!path_exists(path.data)) {
        log_debug("pulling version %lld, %lld bytes", (long long)pulled->weights.version, (long long)pulled->size);
        TRY_TO(result, done, copy_file(io, pulled, path.data));
        remove_old(folder, prefix, name.data);
    }
    pulled->weights.path = strdup(path.data);
    if (!pulled->weights.path) result = fail_oom();
done:
    buf_release(&name);
    buf_release(&path);
    return result;
}

void remote_weights_release(struct remote_weights *pulled) {
    free(pulled->remote);
    free((char *)pulled->weights.path);
    *pulled = (struct remote_weights){0};
}
