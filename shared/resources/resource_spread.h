// Where the processes of a pipeline go on machines with several GPUs.
#ifndef SHARED_RESOURCES_RESOURCE_SPREAD_H
#define SHARED_RESOURCES_RESOURCE_SPREAD_H

#include "shared/resources/resource_plan.h"

// Gives each replica of the pipeline's stages one of `gpus` GPUs of its machine, so that the largest sum is small: sets
// the stages' `device`. GPUs that are left get replicas of rollout, if there is one: sets its replicas. No process is
// divided. *placed = whether anything was set: stages that name GPUs already stay where they are. USAGE when one of
// these is not among the `gpus`; DATAERR as in planned_stage_needs. The plan is of the pipeline before.
status resource_spread(const struct resource_plan *plan, struct pipeline *pipeline, int gpus, bool *placed);

#endif
