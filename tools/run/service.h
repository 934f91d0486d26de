// What a program tells the service manager that started it with Type=notify: that it is ready, alive, and stopping.
// systemd's protocol: datagrams to the Unix socket that NOTIFY_SOCKET names. Without a manager nothing is sent.
#pragma once

#include <stdint.h>

#include "shared/base/status.h"

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
