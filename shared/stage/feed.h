// The source in a pipeline: issues groups in order, as many at once as staleness allows, keeps the ledger of what
// became of them, and issues again what may have been lost. Lives in the hub's thread.
#ifndef SHARED_STAGE_FEED_H
#define SHARED_STAGE_FEED_H

#include "shared/stage/hub.h"
#include "shared/stage/runner.h"

typedef struct feed feed;

// Opens RUN/ledger.lmdb for the source that `context` has open. INPUT when the run was begun with other data.
status feed_open(feed **out, stage_context *context, const wiring *wiring);

// NULL is fine; sets *feed to NULL.
void feed_close(feed **feed);

// Where groups are to be put: before the hub's thread runs the hooks below.
void feed_connect(feed *feed, hub **hub);

// The hub's hooks.
status feed_joined(feed *feed, wire *wire, wire_peer *peer);

// What optim and the supervisors have to say.
status feed_said(feed *feed, wire *wire, wire_peer *peer, const wire_message *message);

// Issues what may be issued.
status feed_tick(feed *feed, wire *wire);

// The source's counters.
void feed_report(feed *feed, message_status *status);

#endif
