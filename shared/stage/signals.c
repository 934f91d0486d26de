#include "shared/stage/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t signals_stop;
static int signals_pipe[2] = {-1, -1};

static void signals_on_stop(int number) {
    (void)number;
    int saved_errno = errno;
    signals_stop = 1;
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
    return signals_stop != 0;
}

int signals_fd(void) {
    return signals_pipe[0];
}
