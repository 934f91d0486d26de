// The other machines of a run, as a supervisor sees them: which of them are there, for how long one has been away, and
// which of them know that the run has ended.
#ifndef TOOLS_RUN_MACHINES_H
#define TOOLS_RUN_MACHINES_H

#include <stdbool.h>

#include "shared/wire/wire.h"
#include "tools/deployment.h"

struct machine {
    const char *name, *address;
    struct wire_peer *peer; // connection to its supervisor
    double away_since;      // clock_monotonic() since when it is not there; 0: it is there
    bool joined;            // it has been there
    bool stopped;           // its supervisor has said goodbye
    bool ended;             // its supervisor has said that the run has ended
};

struct machines {
    struct machine *list;
    size_t count;
};

// Connects to the supervisors of all machines but deployment->here. UNAVAILABLE. Release with machines_release, after
// a failure too.
status machines_connect(struct machines *machines, struct wire *wire, const struct deployment *deployment, double now);

// Frees what it holds; the connections are the wire's.
void machines_release(struct machines *machines);

// Returns the machine of that name, NULL if there is none.
struct machine *machines_find(struct machines *machines, const char *name);

// Notes which machines are there at `now`. Call it often.
void machines_update(struct machines *machines, double now);

// Appends the machines that are not there, as "gpu1 (10.0.0.2), gpu2 (10.0.0.3)".
void machines_missing(const struct machines *machines, struct buf *out);

// Returns the first machine that has been away for `seconds` at `now`, NULL if there is none.
const struct machine *machines_away(const struct machines *machines, double now, double seconds);

// Returns the first machine that neither knows that the run has ended nor has stopped, of those that have been there
// or, with `all`, of all; NULL: none.
const struct machine *machines_unaware(const struct machines *machines, bool all);

#endif
