// The life of a run on one machine: starts the replicas, hears what they say, starts again what dies, has lost groups
// issued again, tells a person how it goes, and ends it.
#ifndef TOOLS_SUPERVISOR_H
#define TOOLS_SUPERVISOR_H

#include "tools/deployment.h"

// Runs this machine's part until the source says that all is done, another machine says that it is over, or the person
// stops it (which answers END). Whatever made it impossible otherwise; nothing runs any more in any case.
status supervisor_run(struct deployment *deployment);

#endif
