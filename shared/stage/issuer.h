// The source in a pipeline: issues groups in order, as many at once as max_staleness allows (without optim, as many as
// keep rollout busy), and records in the ledger what became of them. What is lost on the way is given again by the
// stage that still has it. All calls but open and close belong to the I/O thread.
#ifndef SHARED_STAGE_ISSUER_H
#define SHARED_STAGE_ISSUER_H

#include "shared/stage/io_thread.h"
#include "shared/stage/runner.h"

struct issuer;

// Opens RUN/ledger.lmdb for the source that `context` has open, which must outlive the issuer. DATAERR when the run was
// started with other data, UNAVAILABLE when the disk fails. Free with issuer_close.
status issuer_open(struct issuer **out, struct stage_context *context, const struct node_config *config);

// NULL is fine; sets *issuer to NULL.
void issuer_close(struct issuer **issuer);

// Hook: sends RUN_INFO to optim.
status issuer_joined(struct issuer *issuer, struct io_thread *io, struct wire_peer *peer);

// Hook: what the last stage and the supervisors send. DATAERR when it is about a group that does not exist.
status issuer_message(struct issuer *issuer, struct io_thread *io, const struct wire_message *message);

// Hook: issues what may be issued, and tells the supervisor when the run is finished.
status issuer_tick(struct issuer *issuer, struct io_thread *io);

// Hook: the source's counters; their strings are valid until the next call.
void issuer_report(struct issuer *issuer, struct message_status *counters);

#endif
