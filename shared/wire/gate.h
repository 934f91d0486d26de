// The gate: answers libzmq's question whether a machine may come in (ZAP, RFC 27), in a thread of its own.
#ifndef SHARED_WIRE_GATE_H
#define SHARED_WIRE_GATE_H

#include "shared/base/status.h"
#include "shared/wire/security.h"

struct gate;

// Opens the gate of a libzmq context for the machines that `security` admits; it must outlive the gate. UNAVAILABLE
// when there is no thread or socket for it.
status gate_open(struct gate **out, void *zmq_context, const struct wire_security *security);

// Ends the thread; before the context ends. NULL is fine; sets *gate to NULL.
void gate_close(struct gate **gate);

#endif
