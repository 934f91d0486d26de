#include "tools/run/run.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/base/clock.h"

status service_open(struct service *service) {
    const char *path = getenv("NOTIFY_SOCKET");
    const char *microseconds = getenv("WATCHDOG_USEC"), *process = getenv("WATCHDOG_PID");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *service = (struct service){.socket = -1};
    if (!path) return OK;
    const size_t size = strlen(path);
    if ((*path != '/' && *path != '@') || size >= sizeof address.sun_path)
        return fail(USAGE, "NOTIFY_SOCKET: %s is not the path of a socket", path);
    memcpy(address.sun_path, path, size);
    if (*path == '@') address.sun_path[0] = 0; // a name that is no file
    if (microseconds && (!process || strtol(process, NULL, 10) == getpid())) {
        char *end;
        errno = 0;
        const long long value = strtoll(microseconds, &end, 10);
        if (errno || *end || end == microseconds || value < 1)
            return fail(USAGE, "WATCHDOG_USEC: %s is not a number of microseconds", microseconds);
        service->watchdog_ms = value / 1000;
    }
    service->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (service->socket < 0 || connect(service->socket, (const struct sockaddr *)&address,
                                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)))
        return fail(UNAVAILABLE, "NOTIFY_SOCKET: %s: %s", path, strerror(errno));
    return OK;
}

void service_notify(const struct service *service, const char *state) {
    if (service->socket >= 0) (void)send(service->socket, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void service_alive(struct service *service) {
    const int64_t now = service->watchdog_ms ? clock_monotonic_ms() : 0;
    if (!service->watchdog_ms || now - service->alive_at < service->watchdog_ms / 2) return;
    service->alive_at = now;
    service_notify(service, "WATCHDOG=1");
}

void service_close(struct service *service) {
    if (service->socket >= 0) close(service->socket);
    service->socket = -1;
}
