// In a run without optim: what became of the groups, as the last stage has told the source, until the source has
// recorded it. The source may be restarted before it has, and asks nobody.
#ifndef SHARED_STAGE_OUTCOMES_H
#define SHARED_STAGE_OUTCOMES_H

#include "shared/stage/io_thread.h"

struct outcomes;

// Makes an empty list. Free with outcomes_free.
void outcomes_new(struct outcomes **out);

// NULL is fine; sets *outcomes to NULL.
void outcomes_free(struct outcomes **outcomes);

// The worker: tells the source that the run is done with a group, quarantined or not.
status outcomes_tell(struct outcomes *outcomes, struct io_thread *io, const struct group *group);

// The I/O thread: tells the source again, which has joined; `peer` is its connection. UNAVAILABLE when the sockets
// fail.
status outcomes_tell_again(struct outcomes *outcomes, struct io_thread *io, struct wire_peer *peer);

#endif
