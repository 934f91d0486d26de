// Lists of names with ranges of numbers, as Slurm writes the nodes of a job: "gpu[01-16,20],trainer".
#pragma once

#include <stdbool.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/config/options.h"

enum { MAX_NAMES = 4096 }; // names

// *out = the names that `text` stands for, in its order, all in the arena. Commas separate names, with spaces around
// them or not. A name may have ranges in brackets, each with one or more of NUMBER and FIRST-LAST; a number has at
// least as many digits as its range's first number, and the last brackets of a name count fastest. USAGE with what is
// wrong, also for more than MAX_NAMES names.
status name_list_expand(const char *text, struct arena *arena, struct string_list *out);

// ---- the devices that the option `device` names: one, or several for the replicas of a machine, "cuda:[0-3,6]" ----

// Whether the text names a list, with brackets. A process of its own has no place in one.
bool device_is_list(const char *text);

// Whether the text is a device or a list of GPUs.
bool device_is_valid(const char *text);

// *out = the device of a machine's replica with that slot, from 0: the one at that place of the list, which begins
// again at its end, or the device itself. In the arena. USAGE when the text is no device.
status device_of_slot(const char *text, int slot, struct arena *arena, const char **out);
