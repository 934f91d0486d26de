// The group's `times`: when each stage took it and gave it on, in seconds since 1970.
#ifndef SHARED_STAGE_TIMES_H
#define SHARED_STAGE_TIMES_H

#include "shared/group/group.h"

// Sets times[stage] = [taken, done]; what stands there of other stages is kept. UNAVAILABLE when memory is short.
status times_add(struct group *group, const char *stage, double taken, double done);

#endif
