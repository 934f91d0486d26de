#include "shared/base/signals.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

// Any thread may run the handler, so this is atomic, not only volatile.
static atomic_int signals_stop;
static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler may set it");
static int signals_pipe[2] = {-1, -1};

static void signals_on_stop(int number) {
    (void)number;
    int saved_errno = errno;
    atomic_store(&signals_stop, 1);
    ssize_t size = write(signals_pipe[1], "", 1); // a full pipe is readable, too
    (void)size;
    errno = saved_errno;
}

status signals_open(void) {
    if (pipe2(signals_pipe, O_CLOEXEC | O_NONBLOCK)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    struct sigaction stop = {.sa_handler = signals_on_stop};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGTERM, &stop, NULL) || sigaction(SIGINT, &stop, NULL) || sigaction(SIGPIPE, &ignore, NULL))
        return fail(BUG, "sigaction: %s", strerror(errno));
    return OK;
}

bool signals_stopping(void) {
    return atomic_load(&signals_stop) != 0;
}

int signals_fd(void) {
    return signals_pipe[0];
}
