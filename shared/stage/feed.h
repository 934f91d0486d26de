// The source in a pipeline: issues groups in order, as many at once as staleness allows, keeps the ledger of what
// became of them, and issues again what may have been lost. Lives in the hub's thread.
#ifndef SHARED_STAGE_FEED_H
#define SHARED_STAGE_FEED_H

#include "shared/stage/hub.h"
#include "shared/stage/runner.h"

struct feed;

// Opens RUN/ledger.lmdb for the source that `context` has open. DATAERR when the run was begun with other data.
status feed_open(struct feed **out, struct stage_context *context, const struct node_config *config);

// NULL is fine; sets *feed to NULL.
void feed_close(struct feed **feed);

// Where groups are to be put: before the hub's thread runs the hooks below.
void feed_connect(struct feed *feed, struct hub **hub);

// The hub's hooks.
status feed_joined(struct feed *feed, struct wire *wire, struct wire_peer *peer);

// What optim and the supervisors have to say.
status feed_said(struct feed *feed, struct wire *wire, struct wire_peer *peer, const struct wire_message *message);

// Issues what may be issued.
status feed_tick(struct feed *feed, struct wire *wire);

// The source's counters.
void feed_report(struct feed *feed, struct message_status *status);

#endif
