// The Unix sockets of a process. The address of a Unix socket holds 107 bytes only; here a path may be as long as a
// path may be: its directory is opened, and the socket is named through /proc/self/fd. A socket whose file was removed,
// as cleaners of temporary files do, is made again.
#ifndef SHARED_WIRE_LOCAL_SOCKETS_H
#define SHARED_WIRE_LOCAL_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum {
    LOCAL_SOCKET_PATH_MAX = 107,                        // bytes of a path that fits the address of a Unix socket
    LOCAL_SOCKET_NAME_MAX = LOCAL_SOCKET_PATH_MAX - 25, // bytes of a file name that fits it in any directory
};

// A zeroed struct is empty.
struct local_sockets {
    struct arena arena;
    struct local_directory *directories; // those that are open
    size_t directory_count;
    const char **bound; // the endpoints to look after
    size_t bound_count;
    bool failed; // the last attempt to make a socket again, which was logged
};

// An endpoint for libzmq. `text` is valid as long as this struct and the endpoint that it was made of.
struct local_endpoint {
    const char *text;
    char shortened[LOCAL_SOCKET_PATH_MAX + 8];
};

// *out = an endpoint that means the same as `endpoint`. Only "ipc://PATH" with a long path is changed. UNAVAILABLE when
// the directory cannot be opened, USAGE when the file's name is too long.
status local_sockets_endpoint(struct local_sockets *sockets, const char *endpoint, struct local_endpoint *out);

// Looks after an endpoint that local_sockets_endpoint returned and that is bound now. It is copied.
void local_sockets_watch(struct local_sockets *sockets, const char *endpoint);

// Calls bind for each bound endpoint whose file is gone. bind returns whether it has succeeded.
void local_sockets_bind_again(struct local_sockets *sockets, bool (*bind)(void *context, const char *endpoint),
                              void *context);

// Closes the directories and leaves an empty struct. The sockets are closed already.
void local_sockets_release(struct local_sockets *sockets);

#endif
