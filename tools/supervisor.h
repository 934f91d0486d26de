// The life of a run on one machine: starts the processes, shows how it goes, restarts what dies, has lost groups issued
// again, and stops everything at the end.
#ifndef TOOLS_SUPERVISOR_H
#define TOOLS_SUPERVISOR_H

#include "tools/deployment.h"

// Runs this machine's part until the source reports that all groups are done, another machine ends the run, or a signal
// stops it, which returns END. USAGE, DATAERR, UNAVAILABLE or BUG: the run failed; fail_text() says why. No process of
// the run is left in any case.
status supervisor_run(struct deployment *deployment);

#endif
