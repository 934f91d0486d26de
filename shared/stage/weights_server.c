// The newest versions of policy and reference, and their files, until later ones replace them. `lock` guards them: the
// worker publishes, the I/O thread reads.
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
#include "shared/stage/distribution.h"

enum { VERSIONS_MAX = 3 };

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
    // The I/O thread's own:
    int64_t pushed; // publications that the other stages were told of
    struct distribution distribution;
    struct arena arena; // of a message
    struct buf bulk;    // of an answer
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
    distribution_release(&(*server)->distribution);
    arena_release(&(*server)->arena);
    buf_release(&(*server)->bulk);
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

status weights_server_read(const char *path, const struct wire_message *request, struct wire_message *reply,
                           struct buf *bulk) {
    struct stat info;
    status result = OK;
    assert(request->kind == MESSAGE_FETCH);
    TRY(message_check_range(request));
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = "", .hash = request->hash};
    buf_clear(bulk);
    TRY(buf_reserve(bulk, (size_t)request->size));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0 || fstat(fd, &info)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    if (request->offset >= info.st_size)
        TRY_TO(result, done,
               fail(DATAERR, "FETCH: offset %lld of %lld bytes", (long long)request->offset, (long long)info.st_size));
    const ssize_t size = fd_pread(fd, bulk->data, (size_t)request->size, request->offset);
    if (size < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    bulk->size = (size_t)size;
    *reply = (struct wire_message){.kind = MESSAGE_CHUNK,
                                   .hash = request->hash,
                                   .offset = request->offset,
                                   .bulk = bulk->data,
                                   .bulk_size = bulk->size};
done:
    if (fd >= 0) close(fd);
    return result;
}

// The file with that hash, NULL: none. The lock is held.
static const char *weights_server_find(const struct weights_server *server, int64_t hash) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++) {
            const struct served_weights *entry = &server->versions[kind][i];
            if (entry->present && (int64_t)entry->hash == hash && *entry->path) return entry->path;
        }
    return NULL;
}

status weights_server_chunk(struct weights_server *server, const struct wire_message *request,
                            struct wire_message *reply, struct buf *bulk) {
    pthread_mutex_lock(&server->lock); // or the file might be written over meanwhile
    const char *path = weights_server_find(server, request->hash);
    status result = message_check_range(request);
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = "", .hash = request->hash};
    if (result == OK && path) result = weights_server_read(path, request, reply, bulk);
    pthread_mutex_unlock(&server->lock);
    return result;
}

// ---- the I/O thread ----

// Tells a stage which weights are the newest; NULL: every stage that follows them.
static status weights_server_send(struct weights_server *server, struct io_thread *io, struct wire_peer *peer) {
    status result = OK;
    for (int reference = 0; reference < 2 && result == OK; reference++) {
        struct wire_message message;
        bool known;
        result = weights_server_latest(server, reference, &message, &known, &server->arena);
        if (result == OK && known)
            result = peer ? io_thread_reply(io, peer, &message) : io_thread_push(io, "weights", &message);
    }
    arena_release(&server->arena);
    return result;
}

static status weights_server_reply(struct weights_server *server, struct io_thread *io, struct wire_peer *peer,
                                   const struct wire_message *fetch, enum distribution_verdict verdict,
                                   const struct wire_peer *giver) {
    struct wire_message reply;
    if (verdict == DISTRIBUTION_WAIT) return OK;
    if (verdict == DISTRIBUTION_ELSEWHERE) {
        reply = (struct wire_message){.kind = MESSAGE_ELSEWHERE,
                                      .hash = fetch->hash,
                                      .name = wire_peer_name(giver),
                                      .replica = wire_peer_replica(giver),
                                      .machine = wire_peer_machine(giver)};
        return io_thread_reply(io, peer, &reply);
    }
    TRY(weights_server_chunk(server, fetch, &reply, &server->bulk));
    if (reply.kind == MESSAGE_ABSENT) distribution_end(&server->distribution, peer);
    return io_thread_reply(io, peer, &reply);
}

static status weights_server_fetch(struct weights_server *server, struct io_thread *io, struct wire_peer *peer,
                                   const struct wire_message *fetch) {
    enum distribution_verdict verdict;
    struct wire_peer *giver;
    struct stat info = {0};
    TRY(message_check_range(fetch));
    pthread_mutex_lock(&server->lock);
    const char *path = weights_server_find(server, fetch->hash);
    const bool present = path && !stat(path, &info);
    pthread_mutex_unlock(&server->lock);
    if (!present || fetch->offset >= info.st_size) // ABSENT, or a mistake
        return weights_server_reply(server, io, peer, fetch, DISTRIBUTION_SERVE, NULL);
    TRY(distribution_fetch(&server->distribution, peer, fetch, info.st_size, io_thread_now_ms(io), &verdict, &giver));
    return weights_server_reply(server, io, peer, fetch, verdict, giver);
}

// Tells all stages that follow optim's weights when there are newer ones, before the I/O thread sends what the worker
// has said since. Answers those that need to wait no more.
static status weights_server_tick(struct weights_server *server, struct io_thread *io) {
    const int64_t publications = weights_server_publications(server);
    struct wire_message fetch;
    enum distribution_verdict verdict;
    struct wire_peer *peer, *giver;
    if (publications != server->pushed) {
        server->pushed = publications;
        TRY(weights_server_send(server, io, NULL));
    }
    while ((peer = distribution_next(&server->distribution, io_thread_now_ms(io), &fetch, &verdict, &giver)))
        TRY(weights_server_reply(server, io, peer, &fetch, verdict, giver));
    return OK;
}

status weights_server_event(struct weights_server *server, struct io_thread *io, const struct wire_event *event) {
    const struct wire_message *message = &event->message;
    switch (event->kind) {
    case WIRE_TIMEOUT:
        return weights_server_tick(server, io);
    case WIRE_JOINED:
        distribution_gone(&server->distribution, event->peer); // it begins anew
        return weights_server_send(server, io, event->peer);
    case WIRE_GONE:
        distribution_gone(&server->distribution, event->peer);
        return OK;
    default:
        if (message->kind == MESSAGE_FETCH) return weights_server_fetch(server, io, event->peer, message);
        assert(message->kind == MESSAGE_HAS_WEIGHTS);
        return distribution_has(&server->distribution, event->peer, message->hash);
    }
}
