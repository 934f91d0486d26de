// Transport over ZeroMQ: the server socket is a ROUTER, each link a DEALER, both over "ipc://..." or "tcp://..." with
// CURVE if there is security.
#ifndef SHARED_WIRE_ZMQ_TRANSPORT_H
#define SHARED_WIRE_ZMQ_TRANSPORT_H

#include "shared/wire/security.h"
#include "shared/wire/transport.h"

// Opens a transport without sockets. `security` must outlive it; NULL: none. UNAVAILABLE when libzmq or memory fails.
// Give it to wire_open.
status zmq_transport_open(struct transport **out, const struct wire_security *security);

#endif
