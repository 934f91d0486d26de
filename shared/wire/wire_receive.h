// The receiving side of a wire; for wire.c only.
#ifndef SHARED_WIRE_WIRE_RECEIVE_H
#define SHARED_WIRE_WIRE_RECEIVE_H

#include "shared/base/status.h"
#include "shared/wire/transport.h"
#include "shared/wire/wire_peers.h"

// Fills in an event that has not happened yet.
void wire_set_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer);

// Handles an event of the transport and answers it; *event, zeroed before, is set if the caller of wire_poll is to
// know. UNAVAILABLE when the sockets fail.
status wire_on_transport_event(struct wire *wire, const struct transport_event *from, struct wire_event *event);

#endif
