// The life of a run on one machine: starts the processes, shows how it goes, restarts what dies, and stops everything
// at the end.
#ifndef TOOLS_RUN_SUPERVISOR_H
#define TOOLS_RUN_SUPERVISOR_H

#include "tools/deployment.h"

// Runs this machine's part until the source reports that all groups are done, another machine ends the run, or somebody
// stops it, which returns STOPPED. USAGE, DATAERR, UNAVAILABLE or BUG: the run failed. The terminal was told why,
// unless fail_text() says it. No process of the run is left in any case.
status supervisor_run(struct deployment *deployment);

#endif
