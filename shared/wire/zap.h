// Answers libzmq's question whether a client may connect (ZAP, RFC 27), in a thread of its own.
#ifndef SHARED_WIRE_ZAP_H
#define SHARED_WIRE_ZAP_H

#include "shared/base/status.h"
#include "shared/wire/security.h"

struct zap;

// Starts the handler of a libzmq context, which admits the keys in `security`; that must outlive it. UNAVAILABLE when
// there is no thread or socket for it. Free with zap_close, before the context ends.
status zap_open(struct zap **out, void *zmq_context, const struct wire_security *security);

// Ends the thread. NULL is fine; sets *zap to NULL.
void zap_close(struct zap **zap);

#endif
