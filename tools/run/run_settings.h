// The settings with which a run was started: RUN/pipeline.yaml, and those of each start with other ones.
#ifndef TOOLS_RUN_RUN_SETTINGS_H
#define TOOLS_RUN_RUN_SETTINGS_H

#include "shared/config/pipeline.h"

// Writes the pipeline as RUN/pipeline-N.yaml if it is not as at the last start, with version, commit and date in a
// comment, and lets the link RUN/pipeline.yaml refer to it. Says each key that has changed, and since which step.
// UNAVAILABLE.
status run_settings_write(const struct pipeline *pipeline);

#endif
