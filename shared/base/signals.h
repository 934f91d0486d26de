// SIGTERM and SIGINT ask to stop, however often they come: a service manager and the supervisor may both send one while
// optim writes its checkpoint. Only SIGKILL ends the program at once. SIGPIPE is ignored: writers see EPIPE.
#ifndef SHARED_BASE_SIGNALS_H
#define SHARED_BASE_SIGNALS_H

#include <stdbool.h>

#include "shared/base/status.h"

// Installs the handlers; called once. UNAVAILABLE when there is no pipe for signals_fd.
status signals_open(void);

// Whether the program was asked to stop.
bool signals_stopping(void);

// Readable from the moment on that the program is asked to stop, for poll().
int signals_fd(void);

#endif
