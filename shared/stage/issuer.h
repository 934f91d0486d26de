// The source in a pipeline: issues groups in order, as many at once as staleness allows, keeps the ledger of what
// became of them, and issues again what may have been lost. Lives in the I/O thread.
#ifndef SHARED_STAGE_ISSUER_H
#define SHARED_STAGE_ISSUER_H

#include "shared/stage/io_thread.h"
#include "shared/stage/runner.h"

struct issuer;

// Opens RUN/ledger.lmdb for the source that `context` has open. DATAERR when the run was begun with other data.
status issuer_open(struct issuer **out, struct stage_context *context, const struct node_config *config);

// NULL is fine; sets *issuer to NULL.
void issuer_close(struct issuer **issuer);

// Where groups are to be put: before the I/O thread runs the hooks below.
void issuer_connect(struct issuer *issuer, struct io_thread **io);

// The I/O thread's hooks.
status issuer_joined(struct issuer *issuer, struct wire *wire, struct wire_peer *peer);

// What optim and the supervisors have to say.
status issuer_said(struct issuer *issuer, struct wire *wire, struct wire_peer *peer,
                   const struct wire_message *message);

// Issues what may be issued.
status issuer_tick(struct issuer *issuer, struct wire *wire);

// The source's counters.
void issuer_report(struct issuer *issuer, struct message_status *status);

#endif
