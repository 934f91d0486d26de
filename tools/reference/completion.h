// Completion of caravan's programs in shells, made from the tables of options.
#ifndef TOOLS_REFERENCE_COMPLETION_H
#define TOOLS_REFERENCE_COMPLETION_H

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Appends the completion script of bash for all programs. UNAVAILABLE.
status completion_bash(struct buf *out);

// The same for zsh: the file _caravan. UNAVAILABLE.
status completion_zsh(struct buf *out);

// The same for fish. It is looked for under the name of each program. UNAVAILABLE.
status completion_fish(struct buf *out);

#endif
