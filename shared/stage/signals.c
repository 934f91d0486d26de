#include "shared/stage/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stopping;
static int ends[2] = {-1, -1};

static void on_stop(int number) {
    (void)number;
    int kept = errno;
    stopping = 1;
    ssize_t put = write(ends[1], "", 1); // one byte into an empty pipe cannot fail
    (void)put;
    errno = kept;
}

status signals_open(void) {
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGTERM, &stop, NULL) || sigaction(SIGINT, &stop, NULL) || sigaction(SIGPIPE, &ignore, NULL))
        return fail(BUG, "sigaction: %s", strerror(errno));
    return OK;
}

bool signals_stopping(void) {
    return stopping != 0;
}

int signals_fd(void) {
    return ends[0];
}
