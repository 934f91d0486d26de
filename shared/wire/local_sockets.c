#include "shared/wire/local_sockets.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/base/log.h"

#define LOCAL_PREFIX "ipc://"

static_assert(LOCAL_SOCKET_PATH_MAX == sizeof((struct sockaddr_un *)0)->sun_path - 1, "the address of a Unix socket");
static_assert(sizeof "/proc/self/fd/2147483647/" - 1 <= LOCAL_SOCKET_PATH_MAX - LOCAL_SOCKET_NAME_MAX, "any directory");

struct local_directory {
    const char *path;
    int fd;
};

// *fd = the directory [path, end), which stays open until the release.
static status local_sockets_open_directory(struct local_sockets *sockets, const char *path, const char *end, int *fd) {
    const size_t size = (size_t)(end - path);
    for (size_t i = 0; i < sockets->directory_count; i++) {
        const struct local_directory *known = &sockets->directories[i];
        *fd = known->fd;
        if (!strncmp(known->path, path, size) && !known->path[size]) return OK;
    }
    const char *copy = arena_strndup(&sockets->arena, path, size);
    RESIZE(&sockets->directories, sockets->directory_count + 1);
    *fd = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return fail(UNAVAILABLE, "%s: %s", copy, strerror(errno));
    sockets->directories[sockets->directory_count++] = (struct local_directory){copy, *fd};
    return OK;
}

status local_sockets_endpoint(struct local_sockets *sockets, const char *endpoint, struct local_endpoint *out) {
    const size_t prefix = strlen(LOCAL_PREFIX);
    const char *path = endpoint + prefix, *slash = strrchr(endpoint, '/');
    int fd = -1;
    out->text = endpoint;
    if (strncmp(endpoint, LOCAL_PREFIX, prefix) != 0 || strlen(path) <= LOCAL_SOCKET_PATH_MAX) return OK;
    if (strlen(slash + 1) > LOCAL_SOCKET_NAME_MAX) return fail(USAGE, "%s: the name is too long for a socket", path);
    TRY(local_sockets_open_directory(sockets, path, slash, &fd));
    snprintf(out->shortened, sizeof out->shortened, LOCAL_PREFIX "/proc/self/fd/%d/%s", fd, slash + 1);
    out->text = out->shortened;
    return OK;
}

void local_sockets_watch(struct local_sockets *sockets, const char *endpoint) {
    if (strncmp(endpoint, LOCAL_PREFIX, strlen(LOCAL_PREFIX)) != 0) return;
    const char *copy = arena_strndup(&sockets->arena, endpoint, strlen(endpoint));
    RESIZE(&sockets->bound, sockets->bound_count + 1);
    sockets->bound[sockets->bound_count++] = copy;
}

void local_sockets_bind_again(struct local_sockets *sockets, bool (*bind)(void *context, const char *endpoint),
                              void *context) {
    for (size_t i = 0; i < sockets->bound_count; i++) {
        const char *path = sockets->bound[i] + strlen(LOCAL_PREFIX);
        if (!access(path, F_OK)) continue;
        const bool made = bind(context, sockets->bound[i]);
        if (made)
            log_info("%s was removed and is made again", path);
        else if (!sockets->failed)
            log_info("%s was removed and cannot be made again: %s", path, strerror(errno));
        sockets->failed = !made;
    }
}

void local_sockets_release(struct local_sockets *sockets) {
    for (size_t i = 0; i < sockets->directory_count; i++) close(sockets->directories[i].fd);
    free(sockets->directories);
    free(sockets->bound);
    arena_release(&sockets->arena);
    *sockets = (struct local_sockets){0};
}
