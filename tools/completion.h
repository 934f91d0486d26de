// Completion of caravan's programs in bash, made from the tables of options.
#ifndef TOOLS_COMPLETION_H
#define TOOLS_COMPLETION_H

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Appends the completion script of bash for all programs. UNAVAILABLE.
status completion_bash(struct buf *out);

#endif
