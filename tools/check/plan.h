// What caravan plan prints beside the sums: what to change where a pipeline does not fit.
#ifndef TOOLS_CHECK_PLAN_H
#define TOOLS_CHECK_PLAN_H

#include "shared/base/memory.h"
#include "shared/resources/resource_plan.h"

// Prints what each change alone would save on a GPU of a machine, which has `capacity` bytes and needs `total`. If
// `fitting` is empty, it gets the first change after which the stages fit. DATAERR as in planned_stage_needs.
status plan_print_advice(const struct resource_plan *plan, const char *device, int machine, uint64_t capacity,
                         uint64_t total, struct buf *fitting);

#endif
