// The two parts of `caravan run` behind run.c: the settings of a run, and its life on one machine.
#pragma once

#include "tools/deployment.h"

// Writes the pipeline as RUN/pipeline-N.yaml if it is not as at the last start, with version, commit and date in a
// comment, and lets the link RUN/pipeline.yaml refer to it. Says each key that has changed, and since which step.
// UNAVAILABLE.
status run_settings_write(const struct pipeline *pipeline);

// Starts this machine's processes, shows how the run goes, restarts what dies, and stops everything at the end. Returns
// when the source reports that all groups are done, another machine ends the run, or somebody stops it, which returns
// STOPPED. USAGE, DATAERR, UNAVAILABLE or BUG: the run failed. The terminal was told why, unless fail_text() says it.
// No process of the run is left in any case.
status supervisor_run(struct deployment *deployment);
