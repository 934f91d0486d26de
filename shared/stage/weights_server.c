// The newest versions of policy and reference, and their files, until later ones replace them.
#include "shared/stage/weights_server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"

enum { VERSIONS_MAX = 3, CHUNK_MAX = 8 << 20 };

struct served_weights {
    bool present;
    int64_t version;
    uint64_t hash;
    char *path; // "" for the weights of the model's directory
};

struct weights_server {
    pthread_mutex_t lock;
    struct served_weights versions[2][VERSIONS_MAX]; // policy's and reference's, the newest first
    int64_t publications;
};

status weights_server_new(struct weights_server **out) {
    TRY(NEW(out, 1));
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

void weights_server_free(struct weights_server **server) {
    if (!*server) return;
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++) free((*server)->versions[kind][i].path);
    pthread_mutex_destroy(&(*server)->lock);
    free(*server);
    *server = NULL;
}

// The lock is held.
static bool weights_server_uses(const struct weights_server *server, const char *path) {
    assert(*path);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++)
            if (server->versions[kind][i].present && !strcmp(server->versions[kind][i].path, path)) return true;
    return false;
}

status weights_server_put(struct weights_server *server, const struct stage_weights *weights) {
    char *path = strdup(weights->path ? weights->path : "");
    if (!path) return fail_oom();
    pthread_mutex_lock(&server->lock);
    struct served_weights *versions = server->versions[weights->reference], old = versions[VERSIONS_MAX - 1];
    memmove(&versions[1], &versions[0], (VERSIONS_MAX - 1) * sizeof *versions);
    versions[0] =
        (struct served_weights){.present = true, .version = weights->version, .hash = weights->hash, .path = path};
    server->publications++;
    // The file may be gone already.
    if (old.present && *old.path && !weights_server_uses(server, old.path)) (void)unlink(old.path);
    pthread_mutex_unlock(&server->lock);
    free(old.path);
    return OK;
}

int64_t weights_server_publications(struct weights_server *server) {
    pthread_mutex_lock(&server->lock);
    const int64_t publications = server->publications;
    pthread_mutex_unlock(&server->lock);
    return publications;
}

void weights_server_recycle(struct weights_server *server, bool reference, const char *path) {
    pthread_mutex_lock(&server->lock);
    struct served_weights old = server->versions[reference][VERSIONS_MAX - 1];
    server->versions[reference][VERSIONS_MAX - 1] = (struct served_weights){0};
    bool useful = old.present && *old.path && !weights_server_uses(server, old.path);
    if (useful && rename(old.path, path)) (void)unlink(old.path);
    pthread_mutex_unlock(&server->lock);
    free(old.path);
}

status weights_server_latest(struct weights_server *server, bool reference, struct wire_message *message, bool *known,
                             struct arena *arena) {
    const struct served_weights *policy = &server->versions[0][0], *latest = &server->versions[reference][0];
    struct stat info = {0};
    status result = OK;
    pthread_mutex_lock(&server->lock);
    *known = policy->present && latest->present;
    if (*known && *latest->path && stat(latest->path, &info)) {
        result = fail(UNAVAILABLE, "%s: %s", latest->path, strerror(errno));
    } else if (*known) {
        *message = (struct wire_message){.kind = MESSAGE_WEIGHTS,
                                         .reference = reference,
                                         .policy = policy->version,
                                         .version = latest->version,
                                         .hash = (int64_t)latest->hash,
                                         .size = info.st_size,
                                         .path = arena_strndup(arena, latest->path, strlen(latest->path))};
        if (!message->path) result = fail_oom();
    }
    pthread_mutex_unlock(&server->lock);
    return result;
}

status weights_server_chunk(struct weights_server *server, const struct wire_message *request,
                            struct wire_message *reply, struct buf *bulk) {
    const size_t size = request->size > 0 && request->size < CHUNK_MAX ? (size_t)request->size : CHUNK_MAX;
    const struct served_weights *found = NULL;
    status result = OK;
    int fd = -1;
    assert(request->kind == MESSAGE_FETCH);
    if (request->offset < 0) return fail(DATAERR, "FETCH: offset %lld", (long long)request->offset);
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = ""};
    pthread_mutex_lock(&server->lock);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX && !found; i++) {
            const struct served_weights *entry = &server->versions[kind][i];
            if (entry->present && (int64_t)entry->hash == request->hash && *entry->path) found = entry;
        }
    if (!found) goto done;
    fd = open(found->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", found->path, strerror(errno)));
    buf_clear(bulk);
    TRY_TO(result, done, buf_reserve(bulk, size));
    const ssize_t got = fd_pread(fd, bulk->data, size, request->offset);
    if (got < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", found->path, strerror(errno)));
    bulk->size = (size_t)got;
    *reply = (struct wire_message){.kind = MESSAGE_CHUNK,
                                   .hash = request->hash,
                                   .offset = request->offset,
                                   .bulk = bulk->data,
                                   .bulk_size = bulk->size};
done:
    pthread_mutex_unlock(&server->lock);
    if (fd >= 0) close(fd);
    return result;
}
