#include "shared/stage/weights_server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"

enum { KEPT = 3, CHUNK_MOST = 8 << 20 };

struct item {
    bool present;
    int64_t version;
    uint64_t hash;
    char *path; // "" for the weights that the run began with
};

struct weights_server {
    pthread_mutex_t lock;
    struct item items[2][KEPT]; // policy's and reference's, the newest first
};

status weights_server_new(struct weights_server **out) {
    TRY(NEW(out, 1));
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

void weights_server_free(struct weights_server **server) {
    if (!*server) return;
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < KEPT; i++) free((*server)->items[kind][i].path);
    pthread_mutex_destroy(&(*server)->lock);
    free(*server);
    *server = NULL;
}

static bool in_use(const struct weights_server *server, const char *path) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < KEPT; i++)
            if (server->items[kind][i].present && !strcmp(server->items[kind][i].path, path)) return true;
    return false;
}

status weights_server_put(struct weights_server *server, const struct stage_weights *weights) {
    char *path = strdup(weights->path ? weights->path : "");
    if (!path) return fail_oom();
    pthread_mutex_lock(&server->lock);
    struct item *items = server->items[weights->reference], old = items[KEPT - 1];
    memmove(&items[1], &items[0], (KEPT - 1) * sizeof *items);
    items[0] = (struct item){.present = true, .version = weights->version, .hash = weights->hash, .path = path};
    // A file that is gone already is gone.
    if (old.present && *old.path && !in_use(server, old.path)) (void)unlink(old.path);
    pthread_mutex_unlock(&server->lock);
    free(old.path);
    return OK;
}

void weights_server_recycle(struct weights_server *server, bool reference, const char *path) {
    pthread_mutex_lock(&server->lock);
    struct item old = server->items[reference][KEPT - 1];
    server->items[reference][KEPT - 1] = (struct item){0};
    bool useful = old.present && *old.path && !in_use(server, old.path);
    if (useful && rename(old.path, path)) (void)unlink(old.path);
    pthread_mutex_unlock(&server->lock);
    free(old.path);
}

static status answer_newest(struct weights_server *server, const struct wire_message *request,
                            struct wire_message *reply, struct arena *arena) {
    const struct item *policy = &server->items[0][0], *item = &server->items[request->reference == 1][0];
    struct stat about = {0};
    if (!policy->present || !item->present) return OK;
    if (*item->path && stat(item->path, &about)) return fail(UNAVAILABLE, "%s: %s", item->path, strerror(errno));
    *reply = (struct wire_message){.kind = MESSAGE_WEIGHTS,
                                   .reference = request->reference,
                                   .policy = policy->version,
                                   .version = item->version,
                                   .hash = (int64_t)item->hash,
                                   .size = about.st_size,
                                   .path = arena_strndup(arena, item->path, strlen(item->path))};
    return reply->path ? OK : fail_oom();
}

static status read_piece(const char *path, const struct wire_message *request, struct buf *bulk) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    size_t size = request->size > 0 && request->size < CHUNK_MOST ? (size_t)request->size : CHUNK_MOST;
    status result = buf_reserve(bulk, size);
    ssize_t got = result == OK ? fd_pread(fd, bulk->data, size, request->offset) : 0;
    if (got < 0) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result == OK) bulk->size = (size_t)got;
    close(fd);
    return result;
}

static status answer_fetch(struct weights_server *server, const struct wire_message *request,
                           struct wire_message *reply, struct buf *bulk) {
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < KEPT; i++) {
            const struct item *item = &server->items[kind][i];
            if (!item->present || (int64_t)item->hash != request->hash || !*item->path) continue;
            buf_clear(bulk);
            TRY(read_piece(item->path, request, bulk));
            *reply = (struct wire_message){.kind = MESSAGE_CHUNK,
                                           .hash = request->hash,
                                           .offset = request->offset,
                                           .bulk = bulk->data,
                                           .bulk_size = bulk->size};
            return OK;
        }
    }
    return OK;
}

status weights_server_answer(struct weights_server *server, const struct wire_message *request,
                             struct wire_message *reply, struct arena *arena, struct buf *bulk) {
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = ""};
    pthread_mutex_lock(&server->lock);
    status result = request->kind == MESSAGE_GET_WEIGHTS ? answer_newest(server, request, reply, arena)
                                                         : answer_fetch(server, request, reply, bulk);
    pthread_mutex_unlock(&server->lock);
    return result;
}
