// The zap: answers libzmq's question whether a machine may come in (ZAP, RFC 27), in a thread of its own.
#ifndef SHARED_WIRE_ZAP_H
#define SHARED_WIRE_ZAP_H

#include "shared/base/status.h"
#include "shared/wire/security.h"

struct zap;

// Opens the zap of a libzmq context for the machines that `security` admits; it must outlive the zap. UNAVAILABLE
// when there is no thread or socket for it.
status zap_open(struct zap **out, void *zmq_context, const struct wire_security *security);

// Ends the thread; before the context ends. NULL is fine; sets *zap to NULL.
void zap_close(struct zap **zap);

#endif
