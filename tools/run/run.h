// The parts of `caravan run` behind run.c: the settings of a run, its life on one machine, and what a service manager
// hears.
#pragma once

#include <stdint.h>

#include "tools/deployment.h"

// Writes the pipeline as RUN/pipeline-N.yaml if it is not as at the last start, with version, commit and date in a
// comment, and lets the link RUN/pipeline.yaml refer to it. Says each key that has changed, and since which step.
// UNAVAILABLE.
status run_settings_write(const struct pipeline *pipeline);

// Starts this machine's processes, shows how the run goes, restarts what dies, and stops everything at the end. `lock`
// is the open file whose lock says that this machine's run is in the directory: the run ends if it is removed. Returns
// when the source reports that all groups are done, another machine ends the run, or somebody stops it, which returns
// STOPPED. USAGE, DATAERR, UNAVAILABLE or BUG: the run failed. The terminal was told why, unless fail_text() says it.
// No process of the run is left in any case.
status supervisor_run(struct deployment *deployment, int lock);

// ---- service.c ----
//
// What a program tells the service manager that started it with Type=notify: that it is ready, alive, and stopping.
// systemd's protocol: datagrams to the Unix socket that NOTIFY_SOCKET names. Without a manager nothing is sent.

struct service {
    int socket;          // connected to the manager's, -1: there is no manager
    int64_t watchdog_ms; // the manager must hear from us this often, 0: need not
    int64_t alive_at;    // clock_monotonic_ms() when it last did
};

// Connects to the manager, if there is one. USAGE when NOTIFY_SOCKET or WATCHDOG_USEC is malformed, UNAVAILABLE when
// there is no such socket. Close it with service_close, also after a failure.
status service_open(struct service *service);

// Sends "READY=1", "STOPPING=1" and the like. A manager that is gone gets nothing.
void service_notify(const struct service *service, const char *state);

// Sends "WATCHDOG=1" if half of the watchdog's time has passed since the last one. Call it often.
void service_alive(struct service *service);

// Closes the connection.
void service_close(struct service *service);
